"""From a heuristic to a `PlanResult`: what it needs of a problem, its plan, or why it has none."""

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from math import ceil

from msgspec.structs import replace

from headrace.domain.apart import apart, ms_apart
from headrace.domain.errors import DocumentError
from headrace.domain.interference import Interference
from headrace.domain.plan import PlanResult
from headrace.domain.problem import PlanOptions, Problem
from headrace.planning.baselines.parts.beside import Beside
from headrace.planning.baselines.parts.cycles import Cycles
from headrace.planning.baselines.parts.elastic import Stuck
from headrace.planning.baselines.parts.fleet import Fleet
from headrace.planning.common.assembly import Claim
from headrace.planning.common.candidates import budget_us, usable_kinds
from headrace.planning.common.deadline import Deadline, OutOfTime
from headrace.planning.common.headroom import rates_text
from headrace.planning.common.shared_assembly import assemble_shared
from headrace.planning.common.shared_times import SharedTimes
from headrace.planning.pooled.planner import check_options
from headrace.planning.pooled.refusal import nearest_slo_us

ADVICE_S = 2.0
"""For the rates, and for the devices, that a refusal names."""
MORE_DEVICES = 16
"""With which a plan is looked for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A problem as the heuristics see it."""

    times: SharedTimes
    cycles: Cycles
    rates_rps: tuple[float, ...]
    count: int
    """Devices that there are."""
    max_tenants: int | None
    deadline: Deadline
    """A heuristic that has not ended by then raises OutOfTime."""

    def fleet(self, cuts: Sequence[Sequence[Fraction]]) -> Fleet:
        """`cuts`: for each device the shares of its parts; (1,) is one that is still whole."""
        return Fleet(self.times, self.cycles, cuts, self.max_tenants, self.deadline)


Heuristic = Callable[[Case, Sequence[float]], Fleet | Stuck]
"""(case, rate of each model) -> devices with promises, or what no part could take."""


def answer(
    problem: Problem, planner: str, heuristic: Heuristic, *, interference: bool = False
) -> PlanResult:
    """Plan with a heuristic; nothing is proven of its plan, nor of a refusal.

    Args:
        interference: whether neighbours are counted with, as the problem's document says.

    Raises:
        DocumentError: several device types, or a model without a rate.
    """
    deadline = Deadline(problem.options.time_limit_s)
    options = replace(problem.options, planner=planner, min_stages=1, max_stages=1)
    _check(problem, planner)
    problem = replace(problem, options=options)
    device = usable_kinds(problem.cluster)[0].device
    documents = [each for each in problem.interference if interference and each.device == device]
    case = _case(problem, device, documents, deadline)
    try:
        found = heuristic(case, case.rates_rps)
    except OutOfTime:
        return PlanResult(
            plan=None,
            stopped="time-limit",
            bound=None,
            refusal=f"{planner} did not end within {options.time_limit_s:g} s\n"
            f"  try    a longer --time-limit-s, or {_shares(options)}",
            runtime_s=deadline.spent_s,
        )
    if isinstance(found, Stuck):
        return PlanResult(
            plan=None,
            stopped="heuristic",
            bound=None,
            refusal=_refusal(case, planner, heuristic, found, options),
            runtime_s=deadline.spent_s,
        )
    claim = Claim(
        bound=None,
        stopped="heuristic",
        binding=f"{planner} is a heuristic, a better plan may exist;"
        f" rates: {rates_text(problem)} must be carried",
        runtime_s=deadline.spent_s,
    )
    plan = assemble_shared(problem, found.chosen(), claim, documents)
    return PlanResult(plan=plan, stopped="heuristic", bound=None, runtime_s=deadline.spent_s)


def _check(problem: Problem, planner: str) -> None:
    check_options(problem)
    used = [kind.name for kind in problem.cluster.device_types if problem.cluster.count(kind.name)]
    if len(used) > 1:
        raise DocumentError(
            f"planner {planner}: shares devices of one type, and the cluster has {', '.join(used)};"
            f" use {_shares(problem.options)}"
        )
    rateless = [demand.model for demand in problem.demands if demand.rate_rps is None]
    if rateless:
        raise DocumentError(
            f"planner {planner}: every model needs a rate_rps; missing for {', '.join(rateless)}"
        )


def _case(
    problem: Problem, device: str, documents: Sequence[Interference], deadline: Deadline
) -> Case:
    times = SharedTimes.of(problem, device)
    document = documents[0] if documents else None
    return Case(
        times=times,
        cycles=Cycles(Beside(problem, times, document)),
        rates_rps=tuple(demand.rate_rps or 0.0 for demand in problem.demands),
        count=problem.cluster.count(device),
        max_tenants=problem.options.max_tenants,
        deadline=deadline,
    )


