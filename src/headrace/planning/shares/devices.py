"""The devices of a problem as places for parts: what may be where, and how slow beside whom.

A *place* is a kind of part (device type, share) with what its neighbours do to it; a *layout* is a
device cut into places. Without interference there is one place per kind, and a layout per split.

With interference the slowdown of a tenant is the largest over all tenants of the other parts. Every
(model, share, batch size) gets a *loudness*: its rank by what it does to others. In the paper's
model, own term + other's term, all tenants agree on that order, so all that matters of a device's
other parts is the loudest tenant in them. A layout therefore says how loud each part may be: one
part at most a, the others at most b <= a. The first is slowed as beside loudness b, the others as
beside a. For whatever plan there is such a layout: a and b are what its parts are.

Loudness has at most EXACT_LEVELS values. Where there are more, or where tenants do not agree
(terms that multiply own and other), values are put together and the slowest counts: plans then hold
all the same, but the search is no longer over all; its bound is taken with the fastest of each
value.

Memory is that of the device, of all parts together. The search counts with it for single parts,
and `arranged` looks for devices on which the parts that were chosen fit together. Where they do
not, there is a place for each (device type, share, memory) and what its neighbours do to it, and a
layout for each way to divide a device's memory (`memory`); with too many, a part has its share of
it.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import groupby, pairwise, product

import numpy as np

from headrace.domain.interference import Interference
from headrace.domain.problem import Problem
from headrace.interference import other_terms, own_terms, uses_of
from headrace.planning.common.patterns import maximal_patterns
from headrace.planning.common.shared_times import SharedTimes
from headrace.planning.common.weights import Weights
from headrace.planning.shares.listing import Candidates
from headrace.planning.shares.memory import WAYS_MAX, memory_cuts, sums_of_weights
from headrace.planning.shares.workload import DeviceOffer, Floats, Ints, Layout

LEVELS = 10
"""Values of loudness where there are more than EXACT_LEVELS."""

EXACT_LEVELS = 30

LAYOUTS_MAX = 1_000
"""Of one split, where its parts slow each other and its memory is divided."""

NO_LIMIT = 1 << 60

_Part = tuple[Fraction, int]
"""Of a device: its share, and the bytes that it may hold."""

_Entry = tuple[int, int, int, int, int]
"""A batch size of a model at a place: busy, batch, wait, loudness, sent (as in `Candidates`)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Devices:
    """All places and layouts of a cluster."""

    offers: tuple[DeviceOffer, ...]
    layouts: tuple[Layout, ...]
    places: tuple[tuple[int, Fraction], ...]
    """Of each place its device type, as an index into `offers`, and its share."""
    candidates: Candidates
    levels: int
    exact: bool
    """Whether the slowdowns are those of the plans themselves, none larger."""
    every_plan: bool
    """Whether these layouts hold every plan that keeps the slowdowns: no part has less of the
    memory than it might."""


@dataclass(frozen=True, slots=True)
class _Row:
    """One model at one batch size on one share."""

    model: int
    batch: int
    share: Fraction


def devices_of(
    problem: Problem,
    times: Sequence[SharedTimes],
    prices: Sequence[float],
    *,
    fastest: bool = False,
    degrees: int | None = None,
    divided: int | None = None,
) -> Devices:
    """
    Args:
        times: of each device type that the cluster has.
        prices: of one device of each type.
        fastest: count with the least slowdown where the exact one is not known: for bounds.
        degrees: of loudness, at most, each as loud as the loudest in it: for plans that are quickly
            found, and hold. With one, whoever has a neighbour is as slow as beside the loudest.
        divided: memory is divided between parts of at most so many tenants, so that all parts of a
            layout fit together. None: each part has the whole device's.
    """
    building = _Building(problem, fastest=fastest, degrees=degrees, divided=divided)
    for index, each in enumerate(times):
        building.add(index, each)
    offers = tuple(
        DeviceOffer(name=t.device.name, count=problem.cluster.count(t.device.name), price=price)
        for t, price in zip(times, prices, strict=True)
    )
    return building.done(offers, len(problem.demands))


