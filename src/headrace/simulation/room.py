"""The cheapest plan of models that attains at the rates asked for, by more rate and more margin.

`least-devices` and `least-cost` fill devices up to what requests at even gaps allow. Two kinds of
room let a plan stand Poisson arrivals: rates that are planned for with head-room on top, so that
parts are not full, and a margin of the SLO, so that requests can wait. Neither replaces the other:
a part that is full falls behind however long requests may wait, and a request that waits for a long
batch is late however idle the part is on average. So pairs of HEADROOMS x MARGINS are planned, and
the plans are simulated at the rates asked for, cheapest first, until one attains.

More of either never makes a plan cheaper, as far as a planner is exact, so pairs are looked at as
they are reached: from a plan that does not attain on to the next larger head-room and the next
larger margin. Among plans that cost the same, those first whose predecessor attained most.

A plan attains where the worst of SESSIONS sessions does (`worst_session`). Models on one device
slow each other in simulation as the plan's interference document says.

For apps `apps.headroom` looks otherwise: their plans take milliseconds, so it makes all of them
first. Here one may take seconds, so that those that cost too much are best never made.

Cost: at most TRIALS_MAX plans; a session has about REQUESTS_PER_MODEL requests of the rarest model.
"""

import heapq
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

from msgspec.structs import replace

from headrace.domain.errors import InfeasibleError
from headrace.domain.plan import Plan
from headrace.domain.problem import Problem
from headrace.planning import solve
from headrace.planning.common.headroom import rates_text
from headrace.simulation.trials import POLICY, Choice, Trial, Workload, chosen
from headrace.simulation.worst_session import with_reserve, worst_of

HEADROOMS = (0.0, 0.02, 0.05, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 1.5, 2.0)
MARGINS = (0.0, 0.02, *(percent / 100 for percent in range(5, 65, 5)))
TRIALS_MAX = 120

SESSIONS = 3
FIRST_LOOK = 8
"""How many times shorter the session is that tells which plans are not worth whole ones."""
FACTORS_TRIED = 6
STEP_DOWN = 0.95
"""From one multiple of the rates to the next, where a refusal looks for one that is kept."""

Progress = Callable[[str], None]


@dataclass(order=True, slots=True)
class _Candidate:
    """A plan that was made and not yet looked at."""

    objective: float
    misses_before: float
    """Of the plan from which this one was reached."""
    headroom_at: int
    margin_at: int
    plan: Plan = field(compare=False)


def cheapest_that_attains(
    problem: Problem, attainment: float, seed: int, on_progress: Progress
) -> Choice:
    """
    Raises:
        InfeasibleError: there is no plan for these rates, or none that attains.
    """
    wanted = with_reserve(attainment)
    trials = _search(problem, wanted, seed, on_progress)
    if trials[-1].attainment >= wanted:
        return _chosen(problem, trials, attainment, seed)
    raise InfeasibleError(_refusal(problem, trials, attainment, wanted, seed, on_progress))


def _search(problem: Problem, wanted: float, seed: int, on_progress: Progress) -> list[Trial]:
    """The last one attains, or none does.

    Raises:
        InfeasibleError: there is no plan for these rates.
    """
    trials: list[Trial] = []
    candidates = _Candidates(problem, on_progress)
    for candidate in candidates:
        on_progress(f"{_room_text(candidate.plan)}: simulating")
        trials.append(_trial(candidate, problem, wanted, seed, trials))
        if trials[-1].attainment >= wanted or len(trials) == TRIALS_MAX:
            break
        candidates.reach_on(candidate, 1 - trials[-1].attainment)
    return trials


class _Candidates(Iterator[_Candidate]):
    """Plans with more and more room, cheapest first."""

    def __init__(self, problem: Problem, on_progress: Progress) -> None:
        """
        Raises:
            InfeasibleError: there is no plan even without room.
        """
        self._problem, self._on_progress = problem, on_progress
        self._heap: list[_Candidate] = []
        self._seen: set[tuple[int, int]] = set()
        self._refused: list[tuple[int, int]] = []
        if refusal := self._reach(0, 0, 1.0):
            raise InfeasibleError(refusal)

    def __next__(self) -> _Candidate:
        if not self._heap:
            raise StopIteration
        return heapq.heappop(self._heap)

    def reach_on(self, found: _Candidate, misses: float) -> None:
        """Make the plans with the next larger head-room and the next larger margin."""
        self._reach(found.headroom_at + 1, found.margin_at, misses)
        self._reach(found.headroom_at, found.margin_at + 1, misses)

    def _reach(self, headroom_at: int, margin_at: int, misses: float) -> str | None:
        """Why there is no such plan, if there is none."""
        at = headroom_at, margin_at
        if at in self._seen or headroom_at == len(HEADROOMS) or margin_at == len(MARGINS):
            return None
        self._seen.add(at)
        if any(h <= headroom_at and m <= margin_at for h, m in self._refused):
            return None
        options = replace(
            self._problem.options,
            rate_headroom=HEADROOMS[headroom_at],
            margin=MARGINS[margin_at],
        )
        self._on_progress(f"{HEADROOMS[headroom_at]:.0%} head-room: planning")
        result = solve(replace(self._problem, options=options))
        if result.plan is None:
            self._refused.append(at)
            return result.refusal or "no plan"
        heapq.heappush(self._heap, _Candidate(result.plan.objective, misses, *at, plan=result.plan))
        return None


