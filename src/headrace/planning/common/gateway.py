"""The gateway's time: one event loop reads, admits and answers every request of every model.

    sum over models of rate x gateway_us  <=  1,000,000 us of every second

The planners count slots; here their plan is held to what the gateway can pass on. Slots keep what
they can do, models get less of it:

max-min      every model gets min(its own, weight x z) of one z, the largest that fits. If the
             gateway is the limit then z = 1e6 / sum(weight x gateway_us), which no plan can beat,
             so the plan is optimal; otherwise its smallest throughput / weight stays as it was
throughput   after the rates that are asked for, every model without one gets the same part of what
             its slots can do, so that none is left with nothing; what then remains goes to the
             others, those that cost the gateway least first. No plan passes on more than
             1e6 / (least gateway_us): the gap to that is stated
least-cost   rates are given: as for max-min, but never below a model's rate

Rates that do not fit are refused before anything is planned, those of apps' calls included: each
passes the gateway as a client's request does. Decision 0029.
"""

from collections.abc import Mapping, Sequence

from msgspec.structs import replace

from headrace.cost import cost_model
from headrace.domain.apart import apart
from headrace.domain.plan import OPTIMAL_GAP, Deployment, Plan, PlanResult
from headrace.domain.problem import MINIMISED, Demand, Problem
from headrace.planning.common.rounded import round_down

US_PER_S = 1e6


def refuse_for_gateway(problem: Problem) -> PlanResult | None:
    """A refusal where the rates asked for take more time than one gateway has."""
    costs = cost_model(problem.profiles)
    called = [
        (f"{app.name}.{module.name}", app.module_rate_rps(module.name), module.model)
        for app in problem.apps
        for module in app.modules
    ]
    asked = [(demand.model, demand.rate_rps or 0.0, demand.model) for demand in problem.demands]
    shares = {name: (rps, costs.gateway_us(model)) for name, rps, model in (*asked, *called)}
    needed = sum(rps * cost for rps, cost in shares.values())
    each = _each({name: cost for name, (_, cost) in shares.items()})
    if needed <= US_PER_S:
        return None
    return PlanResult(
        plan=None,
        stopped="infeasible",
        bound=None,
        runtime_s=0.0,
        refusal="the rates need more time than the gateway has\n"
        f"  needs  {apart(needed / US_PER_S, 1.0, digits=3)[0]} s of every second, {each}\n"
        "  has    1 s: one event loop passes all requests\n"
        f"  try    rates of {round_down(US_PER_S / needed, 2)} times these, or several servers",
    )


def gateway_costs_us(problem: Problem) -> list[int]:
    """Of one request of each demand."""
    costs = cost_model(problem.profiles)
    return [costs.gateway_us(demand.model) for demand in problem.demands]


def within_gateway(problem: Problem, result: PlanResult) -> PlanResult:
    """The same plan with no more throughput, and no higher bound, than the gateway can pass on."""
    plan, costs_us = result.plan, gateway_costs_us(problem)
    if plan is None or plan.apps or not any(costs_us):
        return result
    own = [deployment.throughput_rps for deployment in plan.deployments]
    bound = _bound(problem, costs_us, plan.bound)
    passed = _passed_on(problem, own, costs_us)
    if passed == own and bound == plan.bound:
        return result
    deployments = tuple(
        replace(deployment, throughput_rps=rps)
        for deployment, rps in zip(plan.deployments, passed, strict=True)
    )
    objective = _objective(problem, deployments, plan)
    if bound is not None and problem.options.objective not in MINIMISED:
        bound = max(bound, objective)
    gap = None if bound is None else abs(bound - objective) / objective if objective else 0.0
    stopped = "optimal" if gap is not None and gap <= OPTIMAL_GAP else plan.stopped
    if stopped == "optimal" and (gap is None or gap > OPTIMAL_GAP):
        stopped = "heuristic"
    binding = plan.binding
    if passed != own:
        each = dict(zip((demand.model for demand in problem.demands), costs_us, strict=True))
        says = f"gateway: it takes {_each(each)}: {_most(problem, costs_us)}"
        binding = says if bound == objective else f"{says}; {binding}"
    plan = replace(
        plan,
        deployments=deployments,
        objective=objective,
        bound=bound,
        gap=gap,
        stopped=stopped,
        binding=binding,
    )
    return replace(result, plan=plan, stopped=stopped, bound=bound)


