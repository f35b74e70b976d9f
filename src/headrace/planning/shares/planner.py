"""From a problem to the best plan of shared devices, or to a refusal that says what would do."""

from collections.abc import Sequence
from dataclasses import replace as with_fields
from functools import partial, reduce
from math import inf

import numpy as np
from msgspec.structs import replace

from headrace.domain.errors import DocumentError
from headrace.domain.plan import OPTIMAL_GAP, PlanResult
from headrace.domain.problem import Problem
from headrace.planning.common.assembly import Claim
from headrace.planning.common.deadline import Deadline
from headrace.planning.common.headroom import rates_text
from headrace.planning.common.shared_assembly import ChosenDevice, assemble_shared
from headrace.planning.common.shared_times import US_PER_S, SharedTimes
from headrace.planning.common.weights import Weights
from headrace.planning.pooled.planner import check_options
from headrace.planning.shares.arranging import arranged, needed
from headrace.planning.shares.devices import Devices, devices_of
from headrace.planning.shares.listing import Parts
from headrace.planning.shares.master import Goal
from headrace.planning.shares.pricing import Pricing
from headrace.planning.shares.refusal import refuse_models, refuse_rates, refuse_weights
from headrace.planning.shares.search import NO_PLAN, NOTHING, PartsFound, least, most
from headrace.planning.shares.tenants import are_countable, in_proportion, numbers
from headrace.planning.shares.workload import Workload

PRECISION = OPTIMAL_GAP / 2
"""Of `max-min`: half of the gap up to which a plan is called optimal."""


NOTHING_CARRIES = inf
"""In place of a bound: not even fractions of devices carry the rates."""

SEARCH_PART = 0.95
"""Of the time limit; what is left is for arranging and writing down the devices."""

DEGREES = {1: 0.5, 3: 0.2}
"""Of loudness, with which plans are looked for first, and for what part of the time left. Most end
sooner; a first plan is worth half of it, and what is left bounds it."""

BOUND_PART = 0.2
"""Of the time: for a bound over all parts, where not all are searched."""

ADVICE_S = 2.0
"""For the rates that a refusal names, once it is proven."""


def plan_shares(problem: Problem) -> PlanResult:
    """The best plan in which models share devices, in space and in turns, with its proof.

    Raises:
        DocumentError: an objective that sharing does not know, or rates or prices that the
            objective needs are missing.
    """
    deadline = Deadline(SEARCH_PART * problem.options.time_limit_s)
    _check(problem)
    problem = replace(problem, options=replace(problem.options, min_stages=1, max_stages=1))
    times = [
        SharedTimes.of(problem, kind.name)
        for kind in problem.cluster.device_types
        if problem.cluster.count(kind.name)
    ]
    needed = [tenant.blocks for tenant in times[0].models]
    if refusal := refuse_models(problem, times) or refuse_weights(problem.cluster, needed):
        return _refused(refusal, "infeasible", deadline)
    unit = multiple_of_all(problem, times)
    load = workload(problem, times, unit)
    prices = _prices(problem, times)
    found, chosen, looked_at = searched(problem, load, times, prices, deadline)
    load = with_fields(load, tenants_max=looked_at)
    if chosen is None:
        if deadline.passed and not found.proven:
            return _refused(_gave_up(problem), "time-limit", deadline)
        refusal = refuse_rates(problem, load, times, advice_deadline(deadline), proven=found.proven)
        return _refused(refusal, "infeasible" if found.proven else "time-limit", deadline)
    claim = Claim(
        bound=None if found.bound is None else found.bound * unit,
        stopped="optimal" if found.proven else "time-limit" if deadline.passed else "heuristic",
        binding=_binding(problem, load, found, chosen),
        runtime_s=deadline.spent_s,
    )
    plan = assemble_shared(problem, chosen, claim, problem.interference)
    return PlanResult(plan=plan, stopped=plan.stopped, bound=plan.bound, runtime_s=plan.runtime_s)