def _trial(
    candidate: _Candidate, problem: Problem, wanted: float, seed: int, before: Sequence[Trial]
) -> Trial:
    plan = candidate.plan
    workload = Workload.of(plan, problem.profiles)
    same = next((each for each in reversed(before) if _runs_alike(each.plan, plan)), None)
    return Trial(
        margin=plan.options.margin,
        headroom=plan.options.rate_headroom,
        plan=plan,
        planned_rps=sum(workload.rates_rps.values()),
        carried_rps=math.nan,
        attainment=_worst_attained(workload, wanted, seed) if same is None else same.attainment,
    )


def _runs_alike(one: Plan, other: Plan) -> bool:
    """Whether the same batches run on the same slots."""

    def run(plan: Plan) -> object:
        return plan.slots, [(each.model, each.pipelines) for each in plan.deployments]

    return run(one) == run(other)


def _worst_attained(workload: Workload, wanted: float, seed: int) -> float:
    """Of the model that attains least."""
    planned = dict.fromkeys(workload.rates_rps, 1.0)

    def session(seed: int, shorter: int) -> Mapping[str, float]:
        return workload.attainments(planned, seed, shorter=shorter)

    shares = worst_of(session, seed, wanted, sessions=SESSIONS, first_look=FIRST_LOOK)
    return min(shares.values(), default=1.0)


def _chosen(problem: Problem, trials: Sequence[Trial], attainment: float, seed: int) -> Choice:
    best = trials[-1]
    reason = (
        f"simulated (Poisson, {POLICY}, seed {seed}): the cheapest of {len(trials)} plans tried"
        f" that attains {attainment:.4g} at {best.planned_rps:.6g} requests/s:"
        f" {best.attainment:.2%}"
    )
    plan = chosen(best.plan, problem.options, attainment, reason)
    return Choice(trials=tuple(trials), best=best, plan=plan)


def _refusal(
    problem: Problem,
    trials: Sequence[Trial],
    attainment: float,
    wanted: float,
    seed: int,
    on_progress: Progress,
) -> str:
    best = max(trials, key=lambda trial: trial.attainment)
    devices = ", ".join(
        f"{problem.cluster.count(kind.name)} {kind.name!r}"
        for kind in problem.cluster.device_types
        if problem.cluster.count(kind.name)
    )
    on_progress("looking for rates that are kept")
    factor = _kept_factor(problem, best.plan, wanted, seed)
    has = f"{factor:g} times as much with {devices}" if factor else devices
    return (
        f"--margin auto: no plan keeps {attainment:.4g} of Poisson arrivals within the SLO at the"
        " rates asked for\n"
        f"  needs  {rates_text(problem)}, at {wanted:.4g} in simulation, since other arrivals may"
        " be worse\n"
        f"  has    {has}; at the rates asked for {best.attainment:.2%}, by the best of"
        f" {len(trials)} plans ({_room_text(best.plan)})\n"
        f"  try    {f'rates of {factor:g} times these, ' if factor else ''}more devices, longer"
        " SLOs, or a lower --attainment"
    )


def _kept_factor(problem: Problem, best: Plan, wanted: float, seed: int) -> float:
    """Of the rates, at which the search finds a plan that attains; 0: at none that was tried.

    From what `best` carries in one session on, downwards: what is named has been planned.
    """
    carried = Workload.of(best, problem.profiles).largest_factor(wanted, seed)
    factor = min(0.99, math.floor(100 * carried) / 100)
    for _ in range(FACTORS_TRIED):
        if factor <= 0:
            break
        less = tuple(
            replace(each, rate_rps=factor * each.rate_rps)
            for each in problem.demands
            if each.rate_rps is not None
        )
        with suppress(InfeasibleError):  # heuristics may refuse lower rates than they carry
            trials = _search(replace(problem, demands=less), wanted, seed, lambda text: None)
            if trials[-1].attainment >= wanted:
                return factor
        factor = math.floor(100 * factor * STEP_DOWN) / 100
    return 0.0


def _room_text(plan: Plan) -> str:
    return f"{plan.options.rate_headroom:.0%} head-room, margin {plan.options.margin:.0%}"
