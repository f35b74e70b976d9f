"""How much longer loads take than profiled, learned from reports as batches' times are (`drift`).

What is learned is a level per slot, of the loads of all models together: few models are loaded
often. A report says

    copies run beside execution    from the load's order to the report that all is there
    else                           from there to the report that the first batch has run, less what
                                   it takes in memory: the slot's way there and back counts once

and its ratio to what the profile says moves the level by the tests of `drift`, in units of the
spread that the profile has of loads. Where reports scatter more than that, a quarter of the excess
widens the slack, too. What refuses every start observes none: where a request is refused and no
load was reported for FADE_US, the level goes back to the profile by a quarter per FADE_US.
"""

from headrace.compilation.loops import hot, kernel
from headrace.dispatch.kernel.drift import (
    FADE_US,
    MOST,
    OVERRUN,
    OVERRUN_US,
    begin_anew,
    level_after,
    within_bounds,
)
from headrace.dispatch.kernel.layout import ONE, SHIFT, State


@hot
def load_us(s: State, slot: int, model: int) -> int:
    """What its copies take."""
    return s.starts[model].load_us * s.slots[slot].load_level >> SHIFT


@hot
def late_us(s: State, slot: int, model: int) -> int:
    """How much later than profiled the last of its copies is there."""
    return load_us(s, slot, model) - s.starts[model].load_us


@hot
def beside_us(s: State, slot: int, model: int) -> int:
    """What a start takes more than a batch in memory where the slot waits for all copies."""
    return _beside_us(s, model) * s.slots[slot].load_level >> SHIFT


@hot
def _beside_us(s: State, model: int) -> int:
    mine = s.starts[model]
    return mine.more_us + max(0, mine.last_us - mine.exec_us)


@hot
def load_slack_us(s: State, slot: int, model: int) -> int:
    """How much later than by medians a start may end."""
    mine, level = s.starts[model], s.slots[slot].load_level
    width = min(MOST >> 2, (2 * s.learned_loads[slot].scatter << SHIFT) // mine.load_spread)
    return mine.slack_us * max(ONE, level + (max(0, width - level) >> 2)) >> SHIFT


@kernel
def observe_copies(s: State, slot: int, model: int, took_us: int, now_us: int) -> None:
    """All that a start brings is there."""
    _observe(s, slot, model, s.starts[model].load_us, took_us, now_us)


@kernel
def observe_first(s: State, slot: int, model: int, took_us: int, now_us: int) -> None:
    """The first batch has run; `took_us` more than it takes in memory."""
    _observe(s, slot, model, _beside_us(s, model), max(0, took_us), now_us)


@kernel
def _observe(s: State, slot: int, model: int, profiled_us: int, took_us: int, now_us: int) -> None:
    if profiled_us <= 0 or took_us > OVERRUN * profiled_us + OVERRUN_US:
        return
    mine, here, spread = s.learned_loads[slot], s.slots[slot], s.starts[model].load_spread
    mine.reported_at = now_us
    mine.reports += 1
    found = level_after(mine, here.load_level, spread, min(MOST, (took_us << SHIFT) // profiled_us))
    if found:
        begin_anew(mine)
        here.load_level = within_bounds(found, spread)


@kernel
def fade_loads(s: State, model: int, now_us: int) -> None:
    """A request of a model that is absent is refused."""
    for slot in range(s.world[0].slots):
        mine, here = s.learned_loads[slot], s.slots[slot]
        if here.load_level == ONE and mine.scatter == 0:
            continue
        periods = min(16, (now_us - mine.reported_at) // FADE_US)
        if periods <= 0 or here.running >= 0:
            continue
        spread = s.starts[model].load_spread
        for _ in range(periods):
            here.load_level = within_bounds(
                here.load_level + ((ONE - here.load_level) >> 2), spread
            )
            mine.scatter = mine.scatter * 3 >> 2
        begin_anew(mine)
        mine.reported_at = now_us


@kernel
def forget_loads(s: State, slot: int, now_us: int) -> None:
    """Another worker is on the slot: what the others' take is the best guess."""
    mine, slots, total = s.learned_loads[slot], s.world[0].slots, 0
    for other in range(slots):
        total += s.slots[other].load_level
    begin_anew(mine)
    mine.reported_at, mine.reports = now_us, 0
    s.slots[slot].load_level = total // slots
