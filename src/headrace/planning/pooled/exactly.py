"""Exact search for `pooled`: when our rule allows it, and how the answers meet.

It does where a plan is good if its slots fit, and slots fit exactly if their sizes add up to no
more than there is: shares that always pack, and weights that never fill a device's memory. Then
demands share nothing but units of devices (`exact_free`; `exact_cost` for least cost). On three or
more types the best plan whose demands share no device is where HiGHS (`search`) begins. Elsewhere,
and for the sum of throughputs of several models, HiGHS alone chooses.
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
from headrace.planning.common.master import Goal, Wanted
from headrace.planning.common.packing import SlotSize, pack
from headrace.planning.exact.columns import (
    Columns,
    Stock,
    make_columns,
    slot_types,
    slot_units,
    units_per_device,
)
from headrace.planning.exact.cost import search_least_cost
from headrace.planning.exact.free import OutOfReach, search_freely
from headrace.planning.exact.outcomes import Chosen
from headrace.planning.exact.search import search_exactly
from headrace.planning.pooled.search import INFEASIBLE, Outcome, search, search_beside_bound
from headrace.planning.pooled.selection import Chosen as Selected

LARGE_DEVICES = 500
"""More than these: bound and repair."""

REMAINDERS_MAX = 1_000
"""Sets of slots to be packed before shares count as always packing."""

TIME_PART = 0.5
"""Of the time limit; the rest is for HiGHS, should the search not end."""


def search_exactly_pooled(
    hardware: Hardware,
    wanted: Sequence[Wanted],
    columns: Sequence[Pipelines],
    goal: Goal,
    deadline: Deadline,
) -> Outcome | None:
    """The best counts for feasible pipelines; None if this is not a problem for it.

    Args:
        columns: per demand; each non-empty.
    """
    # Of one demand alone, throughput and throughput / weight are largest together.
    if goal not in ("max-min", "least-cost") and not (goal == "throughput" and len(wanted) == 1):
        return None
    if not _always_fits(hardware, columns):
        return None
    weighted = [
        Wanted(weight=want.weight if goal == "max-min" else 1.0, least_rps=want.least_rps)
        for want in wanted
    ]
    per_device = units_per_device(hardware.kinds)
    stock = Stock(
        pool_type=np.arange(len(hardware.devices)),
        granule=1,
        granules=hardware.owned * per_device,
        room=np.zeros(0, dtype=np.int64),
    )
    counted = [_columns(hardware, pipelines) for pipelines in columns]
    half = Deadline(TIME_PART * deadline.left_s)
    if goal != "least-cost" and hardware.owned.sum() > LARGE_DEVICES:
        return _beside_bound(hardware, weighted, columns, counted, deadline)
    try:
        if goal == "least-cost":
            assert hardware.prices is not None, "checked before planning"
            answer = search_least_cost(stock, wanted, counted, per_device, hardware.prices, half)
        else:
            answer = search_freely(stock, weighted, counted, per_device, half)
    except (OutOfReach, OutOfTime):
        if goal == "least-cost":
            return None
        start = _whole_per_demand(hardware, stock, weighted, columns, counted, half)
        return search(hardware, wanted, columns, goal, deadline, start)
    if answer.chosen is None:
        return INFEASIBLE
    return Outcome(
        stopped="optimal",
        chosen=_selected(hardware, columns, counted, answer.chosen),
        objective=answer.objective,
        bound=answer.bound,
    )


def _whole_per_demand(
    hardware: Hardware,
    stock: Stock,
    wanted: Sequence[Wanted],
    columns: Sequence[Pipelines],
    counted: Sequence[Columns],
    deadline: Deadline,
) -> Selected | None:
    """The best plan in which no two demands share a device: one to begin with, soon found.

    It is never below the artifact's, which rounds up more and allows fewer pipelines.
    """
    per_device = units_per_device(hardware.kinds)
    whole = replace(stock, granule=per_device, granules=hardware.owned)
    found = search_exactly(whole, wanted, counted, deadline).chosen
    return None if found is None else _selected(hardware, columns, counted, found)


def _beside_bound(
    hardware: Hardware,
    wanted: Sequence[Wanted],
    columns: Sequence[Pipelines],
    counted: Sequence[Columns],
    deadline: Deadline,
) -> Outcome | None:
    """Bound and repair, with only the pipelines that counting needs."""
    few = [mine.take(each.source) for mine, each in zip(columns, counted, strict=True)]
    outcome = search_beside_bound(hardware, wanted, few, "max-min", deadline)
    if outcome is None or outcome.chosen is None:
        return outcome
    chosen = tuple(
        replace(mine, pipeline=each.source[mine.pipeline])
        for mine, each in zip(outcome.chosen.allotments, counted, strict=True)
    )
    return replace(outcome, chosen=replace(outcome.chosen, allotments=chosen))


def _always_fits(hardware: Hardware, columns: Sequence[Pipelines]) -> bool:
    if any(memory_limited(pipelines, hardware).any() for pipelines in columns):
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


def _columns(hardware: Hardware, pipelines: Pipelines) -> Columns:
    """One pool per device type, whatever the position."""
    types = slot_types(hardware.kinds, hardware.devices)
    pools = np.where(pipelines.kinds >= 0, types[pipelines.kinds], -1)
    return make_columns(
        pipelines,
        pools=pools,
        units=slot_units(hardware.kinds),
        groups=np.zeros((len(pipelines), 0), dtype=np.int64),
    )


def _selected(
    hardware: Hardware,
    columns: Sequence[Pipelines],
    counted: Sequence[Columns],
    chosen: Sequence[Chosen],
) -> Selected:
    every = zip(columns, counted, chosen, strict=True)
    allotments = tuple(_allotments(hardware, p, mine.source[c.columns], c) for p, mine, c in every)
    # Which patterns cut the devices matters only where cost is counted.
    cut = np.zeros(len(hardware.pattern_device), dtype=np.int64)
    return Selected(allotments=allotments, cut=cut)


def _allotments(
    hardware: Hardware, pipelines: Pipelines, rows: np.ndarray, chosen: Chosen
) -> Allotments:
    kinds, slots = pipelines.kinds[rows], chosen.slots
    use = np.zeros((len(rows), len(hardware.kinds)), dtype=np.int64)
    row, stage = np.nonzero(kinds >= 0)
    np.add.at(use, (row, kinds[row, stage]), slots[row, stage])
    rates = np.where(kinds >= 0, pipelines.rates_rps[rows], 1.0)
    return Allotments(
        pipeline=rows,
        slots=slots,
        use=use,
        throughput_rps=np.where(kinds >= 0, slots * rates, np.inf).min(axis=1),
        waste=np.zeros(len(rows)),
    )