def _refusal(
    case: Case, planner: str, heuristic: Heuristic, stuck: Stuck, options: PlanOptions
) -> str:
    alone = [_refuse_alone(case, each, options) for each in range(len(case.times.models))]
    if any(alone):
        return "\n".join(text for text in alone if text)
    model, kind = case.times.models[stuck.load.model].demand.model, case.times.device.name
    most = _nearest(case, heuristic)
    says = f"all rates times {most:.2g}, which it carries, or " if most > 0 else ""
    enough = _enough(case, heuristic)
    if enough is not None:
        says += f"{enough} of type {kind!r}, with which it does, or "
    left, asked = apart(stuck.load.rate_rps, case.rates_rps[stuck.load.model])
    return (
        f"{planner} finds no part for {left} requests/s of model {model!r}\n"
        f"  needs  {asked} requests/s of it, beside the other models\n"
        f"  has    {case.count} of type {kind!r}, cut as they may be\n"
        f"  try    {says}{_shares(options)}, which looks at every plan"
    )


def _shares(options: PlanOptions) -> str:
    """The planner that looks further, with an objective that it knows."""
    return "--planner shares" + " --objective max-min" * (options.objective == "throughput")


def _refuse_alone(case: Case, number: int, options: PlanOptions) -> str | None:
    """Of a model that no part can run in time, even alone and one request at a time."""
    tenant = case.times.models[number]
    model, kind = tenant.demand.model, case.times.device.name
    margin = options.margin_of(model)
    shortest_us = _shortest_us(case, number)
    if shortest_us is None:
        return (
            f"model {model!r} cannot run on any part of a {kind!r}\n"
            f"  needs  a profile on {kind!r}, and {tenant.weights_bytes:,} bytes for its weights\n"
            f"  has    {_memory(case)}\n"
            "  try    `headrace profile --shares`, or devices with more memory"
        )
    if shortest_us > tenant.budget_us:
        gateway_us = budget_us(tenant.demand.slo_us, margin) - tenant.budget_us
        slo_us = nearest_slo_us(shortest_us + gateway_us, margin)
        needs, has = ms_apart(shortest_us, tenant.budget_us)
        return (
            f"model {model!r} cannot meet its SLO on any part of a {kind!r}\n"
            f"  needs  {needs}: a wait for its turn, then its batch of 1\n"
            f"  has    {has} of its SLO\n"
            f"  try    {'a smaller --margin, or ' if margin else ''}slo_ms: {ceil(slo_us / 1000)}"
        )
    return None


def _memory(case: Case) -> str:
    memory = case.times.device.memory_bytes
    return "no profile there" if memory is None else f"{memory:,} bytes of memory"


def _shortest_us(case: Case, model: int) -> int | None:
    """The least D + latency at batch size 1; None: it was not profiled on any part."""
    tenant = case.times.models[model]
    shortest = [
        rows[0] + case.times.least_cycle_us(tenant.busy_us(rows[0], 1))
        for rows in tenant.latency_us.values()
    ]
    return min(shortest, default=None)


def _nearest(case: Case, heuristic: Heuristic) -> float:
    """The largest multiple of all rates, of those tried, that the heuristic carries, in hundredths;
    0: none was found in time."""
    case = dataclasses.replace(case, deadline=Deadline(ADVICE_S))
    low, high = 0, 100
    while high - low > 1:
        middle = (low + high) // 2
        carried = _carried(case, heuristic, _times(case, middle / 100))
        if carried is None:
            break
        low, high = (middle, high) if carried else (low, middle)
    return low / 100


def _enough(case: Case, heuristic: Heuristic) -> int | None:
    """With how many devices the heuristic carries all rates; None: not found in time."""
    deadline = Deadline(ADVICE_S)
    for count in range(case.count + 1, case.count + MORE_DEVICES + 1):
        more = dataclasses.replace(case, count=count, deadline=deadline)
        carried = _carried(more, heuristic, more.rates_rps)
        if carried is None:
            break
        if carried:
            return count
    return None


def _carried(case: Case, heuristic: Heuristic, rates_rps: Sequence[float]) -> bool | None:
    """Whether the heuristic has a plan; None: it did not end in time."""
    try:
        return not isinstance(heuristic(case, rates_rps), Stuck)
    except OutOfTime:
        return None


def _times(case: Case, multiple: float) -> list[float]:
    return [rate_rps * multiple for rate_rps in case.rates_rps]
