"""The cheapest plan with room that attains, where each app has room of its own (decision 0093).

`choose_headroom` gives the same room to all, so an app that is in time without pays for the
others. So cheaper plans than the one that it finds are looked for, from the one without room on:
the app that attains least gets a step more rate, or a step more margin, and both are planned. What
costs no less than the cheapest plan that attains is left out, and with it all that has more room
still. Of the others those go first whose predecessor missed least; where a step changes nothing,
those with most room.

Cost: at most TRIES plans simulated, and twice as many made.
"""

import dataclasses
from collections.abc import Callable, Mapping
from heapq import heappop, heappush
from operator import itemgetter
from typing import NamedTuple

from msgspec.structs import replace

from headrace.domain.plan import Plan
from headrace.domain.problem import HeadroomFor, PlanOptions, Problem
from headrace.planning.common.deadline import Deadline, OutOfTime
from headrace.simulation.apps.headroom import (
    PLANNING_PART,
    SAME_BILL,
    SEED,
    Headroom,
    Rooms,
    choose_headroom,
    worst_attainments,
)
from headrace.simulation.apps.worst_cases import bounded_by
from headrace.simulation.worst_session import with_reserve

TRIES = 30
"""Plans that are simulated, besides those with the same room for all."""

Planning = Callable[[PlanOptions], Plan | None]
"""The problem's plan by these options; None: there is none."""


Steps = tuple[tuple[int, int], ...]
"""Per app, of rate and of margin."""


class Room(NamedTuple):
    """Of one app."""

    rate_headroom: float
    margin: float


def cheapest_with_room(
    problem: Problem,
    planning: Planning,
    *,
    rooms: Rooms,
    arrivals: str,
    attainment: float,
    on_progress: Callable[[str], None],
) -> Headroom | None:
    """The cheapest plan found that attains under such arrivals; None: none does.

    It never costs more than the cheapest with the same room for all. All planning and simulating
    takes no longer than the problem's time limit.

    Args:
        rooms: what is tried.
        attainment: in time / arrived, of every app.

    Raises:
        OutOfTime: the limit passed before all room was tried, and nothing attains.
    """
    limit = Deadline(problem.options.time_limit_s)

    def in_part(options: PlanOptions) -> Plan | None:
        # No plan may take the time that it takes to simulate those before it.
        each_s = PLANNING_PART * limit.left_s
        if each_s <= 0:
            raise OutOfTime
        return planning(replace(options, time_limit_s=each_s))

    def with_room(rate_headroom: float, margin: float) -> Plan | None:
        return in_part(options_for_all(problem, Room(rate_headroom, margin)))

    least = problem.options.margin
    found = choose_headroom(
        with_room,
        problem.profiles,
        margin=least,
        attainment=attainment,
        arrivals=arrivals,
        on_progress=on_progress,
        rooms=rooms,
        limit=limit,
    )
    if found is None:
        return None
    if len(problem.apps) + len(problem.demands) > 1:
        search = _Search(problem, in_part, rooms, found)
        search.run(arrivals, with_reserve(attainment), limit, on_progress)
        found = search.best
    margins = problem.options.model_margins
    asked = HeadroomFor(
        arrivals=arrivals,
        attainment=attainment,
        margin=least,
        app_margins={app.name: margins[app.name] for app in problem.apps if app.name in margins},
    )
    options = replace(
        found.plan.options, headroom_for=asked, time_limit_s=problem.options.time_limit_s
    )
    return dataclasses.replace(found, plan=replace(found.plan, options=options))


class _Search:
    """From the plan without room on, app by app."""

    def __init__(self, problem: Problem, planning: Planning, rooms: Rooms, best: Headroom) -> None:
        """
        Args:
            best: what attains already.
        """
        self.best = best
        self._problem = problem
        self._planning = planning
        self._rooms = rooms
        none = ((0, 0),) * len(problem.apps)
        self._seen = {none}
        self._waiting: list[tuple[float, int, float, Steps, Plan]] = []
        if best.without is not None:
            self._waiting.append((1.0, 0, best.without.objective, none, best.without))

    def run(
        self,
        arrivals: str,
        wanted: float,
        limit: Deadline,
        on_progress: Callable[[str], None],
    ) -> None:
        """Until nothing cheaper is left, TRIES plans are simulated, or the limit passes."""
        profiles = self._problem.profiles
        last = self.best.tried + TRIES
        try:
            while (found := self._next()) and self.best.tried < last:
                limit.check()
                steps, plan = found
                on_progress(f"room for single apps: simulating plan {self.best.tried + 1}")
                shares = worst_attainments(plan, profiles, arrivals, SEED, wanted)
                self.best = dataclasses.replace(self.best, tried=self.best.tried + 1)
                name, share = min(shares.items(), key=itemgetter(1))
                if share >= wanted:
                    kept = bounded_by(plan, self.best.without)
                    self.best = dataclasses.replace(self.best, plan=kept, attainment=share)
                else:
                    self._give_more(steps, name, 1 - share)
        except OutOfTime:
            return

    def _next(self) -> tuple[Steps, Plan] | None:
        while self._waiting:
            *_, steps, plan = heappop(self._waiting)
            if self._is_cheaper(plan):
                return steps, plan
        return None

    def _give_more(self, steps: Steps, name: str, misses: float) -> None:
        """Plan with a step more rate for this app, and with a step more margin."""
        at = [app.name for app in self._problem.apps].index(name)
        rate, margin = steps[at]
        for own in ((rate + 1, margin), (rate, margin + 1)):
            more = (*steps[:at], own, *steps[at + 1 :])
            if more in self._seen or not self._has(own):
                continue
            self._seen.add(more)
            plan = self._planning(options_for_apps(self._problem, self._of(more)))
            if plan is not None and self._is_cheaper(plan):
                room = sum(map(sum, more))
                heappush(self._waiting, (misses, -room, plan.objective, more, plan))

    def _is_cheaper(self, plan: Plan) -> bool:
        return plan.objective < self.best.plan.objective * (1 - SAME_BILL)

    def _has(self, own: tuple[int, int]) -> bool:
        rate, margin = own
        return rate < len(self._rooms.rates) and margin < len(self._rooms.margins)

    def _of(self, steps: Steps) -> dict[str, Room]:
        least = self._problem.options.margin
        return {
            app.name: Room(
                self._rooms.rates[rate], least + self._rooms.margins[margin] * (1 - least)
            )
            for app, (rate, margin) in zip(self._problem.apps, steps, strict=True)
        }


def options_for_all(problem: Problem, room: Room) -> PlanOptions:
    """The problem's, with the same room for all its apps, and models beside them."""
    own = [app.name for app in problem.apps if app.name in problem.options.model_margins]
    options = options_for_apps(problem, {name: Room(0.0, room.margin) for name in own})
    return replace(options, rate_headroom=room.rate_headroom, margin=round(room.margin, 6))


def options_for_apps(problem: Problem, rooms: Mapping[str, Room]) -> PlanOptions:
    """The problem's, with room for these apps; never a smaller margin than was asked for."""
    options = problem.options
    margins = {
        name: round(room.margin, 6)
        for name, room in rooms.items()
        if room.margin > options.margin_of(name)
    }
    rates = {
        f"{app.name}.{module.name}": rooms[app.name].rate_headroom
        for app in problem.apps
        for module in app.modules
        if app.name in rooms and rooms[app.name].rate_headroom
    }
    return replace(
        options,
        model_margins={**options.model_margins, **margins},
        module_headroom={**options.module_headroom, **rates},
    )
