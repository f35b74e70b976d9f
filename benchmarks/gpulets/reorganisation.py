"""A server that changes its plan again and again, in virtual time, as `headrace serve --replan`.

Every period the arrivals are counted, and whoever decides may ask for another plan. It comes into
service by a migration, as in the server, when it has been planned and its workers have loaded
beside the old ones; meanwhile the old plan serves. Periods follow each other without a gap; one
that would end while plans change lasts until that is over.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

from headrace.dispatch.changes.epoch import Epoch
from headrace.dispatch.changes.handover import PlacedTopology
from headrace.domain.epochs import EpochLog
from headrace.domain.events import AnyEvent
from headrace.domain.plan import Plan
from headrace.domain.profile import Profile
from headrace.simulation.clock import SimClock
from headrace.simulation.driver import JitteredDurations, SimDriver
from headrace.simulation.gateway import as_reached
from headrace.simulation.migration import Asked, MigrationSession, epoch_over
from headrace.simulation.offered.arrivals import Arrival

POLICY = "reservation"


class Decide(Protocol):
    """Whether another plan is wanted for what arrived."""

    def __call__(self, plan: Plan, counts: Mapping[str, int], elapsed_s: float) -> Plan | None:
        """
        Args:
            plan: in service.
            counts: model -> arrivals in a period.
            elapsed_s: its length.
        """
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """One plan of a run, and when it came."""

    plan: Plan
    decided_at_us: int
    began_at_us: int
    """When arrivals first went to it."""
    done_at_us: int | None
    """When the plan before it had nothing left; None: it never came to that."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReorganisedRun:
    """What a run left behind."""

    epochs: tuple[EpochLog, ...]
    """One log per plan. Request ids, which number the arrivals, are common to all."""
    changes: tuple[Change, ...]
    """The first is the plan that the run began with, at 0."""


def simulate_reorganisation(
    plan: Plan,
    profiles: Mapping[str, Profile],
    arrivals: Sequence[Arrival],
    decide: Decide,
    *,
    period_us: int,
    ready_after_us: int,
) -> ReorganisedRun:
    """Run all arrivals, changing plans as `decide` says.

    Args:
        profiles: of all models of all plans, which are of one size each.
        ready_after_us: from a decision until the new plan's workers have loaded.
    """
    session = _Session(plan, profiles, decide, ready_after_us)
    session.run(arrivals, period_us)
    return ReorganisedRun(epochs=session.logs(), changes=session.changes())


@dataclass(slots=True)
class _Served:
    """A plan that is or was in service."""

    plan: Plan
    epoch: Epoch
    events: list[AnyEvent]
    decided_at_us: int = 0
    began_at_us: int = 0
    done_at_us: int | None = None


@dataclass(slots=True)
class _Period:
    """What arrived since it began."""

    began_at_us: int
    counts: dict[str, int] = field(default_factory=dict)


class _Session(MigrationSession):
    """`old` serves; while plans change, `new` follows it."""

    def __init__(
        self,
        plan: Plan,
        profiles: Mapping[str, Profile],
        decide: Decide,
        ready_after_us: int,
    ) -> None:
        self._profiles = profiles
        self._durations = JitteredDurations(np.random.default_rng(0))
        self._decide = decide
        self._ready_after_us = ready_after_us
        self._clock = SimClock()
        self._served: list[_Served] = []
        self._period = _Period(0)
        self._changes_plan = False
        self._is_overdue = False
        """The period should have ended while plans change."""
        self._last_at_us = 0
        first = self._serve(plan)
        first.done_at_us = 0
        super().__init__(first.epoch, first.epoch, self._clock)

    def run(self, arrivals: Sequence[Arrival], period_us: int) -> None:
        self._period_us = period_us
        self._last_at_us = arrivals[-1].at_us if arrivals else 0
        self.offer(arrivals)
        self._begin_period()
        self._clock.run()

    def submit(self, asked: Asked) -> None:
        counts, model = self._period.counts, asked.arrival.model
        counts[model] = counts.get(model, 0) + 1
        super().submit(asked)

    def logs(self) -> tuple[EpochLog, ...]:
        """What happened under each plan; requests arrived when they reached the machine."""
        return tuple(
            EpochLog(
                served.epoch.placed.topology.event_log_header("virtual", POLICY),
                as_reached(served.events, self.reached_at_us),
            )
            for served in self._served
        )

    def changes(self) -> tuple[Change, ...]:
        return tuple(
            Change(
                plan=served.plan,
                decided_at_us=served.decided_at_us,
                began_at_us=served.began_at_us,
                done_at_us=served.done_at_us,
            )
            for served in self._served
        )

    def _serve(self, plan: Plan) -> _Served:
        placed = PlacedTopology.from_plan(plan, self._profiles)
        events: list[AnyEvent] = []
        driver = SimDriver(placed.topology, self._clock, self._durations)
        epoch = epoch_over(placed, POLICY, self._clock, driver, events)
        self._served.append(_Served(plan, epoch, events))
        return self._served[-1]

    def _begin_period(self) -> None:
        now_us = self._clock.now_us()
        self._period = _Period(now_us)
        if now_us <= self._last_at_us:
            self._clock.call_at(now_us + self._period_us, self._look)

    def _look(self) -> None:
        """A period is over, unless plans are changing."""
        self._is_overdue = self._changes_plan
        if self._is_overdue:
            return
        period, now_us = self._period, self._clock.now_us()
        elapsed_s = (now_us - period.began_at_us) / 1e6
        self._begin_period()
        plan = self._decide(self._served[-1].plan, period.counts, elapsed_s)
        if plan is not None:
            self._changes_plan = True
            coming = self._serve(plan)
            coming.decided_at_us = now_us
            self._clock.call_at(now_us + self._ready_after_us, lambda: self._follow(coming))

    def _follow(self, coming: _Served) -> None:
        """The new plan's workers have loaded."""
        coming.began_at_us = self._clock.now_us()
        self.new = coming.epoch
        self.migrate("drain")

    def _note_done(self) -> None:
        super()._note_done()
        self._served[-1].done_at_us = self._clock.now_us()
        self.old = self.new
        self.migration = None
        self._changes_plan = False
        if self._is_overdue:
            self._look()
