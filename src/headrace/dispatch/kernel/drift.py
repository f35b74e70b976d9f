"""Times that follow reality: how much longer batches take than profiled, learned from reports.

A report says what the dispatcher sees of a batch on a slot: from the order to start it to the
arrival of the report that it ran, so that the way there and back, and whatever else runs on that
core, are part of it. A predicted time is median x *level* (`predicted_us`). There is a level per
*place* (a slot of a stage's pool), 1 at first, and it moves when Page's test (1954) says that the
ratios r = observed / median are about another value than the level:

    up    = max(0, up + min(r - level - a, c))          alarm: up > h
    down  = max(0, down + min(level - r - a, c))        alarm: down > h
    level = mean of the ratios since the sum was last 0, which is where the change most probably
            was; upwards without the largest of them, so that no single batch moves a level

in units u = level x spread of the stage, with a = u / 4, h = 5 u, c = 3 u, and spread = p99 / p50
- 1 but at least 1/32; or u = 2 x *scatter* of the place where that is more: the mean of min(|r -
level|, c) over some 64 reports. So where times waver more than profiled, a level stays among them
instead of following each of them. Downwards u is that of level 1 where that is less: the way back
from a level that a stall has taught takes half as many reports.

Under the profile's own log-normal jitter there is a false alarm upwards in a million
batches, or fewer, whatever the spread; where that is 0.15, batches that take 1.1 times as long are
known after twelve, 1.3 times after three or four, and twice after two. Levels stay within 1/2 and
32. A batch that takes longer than OVERRUN times its median and OVERRUN_US says something about its
input, or about a worker that hangs, and nothing about the next batch: it does not count.

An alarm comes after a handful of reports, and what those say on average may be off by almost a,
which the test never sees. So a level other than 1 is held against the mean of each MEAN_OF reports
in a row, every one within c of it, and becomes that mean where it is half the scatter away.

What levels leave open (jitter that adds up over a queue, an error below a, transfers) shows where
batches end after their deadline that were sent as being in time. Per route Page's test again, on
whether they are late: 1 - 1/16 is added for one that is, and -1/16 for one that is not. Above 2.75
`late_us` of the route grows by the most that one was late since the sum was 0; with each batch in
time it shrinks by 1/512. A route's slack is the profile's, times its largest level, plus
`late_us`; where stages scatter more than profiled, a quarter of that excess comes on top.
Batches that a lost slot or a more urgent one has held up do not count.

Nothing that is refused is ever observed, nor a slot that seems so slow that batches go to others of
its pool. Where a request of a model is to be dropped, what was learned of a place goes back to the
profile by a quarter for each period in which its stage has run nothing there: of FADE_SLOS of its
objectives (FADE_US at most) while the slot idles, of FADE_US while it runs other stages' batches.
So a model that waits for its turn among others keeps what it knows.

All in integers, the same compiled, uncompiled, simulated and live. With reports that say what the
profile says, levels stay exactly 1. Per report O(1); O(pool + sizes) when a level changes. Reads
cost a multiplication.
"""

from typing import Any

from headrace.compilation.loops import hot, kernel
from headrace.dispatch.kernel.layout import NEVER_US, ONE, SHIFT, State

MOST, LEAST = 32 * ONE, ONE // 2
LATE, LATE_ALARM = 15, 44
"""Sixteenths: of a batch that is late; one in time counts -1."""
MEAN_OF = 64
"""Reports, about three standard errors of whose mean are half their scatter."""
FADE_US, FADE_SLOS = 500_000, 8
"""Two batches that are late raise a level again: what tries cost in vain is little of a period."""
OVERRUN, OVERRUN_US = 10, 500_000
"""A batch that takes longer than OVERRUN times what was planned and OVERRUN_US does others harm."""


# -- reading --------------------------------------------------------------------------------------


@hot
def predicted_us(s: State, stage: int, place: int, size: int) -> int:
    """Median of a batch of `size` on the slot at that place of the stage's pool."""
    return s.p50_us[stage * s.world[0].size_max + size - 1] * s.level[place] >> SHIFT


@hot
def of_stage_us(s: State, stage: int, size: int) -> int:
    """As `predicted_us`, where the slot is not known yet."""
    return s.p50_us[stage * s.world[0].size_max + size - 1] * s.stages[stage].level >> SHIFT


@hot
def slack_us(s: State, route: int, size: int) -> int:
    """How much later than by medians a batch may end."""
    return s.slack_us[route * s.world[0].size_max + size - 1] + s.routes[route].late_us


# -- levels ---------------------------------------------------------------------------------------


