"""The pooled-pipeline planner (PPipe, sections 3 and 5; appendix A.2), solved by columns.

The paper hands one large integer program to a solver. Only few (cuts, kinds of slots, batch size)
meet an SLO, so here they are named first (`candidates`), thinned (`dominance`), priced
(`relaxation`), and combined (`allotments`, `selection`) until the best combination is proven
(`search`); then every slot gets its place (`placement`).

Where this differs from the paper: any number of pipelines per model; slots must really fit into
devices (the paper lets fractions of different devices add up); a demand is never left without
a pipeline; rates, prices and memory may limit.
"""

from headrace.domain.errors import DocumentError
from headrace.domain.plan import PlanResult, Stopped
from headrace.domain.problem import Problem
from headrace.planning.common.assembly import Claim, assemble
from headrace.planning.common.binding import binding_constraint
from headrace.planning.common.deadline import Deadline
from headrace.planning.common.hardware import Hardware
from headrace.planning.common.master import Counting, Wanted
from headrace.planning.common.models import Model, model_of
from headrace.planning.pooled.refusal import refuse_capacity, refuse_latency
from headrace.planning.pooled.search import search

PLACING_S_PER_DEVICE = 5e-5


def plan_pooled(problem: Problem) -> PlanResult:
    """The best plan of pooled pipelines, with its proof, or a refusal that says what would do.

    Raises:
        DocumentError: the objective needs rates or prices that the problem does not give.
    """
    deadline = Deadline(problem.options.time_limit_s)
    check_options(problem)
    hardware = Hardware.of(problem.cluster)
    models: list[Model] = []
    for demand in problem.demands:
        if models and deadline.passed:
            return _without_plan("time-limit", None, deadline, _gave_up(problem))
        models.append(model_of(problem, hardware, demand))
    if not all(len(model.pipelines) for model in models):
        refusal = refuse_latency(problem, hardware, models)
        return _without_plan("infeasible", None, deadline, refusal)
    wanted = [Wanted.of(model.demand, model.least_rps) for model in models]
    columns = [model.pipelines for model in models]
    asked = Counting(hardware, wanted, columns, problem.options.objective)
    # Imported where it is used: numba takes a fifth of a second to load (decision 0009).
    from headrace.planning.pooled.exactly import search_exactly_pooled

    searching = Deadline(deadline.left_s - _placing_s(problem))
    result = search_exactly_pooled(asked, searching) or search(asked, searching)
    if result.chosen is None:
        proven = result.stopped == "infeasible"
        refusal = refuse_capacity(problem, hardware, models) if proven else _gave_up(problem)
        return _without_plan(result.stopped, result.bound, deadline, refusal)
    chosen = result.chosen.allotments
    claim = Claim(
        bound=result.bound,
        stopped=result.stopped,
        binding=binding_constraint(problem, models, chosen, result.stopped),
        runtime_s=deadline.spent_s,
    )
    plan = assemble(problem, models, chosen, claim)
    return PlanResult(plan=plan, stopped=plan.stopped, bound=plan.bound, runtime_s=plan.runtime_s)


def _without_plan(
    stopped: Stopped, bound: float | None, deadline: Deadline, refusal: str
) -> PlanResult:
    return PlanResult(
        plan=None, stopped=stopped, bound=bound, runtime_s=deadline.spent_s, refusal=refusal
    )


def _placing_s(problem: Problem) -> float:
    """Part of the time limit that is kept for placing slots and writing the plan down."""
    devices = sum(node.device_count for node in problem.cluster.nodes)
    return min(PLACING_S_PER_DEVICE * devices, 0.2 * problem.options.time_limit_s)


def check_options(problem: Problem) -> None:
    """
    Raises:
        DocumentError: the objective needs rates or prices that the problem does not give.
    """
    options, cluster = problem.options, problem.cluster
    if not any(node.devices for node in cluster.nodes):
        raise DocumentError("cluster: no node has a device; add some under `devices`")
    if options.objective == "least-cost":
        rateless = [demand.model for demand in problem.demands if demand.rate_rps is None]
        if rateless:
            raise DocumentError(
                "objective least-cost: every demand needs a rate_rps;"
                f" missing for {', '.join(rateless)}"
            )
        unpriced = [
            kind.name
            for kind in cluster.device_types
            if kind.price_per_hour is None and cluster.count(kind.name)
        ]
        if unpriced:
            raise DocumentError(
                "objective least-cost: every device type needs a price_per_hour;"
                f" missing for {', '.join(unpriced)}"
            )


def _gave_up(problem: Problem) -> str:
    return (
        f"no plan found within {problem.options.time_limit_s:g} s, and none excluded\n"
        "  try    a longer --time-limit-s, fewer stages or a smaller max_batch"
    )
