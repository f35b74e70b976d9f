"""Slots are taken out of a dispatcher's hands without costing a request or a batch's work."""

from headrace.dispatch.changes.draining import DrainingDriver
from headrace.dispatch.dispatcher import Dispatcher
from headrace.dispatch.topology import Topology
from headrace.domain.events import Answered, AnyEvent, Arrived, Dropped, Ran, SlotGained, SlotLost
from headrace.simulation.clock import SimClock
from headrace.simulation.driver import SimDriver, exact_durations
from helpers.sim import request
from helpers.topologies import make_route, make_stage, make_topology

STAGE_US = 10_000


class World:
    def __init__(self, topology: Topology) -> None:
        self.clock = SimClock()
        self.events: list[AnyEvent] = []
        driver = SimDriver(topology, self.clock, exact_durations)
        self.draining = DrainingDriver(topology, self.clock, driver)
        self.dispatcher = self.draining.dispatcher = Dispatcher(
            topology,
            "reservation",
            self.clock,
            self.draining,
            self.events.append,
        )
        driver.reports = self.draining

    def offer(self, count: int) -> None:
        for number in range(count):
            self.draining.submit(request(number, 0, 1_000_000))

    def runs(self) -> list[tuple[int, int]]:
        """(slot, when it ended)."""
        return [(event.slot, event.at_us) for event in self.events if isinstance(event, Ran)]


def one_stage(slots: int) -> Topology:
    return make_topology([make_route(make_stage(range(slots), [STAGE_US]))], slo_us=1_000_000)


def test_a_slot_closes_after_its_batch_and_others_take_what_was_promised_to_it() -> None:
    world = World(one_stage(2))
    world.offer(6)
    world.clock.call_at(STAGE_US // 2, lambda: world.draining.close(0))
    world.clock.run()
    on_closed = [at_us for slot, at_us in world.runs() if slot == 0]
    assert on_closed == [STAGE_US], "the running batch ends, and none follows"
    assert sum(isinstance(event, Answered) for event in world.events) == 6
    assert [event for event in world.events if isinstance(event, SlotLost)] == [
        SlotLost(STAGE_US, 0)
    ]
    assert not world.draining.in_use(0)
    assert world.draining.in_use(1)


def test_counts_follow_every_request_to_its_end() -> None:
    world = World(one_stage(1))
    world.offer(3)
    assert (world.draining.open_requests, world.draining.waiting(0)) == (3, 2)
    assert len(world.draining.batches(0, 0, 0)) == 1
    world.clock.run()
    assert (world.draining.open_requests, world.draining.waiting(0)) == (0, 0)
    assert world.draining.batches(0, 0, 0) == set()


def test_a_closed_slot_stays_closed_when_its_worker_comes_back() -> None:
    world = World(one_stage(2))
    world.draining.close(0)
    world.draining.on_slot_lost(0)
    world.draining.on_slot_gained(0)
    assert not any(isinstance(event, SlotGained) for event in world.events)
    assert not world.draining.serves(0)
    world.draining.open(0)
    assert world.draining.serves(0)
    assert [event.slot for event in world.events if isinstance(event, SlotGained)] == [0]


def test_a_slot_that_is_opened_without_a_worker_serves_when_it_has_one() -> None:
    world = World(one_stage(2))
    world.draining.close(0)
    world.draining.on_slot_lost(0)
    world.draining.open(0)
    assert not world.draining.serves(0)
    world.draining.on_slot_gained(0)
    assert world.draining.serves(0)


def test_a_lost_first_stage_makes_its_requests_wait_again() -> None:
    world = World(one_stage(1))
    world.offer(1)
    assert world.draining.waiting(0) == 0
    world.clock.call_at(1, lambda: world.draining.on_slot_lost(0))
    world.clock.run()
    # The only slot is gone: refused, once.
    assert world.draining.open_requests == 0


def test_what_is_open_when_nobody_waits_any_more_is_logged_as_refused_and_never_as_answered() -> (
    None
):
    world = World(one_stage(1))
    world.offer(3)
    world.clock.call_at(STAGE_US + 1, lambda: world.dispatcher.close("draining"))
    world.clock.run()
    ends = [each for each in world.events if isinstance(each, Answered | Dropped)]
    assert [type(each) for each in ends] == [Answered, Dropped, Dropped]
    assert sorted(each.request for each in ends) == [0, 1, 2]
    assert {each.reason for each in ends if isinstance(each, Dropped)} == {"draining"}
    assert sum(isinstance(event, Arrived) for event in world.events) == 3
    assert world.draining.open_requests == 0
