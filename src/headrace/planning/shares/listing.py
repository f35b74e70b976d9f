"""All parts worth having: sets of tenants with batch sizes, found by a compiled walk.

A part runs the batches b_1..b_n of its n tenants in turn, once per duty cycle

    D = sum of taken_i(b_i),   or that / max_utilisation, rounded up, where some time is kept free

and keeps its promise if D + latency_i(b_i) <= budget_i for each. A longer cycle for the same
batches only lowers every rate b_i / D and lengthens every wait, so this D is the only one that
matters: a part is its batch sizes. What is not asked for is worth nothing: a rate counts up to
`cap`, so that many parts become equal, and all but one of them needless.

The walk adds tenants in the order of the models, and batch sizes in the order of what they take of
the cycle. It goes on to the next model as soon as D exceeds what the tenants so far, or the model
at any batch size, can wait. Cost: one step per part that keeps its promise, about 20 ns.
"""

from typing import NamedTuple

import numpy as np

from headrace.compilation.loops import compiled
from headrace.planning.common.deadline import Deadline
from headrace.planning.shares.workload import Floats, Ints, Workload

SECOND_US = 1e6

MARKED_AT_ONCE = 1_024
"""Parts whose dominance is looked at between two looks at the clock: each is compared with all that
are kept, so that 400,000 may take seconds."""


class Candidates(NamedTuple):
    """(model, batch size) pairs at each place: a kind of part with what its neighbours do to it.
    P places, C candidates."""

    first: Ints
    """Shape (P, M + 1): of each model; increasing `taken_us` from there on."""
    batch: Ints
    """Shape (C,)."""
    latency_us: Ints
    """Shape (C,): with the slowdown at this place; more where the cycle must be shorter anyhow."""
    taken_us: Ints
    """Shape (C,)."""
    loudness: Ints
    """Shape (C,): level of what it does to its neighbours, from 1; 0 would be an empty part."""
    patience_us: Ints
    """Shape (P, M): the most that a cycle may take for this model at any batch size."""
    utilisation: Ints
    """Shape (P, 2): numerator and denominator of the part of a cycle that may be planned busy."""
    memory_bytes: Ints
    """Shape (P,): for the weights of a part's tenants."""


class Parts(NamedTuple):
    """Q parts with at most T tenants."""

    place: Ints
    """Shape (Q,)."""
    models: Ints
    """Shape (Q, T): -1 after the last."""
    batch: Ints
    """Shape (Q, T)."""
    duty_us: Ints
    """Shape (Q,)."""
    loudness: Ints
    """Shape (Q,): the largest of its tenants'."""

    def take(self, rows: np.ndarray) -> "Parts":
        return Parts(*(table[rows] for table in self))

    @staticmethod
    def joined(some: "list[Parts]") -> "Parts":
        return Parts(*(np.concatenate(tables) for tables in zip(*some, strict=True)))

    @staticmethod
    def none(tenants: int) -> "Parts":
        flat, wide = np.zeros(0, np.int64), np.zeros((0, tenants), np.int64)
        return Parts(flat, wide, wide, flat, flat)

    def rates_rps(self, models: int) -> Floats:
        """Shape (Q, M)."""
        rates = np.zeros((len(self.place), models + 1))
        rows = np.arange(len(self.place))[:, None]
        rates[rows, self.models] = self.batch / self.duty_us[:, None] * SECOND_US
        return rates[:, :models]


def list_parts(
    candidates: Candidates,
    load: Workload,
    cap_rps: Floats,
    *,
    price: Floats,
    rent: Floats,
    slack: float,
    most: int,
    best_only: bool = False,
) -> tuple[Parts, Floats, bool]:
    """The parts that waste at most `slack`: their rent less what they carry is worth.

    Args:
        price: shape (M,), of a request per second.
        rent: shape (P, levels + 1), of a part at a place with a loudness.
        most: stop at so many.
        best_only: of parts at one place with the same first and last model, only the one that
            wastes least.

    Returns:
        The parts, what each wastes, and whether they are all.
    """
    models, tenants_max = load.models, load.tenants_max
    room = len(candidates.first) * models * models if best_only else min(most, 20_000)
    while True:
        tables = (
            np.empty(room, np.int64),
            np.full((room, tenants_max), -1, np.int64),
            np.zeros((room, tenants_max), np.int64),
            np.empty(room, np.int64),
            np.empty(room, np.int64),
        )
        waste = np.full(room, np.inf)
        count = _walk(
            *candidates, load.budget_us, load.weights_bytes, cap_rps, price, rent, slack,
            tenants_max, best_only, most, *tables, waste,
        )  # fmt: skip
        if count <= room or room >= most or best_only:
            break
        room = min(most, 2 * count)
    rows = np.flatnonzero(np.isfinite(waste)) if best_only else np.arange(min(count, room))
    return Parts(*(table[rows] for table in tables)), waste[rows], count <= room


def several(parts: Parts) -> Ints:
    """Rows of the parts on which several models take turns."""
    return np.flatnonzero((parts.models >= 0).sum(axis=1) > 1)