def multiple_of_all(problem: Problem, times: Sequence[SharedTimes]) -> float:
    """For `max-min`, a multiple of all weights that no plan exceeds by more than rounding: all
    devices for one model alone. Programs in units of it see numbers about 1, whatever the weights
    are; without, a multiple of a million was as much as they knew. For other objectives 1.
    """
    if problem.options.objective != "max-min":
        return 1.0
    alone = np.zeros(len(problem.demands))
    for each in times:
        count = problem.cluster.count(each.device.name)
        for m, tenant in enumerate(each.models):
            rates = [
                size / (each.least_cycle_us(tenant.busy_us(us, size)) * float(share))
                for share, latency in tenant.latency_us.items()
                for size, us in enumerate(latency, start=1)
            ]
            alone[m] += count * US_PER_S * max(rates, default=0.0)
    weights = np.array([demand.weight for demand in problem.demands])
    return float((alone / weights).min()) or 1.0


def workload(problem: Problem, times: Sequence[SharedTimes], unit: float = 1.0) -> Workload:
    """What is asked, in plain numbers. `max-min` multiplies weights, and carries rates besides.

    Args:
        unit: of its multiples, in weights.
    """
    rates = np.array([demand.rate_rps or 0.0 for demand in problem.demands])
    weights = np.array([demand.weight * unit for demand in problem.demands])
    multiplied = problem.options.objective == "max-min"
    target = weights if multiplied else rates
    return Workload(
        target_rps=target,
        floor=rates / target if multiplied else np.zeros(len(rates)),
        have=np.zeros(len(rates)),
        budget_us=np.array([tenant.budget_us for tenant in times[0].models], np.int64),
        weights=Weights.of([tenant.blocks for tenant in times[0].models]),
    )


def advice_deadline(planning: Deadline) -> Deadline:
    """For the rates that a refusal names: what is left of planning, 1 s at least."""
    return Deadline(min(ADVICE_S, max(1.0, planning.left_s)))


def pricing_of(
    load: Workload, devices: Devices, deadline: Deadline, more: Parts | None = None
) -> Pricing:
    return Pricing(
        load, devices.offers, devices.candidates, devices.layouts, devices.levels, deadline, more
    )


def searched(
    problem: Problem,
    load: Workload,
    times: list[SharedTimes],
    prices: Sequence[float],
    deadline: Deadline,
) -> tuple[PartsFound, list[ChosenDevice] | None, int]:
    """The best plan, with what is proven of it by the most hopeful reading of the devices, and how
    many models on one part were looked at.

    Where neighbours slow each other, a search over how loud each part may be can be long without a
    plan or a bound. So plans are first looked for with few degrees of loudness, each as loud as the
    loudest in it: what they promise holds. And the first bound has all neighbours silent.
    """
    devices = devices_of(problem, times, prices)
    silent: float | None = None
    tried: list[Tried] = []
    if devices.levels > 1:
        quiet = devices_of(replace(problem, interference=()), times, prices)
        most_tenants = min(problem.options.max_tenants or load.models, load.models)
        everyone = with_fields(load, tenants_max=most_tenants)
        countable = are_countable(load, quiet, most_tenants)
        silent = _bound_of_all(problem, everyone, quiet, deadline, countable=countable)
        if silent == NOTHING_CARRIES:
            return NO_PLAN, None, most_tenants
    for degrees, part in DEGREES.items():
        if degrees < devices.levels:
            few = devices_of(problem, times, prices, degrees=degrees)
            limit = Deadline(part * deadline.left_s)
            tries = _tries(problem, load, few, limit)
            found, chosen, looked_at = _planned(
                problem, load, few, times, prices, limit, tries, degrees
            )
            if chosen is None:
                continue
            settled = _with_bound(problem, found, silent)
            if settled.proven:
                return settled, chosen, looked_at
            tried.append((found, chosen, looked_at))
    # Slower parts than there are may be planned with: what is proven is by the fastest.
    bounding = devices if devices.exact else devices_of(problem, times, prices, fastest=True)
    found, chosen, looked_at = _searched(problem, load, devices, bounding, times, prices, deadline)
    if found == NO_PLAN:
        return found, None, looked_at
    bound = silent if found.bound is None else found.bound
    if chosen is not None:
        tried.append((found, chosen, looked_at))
    if not tried:
        return found, None, looked_at
    best, best_chosen, looked_at = reduce(partial(_better, problem), reversed(tried))
    if best is not found or found.bound is None:
        best = _with_bound(problem, best, bound)
    return best, best_chosen, looked_at


