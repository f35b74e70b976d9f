"""`ideal`: every way to cut the devices, with the gpu-let heuristic inside (gpu-lets, section 6.1).

The paper's comparison for schedulability. It is exhaustive over cuts, not over who gets which part,
so it is no upper bound. Devices of a type are alike, so cuts are counted as multisets: 35 for four
devices with four splits, where the paper walks 4^4. Of the plans found, the one on fewest devices.
"""

from collections.abc import Sequence
from fractions import Fraction
from itertools import combinations_with_replacement
from math import comb

from headrace.domain.cluster import DeviceType
from headrace.domain.errors import DocumentError
from headrace.domain.plan import PlanResult
from headrace.domain.problem import Problem
from headrace.planning.baselines.parts.answer import Case, answer
from headrace.planning.baselines.parts.elastic import Rules, Stuck, allocate, sizes_of
from headrace.planning.baselines.parts.fleet import Fleet
from headrace.planning.common.patterns import maximal_patterns

CUTS_MAX = 100_000
"""Ways to cut the whole cluster."""


def plan_every_split(problem: Problem) -> PlanResult:
    """The plan on fewest devices over all cuts, or a refusal.

    Raises:
        DocumentError: several device types, a model without a rate, more than one stage, or so many
            devices that their cuts cannot be walked.
    """
    return answer(problem, "ideal", _cut_every_way)


def _cut_every_way(case: Case, rates_rps: Sequence[float]) -> Fleet | Stuck:
    cuts = _cuts(case.times.device)
    ways = comb(case.count + len(cuts) - 1, case.count)
    if ways > CUTS_MAX:
        raise DocumentError(
            f"planner ideal: {case.count} devices can be cut in {ways:,} ways, and at most"
            f" {CUTS_MAX:,} are walked; use --planner shares"
        )
    best: Fleet | None = None
    stuck: Stuck | None = None
    for way in combinations_with_replacement(cuts, case.count):
        fleet = case.fleet(way)
        found = allocate(fleet, rates_rps, Rules(split=False), sizes_of(fleet))
        if found is not None:
            stuck = stuck or found
        elif best is None or _devices(fleet) < _devices(best):
            best = fleet
    if best is not None:
        return best
    assert stuck is not None, "a device has a cut"
    return stuck


def _devices(fleet: Fleet) -> int:
    return len({part.device for part in fleet.allocated()})


def _cuts(device: DeviceType) -> list[tuple[Fraction, ...]]:
    if device.splits:
        return list(device.splits)
    shares = sorted(device.shares, reverse=True)
    return [
        tuple(share for share, count in zip(shares, row, strict=True) for _ in range(count))
        for row in maximal_patterns(shares, device=device.name)
    ]
