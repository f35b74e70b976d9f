"""Who has time waits, and what has not begun gives way to what is more urgent."""

import pytest
from msgspec.structs import replace

from headrace.dispatch.protocols import Batch
from headrace.domain.events import Answered, Dropped, Ran
from headrace.domain.request import Request
from helpers.sim import Sim, request
from helpers.topologies import (
    assert_each_request_ended_once,
    assert_exclusive,
    make_route,
    make_stage,
    make_topology,
)

HOUR_US = 3_600_000_000


def answered(sim: Sim) -> dict[int, int]:
    """Request -> when it was answered."""
    return {e.request: e.at_us for e in sim.events if isinstance(e, Answered)}


def dropped(sim: Sim) -> list[int]:
    return [e.request for e in sim.events if isinstance(e, Dropped)]


def one_slot(slo_us: int = 400) -> Sim:
    return Sim(make_topology([make_route(make_stage([0], [100]))], slo_us=slo_us))


def patient(first: int, count: int, at_us: int = 0, priority: int = 0) -> list[Request]:
    return [request(first + i, at_us, HOUR_US, priority=priority) for i in range(count)]


def test_a_patient_client_does_not_book_ahead_of_one_with_an_slo() -> None:
    sim = one_slot()
    sim.run([*patient(0, 50), request(100, 10, 410), request(101, 20, 420)])
    assert dropped(sim) == []
    # Behind what runs already, before all that waits.
    assert (answered(sim)[100], answered(sim)[101]) == (200, 300)
    assert max(answered(sim).values()) == 52 * 100, "the slot was never idle"


def test_patient_requests_do_not_pile_up_between_stages() -> None:
    # The second stage takes ten times as long: without bound, 50 batches would wait before it.
    route = make_route(make_stage([0], [10]), make_stage([1], [100]))
    sim = Sim(make_topology([route], slo_us=400))
    sim.run(patient(0, 50))
    runs = [e for e in sim.events if isinstance(e, Ran)]
    for now_us in range(0, 5_000, 50):
        first = sum(e.stage == 0 and e.at_us <= now_us for e in runs)
        second = sum(e.stage == 1 and e.started_at_us <= now_us for e in runs)
        assert first - second <= 1
    assert max(answered(sim).values()) == 10 + 50 * 100, "the slow stage was never idle"


def test_an_important_request_takes_back_what_less_important_ones_have_reserved() -> None:
    sim = one_slot()
    sim.run([*(request(i, 0, 400, priority=1) for i in range(4)), request(9, 50, 260)])
    assert answered(sim)[9] == 200
    # The one whose place it took finds no other; the others keep theirs.
    assert dropped(sim) == [1]
    assert_each_request_ended_once(sim.events)


def test_what_runs_is_not_taken_back() -> None:
    sim = one_slot()
    sim.run([request(0, 0, 400, priority=1), request(9, 50, 190)])
    assert answered(sim) == {0: 100}
    assert dropped(sim) == [9]


def test_a_tighter_deadline_goes_first_where_those_that_have_more_time_stay_in_time() -> None:
    sim = one_slot()
    sim.run([request(0, 0, 400), request(1, 0, 400), request(9, 50, 260)])
    assert answered(sim) == {0: 100, 9: 200, 1: 300}


def test_an_accepted_request_is_not_made_late_for_one_that_is_as_important() -> None:
    sim = one_slot()
    sim.run([*(request(i, 0, 400) for i in range(4)), request(9, 50, 260)])
    assert dropped(sim) == [9]
    assert answered(sim) == {0: 100, 1: 200, 2: 300, 3: 400}


def test_a_less_important_request_takes_nothing_back() -> None:
    sim = one_slot()
    sim.run([*(request(i, 0, 400) for i in range(3)), request(9, 50, 260, priority=1)])
    assert dropped(sim) == [9]


def test_models_that_share_a_slot_give_way_to_each_other() -> None:
    shared = [make_route(make_stage([0], [100]))]
    sim = Sim(make_topology(shared, [make_route(make_stage([0], [50]))], slo_us=(400, 200)))
    booked = [request(i, 0, 400, priority=1) for i in range(4)]
    sim.run([*booked, request(9, 50, 250, model=1)])
    # Nothing is promised on a slot of several models before its turn: the last one finds no time.
    assert answered(sim)[9] == 150
    assert dropped(sim) == [3]
    assert_exclusive(sim.events, sim.topology)