class _Building:
    """Places and layouts as they are added, device type by device type."""

    def __init__(
        self, problem: Problem, *, fastest: bool, degrees: int | None, divided: int | None
    ) -> None:
        self._problem = problem
        self._fastest, self._degrees, self._divided = fastest, degrees, divided
        self._documents = {each.device: each for each in problem.interference}
        self._places: list[tuple[int, Fraction]] = []
        self._rows: list[list[list[_Entry]]] = []
        self._patience: list[list[int]] = []
        self._utilisation: list[tuple[int, int]] = []
        self._memory: list[int] = []
        self._layouts: list[Layout] = []
        self._levels, self._exact, self._every_plan = 1, True, True

    def add(self, index: int, times: SharedTimes) -> None:
        """All of one device type."""
        document = self._documents.get(times.device.name)
        splits = _splits(times)
        rows = _rows(times)
        if document is None or all(len(split) == 1 for split in splits):
            self._add_quiet(index, times, rows, self._ways(times, splits, WAYS_MAX))
            return
        slow = _pairs(self._problem, document, times, rows)
        noise = _Noise(slow, times, rows, fastest=self._fastest, degrees=self._degrees)
        self._levels = max(self._levels, noise.levels)
        self._exact = self._exact and noise.exact
        place_of: dict[tuple[_Part, int], int] = {}

        def place_at(part: _Part, beside: int) -> int:
            key = part, beside
            if key not in place_of:
                share, memory = part
                place_of[key] = self._place(index, times, share, rows, noise, beside, memory)
            return place_of[key]

        for way in self._ways(times, splits, LAYOUTS_MAX // noise.levels**2):
            for cut in _loud(way, noise.levels):
                known = [(place_at(p, beside), loud) for p, loud, beside in cut if p[0] in rows]
                if known:
                    places, loudness = zip(*known, strict=True)
                    self._layouts.append(Layout(device=index, places=places, loudness=loudness))

    def _add_quiet(
        self,
        index: int,
        times: SharedTimes,
        rows: dict[Fraction, list[_Row]],
        ways: list[tuple[_Part, ...]],
    ) -> None:
        """Of parts that do not slow each other down."""
        place: dict[_Part, int] = {}
        for way in ways:
            known = [(share, memory) for share, memory in way if share in rows]
            for share, memory in known:
                if (share, memory) not in place:
                    place[share, memory] = self._place(index, times, share, rows, None, 1, memory)
            own = tuple(place[each] for each in known)
            if own:
                self._layouts.append(Layout(device=index, places=own, loudness=(1,) * len(own)))

    def _ways(
        self, times: SharedTimes, splits: Sequence[tuple[Fraction, ...]], ways_max: int
    ) -> list[tuple[_Part, ...]]:
        """The cuts of a device, with what each part may hold; of a cut at most so many ways."""
        memory = times.device.memory_bytes
        if memory is None or self._divided is None:
            each = NO_LIMIT if memory is None else memory
            return [tuple((share, each) for share in split) for split in splits]
        weights = Weights.of([tenant.blocks for tenant in times.models])
        sums = sums_of_weights(weights.different(), self._divided)
        found = []
        for split in splits:
            cuts = None if sums is None else memory_cuts(split, memory, sums)
            if cuts is None or len(cuts) > ways_max:
                self._every_plan = False
                cuts = [tuple(int(memory * share) for share in split)]
            found += [tuple(zip(split, cut, strict=True)) for cut in cuts]
        return found

    def _place(
        self,
        index: int,
        times: SharedTimes,
        share: Fraction,
        rows: dict[Fraction, list[_Row]],
        noise: "_Noise | None",
        beside: int,
        memory: int,
    ) -> int:
        """A new place: what every model takes there. `beside`: loudness of the neighbours."""
        entries: list[list[_Entry]] = [[] for _ in times.models]
        for at, row in enumerate(rows[share]):
            tenant = times.models[row.model]
            slowdown, loudness = (1.0, 1) if noise is None else noise.of(share, at, beside)
            latency_us = tenant.slowed_us(share, row.batch, slowdown)
            busy_us = tenant.busy_us(latency_us, row.batch)
            patience_us = min(tenant.budget_us - latency_us, tenant.longest_cycle_us)
            if times.least_cycle_us(busy_us) <= patience_us:
                wait_us = tenant.budget_us - patience_us
                sent_us = tenant.sent_us(share, row.batch)
                entries[row.model].append((busy_us, row.batch, wait_us, loudness, sent_us))
        self._rows.append([_useful(found) for found in entries])
        self._patience.append(
            [
                max((tenant.budget_us - latency for _, _, latency, *_ in found), default=-1)
                for tenant, found in zip(times.models, entries, strict=True)
            ]
        )
        usable = Fraction(str(times.device.max_utilisation))
        self._utilisation.append((usable.numerator, usable.denominator))
        self._memory.append(memory)
        self._places.append((index, share))
        return len(self._places) - 1

    def done(self, offers: tuple[DeviceOffer, ...], models: int) -> Devices:
        first = np.zeros((len(self._rows), models + 1), np.int64)
        flat: list[_Entry] = []
        for place, by_model in enumerate(self._rows):
            for model, entries in enumerate(by_model):
                first[place, model] = len(flat)
                flat += entries
            first[place, models] = len(flat)
        busy, batch, latency, loudness, sent = np.array(flat, np.int64).reshape(-1, 5).T.copy()
        candidates = Candidates(
            first=first,
            batch=batch,
            latency_us=latency,
            taken_us=busy,
            loudness=loudness,
            sent_us=sent,
            patience_us=np.array(self._patience, np.int64).reshape(-1, models),
            utilisation=np.array(self._utilisation, np.int64).reshape(-1, 2),
            memory_bytes=np.array(self._memory, np.int64),
        )
        return Devices(
            offers=offers,
            layouts=tuple(dict.fromkeys(self._layouts)),
            places=tuple(self._places),
            candidates=candidates,
            levels=self._levels,
            exact=self._exact,
            every_plan=self._every_plan,
        )


def _splits(times: SharedTimes) -> list[tuple[Fraction, ...]]:
    """Legal cuts that no other one contains."""
    kind = times.device
    if kind.splits:
        return list(dict.fromkeys(tuple(sorted(split, reverse=True)) for split in kind.splits))
    shares = sorted(set(kind.shares), reverse=True)
    found = maximal_patterns(shares, device=kind.name)
    return [
        tuple(share for share, n in zip(shares, counts, strict=True) for _ in range(n))
        for counts in found
    ]


def _rows(times: SharedTimes) -> dict[Fraction, list[_Row]]:
    """Per share every model and batch size that could keep its promise alone."""
    shares = {share for split in _splits(times) for share in split}
    found: dict[Fraction, list[_Row]] = {}
    for share in sorted(shares, reverse=True):
        rows = found.setdefault(share, [])
        for m, tenant in enumerate(times.models):
            for batch, alone_us in enumerate(tenant.latency_us.get(share, ()), start=1):
                busy_us = tenant.busy_us(alone_us, batch)
                if alone_us + times.least_cycle_us(busy_us) > tenant.budget_us:
                    continue
                rows.append(_Row(m, batch, share))
    return {share: rows for share, rows in found.items() if rows}


def _useful(entries: list[_Entry]) -> list[_Entry]:
    """Without batch sizes that a larger one makes needless: quicker, no louder, and of a model that
    sends nothing (what does has one batch size). Sorted."""
    kept: list[_Entry] = []
    for busy, batch, latency, loud, sent in sorted(entries, key=lambda e: -e[1]):
        if not any(b <= busy and t <= latency and n <= loud for b, _, t, n, _ in kept):
            kept.append((busy, batch, latency, loud, sent))
    return sorted(kept)


def _loud(cut: tuple[_Part, ...], levels: int) -> list[tuple[tuple[_Part, int, int], ...]]:
    """Layouts of a cut: per part how loud it may be, and how loud its neighbours are."""
    if len(cut) == 1:
        return [((cut[0], levels, 0),)]
    found: list[tuple[tuple[_Part, int, int], ...]] = []
    for loudest in dict.fromkeys(cut):
        others = list(cut)
        others.remove(loudest)
        for a, b in product(range(1, levels + 1), range(levels + 1)):
            if b == 0 and a == levels:
                found.append(((loudest, levels, 0),))
            elif 0 < b <= a:
                found.append(((loudest, a, b), *((other, b, a) for other in others)))
    return found


class _Noise:
    """What the tenants of a device's parts do to each other."""

    def __init__(
        self,
        slow: Floats,
        times: SharedTimes,
        rows: dict[Fraction, list[_Row]],
        *,
        fastest: bool,
        degrees: int | None,
    ) -> None:
        flat = [row for share in rows if share < 1 for row in rows[share]]
        self._at = {}
        start = 0
        for share in rows:
            self._at[share] = start
            start += len(rows[share]) if share < 1 else 0
        shares = sorted({row.share for row in flat})
        allowed = np.array([[times.device.allows((a, b)) for b in shares] for a in shares], bool)
        share_of = np.array([shares.index(row.share) for row in flat], np.int64)
        together = allowed.reshape(len(shares), len(shares))[np.ix_(share_of, share_of)]
        loudness = slow.mean(axis=0) if len(flat) else np.zeros(0)
        values = np.unique(np.round(loudness, 9))
        few = LEVELS if degrees is None else degrees
        if len(values) > (EXACT_LEVELS if degrees is None else degrees):
            values = np.unique(np.quantile(values, np.linspace(0, 1, few + 1)[1:]))
        self._level: Ints = np.searchsorted(values, np.round(loudness, 9) - 1e-9) + 1
        self.levels = max(1, len(values))
        worst, best = self._beside(slow, together)
        self.exact = bool(np.allclose(worst, best, rtol=0, atol=1e-9))
        self._slowdown = best if fastest else worst

    def _beside(self, slow: Floats, together: np.ndarray) -> tuple[Floats, Floats]:
        """Shape (rows, levels + 1) each: the largest slowdown beside neighbours up to a level, and
        the least beside a loudest neighbour of that level."""
        rows = len(slow)
        worst, best = np.ones((rows, self.levels + 1)), np.ones((rows, self.levels + 1))
        for level in range(1, self.levels + 1):
            upto = together & (self._level <= level)[None, :]
            worst[:, level] = np.where(upto, slow, 1.0).max(axis=1, initial=1.0)
            there = together & (self._level == level)[None, :]
            least = np.where(there, slow, np.inf).min(axis=1, initial=np.inf)
            best[:, level] = np.maximum(1.0, np.where(np.isfinite(least), least, worst[:, level]))
        return worst, best

    def of(self, share: Fraction, row: int, beside: int) -> tuple[float, int]:
        """Slowdown of a row of this share beside such neighbours, and its own loudness."""
        if share == 1:
            return 1.0, 1
        at = self._at[share] + row
        return float(self._slowdown[at, beside]), int(self._level[at])


def _pairs(
    problem: Problem,
    document: Interference,
    times: SharedTimes,
    rows: dict[Fraction, list[_Row]],
) -> Floats:
    """Shape (rows on parts, rows on parts): what the first is slowed by beside the second, of the
    batches that each may run the slowest, before the least of 1."""
    own, other, at, first = [], [], list[int](), [0]
    for share in rows:
        if share == 1:
            continue
        for m, group in groupby(rows[share], key=lambda row: row.model):
            batches = [row.batch for row in group]
            profile = problem.profiles[times.models[m].demand.model]
            uses = uses_of(profile, times.device.name, share, batches[-1])
            own.append(own_terms(document, uses))
            other.append(other_terms(document, uses))
            at += [first[-1] + batch - 1 for batch in batches]
            first.append(first[-1] + len(uses))
    if not at:
        return np.zeros((0, 0))
    sums = np.concatenate(own) @ np.concatenate(other).T
    for one, end in pairwise(first):
        sums[one:end] = np.maximum.accumulate(sums[one:end], axis=0)
        sums[:, one:end] = np.maximum.accumulate(sums[:, one:end], axis=1)
    found: Floats = sums[np.ix_(at, at)]
    return found