@kernel
def observe(s: State, stage: int, place: int, size: int, took_us: int, now_us: int) -> None:
    """A batch ran at that place of the stage's pool."""
    median_us = max(1, s.p50_us[stage * s.world[0].size_max + size - 1])
    if took_us > OVERRUN * median_us + OVERRUN_US:
        return
    ratio = min(MOST, (took_us << SHIFT) // median_us)
    table, mine = s.stages[stage], s.learned[place]
    mine.reported_at = now_us
    mine.reports += 1
    before = mine.scatter
    found = level_after(mine, s.level[place], table.spread, ratio)
    table.scatter += mine.scatter - before
    _scale_slack(s, table.route)
    if found:
        set_level(s, stage, place, found, now_us)


@kernel
def level_after(mine: Any, level: int, spread: int, ratio: int) -> int:
    """What the level is after a report, and the scatter in `mine`; 0: as it was.

    Args:
        mine: a row of LEARNED.
    """
    off = ratio - level
    unit = _unit(level, spread, mine.scatter)
    mine.scatter += (min(abs(off), 3 * unit) - mine.scatter) >> 6
    unit = _unit(level, spread, mine.scatter)
    mine.mean_total += level + max(-3 * unit, min(3 * unit, off))
    mine.mean_count += 1
    if mine.mean_count == MEAN_OF:
        mean = mine.mean_total // MEAN_OF
        mine.mean_total = mine.mean_count = 0
        if level != ONE and abs(mean - level) > max(mine.scatter >> 1, level >> 6):
            return max(1, mean)
    mine.up = max(0, mine.up + min(off - (unit >> 2), 3 * unit))
    back = min(unit, max(spread, 2 * mine.scatter))
    mine.down = max(0, mine.down + min(-off - (back >> 2), 3 * back))
    if mine.up:
        mine.up_total += ratio
        mine.up_most = max(mine.up_most, ratio)
        mine.up_count += 1
        if mine.up > 5 * unit:
            return (mine.up_total - mine.up_most) // (mine.up_count - 1)
    else:
        mine.up_total = mine.up_most = mine.up_count = 0
    if mine.down:
        mine.down_total += ratio
        mine.down_count += 1
        if mine.down > 5 * back:
            return max(1, mine.down_total // mine.down_count)
    else:
        mine.down_total = mine.down_count = 0
    return 0


@hot
def _unit(level: int, spread: int, scatter: int) -> int:
    return max(level * spread >> SHIFT, 2 * scatter)


@hot
def _set_scatter(s: State, stage: int, place: int, scatter: int) -> None:
    s.stages[stage].scatter += scatter - s.learned[place].scatter
    s.learned[place].scatter = scatter


@hot
def within_bounds(level: int, spread: int) -> int:
    """A level that is about 1 is 1."""
    level = max(LEAST, min(MOST, level))
    return ONE if abs(level - ONE) <= spread >> 2 else level


@kernel
def begin_anew(mine: Any) -> None:
    """Another level holds: the tests begin anew."""
    mine.up = mine.up_total = mine.up_most = mine.up_count = 0
    mine.down = mine.down_total = mine.down_count = 0
    mine.mean_total = mine.mean_count = 0


@kernel
def set_level(s: State, stage: int, place: int, level: int, now_us: int) -> None:
    """From now on batches take `level` times the profile there; the tests begin anew."""
    table = s.stages[stage]
    begin_anew(s.learned[place])
    level = within_bounds(level, table.spread)
    if level == s.level[place]:
        return
    s.world[0].drifted += int(level != ONE) - int(s.level[place] != ONE)
    s.level[place] = level
    total, table.least_level = 0, NEVER_US
    for i in range(table.first_pool, table.end_pool):
        total += s.level[i]
        table.least_level = min(table.least_level, s.level[i])
    table.level = total // (table.end_pool - table.first_pool)
    _scale_slack(s, table.route)
    s.policy.on_level_changed(s, stage, place, now_us)


@kernel
def _scale_slack(s: State, route: int) -> None:
    mine, size_max, factor = s.routes[route], s.world[0].size_max, ONE
    for stage in range(mine.first_stage, mine.first_stage + mine.stages):
        table = s.stages[stage]
        width = (2 * table.scatter // (table.end_pool - table.first_pool) << SHIFT) // table.spread
        factor = max(factor, table.level + (max(0, min(MOST >> 2, width) - table.level) >> 2))
    if factor == mine.widened:
        return
    mine.widened = factor
    for i in range(route * size_max, route * size_max + mine.batch_size):
        s.slack_us[i] = s.profiled_slack_us[i] * factor >> SHIFT


@kernel
def assume(s: State, now_us: int, stage: int, level: int) -> None:
    """Somebody has measured it before: a stage takes `level` times its profile, on all slots."""
    for place in range(s.stages[stage].first_pool, s.stages[stage].end_pool):
        s.learned[place].reported_at = now_us
        set_level(s, stage, place, level, now_us)


@kernel
def renew_slot(s: State, slot: int, now_us: int) -> None:
    """Another worker is on the slot: it starts from the levels of its stages."""
    for stage in range(len(s.stages)):
        for place in range(s.stages[stage].first_pool, s.stages[stage].end_pool):
            if s.pools[place] == slot:
                s.learned[place].reports, s.learned[place].reported_at = 0, now_us
                set_level(s, stage, place, s.stages[stage].level, now_us)


# -- slack ----------------------------------------------------------------------------------------


@kernel
def observe_end(s: State, batch: int, now_us: int) -> None:
    """A batch has ended."""
    theirs = s.batches[batch]
    mine, late_us = s.routes[theirs.route], now_us - theirs.deadline_at
    if late_us <= 0:
        _set_late(s, theirs.route, max(0, mine.late_us - (mine.late_us >> 9) - 1))
        mine.missed = max(0, mine.missed - 1)
        if mine.missed == 0:
            mine.missed_us = 0
    elif not theirs.held_up:
        mine.missed += LATE
        mine.missed_us = max(mine.missed_us, late_us)
        if mine.missed > LATE_ALARM:
            _set_late(
                s, theirs.route, min(_room_us(s, theirs.route), mine.late_us + mine.missed_us)
            )
            mine.missed = mine.missed_us = 0


@hot
def _room_us(s: State, route: int) -> int:
    """A quarter of what a full batch leaves of the objective: so much slack still lets an idle path
    take requests, and a few behind each other, however late batches were."""
    mine = s.routes[route]
    left_us = mine.slo_us - s.slack_us[route * s.world[0].size_max + mine.batch_size - 1]
    for stage in range(mine.first_stage, mine.first_stage + mine.stages):
        left_us -= of_stage_us(s, stage, mine.batch_size)
    return max(0, left_us) >> 2


@hot
def _set_late(s: State, route: int, late_us: int) -> None:
    mine = s.routes[route]
    s.world[0].drifted += int(late_us > 0) - int(mine.late_us > 0)
    mine.late_us = late_us


# -- forgetting -----------------------------------------------------------------------------------


@kernel
def fade(s: State, model: int, now_us: int) -> bool:
    """A request of the model is to be dropped. What has not run for long is not known any more.

    Returns:
        Whether something was forgotten, so that the request may be in time after all; at most once
        at one instant.
    """
    forgotten = False
    if not s.world[0].drifted:
        return forgotten
    for route in range(s.models[model].first_route, s.models[model].end_route):
        first = s.routes[route].first_stage
        for stage in range(first, first + s.routes[route].stages):
            if _fade_stage(s, route, stage, now_us):
                forgotten = True
    return forgotten


@kernel
def _fade_stage(s: State, route: int, stage: int, now_us: int) -> bool:
    table, periods, forgotten = s.stages[stage], 16, False
    for place in range(table.first_pool, table.end_pool):
        periods = min(periods, _periods(s, route, place, now_us))
    for _ in range(periods):
        _set_late(s, route, s.routes[route].late_us * 3 >> 2)
    for place in range(table.first_pool, table.end_pool):
        if _fade_place(s, stage, place, _periods(s, route, place, now_us), now_us):
            forgotten = True
    return forgotten


@hot
def _periods(s: State, route: int, place: int, now_us: int) -> int:
    """For how many the stage has run nothing there, and may not be at it."""
    if _runs_at(s, place):
        return 0
    slot, reported_at = s.slots[s.pools[place]], s.learned[place].reported_at
    periods = (now_us - reported_at) // FADE_US
    if slot.running < 0:
        idle_us = now_us - max(reported_at, slot.started_at)
        periods = max(periods, idle_us // min(FADE_US, FADE_SLOS * s.routes[route].slo_us))
    return min(16, periods)


@hot
def _runs_at(s: State, place: int) -> bool:
    """Whether a batch of that stage is on the slot: another model's says nothing of it."""
    row = s.slots[s.pools[place]].running
    if row < 0:
        return False
    return s.hops[row * s.world[0].stages_max + s.batches[row].stage].place == place


@kernel
def _fade_place(s: State, stage: int, place: int, periods: int, now_us: int) -> bool:
    if periods <= 0:
        return False
    mine = s.learned[place]
    for _ in range(periods):
        set_level(s, stage, place, s.level[place] + ((ONE - s.level[place]) >> 2), now_us)
        _set_scatter(s, stage, place, mine.scatter * 3 >> 2)
    mine.reported_at = now_us
    return True
