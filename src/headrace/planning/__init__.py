"""Problem -> PlanResult. One module per technique, baselines beside them."""

from collections.abc import Callable

from headrace.domain.errors import DocumentError
from headrace.domain.plan import PlanResult
from headrace.domain.problem import Problem
from headrace.planning.apps.names import APP_PLANNERS
from headrace.planning.baselines.no_partitioning import plan_without_partitioning
from headrace.planning.baselines.replicated_pairs import plan_replicated_pairs
from headrace.planning.pooled.planner import plan_pooled

Planner = Callable[[Problem], PlanResult]


def _app_planner(name: str) -> Planner:
    def plan(problem: Problem) -> PlanResult:
        # Imported where it is used: numba takes a fifth of a second to load (decision 0009).
        from headrace.planning.apps.planner import plan_apps

        return plan_apps(problem, name)

    return plan


PLANNERS: dict[str, Planner] = {
    "pooled": plan_pooled,
    "no-partitioning": plan_without_partitioning,
    "dart-r": plan_replicated_pairs,
    **{name: _app_planner(name) for name in APP_PLANNERS},
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
    if problem.apps and problem.options.planner not in APP_PLANNERS:
        raise DocumentError(
            f"planner {problem.options.planner!r} plans models, and the problem has apps;"
            f" for apps there are {', '.join(APP_PLANNERS)}"
        )
    return planner(problem)
