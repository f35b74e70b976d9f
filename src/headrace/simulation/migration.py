"""A change of plans in virtual time: the migration that the server runs, over simulated slots.

Requests pass one gateway, whichever plan takes them, as in `simulation.gateway`: one after the
other, each for what its model's profile says.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from headrace.dispatch.buckets import by_bucket
from headrace.dispatch.changes.draining import DrainingDriver
from headrace.dispatch.changes.handover import PlacedTopology
from headrace.dispatch.changes.migration import Epoch, How, Migration
from headrace.dispatch.dispatcher import Dispatcher
from headrace.dispatch.protocols import Clock
from headrace.domain.epochs import EpochLog
from headrace.domain.errors import PlanError
from headrace.domain.events import AnyEvent
from headrace.domain.plan import Plan
from headrace.domain.profile import Profile
from headrace.domain.request import Request
from headrace.simulation.clock import SimClock
from headrace.simulation.driver import Durations, JitteredDurations, SimDriver, exact_durations
from headrace.simulation.gateway import as_reached
from headrace.simulation.offered.arrivals import Arrival
from headrace.simulation.offered.items import check_single
from headrace.simulation.offered.sizes import size_mixes, to_buckets


@dataclass(frozen=True, slots=True, kw_only=True)
class MigrationRun:
    """What a simulated migration left behind."""

    epochs: tuple[EpochLog, ...]
    """The old plan's log, then the new one's. Request ids are common to both."""
    began_at_us: int
    done_at_us: int | None
    """When the old plan had nothing left; None: it never came to that."""
    steps: int
    unserved: Mapping[str, int]
    """Model or app -> its requests that came when the plan in service had it no longer. The server
    knows no such name (404), so they are in no log."""


def simulate_migration(
    old: tuple[Plan, Mapping[str, Profile]],
    new: tuple[Plan, Mapping[str, Profile]],
    arrivals: Sequence[Arrival],
    *,
    at_us: int,
    how: How = "drain",
    policy: str = "reservation",
    jitter: bool = True,
    seed: int = 0,
) -> MigrationRun:
    """Run `arrivals` through the old plan, and from `at_us` on move to the new one.

    The workers of the new plan are loaded by then; loading takes the server's time, not the
    slots'.

    Raises:
        PlanError: a request arrives for a model that no plan has had until then.
    """
    check_single(arrivals)
    arrivals = to_buckets(arrivals, size_mixes(*old) | size_mixes(*new), seed)
    old, new = by_bucket(*old), by_bucket(*new)
    rng = np.random.default_rng(seed)
    durations: Durations = JitteredDurations(rng) if jitter else exact_durations
    session = SimulatedMigration(
        PlacedTopology.from_plan(*old), PlacedTopology.from_plan(*new), policy, durations
    )
    session.run(arrivals, at_us, how)
    return MigrationRun(
        epochs=session.logs(),
        began_at_us=at_us,
        done_at_us=session.done_at_us,
        steps=len(session.migration.steps) if session.migration else 0,
        unserved=session.unserved,
    )


class MigrationSession:
    """Two plans on one clock, the arrivals, and a migration in their middle."""

    def __init__(self, old: Epoch, new: Epoch, clock: Clock) -> None:
        self.old = old
        self.new = new
        self.clock = clock
        self.done_at_us: int | None = None
        self.migration: Migration | None = None
        self.loading_us: Mapping[int, int] = {}
        """How long the workers of slots of the new plan load when their devices are handed over;
        of those that are not in it: not at all, they are preloaded."""
        self.failing_us: Mapping[int, int] = {}
        """How long the workers of slots of the new plan fail to load, from then on."""
        self.reached_at_us: dict[int, int] = {}
        """When requests reached the machine that had to wait for the gateway."""
        self.unserved: Counter[str] = Counter()
        """Requests for models that only the old plan had."""
        self._gateway_free_at_us = 0

    def schedule(self, arrivals: Sequence[Arrival], at_us: int, how: How) -> None:
        """Offer the arrivals and migrate at `at_us`, as soon as the clock runs."""
        self.clock.call_at(at_us, lambda: self.migrate(how))
        self._offer(enumerate(arrivals))

    def migrate(self, how: How) -> None:
        """Begin the migration now."""
        for slot in range(len(self.new.placed.devices)):
            self.new.draining.close(slot)
        self.migration = Migration(
            self.old,
            self.new,
            self.clock,
            how=how,
            on_done=self._note_done,
            prepare=self._load,
        )
        self.migration.start()

    def _load(self, slots: Sequence[int], ready: Callable[[Sequence[int]], None]) -> None:
        for slot in slots:
            if slot in self.failing_us:
                self.new.draining.on_slot_lost(slot)
                back_at_us = self.clock.now_us() + self.failing_us[slot]
                self.clock.call_at(back_at_us, partial(self.new.draining.on_slot_gained, slot))
        took_us = max((self.loading_us.get(slot, 0) for slot in slots), default=0)
        if took_us:
            self.clock.call_at(self.clock.now_us() + took_us, lambda: ready(slots))
        else:
            ready(slots)

    def _offer(self, arrivals: Iterator[tuple[int, Arrival]]) -> None:
        entry = next(arrivals, None)
        if entry is None:
            return
        number, arrival = entry

        def hand_over() -> None:
            self._offer(arrivals)
            self._pass_gateway(number, arrival)

        self.clock.call_at(arrival.at_us, hand_over)

    def _pass_gateway(self, number: int, arrival: Arrival) -> None:
        target = self.old if self.migration is None else self.new
        model = target.placed.number(arrival.model)
        taken_us = 0 if model is None else target.placed.topology.models[model].gateway_us
        free_at_us = max(arrival.at_us, self._gateway_free_at_us) + taken_us
        self._gateway_free_at_us = free_at_us
        if free_at_us > arrival.at_us:
            self.reached_at_us[number] = arrival.at_us
            self.clock.call_at(free_at_us, partial(self.submit, number, arrival))
        else:
            self.submit(number, arrival)

    def submit(self, number: int, arrival: Arrival) -> None:
        """Send one request to whichever plan takes it."""
        target = self.old if self.migration is None else self.new
        model = target.placed.number(arrival.model)
        if model is None and self.old.placed.number(arrival.model) is not None:
            self.unserved[arrival.model] += 1
            return
        if model is None:
            raise PlanError(
                f"arrival {number} at {arrival.at_us / 1e6:g} s: no plan in service then has"
                f" model {arrival.model!r}"
            )
        if self.migration is not None:
            target = self.migration.epoch_for(arrival.model)
            model = target.placed.number(arrival.model)
            assert model is not None, "the migration chose a plan without the model"
        asked = target.placed.topology.models[model]
        request = Request(
            id=number,
            model=model,
            arrived_at_us=self.clock.now_us() if number in self.reached_at_us else arrival.at_us,
            deadline_at_us=arrival.at_us
            + (asked.slo_us if arrival.timeout_us is None else arrival.timeout_us),
            priority=arrival.priority or asked.priority,
        )
        if self.migration is not None:
            self.migration.submit(target, request)
        else:
            target.draining.submit(request)

    def _note_done(self) -> None:
        self.done_at_us = self.clock.now_us()


class SimulatedMigration(MigrationSession):
    """A session over simulated slots."""

    def __init__(
        self, old: PlacedTopology, new: PlacedTopology, policy: str, durations: Durations
    ) -> None:
        self._policy = policy
        self._events: tuple[list[AnyEvent], list[AnyEvent]] = ([], [])
        self._clock = SimClock()
        epochs = [
            epoch_over(
                placed,
                policy,
                self._clock,
                SimDriver(placed.topology, self._clock, durations),
                events,
            )
            for placed, events in zip((old, new), self._events, strict=True)
        ]
        super().__init__(epochs[0], epochs[1], self._clock)

    def run(self, arrivals: Sequence[Arrival], at_us: int, how: How) -> None:
        """Go on until nothing is left to happen."""
        self.schedule(arrivals, at_us, how)
        self._clock.run()

    def logs(self) -> tuple[EpochLog, ...]:
        """What happened in each epoch; requests arrived when they reached the machine."""
        return tuple(
            EpochLog(
                epoch.placed.topology.event_log_header("virtual", self._policy),
                as_reached(events, self.reached_at_us),
            )
            for epoch, events in zip((self.old, self.new), self._events, strict=True)
        )


def epoch_over(
    placed: PlacedTopology, policy: str, clock: Clock, driver: SimDriver, events: list[AnyEvent]
) -> Epoch:
    """A plan in service over simulated slots."""
    draining = DrainingDriver(placed.topology, clock, driver)
    draining.dispatcher = Dispatcher(placed.topology, policy, clock, draining, events.append)
    driver.reports = draining
    return Epoch(placed, draining)
