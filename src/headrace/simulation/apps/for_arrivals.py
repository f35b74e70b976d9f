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

    try:
        found = cheapest_with_room(
            problem,
            tried.planning,
            rooms=ROOMS,
            arrivals=arrivals,
            attainment=attainment,
            on_progress=on_progress,
        )
    except OutOfTime:
        raise InfeasibleError(tried.refusal(all_room=False)) from None
    if found is None:
        raise InfeasibleError(tried.refusal(all_room=True))
    reason = (
        f"simulated ({arrivals}, {policy_for(found.plan)}, seed {SEED}): {found.attainment:.2%}"
        f" in time; {found.premium:.1%} above the cost for uniform arrivals; {found.tried} plans"
        " simulated"
    )
    options = replace(found.plan.options, margin_reason=reason)
    plan = replace(found.plan, options=options, runtime_s=began.spent_s)
    return dataclasses.replace(found, plan=plan)


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
        self._problem = replace(problem, options=replace(problem.options, arrivals="poisson"))
        self._arrivals = arrivals
        self._attainment = attainment
        self._limit = limit
        self._on_progress = on_progress
        self._results: list[tuple[PlanOptions, PlanResult]] = []

    def planning(self, options: PlanOptions) -> Plan | None:
        options = replace(options, arrivals="poisson")
        result = solve(replace(self._problem, options=options), advise=False)
        self._results.append((options, result))
        if len(self._results) == 1 and result.plan is None and result.stopped != "heuristic":
            # It looks at all plans: with more room there are even fewer.
            raise InfeasibleError(self.refusal(all_room=False))
        return result.plan

    def refusal(self, *, all_room: bool) -> str:
        """
        Args:
            all_room: whether all was tried before time ran out.
        """
        (_, first), *_ = self._results
        trial = self._trial()
        if first.plan is None:
            said = first.refuse() if first.refuse else first.refusal
            return trial.completed(said or "no plan")
        shares = self._shares(first.plan)
        if all_room:
            lacks = any(result.plan is None for _, result in self._results)
            slos = trial.longer_slos(self._limit.part(PLANNING_PART) if lacks else None)
            found = [slos or "a longer SLO", trial.more_devices() if lacks else None]
            advice = ", ".join(text for text in found if text)
            with_room = self._with_room(lacks=lacks)
        else:
            limit_s = self._problem.options.time_limit_s
            advice = f"a --time-limit-s of more than {limit_s:g}, a longer SLO"
            with_room = ", and too few with the room that was tried before time ran out"
        needed = f"{with_reserve(self._attainment):.2%} in time with {self._arrivals} arrivals"
        return late_text(
            self._problem,
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
            problem=self._problem,
            rooms=TRIED,
            in_time=lambda plan: min(self._shares(plan).values(), default=1.0) >= wanted,
            limit=self._limit,
            how=f"with {self._arrivals} arrivals",
            on_progress=self._on_progress,
        )

    def _shares(self, plan: Plan) -> Mapping[str, float]:
        wanted = with_reserve(self._attainment)
        return worst_attainments(plan, self._problem.profiles, self._arrivals, SEED, wanted)
