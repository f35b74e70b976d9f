"""All parts worth having: sets of tenants with batch sizes, found by a compiled walk.

A part runs the batches b_1..b_n of its n tenants in turn, once per duty cycle

    D = sum of taken_i(b_i),   or that / max_utilisation, rounded up, where some time is kept free,
                               or what they take of the slot's link, where several cross it: sent_i

and keeps its promise if D + latency_i(b_i) <= budget_i for each. A longer cycle for the same
batches only lowers every rate b_i / D and lengthens every wait, so this D is the only one that
matters: a part is its batch sizes. What is not asked for is worth nothing: a rate counts up to
`cap`, so that many parts become equal, and all but one of them needless.

The walk adds tenants in the order of the models, and batch sizes in the order of what they take of
the cycle. It goes on to the next model as soon as D exceeds what the tenants so far, or the model
at any batch size, can wait. Cost: one step per part that keeps its promise, about 20 ns.
"""

from math import inf
from typing import NamedTuple

import numpy as np

from headrace.compilation.loops import compiled
from headrace.planning.common.weights import Weights, more_bytes
from headrace.planning.shares.workload import Floats, Ints, Workload

SECOND_US = 1e6

SWEPT_TENANTS = 3
"""Parts with no more are first compared with those of the same tenants, by a sweep."""

BEST_MAX = 100_000
"""Rows for the best parts of each first and last model; of more, those of each first one."""

