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

The best carries most; of equals the one with the largest margin. With objective `least-cost` the
first that attains at f = 1 is the best: larger margins only cost more. Cost: at most one plan and
about ten simulated sessions of REQUESTS_PER_MODEL requests for each of MARGINS.
"""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from msgspec.structs import replace

from headrace.dispatch.buckets import by_bucket
from headrace.dispatch.kernel.layout import Ints
from headrace.dispatch.topology import Topology
from headrace.domain.errors import DocumentError, InfeasibleError
from headrace.domain.plan import Plan
from headrace.domain.problem import Problem
from headrace.domain.profile import Profile
from headrace.planning import solve
from headrace.simulation.compiled import Offered, offer, run
from headrace.simulation.offered.arrivals import stream_rng
from headrace.simulation.offered.processes import poisson_us

MARGINS = tuple(percent / 100 for percent in range(0, 95, 5))
"""Tried from the smallest on, until a larger one cannot be better."""

POLICY = "reservation"
SEED = 1

REQUESTS_PER_MODEL = 10_000
"""At the planned rate. One in a hundred may miss: so many make that a hundred."""
REQUESTS_MAX = 200_000
SLOS_AT_LEAST = 50
"""A session is at least so many times as long as the longest SLO: it begins with idle devices."""

FACTOR_MAX = 2.0
TOLERANCE = 0.005
"""Of a load, relative to the planned one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """One margin: what its plan promises, and what it carries."""

    margin: float
    plan: Plan
    planned_rps: float
    """Of all models, in the mix in which load is offered."""
    carried_rps: float
    """The highest load, in the same mix, at which every model keeps the attainment."""
    attainment: float
    """At the planned rate, of the model that attains least."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """The trials in order of margin, and the best of them."""

    trials: tuple[Trial, ...]
    best: Trial
    plan: Plan
    """The best one's, with the reason for its margin in its options."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """A plan and the load that it is measured with."""

    topology: Topology
    rates_rps: Mapping[str, float]
    """Model -> planned rate."""
    duration_s: float

    @classmethod
    def of(cls, plan: Plan, profiles: Mapping[str, Profile]) -> "Workload":
        """Load in the mix that the plan's objective means, long enough to count misses."""
        plan, profiles = by_bucket(plan, profiles)
        rates = offered_mix(plan)
        longest_slo_s = max(demand.slo_us for demand in plan.demands) / 1e6
        enough_s = max(REQUESTS_PER_MODEL / rate for rate in rates.values())
        most_s = REQUESTS_MAX / sum(rates.values())
        return cls(
            topology=Topology.from_plan(plan, profiles),
            rates_rps=rates,
            duration_s=max(min(enough_s, most_s), SLOS_AT_LEAST * longest_slo_s),
        )

    def attainment(self, factor: float, seed: int) -> float:
        """At `factor` times the planned rates; of the model that attains least.

        The arrivals of one seed are the same pattern at every factor, so that loads compare.
        """
        offered = _poisson(self.topology, self.rates_rps, factor, self.duration_s, seed)
        rng = np.random.default_rng(seed)
        ended_at_us = run(self.topology, POLICY, offered, rng=rng).ended_at_us
        in_time = (ended_at_us >= 0) & (ended_at_us <= offered.deadline_at_us)
        models = len(self.topology.models)
        arrived = np.bincount(offered.model, minlength=models)
        kept = np.bincount(offered.model[in_time], minlength=models)
        return float((kept[arrived > 0] / arrived[arrived > 0]).min(initial=1.0))

    def largest_factor(self, wanted: float, seed: int, at_1: float | None = None) -> float:
        """The largest multiple of the planned rates at which every model attains `wanted`.

        Found by halving to within `TOLERANCE`, as if attainment only fell with load; 0 where none
        that small does.

        Args:
            at_1: the attainment at the planned rates, where it is known.
        """
        if at_1 is None:
            at_1 = self.attainment(1.0, seed)
        low, high = (1.0, 1.0) if at_1 >= wanted else (0.0, 1.0)
        while low == high:
            # Plans rarely carry more than they promise, and never much more.
            high = min(FACTOR_MAX, 1 + 2 * (high - 1) + 4 * TOLERANCE)
            if self.attainment(high, seed) >= wanted:
                low = high
                if high == FACTOR_MAX:
                    return high
        while high - low > TOLERANCE:
            middle = (low + high) / 2
            if self.attainment(middle, seed) >= wanted:
                low = middle
            else:
                high = middle
        return low


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
    promises only shrink. With objective `least-cost` the first plan that attains at the wanted
    rates wins, since larger margins only cost more.

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
    trials: list[Trial] = []
    for margin in margins:
        on_progress(f"margin {margin:.0%}: planning")
        asked = replace(problem, options=replace(problem.options, margin=margin))
        result = solve(asked)
        if result.plan is None:
            if not trials:
                raise InfeasibleError(result.refusal or "no plan")
            break
        if trials and _cannot_win(result.plan, _best(trials, attainment)):
            break
        on_progress(f"margin {margin:.0%}: simulating")
        trials.append(_try(margin, result.plan, problem, attainment, seed, trials))
        if _is_least_cost(result.plan) and trials[-1].attainment >= attainment:
            break
    best = _best(trials, attainment)
    _check_carries(best, attainment)
    reason = _reason(trials, best, attainment, seed)
    options = replace(best.plan.options, margin_reason=reason)
    return Choice(trials=tuple(trials), best=best, plan=replace(best.plan, options=options))


