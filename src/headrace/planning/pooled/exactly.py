"""Which engine answers a problem of `pooled` whose slots always fit when their sizes add up.

They do for shares that always pack (`always_pack`) and weights that never fill a device's memory.
Then demands share nothing but units of devices, and what is asked is counting:

tables     `exact.free`, `exact.cost`: the best of every vector of units, one or two device types,
           up to some hundred devices; max-min, and least cost. Proves what it gives.
rounding   `search_beside_bound`: above SEARCHED_DEVICES_MAX, next to the bound.
walks      `exact.search`: elsewhere, the best plan in which no two demands share a device, where
           that is better than what rounding gives. A plan for the next to begin with.
columns    `search`: HiGHS goes on from there, with the whole problem.

Where slots need not fit, and for the sum of throughputs of several models, `columns` are all there
is, rounding its first step on clusters of more than 200 devices. Decision 0021 has what each engine
adds.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction
from functools import cache
from itertools import product
from math import ceil, prod

import numpy as np

from headrace.planning.common.allotments import Allotments, memory_limited
from headrace.planning.common.candidates import Pipelines
from headrace.planning.common.deadline import Deadline, OutOfTime
from headrace.planning.common.hardware import Hardware
from headrace.planning.common.master import Counting
from headrace.planning.common.packing import SlotSize, pack
from headrace.planning.exact.columns import (
    COMPARED_MAX,
    Columns,
    PoolStock,
    make_columns,
    slot_types,
    slot_units,
    units_per_device,
)
from headrace.planning.exact.cost import search_least_cost
from headrace.planning.exact.free import OutOfReach, search_freely
from headrace.planning.exact.search import ExactResult, search_exactly
from headrace.planning.exact.sets import PipelineSet
from headrace.planning.pooled.search import INFEASIBLE, PooledResult, search, search_beside_bound
from headrace.planning.pooled.selection import ChosenAllotments

SEARCHED_DEVICES_MAX = 500
"""More than these: rounding alone."""

REMAINDERS_MAX = 1_000
"""Sets of slots to be packed before shares count as always packing."""

TIME_PART = 0.5
"""Of the time left, for tables, then for walks; the rest is for HiGHS, should they not end."""

ROUNDING_PART = 0.25
"""Of the time left, for a rounded plan to begin with."""


def search_exactly_pooled(asked: Counting, deadline: Deadline) -> PooledResult | None:
    """The best counts for feasible pipelines; None if this is not a problem for it."""
    goal, wanted = asked.goal, asked.wanted
    # Of one demand alone, throughput and throughput / weight are largest together.
    if goal not in ("max-min", "least-cost") and not (goal == "throughput" and len(wanted) == 1):
        return None
    if not _always_fits(asked):
        return None
    half = deadline.part(TIME_PART)
    if goal == "least-cost":
        return _Engines(asked).least_cost(half)
    if goal == "throughput":
        wanted = [replace(want, weight=1.0) for want in wanted]
    engines = _Engines(replace(asked, wanted=wanted, goal="max-min"))
    if asked.hardware.owned.sum() > SEARCHED_DEVICES_MAX:
        return engines.beside_bound(deadline)
    try:
        return engines.largest(half)
    except (OutOfReach, OutOfTime):
        start = engines.to_begin_with(deadline)
        return search(replace(asked, wanted=wanted), deadline, start)


class _Engines:
    """For a problem whose demands share nothing but units of devices."""

    def __init__(self, asked: Counting) -> None:
        hardware = asked.hardware
        self._asked, self._hardware = asked, hardware
        each = COMPARED_MAX // len(asked.columns)
        self._columns = [_columns(hardware, pipelines, each) for pipelines in asked.columns]
        self._per_device = units_per_device(hardware.kinds)
        self._stock = PoolStock(
            pool_type=np.arange(len(hardware.devices)),
            increment=1,
            increments=hardware.owned * self._per_device,
            room=np.zeros(0, dtype=np.int64),
        )

    def largest(self, deadline: Deadline) -> PooledResult:
        """The largest min throughput / weight, by tables.

        Raises:
            OutOfReach, OutOfTime: too large for tables, or no time left.
        """
        wanted, per_device = self._asked.wanted, self._per_device
        return self._proven(search_freely(self._stock, wanted, self._columns, per_device, deadline))

    def least_cost(self, deadline: Deadline) -> PooledResult | None:
        """The cheapest devices that carry the rates, by tables; None if these do not end."""
        wanted, per_device, prices = self._asked.wanted, self._per_device, self._hardware.prices
        assert prices is not None, "checked before planning"
        try:
            return self._proven(
                search_least_cost(self._stock, wanted, self._columns, per_device, prices, deadline)
            )
        except (OutOfReach, OutOfTime):
            return None

    def beside_bound(self, deadline: Deadline) -> PooledResult | None:
        """Max-min by rounding, with only the pipelines that counting needs; None if that fails.

        Any others would only give the relaxation the choice between equals, some of them coarser.
        """
        kept = [counted.source for counted in self._columns]
        few = [mine.take(rows) for mine, rows in zip(self._asked.columns, kept, strict=True)]
        result = search_beside_bound(replace(self._asked, columns=few), deadline, companions=0)
        if result is None or result.chosen is None:
            return result
        return replace(result, chosen=result.chosen.among_all(kept))

    def to_begin_with(self, deadline: Deadline) -> ChosenAllotments | None:
        """The better of two plans that are soon found: by rounding, and by walks.

        Walks allow no two demands to share a device. So their plan is never below the artifact's,
        which rounds up more and allows fewer pipelines.
        """
        soon = deadline.part(ROUNDING_PART)
        rounded = search_beside_bound(self._asked, soon)
        floor = 0.0 if rounded is None or rounded.objective is None else rounded.objective
        whole = replace(self._stock, increment=self._per_device, increments=self._hardware.owned)
        walking = deadline.part(TIME_PART)
        wanted = self._asked.wanted
        walked = search_exactly(whole, wanted, self._columns, walking, floor).chosen
        if walked is not None:
            return self._allotments(walked)
        return None if rounded is None else rounded.chosen

    def _proven(self, found: ExactResult) -> PooledResult:
        if found.chosen is None:
            return INFEASIBLE
        return PooledResult(
            stopped="optimal",
            chosen=self._allotments(found.chosen),
            objective=found.objective,
            bound=found.bound,
        )

    def _allotments(self, chosen: Sequence[PipelineSet]) -> ChosenAllotments:
        hardware = self._hardware
        every = zip(self._asked.columns, self._columns, chosen, strict=True)
        allotments = tuple(
            Allotments.of(pipelines, counted.source[mine.columns], mine.slots, len(hardware.kinds))
            for pipelines, counted, mine in every
        )
        # Which patterns cut the devices matters only where cost is counted.
        cut = np.zeros(len(hardware.pattern_device), dtype=np.int64)
        return ChosenAllotments(allotments=allotments, cut=cut)


def _always_fits(asked: Counting) -> bool:
    hardware = asked.hardware
    if any(memory_limited(pipelines, hardware).any() for pipelines in asked.columns):
        return False
    return all(
        always_pack(tuple(kind.share for kind in hardware.kinds if kind.device == device))
        for device in hardware.devices
    )


@cache
def always_pack(shares: tuple[Fraction, ...]) -> bool:
    """Whether slots of these shares fit m devices as soon as their shares add up to m or less.

    Of shares 1 / v, every v slots fill a device. What is left of each is less than v slots, so it
    is enough that all such remainders pack: for shares 1 to 1/4 they do, 2/3 fails alone.

    >>> always_pack((Fraction(1), Fraction(1, 2), Fraction(1, 3), Fraction(1, 4)))
    True
    >>> always_pack((Fraction(1, 2), Fraction(1, 3), Fraction(1, 5)))
    False
    """
    parts = [share.denominator for share in shares]
    if any(share.numerator != 1 for share in shares) or prod(parts) > REMAINDERS_MAX:
        return False
    for counts in product(*(range(part) for part in parts)):
        slots = {SlotSize(share, 0): n for share, n in zip(shares, counts, strict=True) if n}
        total = sum((size.share * n for size, n in slots.items()), Fraction(0))
        if len(pack(Counter(slots), device="any")) > ceil(total):
            return False
    return True


def _columns(hardware: Hardware, pipelines: Pipelines, compared_max: int) -> Columns:
    """One pool per device type, whatever the position."""
    types = slot_types(hardware.kinds, hardware.devices)
    pools = np.where(pipelines.kinds >= 0, types[pipelines.kinds], -1)
    return make_columns(
        pipelines,
        pools=pools,
        units=slot_units(hardware.kinds),
        groups=np.zeros((len(pipelines), 0), dtype=np.int64),
        compared_max=compared_max,
    )