def countable(candidates: Candidates, load: Workload, most: int) -> bool:
    """Whether no more parts than that keep their promise."""
    models, nothing = load.models, np.zeros(0, np.int64)
    wide = np.zeros((0, load.tenants_max), np.int64)
    levels = int(candidates.loudness.max(initial=0)) + 1
    count = _walk(
        *candidates, load.budget_us, load.weights_bytes, np.full(models, np.inf),
        np.zeros(models), np.zeros((len(candidates.first), levels)), np.inf,
        load.tenants_max, False, most, nothing, wide, wide, nothing, nothing, np.zeros(0),
    )  # fmt: skip
    return count <= most


@compiled
def _walk(
    first: Ints,
    batch: Ints,
    latency_us: Ints,
    taken_us: Ints,
    loudness: Ints,
    patience_us: Ints,
    utilisation: Ints,
    memory_bytes: Ints,
    budget_us: Ints,
    weights_bytes: Ints,
    cap_rps: Floats,
    price: Floats,
    rent: Floats,
    slack: float,
    tenants_max: int,
    best_only: bool,
    most: int,
    out_place: Ints,
    out_models: Ints,
    out_batch: Ints,
    out_duty_us: Ints,
    out_loudness: Ints,
    out_waste: Floats,
) -> int:
    """Returns how many there are, of which the first are written down, as many as have room."""
    models, room, found = len(budget_us), len(out_place), 0
    model = np.zeros(tenants_max, np.int64)
    at = np.zeros(tenants_max, np.int64)
    # What the tenants before this depth take, can wait, and do to their neighbours.
    taken = np.zeros(tenants_max + 1, np.int64)
    wait = np.full(tenants_max + 1, np.int64(1) << 60)
    loud = np.zeros(tenants_max + 1, np.int64)
    weights = np.zeros(tenants_max + 1, np.int64)
    for place in range(len(first)):
        depth = 0
        model[0], at[0] = 0, first[place, 0]
        while depth >= 0:
            m, c = model[depth], at[depth]
            if c >= first[place, m + 1]:
                model[depth] += 1
                if model[depth] == models:
                    depth -= 1
                    if depth >= 0:
                        at[depth] += 1
                else:
                    at[depth] = first[place, m + 1]
                continue
            busy = taken[depth] + taken_us[c]
            above, below = utilisation[place]
            duty = (busy * below + above - 1) // above
            weight = weights[depth] + weights_bytes[m]
            if weight > memory_bytes[place] or duty > wait[depth] or duty > patience_us[place, m]:
                at[depth] = first[place, m + 1]
                continue
            own_wait = budget_us[m] - latency_us[c]
            if duty > own_wait:
                at[depth] += 1
                continue
            level = max(loud[depth], loudness[c])
            worth = 0.0
            for d in range(depth + 1):
                rate = batch[at[d]] / duty * 1e6
                worth += price[model[d]] * min(rate, cap_rps[model[d]])
            waste = rent[place, level] - worth
            if waste <= slack:
                row = found
                if best_only:
                    row = (place * models + model[0]) * models + m
                if row < room and (not best_only or waste < out_waste[row]):
                    out_place[row], out_duty_us[row] = place, duty
                    out_loudness[row], out_waste[row] = level, waste
                    for d in range(tenants_max):
                        within = d <= depth
                        out_models[row, d] = model[d] if within else -1
                        out_batch[row, d] = batch[at[d]] if within else 0
                found += 1
                if found > most and not best_only:
                    return found
            if depth + 1 < tenants_max and m + 1 < models:
                taken[depth + 1], wait[depth + 1] = busy, min(wait[depth], own_wait)
                loud[depth + 1], weights[depth + 1] = level, weight
                depth += 1
                model[depth], at[depth] = m + 1, first[place, m + 1]
            else:
                at[depth] += 1
    return found if not best_only else 0


def undominated(
    place: Ints, loudness: Ints, rates_rps: Floats, deadline: Deadline
) -> tuple[np.ndarray, bool]:
    """Rows that no other row at the same place, no louder, carries at least as much of all as.

    Returns:
        The rows, and whether they are all: what is not looked at in time is left out.
    """
    total = rates_rps.sum(axis=1)
    order = np.lexsort((loudness, -total, place))
    place, loudness, rates_rps = place[order], loudness[order], rates_rps[order]
    keep, kept, count = np.zeros(len(order), np.bool_), np.zeros(len(order), np.int64), 0
    for begin in range(0, len(order), MARKED_AT_ONCE):
        if deadline.passed:
            return order[keep], False
        end = min(begin + MARKED_AT_ONCE, len(order))
        count = _mark(place, loudness, rates_rps, begin, end, keep, kept, count)
    return order[keep], True


@compiled
def _mark(
    place: Ints,
    loudness: Ints,
    rates: Floats,
    begin: int,
    end: int,
    keep: np.ndarray,
    kept: Ints,
    count: int,
) -> int:
    """Returns how many rows are kept of the last one's place; they lead `kept`."""
    models = rates.shape[1]
    for row in range(begin, end):
        if row and place[row] != place[row - 1]:
            count = 0
        beaten = False
        for k in range(count):
            other = kept[k]
            if loudness[other] > loudness[row]:
                continue
            beaten = True
            for m in range(models):
                if rates[row, m] > rates[other, m]:
                    beaten = False
                    break
            if beaten:
                break
        if not beaten:
            keep[row] = True
            kept[count] = row
            count += 1
    return count
