"""Who leaves a slot when room is needed.

Only models go that are loaded and have no batch promised there. `lru` takes the one that was unused
for longest, as the paper's server does. `weighed` takes the one whose bytes are missed least: a
model of `bytes` that takes `load_us` to bring back, and is asked for every `gap` microseconds,
saves

    load_us / gap / bytes

of copying per byte that it holds (GreedyDual-Size-Frequency, Cherkasova 1998, with a rate instead
of a count). The gap is a moving mean of those between its requests, which begins with the mean gap
of all models: one that was asked for once is no favourite yet. A silence that lasts longer than
that says that it is longer now. A model that another slot holds as well is missed by half.
"""

from headrace.compilation.loops import hot, kernel
from headrace.dispatch.kernel.layout import State
from headrace.dispatch.kernel.provision.tables import LOADED, LRU

MEAN_OF = 8
"""Requests that the moving mean of gaps is of, about."""


@kernel
def note_asked(s: State, model: int, at_us: int) -> None:
    """A request of the model came at that instant."""
    mine, rules = s.starts[model], s.rules[0]
    if rules.asked == 0:
        rules.first_at = at_us
    if mine.asked == 0:
        since_us = float(at_us - rules.first_at)
        mine.gap_us = since_us * len(s.models) / max(1, rules.asked)
    else:
        part = min(mine.asked + 1, MEAN_OF)
        mine.gap_us += (float(at_us - mine.asked_at) - mine.gap_us) / part
    mine.asked += 1
    rules.asked += 1
    mine.asked_at = max(mine.asked_at, at_us)


@kernel
def choose_victim(s: State, slot: int, now_us: int) -> int:
    """The model that leaves the slot next; -1: none may."""
    models = len(s.models)
    best, best_value = -1, 0.0
    for model in range(models):
        stay = s.stays[slot * models + model]
        if stay.state != LOADED or stay.pending:
            continue
        value = (
            float(stay.used_at) if s.rules[0].eviction == LRU else _value(s, slot, model, now_us)
        )
        if best < 0 or value < best_value:
            best, best_value = model, value
    return best


@hot
def _value(s: State, slot: int, model: int, now_us: int) -> float:
    mine = s.starts[model]
    gap_us = max(1.0, mine.gap_us, float(now_us - mine.asked_at))
    value = mine.load_us / gap_us / max(1, mine.bytes)
    return value / 2 if _elsewhere(s, slot, model) else value


@kernel
def _elsewhere(s: State, slot: int, model: int) -> bool:
    for other in range(s.world[0].slots):
        if other != slot and s.stays[other * len(s.models) + model].state == LOADED:
            return True
    return False