def _passed_on(problem: Problem, own: Sequence[float], costs_us: Sequence[int]) -> list[float]:
    """Shape as `own`: requests per second of each demand, together within the gateway's time."""
    if sum(rps * cost for rps, cost in zip(own, costs_us, strict=True)) <= US_PER_S:
        return list(own)
    least = [demand.rate_rps or 0.0 for demand in problem.demands]
    if problem.options.objective == "throughput":
        return _same_part(problem.demands, own, costs_us)
    return _in_proportion(problem.demands, own, least, costs_us)


def _same_part(
    demands: Sequence[Demand], own: Sequence[float], costs_us: Sequence[int]
) -> list[float]:
    """Rates that are asked for, then one part of `own` for all others, then what remains."""
    passed = [demand.rate_rps or 0.0 for demand in demands]
    left_us = US_PER_S - sum(rps * cost for rps, cost in zip(passed, costs_us, strict=True))
    free = [i for i, demand in enumerate(demands) if demand.rate_rps is None]
    wanted_us = sum(own[i] * costs_us[i] for i in free)
    part = min(1.0, left_us / wanted_us) if wanted_us else 1.0
    for i in free:
        passed[i] = part * own[i]
    left_us -= part * wanted_us
    for i in sorted(range(len(own)), key=lambda i: (costs_us[i], i)):
        more = own[i] - passed[i]
        if costs_us[i]:
            more = min(more, max(0.0, left_us) / costs_us[i])
        passed[i] += more
        left_us -= more * costs_us[i]
    return passed


def _in_proportion(
    demands: Sequence[Demand],
    own: Sequence[float],
    least: Sequence[float],
    costs_us: Sequence[int],
) -> list[float]:
    """max(rate, min(own, weight x z)) of the largest z that fits: between two of the z at which a
    model joins or leaves, what is needed grows in proportion."""

    def at(z: float) -> list[float]:
        return [
            max(low, min(most, demand.weight * z))
            for low, most, demand in zip(least, own, demands, strict=True)
        ]

    def needed(z: float) -> float:
        return sum(rps * cost for rps, cost in zip(at(z), costs_us, strict=True))

    turns = sorted(
        {rps / d.weight for rps, d in zip((*own, *least), (*demands, *demands), strict=True)}
    )
    below = 0.0
    for turn in turns:
        if needed(turn) > US_PER_S:
            slope = (needed(turn) - needed(below)) / (turn - below)
            return at(below + (US_PER_S - needed(below)) / slope)
        below = turn
    return list(own)


def _bound(problem: Problem, costs_us: Sequence[int], bound: float | None) -> float | None:
    if bound is None:
        return None
    match problem.options.objective:
        case "max-min":
            pairs = zip(problem.demands, costs_us, strict=True)
            taken_us = sum(demand.weight * cost for demand, cost in pairs)
            return min(bound, US_PER_S / taken_us)
        case "throughput":
            return min(bound, US_PER_S / min(costs_us)) if min(costs_us) else bound
        case "least-cost" | "least-devices":
            return bound


def _objective(problem: Problem, deployments: Sequence[Deployment], plan: Plan) -> float:
    rates = [deployment.throughput_rps for deployment in deployments]
    match problem.options.objective:
        case "max-min":
            return min(r / d.weight for r, d in zip(rates, problem.demands, strict=True))
        case "throughput":
            return sum(rates)
        case "least-cost" | "least-devices":
            return plan.objective


def _each(costs_us: Mapping[str, int]) -> str:
    """ "39 us per request", or of each model or module."""
    if len(costs_us) == 1:
        return f"{next(iter(costs_us.values()))} us per request"
    return ", ".join(f"{cost} us per request of {name!r}" for name, cost in costs_us.items())


def _most(problem: Problem, costs_us: Sequence[int]) -> str:
    if len(costs_us) == 1:
        return f"at most {US_PER_S / costs_us[0]:,.0f} requests/s"
    most = "one second of every second in all"
    if problem.options.objective == "throughput" and any(
        d.rate_rps is None for d in problem.demands
    ):
        most += ", of which each model without a rate gets the same part of what its slots can do"
    return most
