"""What would do where plans are simulated: an SLO, or devices, with which one was in time.

Planners name those for calls at equal gaps. Where calls come otherwise a plan needs room, so that
what they name is refused when it is asked for. A problem does here if its plan is in time with any
of a few amounts of room; they are among those that are tried for a plan, so that it has one.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass
from math import ceil

from msgspec.structs import replace

from headrace.domain.app import App
from headrace.domain.plan import Plan
from headrace.domain.problem import Problem
from headrace.planning import solve
from headrace.planning.common.deadline import Deadline
from headrace.planning.common.enough import least_devices, least_slos, slos_text
from headrace.simulation.apps.headroom import PLANNING_PART, Roomy, surpassed
from headrace.simulation.apps.room_per_app import Room, options_for_all

LONGER = 1.5
"""From one SLO that is tried to the next."""
LONGEST = 22
"""Times the SLO that was asked for."""
STEPS = 64
"""Of that SLO, whole milliseconds each, so that it can be typed: how near the least is come."""

MORE = 16
"""Devices of a type that are named at most, besides those that there are."""

LEAST_S = 1e-3
"""For one plan: a limit is positive."""

NAMED_SLO = re.compile(
    r"an SLO of ((?:[^\s:]+: )?[\d.]+ ms(?:, [^\s:]+: [\d.]+ ms)*)(?:, with which it does)?"
)
NAMED_DEVICES = re.compile(r"(\d+ of [^`]*?) under `cluster\.nodes`")
"""In what planners of apps say."""
TRY = "\n  try "


@dataclass(frozen=True, slots=True, kw_only=True)
class RoomTrial:
    """What is tried, and within which time."""

    problem: Problem
    rooms: tuple[Room, ...]
    """The least first; margins are parts of what the asked one leaves."""
    in_time: Callable[[Plan], bool]
    limit: Deadline
    how: str
    """Plans are simulated, in words: "with ..."."""
    on_progress: Callable[[str], None]

    def completed(self, said: str) -> str:
        """A planner's refusal, with what was simulated in place of what it names itself."""
        told, then, advice = said.partition(TRY)
        slos = devices = None
        if NAMED_SLO.search(advice):
            both = NAMED_DEVICES.search(advice)
            slos = self.longer_slos(self.limit.part(PLANNING_PART) if both else None)
            advice = NAMED_SLO.sub(slos or r"an SLO of more than \1", advice)
        if NAMED_DEVICES.search(advice):
            devices = self.more_devices()
            advice = NAMED_DEVICES.sub(devices or r"more than \1 under `cluster.nodes`", advice)
        simulated = f" (simulated {self.how}; the above is for calls at equal gaps)"
        return f"{told}{then}{advice}{simulated if slos or devices else ''}"

    def longer_slos(self, limit: Deadline | None = None) -> str | None:
        """SLOs of all apps, longer in proportion, with which a plan is in time; None: none was
        found."""
        apps = [app.name for app in self.problem.apps]
        longest_us = max(app.slo_us for app in self.problem.apps)
        found = least_slos(
            self.problem,
            apps,
            self._does,
            growth=LONGER,
            most=LONGEST,
            step_us=1000 * max(1, longest_us // (1000 * STEPS)),
            limit=limit or self.limit,
        )
        return found and slos_text(found[0], apps)

    def more_devices(self) -> str | None:
        """Of each type as many as are enough for a plan that is in time; None: none was found."""
        enough = []
        for kind in self.problem.cluster.device_types:
            most = self.problem.cluster.count(kind.name) + MORE
            found = least_devices(
                self.problem, kind.name, self._does, most=most, growth=most, limit=self.limit
            )
            if found is not None:
                enough.append(f"{found.value} of {kind.name}")
        return f"{' or '.join(enough)} under `cluster.nodes`" if enough else None

    def _does(self, problem: Problem) -> bool | None:
        slos = ", ".join(f"{app.slo_us / 1000:g} ms" for app in problem.apps)
        devices = ", ".join(
            f"{problem.cluster.count(kind.name)} {kind.name}"
            for kind in problem.cluster.device_types
        )
        self.on_progress(f"trying an SLO of {slos} with {devices}")
        plans: list[Roomy] = []
        for room in self.rooms:
            if self.limit.passed:
                return None
            result = solve(self._with(problem, room), advise=False)
            if result.plan is not None:
                plans.append(Roomy(result.plan, *room))
            elif room == self.rooms[0] and result.stopped == "infeasible":
                return False  # with more room even less
        # What helps most goes first: one in time is enough.
        for found in reversed(plans):
            if self.limit.passed:
                return None
            if not surpassed(found, plans) and self.in_time(found.plan):
                return True
        return False

    def _with(self, problem: Problem, room: Room) -> Problem:
        least = problem.options.margin
        margin = least + room.margin * (1 - least)
        options = options_for_all(problem, Room(room.rate_headroom, margin))
        limit_s = max(LEAST_S, PLANNING_PART * self.limit.left_s)
        return replace(problem, options=replace(options, time_limit_s=limit_s))


def late_text(problem: Problem, *, needed: str, share: float, with_room: str, advice: str) -> str:
    """The refusal where there is a plan for calls at equal gaps, which is late.

    Args:
        needed: which part of the requests has to be in time, and how they come.
        share: the part that is, without room.
        with_room: what became of plans with room.
    """
    together = "; ".join(
        f"{app.name!r} calls {', '.join(calls(app))}" for app in problem.apps if calls(app)
    )
    said = f"; at once a request of {together}" if together else ""
    fewer = ", or fewer calls of more items each" if together else ""
    slos = ", ".join(f"{app.name}: {app.slo_us / 1000:g} ms" for app in problem.apps)
    return (
        "requests would be late: there is a plan for calls at equal gaps, and calls come otherwise"
        f"\n  needs     {needed}{said}\n"
        f"  has       {share:.2%} in time{with_room} (SLO of {slos})"
        f"{TRY}      {advice}, faster devices{fewer}"
    )


def calls(app: App) -> list[str]:
    """Those that one request makes several of, in words."""
    return [
        f"{module.name} {ceil(module.fan_out.mean)} times"
        for module in app.modules
        if module.fan_out.mean > 1
    ]