Tried = tuple[PartsFound, list[ChosenDevice], int]
"""A plan, its devices, and how many models on one part were looked at."""


def _better(problem: Problem, one: Tried, other: Tried) -> Tried:
    """Of two with a plan; the first, where they are as good."""
    assert one[0].value is not None, "the price or multiple of a plan"
    assert other[0].value is not None, "the price or multiple of a plan"
    if problem.options.objective == "max-min":
        return other if other[0].value > one[0].value else one
    return other if other[0].value < one[0].value else one


def _searched(
    problem: Problem,
    load: Workload,
    devices: Devices,
    bounding: Devices,
    times: list[SharedTimes],
    prices: Sequence[float],
    deadline: Deadline,
) -> tuple[PartsFound, list[ChosenDevice] | None, int]:
    """As `searched`, of these devices; `bounding` are those that the bound is taken of."""
    tries = most_tenants, numbers_tried = _tries(problem, load, devices, deadline)
    bound = None
    if numbers_tried[0] < most_tenants:
        everyone = with_fields(load, tenants_max=most_tenants)
        countable = numbers_tried[-1] == most_tenants
        bound = _bound_of_all(problem, everyone, bounding, deadline, countable=countable)
        if bound == NOTHING_CARRIES:
            return NO_PLAN, None, numbers_tried[0]
    found, chosen, looked_at = _planned(problem, load, devices, times, prices, deadline, tries)
    if looked_at < most_tenants:
        if found.chosen is None:
            return with_fields(found, proven=False), None, looked_at
    elif devices.exact:
        return found, chosen, looked_at
    else:
        load = with_fields(load, tenants_max=looked_at)
        return _proven(problem, load, bounding, times, prices, deadline, found), chosen, looked_at
    return _with_bound(problem, found, bound), chosen, looked_at


def _proven(
    problem: Problem,
    load: Workload,
    bounding: Devices,
    times: list[SharedTimes],
    prices: Sequence[float],
    deadline: Deadline,
    found: PartsFound,
) -> PartsFound:
    """The same plan, or none, with what the fastest devices prove of any; where that is not all,
    with what they prove with their memory divided."""
    settled, bound = with_fields(found, proven=False), None
    tighter = min if problem.options.objective == "max-min" else max
    for divided in (None, load.tenants_max):
        if divided is not None:
            bounding = devices_of(problem, times, prices, fastest=True, divided=divided)
            if not bounding.every_plan:
                break
        limit = Deadline(BOUND_PART * deadline.left_s)
        best = _best(problem, load, bounding, load.tenants_max, limit)
        if found.chosen is None:
            settled = with_fields(found, proven=best == NO_PLAN)
        else:
            # The second search may end with less than the first, for want of time.
            bounds = [each for each in (bound, best.bound) if each is not None]
            bound = tighter(bounds) if bounds else _bound(problem, load, bounding, deadline)
            settled = _with_bound(problem, found, bound)
        if settled.proven or all(each.device.memory_bytes is None for each in times):
            break
    return settled


