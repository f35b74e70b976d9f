"""Problem -> PlanResult for apps, by any planner, with a refusal that says what would do."""

import dataclasses
from collections.abc import Callable, Sequence
from functools import partial

from headrace.domain.apart import ms_apart, ms_enough
from headrace.domain.app import App
from headrace.domain.errors import DocumentError
from headrace.domain.plan import PlanResult, Stopped
from headrace.domain.problem import Problem
from headrace.planning.apps.assembly import Planned, assemble_apps
from headrace.planning.apps.candidates import OFF_EVERY_PATH, AppCase, app_case, overhead_us
from headrace.planning.apps.exact.fronts import module_front
from headrace.planning.apps.exhaustive import AppTooLargeError
from headrace.planning.apps.order import path_us
from headrace.planning.apps.solve import solve_app
from headrace.planning.apps.stock.fit import Lack, StockRefusal, fit_stock, lacks
from headrace.planning.common.deadline import Deadline
from headrace.planning.common.enough import least_enough
from headrace.planning.pooled.refusal import nearest_slo_us

FRACTION_PART = 0.5
"""Of the time, for the plan in proportion to load that one on whole devices begins with."""
ADVICE_S = 2.0
"""For an SLO with which a planner finds a plan."""
STEP_US = 100
"""How near it is looked for."""
MOST_US = 86_400_000_000
"""A day."""
SAME = 1e-9
"""Costs this close to each other, as a fraction, are one cost."""


def plan_apps(problem: Problem, planner: str) -> PlanResult:
    """Plan every app of the problem, for the bill that its options name (`PlanOptions.bill`).

    Raises:
        DocumentError: the problem has no app, no prices, or another objective than least cost; or
            the planner knows no whole devices.
    """
    limit = Deadline(problem.options.time_limit_s)
    if problem.options.bill == "fraction":
        return _plan_fraction(problem, planner, limit)
    if planner != "least-cost":
        raise DocumentError(
            f"planner {planner}: plans for the price in proportion to load, not for bill: devices\n"
            "  try       --planner least-cost, or --bill fraction"
        )
    from headrace.planning.apps.bill.planner import plan_bill

    by_fraction = _plan_fraction(problem, planner, limit.part(FRACTION_PART))
    return plan_bill(problem, by_fraction, limit)