def test_a_batch_that_moves_takes_its_whole_path_along() -> None:
    # Two slots per stage: the batch that is displaced goes to the other slot, and stays in time.
    route = make_route(make_stage([0, 1], [100]), make_stage([2], [50], input_bytes=100))
    topology = make_topology([route], slo_us=600, slot_node=[0, 0, 1], bytes_per_us=10.0)
    sim = Sim(topology)
    sim.run([*(request(i, 0, 600, priority=1) for i in range(4)), request(9, 50, 330)])
    assert answered(sim)[9] <= 330
    assert_exclusive(sim.events, topology)
    assert_each_request_ended_once(sim.events)


def test_a_less_important_request_with_little_time_is_refused_while_important_ones_have_time() -> (
    None
):
    sim = one_slot()
    sim.run([*patient(0, 50), request(100, 10, 350, priority=1)])
    ((refused, reason, retry_after_us),) = sim.driver.refused
    assert (refused.id, reason) == (100, "deadline")
    assert retry_after_us > 0
    at_us = next(e.at_us for e in sim.events if isinstance(e, Dropped))
    assert at_us == 251, "not at its turn, an hour later"


class ClosedLoop:
    """A client that asks for 16 items with an hour's time on each of its connections, again and
    again until `until_us`."""

    def __init__(self, sim: Sim, connections: int, priority: int, until_us: int) -> None:
        self._sim, self._priority, self._until_us = sim, priority, until_us
        self._next = 10_000
        self._missing: dict[int, list[int]] = {}
        self._answer = sim.driver.answer
        sim.driver.answer = self.on_answer  # type: ignore[method-assign]
        for _ in range(connections):
            sim.clock.call_at(0, self.ask)

    def ask(self) -> None:
        at_us, missing = self._sim.clock.now_us(), [16]
        for _ in range(16):
            self._next += 1
            self._missing[self._next] = missing
            asked = request(self._next, at_us, at_us + HOUR_US, priority=self._priority)
            self._sim.dispatcher.on_arrival(asked)

    def on_answer(self, batch: Batch) -> None:
        self._answer(batch)
        for member in batch.requests:
            missing = self._missing.pop(member.id, [0])
            missing[0] -= 1
            if missing[0] == 0 and self._sim.clock.now_us() < self._until_us:
                self._sim.clock.call_at(self._sim.clock.now_us(), self.ask)


@pytest.mark.parametrize("connections", [1, 2, 12])
@pytest.mark.parametrize("priority", [0, 1])
def test_a_patient_client_gets_what_one_with_an_slo_leaves(connections: int, priority: int) -> None:
    sim = Sim(
        make_topology([make_route(make_stage([0], [1_000, 1_600, 2_200, 2_800]))], slo_us=8_000)
    )
    urgent = [request(i, 4_000 * i + 7, 4_000 * i + 8_007) for i in range(129)]
    ClosedLoop(sim, connections, priority, until_us=129 * 4_000)
    sim.run(urgent)
    assert dropped(sim) == []
    ended = answered(sim)
    assert [r.id for r in urgent if ended[r.id] > r.deadline_at_us] == []
    # With one connection the slot is idle for the moment between answer and next request.
    busy_us = sum(e.at_us - e.started_at_us for e in sim.events if isinstance(e, Ran))
    assert busy_us >= 0.98 * 129 * 4_000


def test_who_has_time_is_not_dropped_for_a_less_important_one_that_has_none() -> None:
    # Full batches of two would be late for requests 2 and 3 only, and a batch was shrunk before.
    sim = Sim(make_topology([make_route(make_stage([0], [100, 150]))], slo_us=1_000))
    sim.run(
        [
            request(0, 0, 1_000),
            request(1, 10, 210, priority=1),
            *(request(2 + i, 20, HOUR_US) for i in range(3)),
            request(5, 20, 330, priority=1),
        ]
    )
    assert not {2, 3, 4} & set(dropped(sim))
    assert_each_request_ended_once(sim.events)


def test_a_full_queue_takes_a_more_urgent_request_for_its_least_urgent_one() -> None:
    topology = make_topology([make_route(make_stage([0], [100]))], slo_us=400)
    sim = Sim(topology, queue_limit=3)
    sim.run([*patient(0, 5), request(9, 10, 410)])
    # One runs, three wait and the last finds no room; then the last that waits gives way.
    assert [(r.id, reason) for r, reason, _ in sim.driver.refused] == [
        (4, "queue-full"),
        (3, "queue-full"),
    ]
    assert answered(sim)[9] == 200


