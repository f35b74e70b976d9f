"""A change of plans in virtual time: the migration that the server runs, over simulated slots.

Requests pass one gateway, whichever plan takes them, as in `simulation.gateway`: one after the
other, each for what its model's profile says.
"""

from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import accumulate
from typing import NamedTuple

import numpy as np

from headrace.dispatch.buckets import by_bucket
from headrace.dispatch.changes.draining import DrainingDriver
from headrace.dispatch.changes.epoch import Epoch
from headrace.dispatch.changes.handover import PlacedTopology
from headrace.dispatch.changes.migration import How, Migration, only_flushed
from headrace.dispatch.dispatcher import Dispatcher
from headrace.dispatch.limits import QUEUE_LIMIT
from headrace.dispatch.policies import policy_for
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
from headrace.simulation.offered.items import check_single, items_of
from headrace.simulation.offered.sizes import size_mixes, to_buckets


@dataclass(frozen=True, slots=True, kw_only=True)
class MigrationRun:
    """What a simulated migration left behind."""

    epochs: tuple[EpochLog, ...]
    """The old plan's log, then the new one's. Request ids are common to both."""
    began_at_us: int
    done_at_us: int | None
    """When the old plan had nothing left; None: it never came to that."""
    how: How
    """As it was done (`only_flushed`)."""
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
    policy: str | None = None,
    jitter: bool = True,
    seed: int = 0,
    queue_limit: int = QUEUE_LIMIT,
) -> MigrationRun:
    """Run `arrivals` through the old plan, and from `at_us` on move to the new one.

    The workers of the new plan are loaded by then; loading takes the server's time, not the
    slots'. Models that come and go come to them as they are asked for.

    Args:
        how: plans of some kinds are flushed in any case (`only_flushed`).
        policy: None: of each plan the one that it was made for.
        queue_limit: requests of one model that may wait for a decision, in each plan.

    Raises:
        PlanError: a request arrives for a model that no plan has had until then, or the policy is
            for other plans.
        DocumentError: a request has more items than the plan of its time allows.
    """
    arrivals = to_buckets(arrivals, size_mixes(*old) | size_mixes(*new), seed)
    items = _items(arrivals, old[0], new[0], at_us, seed)
    old, new = by_bucket(*old), by_bucket(*new)
    how = "flush" if only_flushed(old[0], new[0]) else how
    rng = np.random.default_rng(seed)
    durations: Durations = JitteredDurations(rng) if jitter else exact_durations
    policies = (policy or policy_for(old[0]), policy or policy_for(new[0]))
    session = SimulatedMigration(
        PlacedTopology.from_plan(*old),
        PlacedTopology.from_plan(*new),
        policies,
        durations,
        queue_limit,
    )
    session.run(arrivals, at_us, how, items)
    return MigrationRun(
        epochs=session.logs(),
        began_at_us=at_us,
        done_at_us=session.done_at_us,
        how=how,
        steps=len(session.migration.steps) if session.migration else 0,
        unserved=session.unserved,
    )


def _items(
    arrivals: Sequence[Arrival], old: Plan, new: Plan, at_us: int, seed: int
) -> Sequence[int]:
    """Of each arrival, as a simulation of the plan of its time has it."""
    found = [1] * len(arrivals)
    after = bisect_left(arrivals, at_us, key=lambda arrival: arrival.at_us)
    for plan, own in ((old, slice(0, after)), (new, slice(after, None))):
        if plan.is_malleable:
            found[own] = items_of(arrivals, plan, seed)[own].tolist()
        else:
            check_single(arrivals[own])
    return found


