"""Inputs that executors refuse, and inputs that kill workers: who is refused, and who is not."""

from collections.abc import Callable
from itertools import pairwise

import pytest
from msgspec.structs import replace

from headrace.dispatch.protocols import Batch
from headrace.domain.events import Answered, Dropped
from headrace.domain.request import Request
from helpers.sim import Sim, request
from helpers.topologies import assert_each_request_ended_once, make_route, make_stage, make_topology

POLICIES = ("reservation", "reservation-fill", "reactive", "batch-aware")
LONG_US = 20_000


class Runs:
    """What ran, in order; batches for which `hurt` says so come to `harm` instead."""

    def __init__(
        self, sim: Sim, hurt: Callable[[set[int], int], bool], harm: Callable[[Batch, int], None]
    ) -> None:
        self.members: list[tuple[int, ...]] = []
        start_stage = sim.driver.start_stage

        def start(batch: Batch, stage: int) -> None:
            ids = [request.id for request in batch.requests]
            self.members.append(tuple(ids))
            (harm if hurt(set(ids), stage) else start_stage)(batch, stage)

        sim.driver.start_stage = start  # type: ignore[method-assign]


def refusing(sim: Sim, *bad: int, at_stage: int = 0) -> Runs:
    """An executor that refuses batches with one of these requests, after 100 us."""

    def refuse(batch: Batch, stage: int) -> None:
        attempt, at_us = batch.attempt, sim.clock.now_us() + 100
        sim.clock.call_at(
            at_us,
            lambda: sim.dispatcher.on_failed(batch, stage, attempt, input_suspected=True),
        )

    return Runs(sim, lambda ids, stage: stage == at_stage and not ids.isdisjoint(bad), refuse)


def losing(sim: Sim, times: int, at_stage: int) -> Runs:
    """Request 0 finds so often, when its turn comes at this stage, that its tensors are lost."""
    left = [times]

    def lose(batch: Batch, stage: int) -> None:
        left[0] -= 1
        attempt, at_us = batch.attempt, sim.clock.now_us()
        sim.clock.call_at(at_us, lambda: sim.dispatcher.on_tensors_lost(batch, stage, attempt))

    return Runs(sim, lambda ids, stage: stage == at_stage and 0 in ids and left[0] > 0, lose)


def dying(sim: Sim, killer: int, at_stage: int = 0) -> Runs:
    """Workers that die of this request, after 50 us."""

    def die(batch: Batch, stage: int) -> None:
        slot = batch.slot
        sim.clock.call_at(sim.clock.now_us() + 50, lambda: sim.dispatcher.on_slot_lost(slot))

    return Runs(sim, lambda ids, stage: stage == at_stage and killer in ids, die)


def one_stage(slots: int, sizes: int, policy: str = "reservation", slo_us: int = LONG_US) -> Sim:
    stage = make_stage(list(range(slots)), [100 + 10 * size for size in range(sizes)])
    return Sim(make_topology([make_route(stage)], slo_us=slo_us), policy=policy)


def together(count: int) -> list[Request]:
    """Requests that become one batch, because another, 99, keeps the slot busy when they come."""
    return [request(99, 0, LONG_US), *(request(i, 10, LONG_US) for i in range(count))]


def ended(sim: Sim) -> dict[int, str]:
    assert_each_request_ended_once(sim.events)
    return {
        e.request: "answered" if isinstance(e, Answered) else e.reason
        for e in sim.events
        if isinstance(e, Answered | Dropped)
    }


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("bad", [{3}, {0, 7}, set(range(8)), set()])
def test_of_a_batch_that_fails_only_the_bad_requests_are_refused(
    bad: set[int], policy: str
) -> None:
    sim = one_stage(2, 8, policy)
    refusing(sim, *bad)
    sim.run([request(i, 0, LONG_US) for i in range(8)])
    assert ended(sim) == {i: "invalid-input" if i in bad else "answered" for i in range(8)}


def test_a_failed_batch_is_run_again_in_halves_until_the_bad_request_is_alone() -> None:
    sim = one_stage(1, 8)
    runs = refusing(sim, 5)
    sim.run(together(8))
    assert runs.members[1:] == [
        (0, 1, 2, 3, 4, 5, 6, 7),
        (0, 1, 2, 3),
        (4, 5, 6, 7),
        (4, 5),
        (4,),
        (5,),
        (6, 7),
    ]


