"""Plans of apps for arrivals that are not uniform (decision 0017)."""

import dataclasses
from collections.abc import Callable, Mapping

from msgspec.structs import replace

from headrace.dispatch.policies import policy_for
from headrace.domain.errors import DocumentError, InfeasibleError
from headrace.domain.plan import Plan, PlanResult
from headrace.domain.problem import PlanOptions, Problem
from headrace.planning import solve
from headrace.planning.common.deadline import Deadline, OutOfTime
from headrace.simulation.apps.apart import in_proportion, may_take_turns, on_own_devices
from headrace.simulation.apps.headroom import (
    PLANNING_PART,
    ROOMS,
    SEED,
    Headroom,
    worst_attainments,
)
from headrace.simulation.apps.room_per_app import Room, cheapest_with_room
from headrace.simulation.apps.what_would_do import RoomTrial, late_text
from headrace.simulation.worst_session import with_reserve

TRIED = (
    Room(0.0, 0.0),
    Room(0.2, 0.1),
    Room(0.5, 0.2),
    Room(1.0, 0.0),
    Room(1.0, 0.2),
    Room(0.5, 0.4),
    Room(1.0, 0.4),
)
"""With what a refusal names; they are among those of `ROOMS`."""


def plan_for_arrivals(
    problem: Problem,
    arrivals: str,
    *,
    attainment: float = 0.99,
    on_progress: Callable[[str], None] = lambda text: None,
) -> Headroom:
    """Plan the apps of a problem with room for such arrivals; the plan's `runtime_s` is all of the
    time that this took.

    Raises:
        DocumentError: the problem has no apps, or the attainment lies outside (0, 1).
        InfeasibleError: no plan exists, or none attains, or none was found within the problem's
            time limit.
    """
    if not problem.apps:
        raise DocumentError(
            f"--arrivals {arrivals}: the problem has no apps\n"
            "  try       --margin auto, which simulates plans of models under Poisson load"
        )
    if not 0 < attainment < 1:
        raise DocumentError(f"--attainment: {attainment} must lie between 0 and 1")
    began = Deadline(problem.options.time_limit_s)
    tried = _Tried(problem, arrivals, attainment, began, on_progress)
    found = tried.cheapest() or _apart(tried)
    if found is None:
        raise InfeasibleError(tried.refusal())
    return dataclasses.replace(found, plan=replace(found.plan, runtime_s=began.spent_s))


def _apart(tried: "_Tried") -> Headroom | None:
    """That of modules with devices of their own, in a time limit of its own."""
    if not may_take_turns(tried.problem) or tried.refuted:
        return None
    found = tried.of(in_proportion(tried.problem)).cheapest()
    if found is None:
        return None
    without = tried.without
    plan = on_own_devices(found.plan, without)
    objective = plan.objective if without is None else without.objective
    return dataclasses.replace(found, plan=plan, uniform_objective=objective, without=without)


class _Refuted(Exception):
    """No plan exists at all, so that none with room does."""


class _Tried:
    """Plans that were made, those with least room first, and why none is in time."""

    def __init__(
        self,
        problem: Problem,
        arrivals: str,
        attainment: float,
        limit: Deadline,
        on_progress: Callable[[str], None],
    ) -> None:
        self.problem = replace(problem, options=replace(problem.options, arrivals="poisson"))
        self._timed_out = False
        self._arrivals = arrivals
        self._attainment = attainment
        self._limit = limit
        self._on_progress = on_progress
        self._results: list[tuple[PlanOptions, PlanResult]] = []

    def of(self, problem: Problem) -> "_Tried":
        """The same of another problem, in a time limit of its own."""
        limit = Deadline(problem.options.time_limit_s)
        return _Tried(problem, self._arrivals, self._attainment, limit, self._on_progress)

    @property
    def without(self) -> Plan | None:
        """The plan without room."""
        return self._results[0][1].plan

    @property
    def refuted(self) -> bool:
        """Whether it is certain that there is no plan at all."""
        return self._results[0][1].stopped == "infeasible"

    def cheapest(self) -> Headroom | None:
        """The cheapest that attains; None: there is none, or none was found in time."""
        try:
            found = cheapest_with_room(
                self.problem,
                self._planning,
                rooms=ROOMS,
                arrivals=self._arrivals,
                attainment=self._attainment,
                on_progress=self._on_progress,
            )
        except OutOfTime:
            self._timed_out = True
            return None
        except _Refuted:
            return None
        if found is None:
            return None
        reason = (
            f"simulated ({self._arrivals}, {policy_for(found.plan)}, seed {SEED}):"
            f" {found.attainment:.2%} in time; {found.premium:.1%} above the cost for uniform"
            f" arrivals; {found.tried} plans simulated"
        )
        options = replace(found.plan.options, margin_reason=reason)
        return dataclasses.replace(found, plan=replace(found.plan, options=options))

    def _planning(self, options: PlanOptions) -> Plan | None:
        options = replace(options, arrivals="poisson")
        result = solve(replace(self.problem, options=options), advise=False)
        self._results.append((options, result))
        if len(self._results) == 1 and result.plan is None:
            # It looks at all plans: with more room there are even fewer.
            if self.refuted:
                raise _Refuted
            if result.stopped == "time-limit":
                raise OutOfTime
        return result.plan

    def refusal(self) -> str:
        (_, first), *_ = self._results
        trial = self._trial()
        if first.plan is None:
            said = first.refuse() if first.refuse else first.refusal
            return trial.completed(said or "no plan")
        shares = self._shares(first.plan)
        if not self._timed_out:
            lacks = any(result.plan is None for _, result in self._results)
            slos = trial.longer_slos(self._limit.part(PLANNING_PART) if lacks else None)
            found = [slos or "a longer SLO", trial.more_devices() if lacks else None]
            advice = ", ".join(text for text in found if text)
            with_room = self._with_room(lacks=lacks)
        else:
            limit_s = self.problem.options.time_limit_s
            advice = f"a --time-limit-s of more than {limit_s:g}, a longer SLO"
            with_room = ", and too few with the room that was tried before time ran out"
        needed = f"{with_reserve(self._attainment):.2%} in time with {self._arrivals} arrivals"
        return late_text(
            self.problem,
            needed=f"{needed}, of which some are kept in reserve for {self._attainment:.4g}",
            share=min(shares.values(), default=1.0),
            with_room=with_room,
            advice=f"{advice}, a lower --attainment",
        )

    def _with_room(self, *, lacks: bool) -> str:
        options = [options for options, result in self._results if result.plan is not None]
        rate = max(each.rate_headroom for each in options)
        margin = max(each.margin for each in options)
        none = ", beyond which there is no plan" if lacks else ""
        return f", and too few with up to {rate:.0%} more rate or a margin of {margin:.0%}{none}"

    def _trial(self) -> RoomTrial:
        wanted = with_reserve(self._attainment)
        return RoomTrial(
            problem=self.problem,
            rooms=TRIED,
            in_time=lambda plan: min(self._shares(plan).values(), default=1.0) >= wanted,
            limit=self._limit,
            how=f"with {self._arrivals} arrivals",
            on_progress=self._on_progress,
        )

    def _shares(self, plan: Plan) -> Mapping[str, float]:
        wanted = with_reserve(self._attainment)
        return worst_attainments(plan, self.problem.profiles, self._arrivals, SEED, wanted)
