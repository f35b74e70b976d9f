"""A change of plans under apps, in virtual time: their calls go to whichever plan has room."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
from msgspec.structs import replace

from headrace.dispatch.apps.app_dispatcher import Call
from headrace.dispatch.changes.handover import PlacedTopology
from headrace.dispatch.changes.migration import How
from headrace.dispatch.limits import QUEUE_LIMIT
from headrace.dispatch.policies import policy_for
from headrace.domain.epochs import EpochLog, joined
from headrace.domain.events import AnyEvent
from headrace.domain.plan import Plan
from headrace.domain.profile import Profile
from headrace.simulation.apps.requests import AppRequests, ModuleDriver
from headrace.simulation.apps.session import AppSession
from headrace.simulation.clock import SimClock
from headrace.simulation.driver import Durations, JitteredDurations, exact_durations
from headrace.simulation.migration import MigrationRun, MigrationSession, epoch_over
from headrace.simulation.offered.arrivals import Arrival

Planned = tuple[Plan, Mapping[str, Profile]]


class AppMigrationRun(NamedTuple):
    """What a simulated migration of apps left behind."""

    migration: MigrationRun
    session: AppSession
    """Both plans as one."""


def simulate_app_migration(
    old: Planned,
    new: Planned,
    arrivals: Sequence[Arrival],
    *,
    at_us: int,
    how: How = "drain",
    policy: str | None = None,
    jitter: bool = True,
    seed: int = 0,
    queue_limit: int = QUEUE_LIMIT,
) -> AppMigrationRun:
    """Run `arrivals`, whose models are apps, through the old plan; from `at_us` on move to the new.

    A request keeps the budgets of the plan in whose time it arrived; each of its calls belongs to
    the plan that takes it.

    Args:
        policy: None: of each plan the one that its worst cases are read by.
        seed: of execution times and fan-outs.
        queue_limit: calls of one module that may wait for a decision, in each plan.

    Raises:
        PlanError: a request arrives for an app that no plan has had until then.
    """
    rng = np.random.default_rng(seed)
    durations: Durations = JitteredDurations(rng) if jitter else exact_durations
    run = _AppMigration(old, new, arrivals, policy, durations, seed, queue_limit)
    run.clock.call_at(at_us, lambda: run.migrate(how))
    run.requests.schedule()
    run.clock.run()
    logs = run.logs()
    header, events = joined(logs)
    core = run.session.migration
    return AppMigrationRun(
        MigrationRun(
            epochs=logs,
            began_at_us=at_us,
            done_at_us=run.session.done_at_us,
            how=how,
            steps=len(core.steps) if core else 0,
            unserved=run.requests.unserved,
        ),
        AppSession(header=header, events=list(events), outcomes=run.requests.outcomes()),
    )


class _AppMigration:
    """Two plans on one clock, and the apps before them."""

    def __init__(
        self,
        old: Planned,
        new: Planned,
        arrivals: Sequence[Arrival],
        policy: str | None,
        durations: Durations,
        seed: int,
        queue_limit: int,
    ) -> None:
        self.clock = SimClock()
        self.requests = AppRequests(self.clock, arrivals, seed)
        self._plans = (old[0], new[0])
        self._policies = [policy or policy_for(plan) for plan in self._plans]
        self._events: tuple[list[AnyEvent], list[AnyEvent]] = ([], [])
        epochs = []
        for planned, own, events in zip((old, new), self._policies, self._events, strict=True):
            placed = PlacedTopology.from_plan(*planned)
            driver = ModuleDriver(placed.topology, self.clock, durations, self.requests)
            epochs.append(epoch_over(placed, own, self.clock, driver, events, queue_limit))
        self.session = MigrationSession(epochs[0], epochs[1], self.clock)
        self.requests.serve(self._plans[0], epochs[0].placed.topology)
        self.requests.send = self._send
        self.requests.cancel = self._cancel

    def migrate(self, how: How) -> None:
        """Begin the migration now."""
        self.session.migrate(how)
        self.requests.serve(self._plans[1], self.session.new.placed.topology)

    def logs(self) -> tuple[EpochLog, ...]:
        """What happened in each epoch."""
        return tuple(
            EpochLog(epoch.placed.topology.event_log_header("virtual", policy), events)
            for epoch, policy, events in zip(
                (self.session.old, self.session.new), self._policies, self._events, strict=True
            )
        )

    def _send(self, call: Call, name: str) -> None:
        """Let a plan that serves the module have the call."""
        migration, epoch = self.session.migration, self.session.old
        if migration is not None:
            if self.session.new.placed.number(name) is None:
                # As the server does: the app is not served any more.
                self.requests.refused(call.id, "draining", 0)
                return
            epoch = migration.epoch_for(name)
        model = epoch.placed.number(name)
        assert model is not None, "an epoch is chosen among those with the module"
        request = replace(call.request(self.clock.now_us()), model=model)
        if migration is None:
            epoch.draining.submit(request)
        else:
            migration.submit(epoch, (request,))

    def _cancel(self, call_id: int) -> None:
        if self.session.migration is None:
            self.session.old.draining.dispatcher.cancel(call_id)
        else:
            self.session.migration.cancel(call_id)