def _plan_fraction(problem: Problem, planner: str, limit: Deadline) -> PlanResult:
    """Least price in proportion to load; apps share no machine, so each is planned alone.

    They do share the cluster's devices. Where their machines do not fit together, `least-cost`
    looks for the cheapest that do, and every other planner refuses.
    """
    _check(problem, planner)
    planned = []
    for number, app in enumerate(problem.apps):
        case = app_case(problem, app)
        refusal = _unservable(case)
        solution = None
        # What is left is shared by the apps that are left.
        limit_s = max(0.0, limit.left_s) / (len(problem.apps) - number)
        if refusal is None:
            try:
                solution = solve_app(case, planner, limit_s)
            except AppTooLargeError as error:
                refusal = f"{error}\n  try       --planner least-cost"
        if solution is None:
            too_slow = partial(_too_slow, problem, app, case, planner)
            return _refused(refusal or too_slow, planner, limit)
        planned.append(Planned(app=app, case=case, solution=solution))
    proof, binding = None, _binding(planned, planner)
    lacking = lacks(problem, planned)
    if lacking and planner != "least-cost":
        return _refused(_unfitting(lacking, planner), planner, limit, "heuristic")
    if lacking:
        fitting = fit_stock(problem, planned, lacking, limit)
        if isinstance(fitting, StockRefusal):
            stopped: Stopped = "infeasible" if fitting.certain else "time-limit"
            return _refused(fitting.text, planner, limit, stopped)
        planned, proof = fitting
        binding = f"{_scarce(lacking)}; {_binding(planned, planner, else_by='the stock')}"
    plan = assemble_apps(
        problem,
        planned,
        binding=binding,
        runtime_s=limit.spent_s,
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
    refusal: str | Callable[[], str],
    planner: str,
    limit: Deadline,
    stopped: Stopped | None = None,
) -> PlanResult:
    """
    Args:
        refusal: or what finds it.
    """
    exact = planner in ("least-cost", "least-cost-dummy", "harpagon-optimal", "exhaustive")
    return PlanResult(
        plan=None,
        stopped=stopped or ("infeasible" if exact else "heuristic"),
        bound=None,
        runtime_s=limit.spent_s,
        refusal=None if callable(refusal) else refusal,
        refuse=refusal if callable(refusal) else None,
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


def _too_slow(problem: Problem, app: App, case: AppCase, planner: str) -> str:
    fastest = []
    for module in case.modules:
        # A batch of one ends within twice its duration, whatever the load.
        enough = 2 * int(module.duration_us[module.batch == module.batch.min()].min())
        front = module_front(module, enough)
        fastest.append(int(front.latency_us[0]) if len(front) else enough)
    needed = path_us(case.before, fastest)
    slowest = max(zip(fastest, case.modules, strict=True), key=lambda pair: pair[0])
    if needed <= case.budget_us:
        return _found_nothing(problem, app, case, planner)
    needs, of_which, has = ms_apart(needed, slowest[0], case.budget_us)
    whole_us = nearest_slo_us(
        needed + overhead_us(app, problem.profiles), problem.options.margin_of(app.name)
    )
    return (
        f"app {case.name!r}: no plan meets the SLO\n"
        f"  needs     {needs}, of which {slowest[1].name!r} {of_which}\n"
        f"  has       {has} (SLO {OFF_EVERY_PATH})\n"
        f"  try       an SLO of {ms_enough(whole_us)} ms"
    )


def _found_nothing(problem: Problem, app: App, case: AppCase, planner: str) -> str:
    """Of a planner that does not look at every plan: a budget with which it finds one is tried."""
    budget_us = _enough_us(case, planner, min(ADVICE_S, problem.options.time_limit_s))
    advice = "--planner least-cost, which looks at every plan"
    if budget_us is not None:
        whole_us = nearest_slo_us(
            budget_us + overhead_us(app, problem.profiles), problem.options.margin_of(app.name)
        )
        advice = f"an SLO of {ms_enough(whole_us)} ms, with which it does, or {advice}"
    needs, has = ms_apart(budget_us or 0, case.budget_us)
    return (
        f"app {case.name!r}: {planner} finds no plan in the SLO\n"
        f"  needs     {'more' if budget_us is None else needs}\n"
        f"  has       {has} (SLO {OFF_EVERY_PATH})\n"
        f"  try       {advice}"
    )


def _enough_us(case: AppCase, planner: str, limit_s: float) -> int | None:
    """A budget with which the planner finds a plan, hardly larger than one with which it does not;
    None: none was found in time."""

    def does(budget_us: int) -> bool:
        try:
            found = solve_app(dataclasses.replace(case, budget_us=budget_us), planner, limit_s)
        except AppTooLargeError:
            return False
        return found is not None

    limit = Deadline(limit_s)
    found = least_enough(does, case.budget_us, most=MOST_US, limit=limit, step=STEP_US)
    return None if found is None else found.value


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


def _binding(planned: Sequence[Planned], planner: str, *, else_by: str | None = None) -> str:
    """What keeps each app from being cheaper.

    Args:
        else_by: what may, besides the SLO; None: what the planner left open, if anything.
    """
    parts = []
    for one in planned:
        schedules, cost = one.solution.modules, one.solution.cost
        most = max(range(len(schedules)), key=lambda i: schedules[i].cost)
        # A proven plan is dearer than the rates' least price for want of time alone.
        other = else_by or _left_open(one.solution.stopped, planner)
        by = "the SLO" if other is None else f"the SLO, or {other}"
        if cost <= _least_price(one.case) * (1 + SAME):
            by = "prices and rates, not the SLO"
        parts.append(
            f"{one.app.name}: {by}; {one.path_us / 1000:g} of"
            f" {one.case.budget_us / 1000:g} ms used, {schedules[most].cost / cost:.0%} of the"
            f" cost is {one.case.modules[most].name}"
        )
    return "; ".join(parts)


def _least_price(case: AppCase) -> float:
    """Per hour: all load on every module's best throughput / price. With no SLO is any less."""
    return sum(module.rate_rps / module.candidates[0].per_price for module in case.modules)


def _left_open(stopped: Stopped, planner: str) -> str | None:
    if stopped == "optimal":
        return None
    return f"how {planner} plans" if stopped == "heuristic" else "the search, which ended early"
