"""Problem -> PlanResult. One module per technique, baselines beside them."""

from collections.abc import Callable

from headrace.domain.errors import DocumentError
from headrace.domain.plan import PlanResult
from headrace.domain.problem import Problem
from headrace.planning.no_partitioning import plan_without_partitioning
from headrace.planning.pooled import plan_pooled
from headrace.planning.replicated_pairs import plan_replicated_pairs

Planner = Callable[[Problem], PlanResult]

PLANNERS: dict[str, Planner] = {
    "pooled": plan_pooled,
    "no-partitioning": plan_without_partitioning,
    "dart-r": plan_replicated_pairs,
}
"""Name -> planner; a new technique is a new module and one line here."""


def solve(problem: Problem) -> PlanResult:
    """Plan with the planner that `problem.options` names.

    Raises:
        DocumentError: no such planner, or the problem lacks what the objective needs.
    """
    planner = PLANNERS.get(problem.options.planner)
    if planner is None:
        raise DocumentError(
            f"options: no planner is named {problem.options.planner!r};"
            f" there are {', '.join(PLANNERS)}"
        )
    return planner(problem)
