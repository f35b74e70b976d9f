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

With several jobs, plans and sessions of the next margins are begun before it is known whether they
are needed. Trials are made of them in the order of the margins, by the same two rules, so the
choice is the same; what was begun in vain is dropped.

The least devices, or the least cost, for stated rates are another question: `room` answers it.
"""

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing

from msgspec.structs import replace

from headrace.domain.apart import apart
from headrace.domain.base import Record
from headrace.domain.errors import DocumentError, InfeasibleError
from headrace.domain.plan import Plan
from headrace.domain.problem import MINIMISED, Problem
from headrace.domain.profile import Profile
from headrace.planning import solve
from headrace.simulation.room import cheapest_that_attains
from headrace.simulation.trials import POLICY, SEED, Choice, Trial, Workload, chosen, offered_mix
from headrace.studies.jobs import Here, Jobs, results_of

MARGINS = tuple(percent / 100 for percent in range(0, 95, 5))
"""Tried from the smallest on, until a larger one cannot be better."""


def choose_margin(
    problem: Problem,
    *,
    attainment: float = 0.99,
    seed: int = SEED,
    margins: Sequence[float] = MARGINS,
    on_progress: Callable[[str], None] = lambda text: None,
    jobs: Jobs | None = None,
) -> Choice:
    """Plan with every margin worth trying and keep the plan that carries most.

    Margins rise until no larger one can win: a plan cannot carry much more than it promises, and
    promises only shrink. With objectives `least-cost` and `least-devices`: the cheapest plan that
    attains at the rates asked for (`room`).

    Args:
        attainment: in time / arrived, that every model must keep.
        seed: of arrivals and execution times.
        jobs: where plans are made and simulated; None: here, one after another.

    Raises:
        DocumentError: apps, which `headroom` is for, an attainment outside (0, 1), or jobs for a
            search in which each plan follows from the one before.
        InfeasibleError: no margin gives a plan, or none that attains at any load tried.
        StudyError: a process of the jobs has ended.
    """
    jobs = jobs or Here()
    if problem.apps:
        beside = problem.options.planner == "shares"
        other = "" if beside else "--arrivals poisson, which finds rate and margin for apps; or "
        raise DocumentError(
            "--margin auto: chooses among plans of models, and the problem has apps\n"
            f"  try       {other}a number, such as --margin 0.4"
        )
    if not 0 < attainment < 1:
        raise DocumentError(f"--attainment: {attainment} must lie between 0 and 1")
    if problem.options.objective in MINIMISED:
        if jobs.count > 1:
            raise DocumentError(
                f"--jobs {jobs.count}: with objective {problem.options.objective} every plan that"
                " is tried follows from the one before\n  try       without --jobs"
            )
        return cheapest_that_attains(problem, attainment, seed, on_progress)
    trials = _trials(problem, margins, attainment, seed, jobs, on_progress)
    best = _best(trials)
    _check_carries(best, attainment)
    reason = _reason(trials, best, attainment, seed)
    plan = chosen(best.plan, problem.options, attainment, reason)
    return Choice(trials=tuple(trials), best=best, plan=plan)


class Asked(Record, frozen=True, kw_only=True):
    """One plan to make."""

    problem: Problem
    """With the margin."""


class Planned(Record, frozen=True, kw_only=True):
    plan: Plan | None
    refusal: str


class Session(Record, frozen=True, kw_only=True):
    """One plan to simulate."""

    plan: Plan
    profiles: dict[str, Profile]
    attainment: float
    """Wanted."""
    seed: int


class Carried(Record, frozen=True, kw_only=True):
    planned_rps: float
    carried_rps: float
    at_planned: float
    """Attainment at the planned rates."""


def planned(asked: Asked) -> Planned:
    """Step 1 of a margin."""
    result = solve(asked.problem)
    return Planned(plan=result.plan, refusal=result.refusal or "no plan")


def carried(session: Session) -> Carried:
    """Step 2."""
    workload = Workload.of(session.plan, session.profiles)
    planned_rps = sum(workload.rates_rps.values())
    at_1 = workload.attainment(1.0, session.seed)
    factor = workload.largest_factor(session.attainment, session.seed, at_1)
    return Carried(planned_rps=planned_rps, carried_rps=planned_rps * factor, at_planned=at_1)


@dataclasses.dataclass(frozen=True, slots=True)
class _Made:
    margin: float
    plan: Plan
    alike: bool
    """To the plan before, in all but its budgets: a slightly larger margin often changes no more,
    and then it carries the same."""


class _Trials:
    """Plans become trials in the order of their margins, until a larger margin cannot win."""

    def __init__(self) -> None:
        self.made: list[_Made] = []
        self.trials: list[Trial] = []
        self.ended = False

    def can_win(self, plan: Plan) -> bool:
        return not self.trials or not _cannot_win(plan, _best(self.trials))

    def add(self, margin: float, plan: Plan) -> _Made:
        before = self.made[-1].plan if self.made else None
        alike = before is not None and before.deployments == _with_budgets(plan, before).deployments
        self.made.append(_Made(margin, plan, alike))
        return self.made[-1]

    def settle(self, found: Carried | None) -> None:
        """Make trials of what is made, with `found` for the first plan that needs a session."""
        while not self.ended and len(self.trials) < len(self.made):
            made = self.made[len(self.trials)]
            if not self.can_win(made.plan):
                self.ended = True
            elif made.alike:
                last = self.trials[-1]
                self.trials.append(dataclasses.replace(last, margin=made.margin, plan=made.plan))
            elif found is None:
                return
            else:
                self.trials.append(
                    Trial(
                        margin=made.margin,
                        plan=made.plan,
                        planned_rps=found.planned_rps,
                        carried_rps=found.carried_rps,
                        attainment=found.at_planned,
                    )
                )
                found = None


def _trials(
    problem: Problem,
    margins: Sequence[float],
    wanted: float,
    seed: int,
    jobs: Jobs,
    on_progress: Callable[[str], None],
) -> list[Trial]:
    """At least one.

    Raises:
        InfeasibleError: there is no plan even with the smallest margin.
    """
    found = _Trials()
    plans = results_of(planned, _asked(problem, margins, on_progress), jobs, ahead=jobs.count)

    def sessions() -> Iterator[Session]:
        for margin, result in zip(margins, plans, strict=True):
            if result.plan is None:
                if not found.made:
                    raise InfeasibleError(result.refusal)
                return
            if not found.can_win(result.plan):
                return
            if not found.add(margin, result.plan).alike:
                on_progress(f"margin {margin:.0%}: simulating")
                yield Session(
                    plan=result.plan, profiles=problem.profiles, attainment=wanted, seed=seed
                )

    simulated = results_of(carried, sessions(), jobs, ahead=jobs.count)
    # What they have begun and nobody needs ends with them.
    with closing(plans), closing(simulated):
        for each in simulated:
            found.settle(each)
            if found.ended:
                break
        found.settle(None)
    return found.trials


def _asked(
    problem: Problem, margins: Sequence[float], on_progress: Callable[[str], None]
) -> Iterator[Asked]:
    for margin in margins:
        on_progress(f"margin {margin:.0%}: planning")
        yield Asked(problem=replace(problem, options=replace(problem.options, margin=margin)))


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
    carried, planned = apart(best.carried_rps, best.planned_rps)
    return (
        f"simulated (Poisson, {POLICY}, seed {seed}) with margins {margins}; carries most at"
        f" attainment {attainment:.4g}: {carried} of {planned} planned"
        " requests/s"
    )
