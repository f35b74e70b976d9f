"""Problem -> PlanResult. One module per technique, baselines beside them.

A new planner is a file with a function and a line in PLANNERS; `headrace plan --planner`, problem
files and every list of names read that table. `headrace verify` needs to know of none.
"""

from collections.abc import Callable
from importlib import import_module

from headrace.domain.errors import DocumentError
from headrace.domain.plan import PlanResult
from headrace.domain.problem import Problem
from headrace.planning.apps.names import APP_PLANNERS

Planner = Callable[[Problem], PlanResult]


def _of(module: str, function: str) -> Planner:
    """Imported where it is used: solvers and numba take a fifth of a second to load."""

    def plan(problem: Problem) -> PlanResult:
        planner: Planner = getattr(import_module(f"headrace.planning.{module}"), function)
        return planner(problem)

    return plan


def _of_apps(name: str) -> Planner:
    def plan(problem: Problem) -> PlanResult:
        from headrace.planning.apps.planner import plan_apps

        return plan_apps(problem, name)

    return plan


PLANNERS: dict[str, Planner] = {
    "pooled": _of("pooled.planner", "plan_pooled"),
    "no-partitioning": _of("baselines.no_partitioning", "plan_without_partitioning"),
    "dart-r": _of("baselines.replicated_pairs", "plan_replicated_pairs"),
    **{name: _of_apps(name) for name in APP_PLANNERS},
}
"""Name -> planner."""


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