def test_the_halves_of_a_failed_batch_take_nobody_else_in() -> None:
    sim = one_stage(1, 4)
    runs = refusing(sim, 2)
    sim.run([request(i, 40 * i, LONG_US + i) for i in range(12)])
    suspects = [set(batch) for batch in runs.members if 2 in batch]
    assert suspects[-1] == {2}
    assert len(suspects) > 1
    assert all(later < earlier for earlier, later in pairwise(suspects))
    assert ended(sim) == {i: "invalid-input" if i == 2 else "answered" for i in range(12)}


@pytest.mark.parametrize("policy", ["reservation", "reservation-fill", "reactive"])
def test_a_batch_that_fails_at_a_later_stage_begins_again_in_halves(policy: str) -> None:
    first, second = (make_stage([slot], [100, 110]) for slot in (0, 1))
    sim = Sim(make_topology([make_route(first, second)], slo_us=LONG_US), policy=policy)
    refusing(sim, 1, at_stage=1)
    sim.run(together(2))
    assert ended(sim) == {99: "answered", 0: "answered", 1: "invalid-input"}


def test_halves_that_cannot_make_their_deadline_are_refused_for_that() -> None:
    sim = one_stage(1, 2, slo_us=320)
    refusing(sim, 1)
    sim.run([request(99, 0, 320), request(0, 10, 320), request(1, 10, 320)])
    assert ended(sim) == {99: "answered", 0: "answered", 1: "deadline"}


def test_a_request_that_arrives_apart_runs_alone() -> None:
    sim = one_stage(1, 4)
    runs = refusing(sim)
    requests = together(4)
    requests[2] = replace(requests[2], apart=True)
    sim.run(requests)
    assert (1,) in runs.members
    assert (2, 3) in runs.members
    assert set(ended(sim).values()) == {"answered"}


@pytest.mark.parametrize("policy", POLICIES)
def test_an_input_that_kills_its_worker_takes_three_and_the_last_one_alone(policy: str) -> None:
    sim = one_stage(5, 4, policy)
    runs = dying(sim, 2)
    sim.run([request(i, 0, LONG_US) for i in range(4)])
    fatal = [members for members in runs.members if 2 in members]
    assert len(fatal) == 3
    assert fatal[-1] == (2,)
    assert ended(sim) == {0: "answered", 1: "answered", 2: "failed", 3: "answered"}


@pytest.mark.parametrize("policy", ["reservation", "reactive"])
def test_an_input_that_kills_workers_of_a_later_stage_takes_three(policy: str) -> None:
    first, second = make_stage([0], [100]), make_stage([1, 2, 3, 4, 5], [100])
    sim = Sim(make_topology([make_route(first, second)], slo_us=LONG_US), policy=policy)
    runs = dying(sim, 0, at_stage=1)
    sim.run([request(0, 0, LONG_US), request(1, 10, LONG_US)])
    assert runs.members.count((0,)) == 4
    assert ended(sim) == {0: "failed", 1: "answered"}


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("at_stage", [0, 1])
def test_a_batch_whose_tensors_are_lost_begins_anew_whole_and_in_time(
    policy: str, at_stage: int
) -> None:
    topology = make_topology(
        [make_route(make_stage([0], [100, 110, 120, 130]), make_stage([1], [100, 110, 120, 130]))],
        slo_us=LONG_US,
    )
    sim = Sim(topology, policy=policy)
    runs = losing(sim, 5, at_stage)
    sim.run(together(3))
    # More often than a request may lose workers: nobody is to blame for a lost machine.
    assert ended(sim) == dict.fromkeys((0, 1, 2, 99), "answered")
    # Whole: those that ran with it still do.
    assert len({members for members in runs.members if 0 in members}) == 1
    assert sum(0 in members for members in runs.members) > 5


def test_without_time_to_begin_anew_it_is_refused_for_that() -> None:
    slow = make_stage([0], [100]), make_stage([1], [100])
    sim = Sim(make_topology([make_route(*slow)], slo_us=250))
    losing(sim, 1, 1)
    sim.run([request(0, 0, 250)])
    assert ended(sim) == {0: "deadline"}