def test_a_full_queue_keeps_what_is_more_important_than_a_more_urgent_request() -> None:
    topology = make_topology([make_route(make_stage([0], [100]))], slo_us=400)
    sim = Sim(topology, queue_limit=3)
    sim.run([*patient(0, 4), request(9, 10, 410, priority=1)])
    assert [(r.id, reason) for r, reason, _ in sim.driver.refused] == [(9, "queue-full")]


def test_of_the_paths_that_are_taken_back_the_one_that_ends_first_is_used() -> None:
    slow = make_route(make_stage([0], [100]), name="slow")
    fast = make_route(make_stage([1], [50]), name="fast")
    sim = Sim(make_topology([slow, fast], slo_us=400))
    # Both slots run something, and are promised for what comes next.
    sim.run([*(request(i, 0, 260, priority=1) for i in range(6)), request(9, 10, 210)])
    assert answered(sim)[9] == 100


def run_in_pairs(*requests: Request) -> Sim:
    """One slot, 100 us for one request and 120 for two; it runs something until 100."""
    sim = Sim(make_topology([make_route(make_stage([0], [100, 120]))], slo_us=400))
    sim.run([request(0, 0, 400), *requests])
    assert_each_request_ended_once(sim.events)
    return sim


def test_an_important_request_takes_the_place_of_a_less_important_one_beside_another() -> None:
    sim = run_in_pairs(request(2, 1, 300), request(3, 1, 300, priority=1), request(9, 50, 260))
    assert answered(sim) == {0: 100, 2: 220, 9: 220}
    assert dropped(sim) == [3]


def test_whoever_had_the_place_is_served_later_where_there_is_time() -> None:
    sim = run_in_pairs(request(2, 1, 300), request(3, 1, 380, priority=1), request(9, 50, 260))
    assert answered(sim) == {0: 100, 2: 220, 9: 220, 3: 320}


def test_the_least_urgent_member_gives_its_place() -> None:
    others = (request(2, 1, 390, priority=2), request(3, 1, 390, priority=1))
    more = (request(4, 2, 390, priority=1), request(5, 2, 395, priority=1))
    sim = run_in_pairs(*others, *more, request(9, 50, 260))
    assert (answered(sim)[9], dropped(sim)) == (220, [2])


def test_no_place_is_given_to_a_request_that_is_as_important_or_would_be_late_there() -> None:
    sim = run_in_pairs(request(2, 1, 300), request(3, 1, 300), request(9, 50, 260))
    assert (answered(sim), dropped(sim)) == ({0: 100, 2: 220, 3: 220}, [9])
    sim = run_in_pairs(request(2, 1, 300), request(3, 1, 300, priority=1), request(9, 50, 219))
    assert (answered(sim), dropped(sim)) == ({0: 100, 2: 220, 3: 220}, [9])


def test_a_request_that_is_to_run_apart_takes_no_place_beside_others() -> None:
    alone = replace(request(9, 50, 260), apart=True)
    sim = run_in_pairs(request(2, 1, 300), request(3, 1, 300, priority=1), alone)
    assert (answered(sim), dropped(sim)) == ({0: 100, 2: 220, 3: 220}, [9])


def test_nothing_is_taken_from_a_batch_that_runs() -> None:
    sim = run_in_pairs(request(2, 1, 300), request(3, 1, 300, priority=1), request(9, 110, 310))
    assert answered(sim) == {0: 100, 2: 220, 3: 220}


def test_no_place_is_taken_in_a_batch_whose_way_is_lost() -> None:
    cut = make_route(make_stage([0], [100, 120]), make_stage([1], [100, 120]), name="cut")
    whole = make_route(make_stage([2], [150]), name="whole")
    sim = Sim(make_topology([cut, whole], slo_us=700))
    sim.clock.call_at(70, lambda: sim.dispatcher.on_slot_lost(1))
    others = [request(i, i, 600, priority=i % 2) for i in range(8)]
    sim.run([*others, request(99, 75, 460)])
    assert_each_request_ended_once(sim.events)
    assert answered(sim)[99] <= 460


def test_a_batch_that_changes_before_it_starts_is_counted_once() -> None:
    sim = run_in_pairs(request(2, 1, 300), request(3, 1, 300, priority=1), request(9, 50, 260))
    ran = [e for e in sim.events if isinstance(e, Ran)]
    assert dict(sim.counts[0].batches) == {1: 1, 2: 1}
    assert sum(sim.counts[0].batches.values()) == len(ran)
