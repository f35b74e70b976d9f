"""Problem -> PlanResult for apps, by any planner, with a refusal that says what would do."""

import time
from collections.abc import Sequence

from headrace.domain.errors import DocumentError
from headrace.domain.plan import PlanResult, Stopped
from headrace.domain.problem import Problem
from headrace.planning.apps.assembly import Planned, assemble_apps
from headrace.planning.apps.candidates import AppCase, app_case
from headrace.planning.apps.exact.fronts import module_front
from headrace.planning.apps.exhaustive import TooManyError
from headrace.planning.apps.order import path_us
from headrace.planning.apps.solve import solve_app
from headrace.planning.apps.stock.fit import Lack, StockRefusal, fit_stock, lacks


def plan_apps(problem: Problem, planner: str) -> PlanResult:
    """Plan every app of the problem, for the bill that its options name (`PlanOptions.bill`).

    Raises:
        DocumentError: the problem has no app, no prices, or another objective than least cost; or
            the planner knows no whole devices.
    """
    if problem.options.bill == "fraction":
        return _plan_fraction(problem, planner)
    if planner != "least-cost":
        raise DocumentError(
            f"planner {planner}: plans for the price in proportion to load, not for bill: devices\n"
            "  try       --planner least-cost, or --bill fraction"
        )
    from headrace.planning.apps.bill.planner import plan_bill

    return plan_bill(problem, _plan_fraction(problem, planner))


def _plan_fraction(problem: Problem, planner: str) -> PlanResult:
    """Least price in proportion to load; apps share no machine, so each is planned alone.

    They do share the cluster's devices. Where their machines do not fit together, `least-cost`
    looks for the cheapest that do, and every other planner refuses.
    """
    began = time.perf_counter()
    _check(problem, planner)
    planned = []
    for number, app in enumerate(problem.apps):
        case = app_case(problem, app)
        refusal = _unservable(case)
        solution = None
        # What is left is shared by the apps that are left.
        left_s = began + problem.options.time_limit_s - time.perf_counter()
        limit_s = max(0.0, left_s) / (len(problem.apps) - number)
        if refusal is None:
            try:
                solution = solve_app(case, planner, limit_s)
            except TooManyError as error:
                refusal = f"{error}\n  try       --planner least-cost"
        if solution is None:
            return _refused(refusal or _too_slow(case, planner), planner, began)
        planned.append(Planned(app=app, case=case, solution=solution))
    proof, binding = None, _binding(planned)
    lacking = lacks(problem, planned)
    if lacking and planner != "least-cost":
        return _refused(_unfitting(lacking, planner), planner, began, "heuristic")
    if lacking:
        fitting = fit_stock(problem, planned, lacking)
        if isinstance(fitting, StockRefusal):
            stopped: Stopped = "infeasible" if fitting.certain else "time-limit"
            return _refused(fitting.text, planner, began, stopped)
        planned, proof = fitting
        binding = f"{_scarce(lacking)}; {_binding(planned)}"
    plan = assemble_apps(
        problem,
        planned,
        binding=binding,
        runtime_s=time.perf_counter() - began,
        proof=proof,
    )
    return PlanResult(plan=plan, stopped=plan.stopped, bound=plan.bound, runtime_s=plan.runtime_s)


def _check(problem: Problem, planner: str) -> None:
    if not problem.apps:
        raise DocumentError(
            f"planner {planner}: the problem has no apps\n"
            "  try       `apps:` instead of `models:`; a model alone is an app of one module"
        )
    if problem.options.objective != "least-cost":
        raise DocumentError(
            f"planner {planner}: apps are planned for least cost,"
            f" not for {problem.options.objective}"
        )


def _refused(
    refusal: str, planner: str, began: float, stopped: Stopped | None = None
) -> PlanResult:
    exact = planner in ("least-cost", "least-cost-dummy", "harpagon-optimal", "exhaustive")
    return PlanResult(
        plan=None,
        stopped=stopped or ("infeasible" if exact else "heuristic"),
        bound=None,
        runtime_s=time.perf_counter() - began,
        refusal=refusal,
    )


def _unservable(case: AppCase) -> str | None:
    for module in case.modules:
        if not module.candidates:
            return (
                f"app {case.name!r}, module {module.name!r}: no device of the cluster can run it\n"
                "  needs     a profile of one of the cluster's device types, and its memory\n"
                "  try       `headrace profile` or `headrace estimate` for them"
            )
    return None


def _too_slow(case: AppCase, planner: str) -> str:
    fastest = []
    for module in case.modules:
        # A batch of one ends within twice its duration, whatever the load.
        enough = 2 * int(module.duration_us[module.batch == module.batch.min()].min())
        front = module_front(module, enough)
        fastest.append(int(front.latency_us[0]) if len(front) else enough)
    needed = path_us(case.before, fastest)
    slowest = max(zip(fastest, case.modules, strict=True), key=lambda pair: pair[0])
    why = (
        "no plan meets the SLO"
        if needed > case.budget_us
        else f"{planner} finds no plan in the SLO"
    )
    return (
        f"app {case.name!r}: {why}\n"
        f"  needs     {needed / 1000:g} ms, of which {slowest[1].name!r} {slowest[0] / 1000:g} ms\n"
        f"  has       {case.budget_us / 1000:g} ms (SLO less margin, gateway and the app's code)\n"
        f"  try       an SLO of {needed / 1000:g} ms"
        + ("" if needed > case.budget_us else ", or --planner least-cost")
    )


def _unfitting(lacking: Sequence[Lack], planner: str) -> str:
    """The refusal of a planner that does not look at the stock."""
    devices = ", ".join(lack.device for lack in lacking)
    return (
        f"the machines of {planner} do not fit the cluster: too few {devices}\n"
        f"  needs     {', '.join(f'{lack.needed} {lack.device}' for lack in lacking)}\n"
        f"  has       {', '.join(f'{lack.there} {lack.device}' for lack in lacking)}\n"
        "  try       --planner least-cost, which plans with the devices that there are"
    )


def _scarce(lacking: Sequence[Lack]) -> str:
    return "the stock: " + ", ".join(
        f"{lack.there} {lack.device} where the cheapest machines take {lack.needed}"
        for lack in lacking
    )


def _binding(planned: list[Planned]) -> str:
    parts = []
    for one in planned:
        schedules = one.solution.modules
        most = max(range(len(schedules)), key=lambda i: schedules[i].cost)
        part = schedules[most].cost / one.solution.cost
        parts.append(
            f"{one.app.name}: the SLO; {one.path_us / 1000:g} of"
            f" {one.case.budget_us / 1000:g} ms used, {part:.0%} of the cost is"
            f" {one.case.modules[most].name}"
        )
    return "; ".join(parts)