COMPARED_MAX = 100_000_000
"""Pairs of parts: some tenths of a second."""


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
    sent_us: Ints
    """Shape (C,): what a batch takes of the link part of its slot; 0: it crosses no link."""
    patience_us: Ints
    """Shape (P, M): the most that a cycle may take for this model at any batch size."""
    utilisation: Ints
    """Shape (P, 2): numerator and denominator of the part of a cycle that may be planned busy."""
    memory_bytes: Ints
    """Shape (P,): for the weights of a part's tenants."""

    def thinned(self, step: float) -> "Candidates":
        """With batch sizes of each model that are at least `step` times the one before."""
        keep = np.zeros(len(self.batch), np.bool_)
        for begin, end in zip(self.first[:, :-1].flat, self.first[:, 1:].flat, strict=True):
            least = 0.0
            for c in range(begin, end):
                if self.batch[c] >= least:
                    keep[c], least = True, step * self.batch[c]
        before = np.concatenate([[0], np.cumsum(keep)])
        return self._replace(
            first=before[self.first],
            batch=self.batch[keep],
            latency_us=self.latency_us[keep],
            taken_us=self.taken_us[keep],
            loudness=self.loudness[keep],
            sent_us=self.sent_us[keep],
        )


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

    def take(self, rows: np.ndarray | slice) -> "Parts":
        return Parts(*(table[rows] for table in self))

    @staticmethod
    def joined(some: "list[Parts]") -> "Parts":
        return Parts(*(np.concatenate(tables) for tables in zip(*some, strict=True)))

    @staticmethod
    def none(tenants: int) -> "Parts":
        flat, wide = np.zeros(0, np.int64), np.zeros((0, tenants), np.int64)
        return Parts(flat, wide, wide, flat, flat)

    def widened(self, tenants: int) -> "Parts":
        """With room for so many tenants."""
        more = np.zeros((len(self.place), tenants - self.models.shape[1]), np.int64)
        return self._replace(
            models=np.hstack([self.models, more - 1]), batch=np.hstack([self.batch, more])
        )

    def narrowed(self, tenants: int) -> "Parts":
        """Without the room for more tenants, which none has."""
        return self._replace(models=self.models[:, :tenants], batch=self.batch[:, :tenants])

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
        best_only: of parts at one place with the same first and last model, or of many models
            the same first one, only the one that wastes least.

    Returns:
        The parts, what each wastes, and whether they are all.
    """
    models, tenants_max = load.models, load.tenants_max
    kinds = len(candidates.first) * models
    lasts = models if best_only and kinds * models <= BEST_MAX else 1
    room = kinds * lasts if best_only else min(most, 20_000)
    while True:
        tables = (
            np.empty(room, np.int64),
            np.full((room, tenants_max), -1, np.int64),
            np.zeros((room, tenants_max), np.int64),
            np.empty(room, np.int64),
            np.empty(room, np.int64),
        )
        waste = np.full(room, np.inf)
        worth = _Worth(cap_rps, price, rent, slack)
        found = Parts(*tables), waste
        kept = lasts if best_only else 0
        count = _walk(candidates, _needs(load), worth, tenants_max, kept, most, *found)
        if count <= room or room >= most or best_only:
            break
        room = min(most, 2 * count)
    rows = np.flatnonzero(np.isfinite(waste)) if best_only else slice(min(count, room))
    return Parts(*tables).take(rows), waste[rows], count <= room


def several(parts: Parts) -> Ints:
    """Rows of the parts on which several models take turns."""
    return np.flatnonzero((parts.models >= 0).sum(axis=1) > 1)


def countable(candidates: Candidates, load: Workload, most: int) -> bool:
    """Whether no more parts than that keep their promise."""
    levels = int(candidates.loudness.max(initial=0)) + 1
    rent = np.zeros((len(candidates.first), levels))
    worth = _Worth(np.full(load.models, np.inf), np.zeros(load.models), rent, np.inf)
    nowhere = Parts.none(load.tenants_max), np.zeros(0)
    count = _walk(candidates, _needs(load), worth, load.tenants_max, 0, most, *nowhere)
    return count <= most


class _Needs(NamedTuple):
    """Of each model."""

    budget_us: Ints
    """Shape (M,)."""
    weights: Weights


class _Worth(NamedTuple):
    """What parts cost and bring, and how much they may waste."""

    cap_rps: Floats
    """Shape (M,): of what is carried, the most that counts."""
    price: Floats
    """Shape (M,), of a request per second."""
    rent: Floats
    """Shape (P, levels + 1), of a part at a place with a loudness."""
    slack: float


def _needs(load: Workload) -> _Needs:
    return _Needs(load.budget_us, load.weights)


@compiled
def _walk(
    candidates: Candidates,
    needs: _Needs,
    worths: _Worth,
    tenants_max: int,
    lasts: int,
    most: int,
    parts: Parts,
    wastes: Floats,
) -> int:
    """
    Args:
        lasts: 0: all parts; else only the best of those with the same first model, and, where this
            is the number of models, the same last one.
        parts, wastes: written: the first that there are, as many as have room.

    Returns:
        How many there are.
    """
    first, batch, latency_us, taken_us, loudness = candidates[:5]
    sent_us, patience_us, utilisation, memory = candidates[5:]
    cap_rps, price, rent, slack = worths
    models, room, found = len(needs.budget_us), len(wastes), 0
    model = np.zeros(tenants_max, np.int64)
    at = np.zeros(tenants_max, np.int64)
    # What the tenants before this depth take, can wait, and do to their neighbours.
    taken = np.zeros(tenants_max + 1, np.int64)
    wait = np.full(tenants_max + 1, np.int64(1) << 60)
    loud = np.zeros(tenants_max + 1, np.int64)
    weights = np.zeros(tenants_max + 1, np.int64)
    sent = np.zeros(tenants_max + 1, np.int64)
    senders = np.zeros(tenants_max + 1, np.int64)
    everything = needs.weights.piece_bytes.sum()
    for place in range(len(first)):
        limited = memory[place] < everything
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
            sending, sends = sent[depth] + sent_us[c], senders[depth] + (sent_us[c] > 0)
            if sends > 1:
                duty = max(duty, sending)
            if duty > wait[depth] or duty > patience_us[place, m]:
                at[depth] = first[place, m + 1]
                continue
            if limited and c == first[place, m]:
                weight = weights[depth] + more_bytes(needs.weights, model, depth)
                if weight > memory[place]:
                    at[depth] = first[place, m + 1]
                    continue
                weights[depth + 1] = weight
            own_wait = needs.budget_us[m] - latency_us[c]
            if duty > own_wait:
                at[depth] += 1
                continue
            level = max(loud[depth], loudness[c])
            worth = 0.0
            for d in range(depth + 1 if room else 0):  # nothing is kept: they are counted
                rate = batch[at[d]] / duty * 1e6
                worth += price[model[d]] * min(rate, cap_rps[model[d]])
            waste = rent[place, level] - worth
            if waste <= slack:
                row = found
                if lasts:
                    row = (place * models + model[0]) * lasts + (m if lasts == models else 0)
                if row < room and (not lasts or waste < wastes[row]):
                    parts.place[row], parts.duty_us[row] = place, duty
                    parts.loudness[row], wastes[row] = level, waste
                    for d in range(tenants_max):
                        within = d <= depth
                        parts.models[row, d] = model[d] if within else -1
                        parts.batch[row, d] = batch[at[d]] if within else 0
                found += 1
                if found > most and not lasts:
                    return found
            if depth + 1 < tenants_max and m + 1 < models:
                taken[depth + 1], wait[depth + 1] = busy, min(wait[depth], own_wait)
                loud[depth + 1], sent[depth + 1], senders[depth + 1] = level, sending, sends
                depth += 1
                model[depth], at[depth] = m + 1, first[place, m + 1]
            else:
                at[depth] += 1
    return 0 if lasts else found


def undominated(
    parts: Parts, rates_rps: Floats, waste: Floats, *, most: int
) -> tuple[np.ndarray, float]:
    """Rows of parts that no other one at the same place, no louder, carries at least as much of all
    models as; and some that one does, where it would take long to tell.

    Such another wastes no more, so rows are looked at in that order: the least waste first.

    Args:
        rates_rps: shape (Q, M): what counts of what they carry.
        most: only so many.

    Returns:
        The rows, least waste first, and what the first one wastes that there was no room for;
        infinite: none.
    """
    left = _best_of_their_tenants(parts, rates_rps)
    # Of rows that differ by rounding only, the one that carries most first.
    alike = np.round(waste / max(float(np.abs(waste).max(initial=0.0)), 1e-300), 12)
    order = left[np.lexsort((parts.loudness[left], -rates_rps[left].sum(axis=1), alike[left]))]
    kept = np.zeros(min(most, len(order)), np.int64)
    at, count = _mark(parts.take(order), rates_rps[order], COMPARED_MAX, kept)
    return order[kept[:count]], inf if at == len(order) else float(waste[order[at]])


def _best_of_their_tenants(parts: Parts, rates_rps: Floats) -> Ints:
    """Rows that no other row at their place with their tenants, as loud, carries as much of all as;
    and all rows with more than SWEPT_TENANTS."""
    rows = np.arange(len(parts.place))[:, None]
    padded = np.hstack([rates_rps, np.zeros((len(rows), 1))])
    each = np.zeros((len(rows), SWEPT_TENANTS))
    few = parts.models[:, :SWEPT_TENANTS]
    each[:, : few.shape[1]] = padded[rows, few]
    group = parts.place * (parts.loudness.max(initial=0) + 1) + parts.loudness
    for tenant in few.T:
        group = group * padded.shape[1] + tenant + 1
    swept = np.ones(len(rows), np.bool_)
    if parts.models.shape[1] > SWEPT_TENANTS:
        swept = parts.models[:, SWEPT_TENANTS] < 0
    first, second, third = each.T
    order = np.lexsort((-third, -second, -first, group))
    order = order[swept[order]]
    _, rank = np.unique(-second, return_inverse=True)
    beaten = np.zeros(len(rows), np.bool_)
    beaten[order] = _sweep(group[order], rank.ravel()[order], third[order])
    return np.flatnonzero(~beaten)


@compiled
def _sweep(group: Ints, rank: Ints, third: Floats) -> np.ndarray:
    """Whether a row of the same group before, of no higher rank, has at least as much of the third.

    A tree of prefix maxima (Fenwick, 1994) has the most of each rank and those below: a row costs
    the logarithm of the ranks.
    """
    beaten = np.zeros(len(rank), np.bool_)
    most = np.full(rank.max() + 2 if len(rank) else 1, -1.0)
    begin = 0
    for row in range(len(rank)):
        if group[row] != group[begin]:
            for before in range(begin, row):
                at = rank[before] + 1
                while at < len(most):
                    most[at] = -1.0
                    at += at & -at
            begin = row
        at = rank[row] + 1
        while at > 0 and not beaten[row]:
            beaten[row] = most[at] >= third[row]
            at -= at & -at
        at = rank[row] + 1
        while at < len(most) and not beaten[row]:
            most[at] = max(most[at], third[row])
            at += at & -at
    return beaten


@compiled
def _mark(parts: Parts, rates: Floats, compared_max: int, kept: Ints) -> tuple[int, int]:
    """Returns the first row that `kept` has no room for, or how many rows there are; and how many
    are kept. After so many comparisons all that follow are."""
    place, loudness, count, compared = parts.place, parts.loudness, 0, 0
    for row in range(len(place)):
        beaten = False
        for k in range(count if compared < compared_max else 0):
            other = kept[k]
            compared += 1
            if place[other] != place[row] or loudness[other] > loudness[row]:
                continue
            beaten = True
            for m in parts.models[row]:
                if m >= 0 and rates[row, m] > rates[other, m]:
                    beaten = False
                    break
            if beaten:
                break
        if beaten:
            continue
        if count == len(kept):
            return row, count
        kept[count] = row
        count += 1
    return len(place), count