def _planned(
    problem: Problem,
    load: Workload,
    devices: Devices,
    times: list[SharedTimes],
    prices: Sequence[float],
    deadline: Deadline,
    tries: tuple[int, Sequence[int]],
    degrees: int | None = None,
) -> tuple[PartsFound, list[ChosenDevice] | None, int]:
    """As `searched`, of these devices, with so many degrees of loudness; what is proven is of
    them. `tries`: `_tries` of them."""
    most_tenants, numbers_tried = tries
    found = NOTHING
    for tenants_max in numbers_tried:
        load = with_fields(load, tenants_max=tenants_max)
        found = _best(problem, load, devices, most_tenants, deadline)
        if found.chosen is not None:
            break
    looked_at = load.tenants_max
    chosen = _arranged(problem, load, devices, times, found)
    if found.chosen is not None and chosen is None:
        # No device holds the weights of parts that it would have time for.
        divided = devices_of(problem, times, prices, degrees=degrees, divided=looked_at)
        fitting = _best(problem, load, divided, most_tenants, deadline)
        chosen = _arranged(problem, load, divided, times, fitting)
        if not divided.every_plan:
            fitting = _with_bound(problem, fitting, found.bound)
        found = fitting
    return found, chosen, looked_at


def _tries(
    problem: Problem, load: Workload, devices: Devices, deadline: Deadline
) -> tuple[int, Sequence[int]]:
    """How many models may be on one part, and how many are looked at, one after the other."""
    asked = problem.options.max_tenants
    most = min(asked or load.models, load.models)
    return most, numbers(load, devices, most, deadline, asked=asked is not None)


def _bound_of_all(
    problem: Problem, load: Workload, devices: Devices, deadline: Deadline, *, countable: bool
) -> float | None:
    """What holds with as many models on a part as are allowed; infinite: nothing carries the rates.

    Where these parts are not countable, or not in BOUND_PART of the time, models alone bound them:
    a part in turns carries the average of what its models would carry alone there, each for its
    part of the cycle, and no cycle is shorter than a batch of one of them.
    """
    most_wanted = problem.options.objective == "max-min"
    prices = None
    if countable:
        goal = Goal(most=most_wanted, cap=1e6 if most_wanted else 1.0)
        prices = pricing_of(load, devices, Deadline(BOUND_PART * deadline.left_s)).of(goal)
    if prices is None:
        # A cycle is whole microseconds: alone, a part may lose one of them by rounding.
        rounding = 1 + 1 / max(1, int(devices.candidates.taken_us.min()))
        load = with_fields(load, tenants_max=1, target_rps=load.target_rps / rounding)
        prices = pricing_of(load, devices, deadline).of(Goal(most=most_wanted, cap=1e6))
    if prices is None:
        return None
    return NOTHING_CARRIES if prices.missing else prices.bound


def _best(
    problem: Problem, load: Workload, devices: Devices, most_tenants: int, deadline: Deadline
) -> PartsFound:
    if not _has_places(load, devices, most_tenants):
        return NO_PLAN
    more = None
    if load.tenants_max < most_tenants:
        more = in_proportion(load, devices, most_tenants)
    pricing = pricing_of(load, devices, deadline, more)
    if problem.options.objective == "max-min":
        return most(pricing, precision=PRECISION)
    return least(pricing)


def _has_places(load: Workload, devices: Devices, most_tenants: int) -> bool:
    """Whether every model can be on some part at all."""
    parts = [0] * len(devices.offers)
    for layout in devices.layouts:
        parts[layout.device] = max(parts[layout.device], len(layout.places))
    counts = [offer.count for offer in devices.offers]
    places = sum(n * count for n, count in zip(parts, counts, strict=True))
    return places * most_tenants >= load.models


def _arranged(
    problem: Problem,
    load: Workload,
    devices: Devices,
    times: list[SharedTimes],
    found: PartsFound,
) -> list[ChosenDevice] | None:
    if found.chosen is None or found.value is None:
        return None
    multiple = found.value if problem.options.objective == "max-min" else 1.0
    return arranged(load, devices, times, needed(load, found.chosen, multiple))


