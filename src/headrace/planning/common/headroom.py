"""What is planned for where arrivals are not even: rates with room, weights by what is carried.

Planners of models carry the rates that they are given, and often no more: a part may be full when
requests come evenly. `PlanOptions.rate_headroom` raises the rates before a planner sees them; the
plan states the rates that were asked for and the head-room beside them, and `verify` compares their
product with what the plan carries. (Planners of apps count with head-room themselves, as dummy
load.)

Of two models with one weight, one may carry all that it is promised and the other four fifths, for
its batches fill more slowly. `PlanOptions.carried_parts` says so, and a model's weight is divided
by its part: max-min of planned throughput / (weight / part) is max-min of what is carried / weight.
The plan states the weights that were asked for and the parts beside them.
"""

from msgspec.structs import replace

from headrace.domain.base import MOST_RATE_RPS
from headrace.domain.plan import PlanResult
from headrace.domain.problem import LEAST_WEIGHT, MOST_WEIGHT, Demand, Problem


def with_headroom(problem: Problem) -> Problem:
    """What a planner of models is to carry."""
    if not _differs(problem):
        return problem
    return replace(problem, demands=tuple(_raised(problem, each) for each in problem.demands))


def without_headroom(problem: Problem, result: PlanResult) -> PlanResult:
    """The answer to `with_headroom(problem)` as one to the problem: with the rates asked for."""
    plan = result.plan
    if plan is None or not _differs(problem):
        return result
    binding = plan.binding
    asked = rates_text(with_headroom(problem))
    if problem.options.rate_headroom and asked:
        binding = binding.replace(
            asked,
            f"{rates_text(problem)}, and {problem.options.rate_headroom:.4g} times as much on top,",
        )
    return replace(result, plan=replace(plan, demands=problem.demands, binding=binding))


def rates_text(problem: Problem) -> str:
    """ "20 rps of model 'm'" of each, as plans that are made for rates say what binds them."""
    return ", ".join(
        f"{each.rate_rps:g} rps of model {each.model!r}"
        for each in problem.demands
        if each.rate_rps is not None
    )


def _differs(problem: Problem) -> bool:
    options = problem.options
    return not problem.apps and bool(options.rate_headroom or options.carried_parts)


def _raised(problem: Problem, demand: Demand) -> Demand:
    part = problem.options.carried_parts.get(demand.model, 1.0)
    weight = min(MOST_WEIGHT, max(LEAST_WEIGHT, demand.weight / part))
    demand = replace(demand, weight=weight)
    if demand.rate_rps is None:
        return demand
    rate_rps = min(MOST_RATE_RPS, demand.rate_rps * (1 + problem.options.rate_headroom))
    return replace(demand, rate_rps=rate_rps)