def offered_mix(plan: Plan) -> dict[str, float]:
    """Model -> rate at "planned load": what the objective maximises, or is asked for.

    max-min: weight x objective. least-cost: the wanted rates. throughput: what the plan gives each.
    """
    if plan.options.objective == "max-min":
        return {demand.model: demand.weight * plan.objective for demand in plan.demands}
    if plan.options.objective == "least-cost":
        return {demand.model: demand.rate_rps or 0.0 for demand in plan.demands}
    return {deployment.model: deployment.throughput_rps for deployment in plan.deployments}


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
    if _is_least_cost(plan):
        return False
    utilisation = min(kind.max_utilisation for kind in plan.cluster.device_types)
    return sum(offered_mix(plan).values()) / utilisation < best.carried_rps


def _is_least_cost(plan: Plan) -> bool:
    return plan.options.objective == "least-cost"


def _best(trials: Sequence[Trial], attainment: float) -> Trial:
    """Of equal ones the largest margin: it says most of the plan's latencies."""
    if _is_least_cost(trials[0].plan):
        return max(reversed(trials), key=lambda trial: min(trial.attainment, attainment))
    return max(reversed(trials), key=lambda trial: trial.carried_rps)


def _check_carries(best: Trial, attainment: float) -> None:
    """
    Raises:
        InfeasibleError: not even the best plan attains.
    """
    least_cost = _is_least_cost(best.plan)
    if (best.attainment >= attainment) if least_cost else best.carried_rps > 0:
        return
    raise InfeasibleError(
        f"--margin auto: no margin's plan keeps {attainment:.4g} of the requests within the SLO"
        f"{' at the wanted rates' if least_cost else ''}\n"
        f"  best   margin {best.margin:.0%}: {best.attainment:.2%} at {best.planned_rps:.4g}"
        " requests/s\n"
        "  try    a lower --attainment, a longer SLO, or a margin of your own"
    )


def _reason(trials: Sequence[Trial], best: Trial, attainment: float, seed: int) -> str:
    margins = ", ".join(f"{trial.margin:.0%}" for trial in trials)
    carried = (
        f"cheapest that attains {attainment:.4g} at {best.planned_rps:.6g} requests/s"
        if _is_least_cost(best.plan)
        else f"carries most at attainment {attainment:.4g}: {best.carried_rps:.6g} of"
        f" {best.planned_rps:.6g} planned requests/s"
    )
    return f"simulated (Poisson, {POLICY}, seed {seed}) with margins {margins}; {carried}"


def _poisson(
    topology: Topology,
    rates_rps: Mapping[str, float],
    factor: float,
    duration_s: float,
    seed: int,
) -> Offered:
    """Poisson streams of all models, in order of arrival."""
    streams: list[Ints] = [
        poisson_us(rates_rps[model.name] * factor, duration_s, stream_rng(seed, model.name))
        for model in topology.models
    ]
    at_us = np.concatenate(streams)
    models = np.repeat(np.arange(len(streams)), [len(stream) for stream in streams])
    order = np.argsort(at_us, kind="stable")
    return offer(topology, at_us[order], models[order])