def _bound(problem: Problem, load: Workload, devices: Devices, deadline: Deadline) -> float | None:
    """Of the linear program."""
    most_wanted = problem.options.objective == "max-min"
    prices = pricing_of(load, devices, deadline).of(
        Goal(most=most_wanted, cap=1e6 if most_wanted else 1.0)
    )
    return None if prices is None else prices.bound


def _with_bound(problem: Problem, found: PartsFound, bound: float | None) -> PartsFound:
    """The same plan with another bound, which alone is proven."""
    most_wanted = problem.options.objective == "max-min"
    if bound is not None and found.value is not None:
        if problem.options.objective == "least-devices":
            bound = float(np.ceil(bound - 1e-6))
        bound = max(bound, found.value) if most_wanted else min(bound, found.value)
        proven = abs(bound - found.value) <= OPTIMAL_GAP * found.value
    else:
        proven = False
    return PartsFound(chosen=found.chosen, value=found.value, bound=bound, proven=proven)


def _check(problem: Problem) -> None:
    check_options(problem)
    objective = problem.options.objective
    if objective == "throughput":
        raise DocumentError(
            "planner shares: knows the objectives max-min, least-devices and least-cost;"
            " throughput, the sum over all models, would leave some with nothing"
        )
    rateless = [demand.model for demand in problem.demands if demand.rate_rps is None]
    if objective == "least-devices" and rateless:
        raise DocumentError(
            f"objective least-devices: every demand needs a rate_rps; missing for"
            f" {', '.join(rateless)}"
        )


def _prices(problem: Problem, times: Sequence[SharedTimes]) -> list[float]:
    if problem.options.objective != "least-cost":
        return [1.0 for _ in times]
    return [each.device.price_per_hour or 0.0 for each in times]


def _binding(
    problem: Problem, load: Workload, found: PartsFound, chosen: Sequence[ChosenDevice]
) -> str:
    most_tenants = min(problem.options.max_tenants or load.models, load.models)
    parts = []
    widest = max(len(part.tenants) for device in chosen for part in device.parts)
    if load.tenants_max < most_tenants:
        more = ", more of them in proportion" if widest > load.tenants_max else ""
        parts.append(
            f"up to {load.tenants_max} models on one part were looked at{more}, of"
            f" {most_tenants} that may be, and the bound is for all of them"
        )
    elif not found.proven:
        parts.append("the search ended early; a better plan may exist")
    if problem.options.objective != "max-min":
        parts.append(f"rates: {rates_text(problem)} must be carried")
    else:
        parts.append("devices: no other use of them carries more of what is carried least")
    shared = sum(len(part.tenants) > 1 for device in chosen for part in device.parts)
    slots = sum(len(device.parts) for device in chosen)
    if limit := problem.options.max_tenants:
        parts.append(f"at most {limit} models take turns on a part (max_tenants)")
    parts.append(f"{len(chosen)} devices in {slots} parts, {shared} of them used in turns")
    return "; ".join(parts)


def _refused(refusal: str, stopped: str, deadline: Deadline) -> PlanResult:
    return PlanResult(
        plan=None,
        stopped="infeasible" if stopped == "infeasible" else "time-limit",
        bound=None,
        runtime_s=deadline.spent_s,
        refusal=refusal,
    )


def _gave_up(problem: Problem) -> str:
    used = [kind for kind in problem.cluster.device_types if problem.cluster.count(kind.name)]
    rated = all(demand.rate_rps is not None for demand in problem.demands)
    heuristic = ", or --planner gpulet, a heuristic" if rated and len(used) == 1 else ""
    return (
        f"no plan found within {problem.options.time_limit_s:g} s, and none excluded\n"
        f"  try    a longer --time-limit-s, fewer shares or a smaller max_batch{heuristic}"
    )
