"""The planning margin, chosen by what plans carry rather than by a rule of thumb.

A plan with a small margin promises more and keeps less of it: batches, queues and links take time
that its latencies do not have. A plan with a large margin keeps all of a smaller promise. Where the
best lies depends on the models, the batch sizes and the SLO. So, from the smallest margin on:

1. Plan with it. With P its planned load, and u the least max_utilisation of the cluster, no plan
   is expected to carry more than P / u; P never rises with the margin, for budgets only shrink.
   Once P / u is below what an earlier plan carries, no larger margin can win: the search ends.
2. Simulate it: the largest factor f at which every model attains under f x its planned rate, by
   halving to TOLERANCE. The arrivals of one seed are the same pattern at every factor, so that
   loads compare. The plan carries f x P. A plan that differs from the last one in its budgets
   alone takes over that one's figures.

The best carries most; of equals the one with the largest margin. Cost: at most one plan and about
ten simulated sessions of REQUESTS_PER_MODEL requests for each of MARGINS.

The least devices, or the least cost, for stated rates are another question: `room` answers it.
"""

import dataclasses
from collections.abc import Callable, Sequence

from msgspec.structs import replace

from headrace.domain.errors import DocumentError, InfeasibleError
from headrace.domain.plan import Plan
from headrace.domain.problem import MINIMISED, Problem
from headrace.planning import solve
from headrace.simulation.room import cheapest_that_attains
from headrace.simulation.trials import POLICY, SEED, Choice, Trial, Workload, offered_mix

MARGINS = tuple(percent / 100 for percent in range(0, 95, 5))
"""Tried from the smallest on, until a larger one cannot be better."""


def choose_margin(
    problem: Problem,
    *,
    attainment: float = 0.99,
    seed: int = SEED,
    margins: Sequence[float] = MARGINS,
    on_progress: Callable[[str], None] = lambda text: None,
) -> Choice:
    """Plan with every margin worth trying and keep the plan that carries most.

    Margins rise until no larger one can win: a plan cannot carry much more than it promises, and
    promises only shrink. With objectives `least-cost` and `least-devices`: the cheapest plan that
    attains at the rates asked for (`room`).

    Args:
        attainment: in time / arrived, that every model must keep.
        seed: of arrivals and execution times.

    Raises:
        DocumentError: apps, which `headroom` is for, or an attainment outside (0, 1).
        InfeasibleError: no margin gives a plan, or none that attains at any load tried.
    """
    if problem.apps:
        raise DocumentError(
            "--margin auto: chooses among plans of models, and the problem has apps\n"
            "  try       --arrivals poisson, which finds rate and margin for apps; or a number"
        )
    if not 0 < attainment < 1:
        raise DocumentError(f"--attainment: {attainment} must lie between 0 and 1")
    if problem.options.objective in MINIMISED:
        return cheapest_that_attains(problem, attainment, seed, on_progress)
    trials: list[Trial] = []
    for margin in margins:
        on_progress(f"margin {margin:.0%}: planning")
        asked = replace(problem, options=replace(problem.options, margin=margin))
        result = solve(asked)
        if result.plan is None:
            if not trials:
                raise InfeasibleError(result.refusal or "no plan")
            break
        if trials and _cannot_win(result.plan, _best(trials)):
            break
        on_progress(f"margin {margin:.0%}: simulating")
        trials.append(_try(margin, result.plan, problem, attainment, seed, trials))
    best = _best(trials)
    _check_carries(best, attainment)
    reason = _reason(trials, best, attainment, seed)
    options = replace(best.plan.options, margin_reason=reason)
    return Choice(trials=tuple(trials), best=best, plan=replace(best.plan, options=options))


def _try(
    margin: float,
    plan: Plan,
    problem: Problem,
    wanted: float,
    seed: int,
    before: Sequence[Trial],
) -> Trial:
    if before and before[-1].plan.deployments == _with_budgets(plan, before[-1].plan).deployments:
        # A slightly larger margin often changes nothing but the budget.
        return dataclasses.replace(before[-1], margin=margin, plan=plan)
    workload = Workload.of(plan, problem.profiles)
    planned_rps = sum(workload.rates_rps.values())
    at_1 = workload.attainment(1.0, seed)
    return Trial(
        margin=margin,
        plan=plan,
        planned_rps=planned_rps,
        carried_rps=planned_rps * workload.largest_factor(wanted, seed, at_1),
        attainment=at_1,
    )


def _with_budgets(plan: Plan, other: Plan) -> Plan:
    """`plan` with the budgets of `other`, to compare all else."""
    budgets = {deployment.model: deployment.budget_us for deployment in other.deployments}
    return replace(
        plan,
        deployments=tuple(replace(d, budget_us=budgets[d.model]) for d in plan.deployments),
    )


def _cannot_win(plan: Plan, best: Trial) -> bool:
    """Whether neither this plan nor one of a larger margin can carry more than `best`."""
    utilisation = min(kind.max_utilisation for kind in plan.cluster.device_types)
    return sum(offered_mix(plan).values()) / utilisation < best.carried_rps


def _best(trials: Sequence[Trial]) -> Trial:
    """Of equal ones the largest margin: it says most of the plan's latencies."""
    return max(reversed(trials), key=lambda trial: trial.carried_rps)


def _check_carries(best: Trial, attainment: float) -> None:
    """
    Raises:
        InfeasibleError: not even the best plan attains.
    """
    if best.carried_rps > 0:
        return
    raise InfeasibleError(
        f"--margin auto: no margin's plan keeps {attainment:.4g} of the requests within the SLO\n"
        f"  best   margin {best.margin:.0%}: {best.attainment:.2%} at {best.planned_rps:.4g}"
        " requests/s\n"
        "  try    a lower --attainment, a longer SLO, or a margin of your own"
    )


def _reason(trials: Sequence[Trial], best: Trial, attainment: float, seed: int) -> str:
    margins = ", ".join(f"{trial.margin:.0%}" for trial in trials)
    return (
        f"simulated (Poisson, {POLICY}, seed {seed}) with margins {margins}; carries most at"
        f" attainment {attainment:.4g}: {best.carried_rps:.6g} of {best.planned_rps:.6g} planned"
        " requests/s"
    )