class Asked(NamedTuple):
    """What one client asks at once."""

    first: int
    """Its first request's id; those of further items follow."""
    arrival: Arrival
    items: int


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

    def schedule(
        self,
        arrivals: Sequence[Arrival],
        at_us: int,
        how: How,
        items: Sequence[int] | None = None,
    ) -> None:
        """Offer the arrivals and migrate at `at_us`, as soon as the clock runs.

        Args:
            items: of each arrival; None: one.
        """
        self.clock.call_at(at_us, lambda: self.migrate(how))
        self.offer(arrivals, items)

    def offer(self, arrivals: Sequence[Arrival], items: Sequence[int] | None = None) -> None:
        """Submit each at its instant, behind the gateway."""
        counts = [1] * len(arrivals) if items is None else items
        self._offer_next(map(Asked, accumulate(counts, initial=0), arrivals, counts))

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

    def _offer_next(self, asked: Iterator[Asked]) -> None:
        one = next(asked, None)
        if one is None:
            return

        def hand_over() -> None:
            self._offer_next(asked)
            self._pass_gateway(one)

        self.clock.call_at(one.arrival.at_us, hand_over)

    def _pass_gateway(self, asked: Asked) -> None:
        arrival = asked.arrival
        target = self.old if self.migration is None else self.new
        model = target.placed.number(arrival.model)
        taken_us = 0 if model is None else target.placed.topology.models[model].gateway_us
        free_at_us = max(arrival.at_us, self._gateway_free_at_us) + taken_us
        self._gateway_free_at_us = free_at_us
        if free_at_us > arrival.at_us:
            ids = range(asked.first, asked.first + asked.items)
            self.reached_at_us |= dict.fromkeys(ids, arrival.at_us)
            self.clock.call_at(free_at_us, partial(self.submit, asked))
        else:
            self.submit(asked)

    def submit(self, asked: Asked) -> None:
        """Send it to whichever plan takes it."""
        number, arrival, items = asked
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
        served = target.placed.topology.models[model]
        timeout_us = served.slo_us if arrival.timeout_us is None else arrival.timeout_us
        requests = [
            Request(
                id=request_id,
                model=model,
                arrived_at_us=self.clock.now_us()
                if number in self.reached_at_us
                else arrival.at_us,
                deadline_at_us=arrival.at_us + timeout_us,
                priority=arrival.priority or served.priority,
            )
            for request_id in range(number, number + items)
        ]
        if self.migration is not None:
            self.migration.submit(target, requests)
        else:
            target.submit(requests)

    def _note_done(self) -> None:
        self.done_at_us = self.clock.now_us()


class SimulatedMigration(MigrationSession):
    """A session over simulated slots."""

    def __init__(
        self,
        old: PlacedTopology,
        new: PlacedTopology,
        policies: tuple[str, str],
        durations: Durations,
        queue_limit: int = QUEUE_LIMIT,
    ) -> None:
        """`policies`: the old plan's, then the new one's."""
        self._policies = policies
        self._events: tuple[list[AnyEvent], list[AnyEvent]] = ([], [])
        self._clock = SimClock()
        epochs = [
            epoch_over(
                placed,
                policy,
                self._clock,
                SimDriver(placed.topology, self._clock, durations),
                events,
                queue_limit,
            )
            for placed, policy, events in zip((old, new), policies, self._events, strict=True)
        ]
        super().__init__(epochs[0], epochs[1], self._clock)

    def run(
        self,
        arrivals: Sequence[Arrival],
        at_us: int,
        how: How,
        items: Sequence[int] | None = None,
    ) -> None:
        """As `schedule`, and go on until nothing is left to happen."""
        self.schedule(arrivals, at_us, how, items)
        self._clock.run()

    def logs(self) -> tuple[EpochLog, ...]:
        """What happened in each epoch; requests arrived when they reached the machine."""
        return tuple(
            EpochLog(
                epoch.placed.topology.event_log_header("virtual", policy),
                as_reached(events, self.reached_at_us),
            )
            for epoch, policy, events in zip(
                (self.old, self.new), self._policies, self._events, strict=True
            )
        )


def epoch_over(
    placed: PlacedTopology,
    policy: str,
    clock: Clock,
    driver: SimDriver,
    events: list[AnyEvent],
    queue_limit: int = QUEUE_LIMIT,
) -> Epoch:
    """A plan in service over simulated slots."""
    draining = DrainingDriver(placed.topology, clock, driver)
    draining.dispatcher = Dispatcher(
        placed.topology, policy, clock, draining, events.append, queue_limit, weights=driver
    )
    driver.reports = driver.load_reports = draining
    return Epoch(placed, draining)
