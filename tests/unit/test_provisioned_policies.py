"""Models that come and go, one rule at a time."""

from dataclasses import replace
from functools import partial

from headrace.dispatch.protocols import Load
from headrace.dispatch.topology import Topology
from headrace.domain.events import Answered, Dropped, Evicted, Loading, Ran
from headrace.domain.request import Request
from headrace.start_times import Start
from helpers.sim import Sim
from helpers.topologies import make_route, make_stage, make_topology

WARM_US, LOAD_US = 10_000, 40_000
START = Start(LOAD_US, WARM_US, LOAD_US + 2_000, 0, 10)
"""Copies take 40 ms, and the last layers 2 ms more: an idle slot has run it after 42 ms."""


def slots_with(memory: int, models: int, slots: int = 1, copy_streams: bool = True) -> Topology:
    """Each model needs 10 of the memory."""
    routes = [[make_route(make_stage(range(slots), [WARM_US]))] for _ in range(models)]
    topology = make_topology(*routes, slo_us=100_000)
    return replace(
        topology,
        models=tuple(replace(model, start=START) for model in topology.models),
        memory_bytes=(memory,) * slots,
        copy_streams=(copy_streams,) * slots,
        helpers=(-1,) * slots,
        links=tuple(range(slots)),
    )


def played(sim: Sim, *arrivals: tuple[int, int], slo_us: int = 100_000) -> Sim:
    """Each (at_us, model)."""
    for number, (at_us, model) in enumerate(arrivals, start=len(sim.events)):
        request = Request(
            id=number, model=model, arrived_at_us=at_us, deadline_at_us=at_us + slo_us, priority=0
        )
        sim.clock.call_at(at_us, partial(sim.dispatcher.on_arrival, request))
    sim.clock.run()
    return sim


def ends(sim: Sim) -> list[int]:
    return [event.at_us for event in sim.events if isinstance(event, Answered)]


def loads(sim: Sim) -> list[tuple[int, int]]:
    return [(event.at_us, event.model) for event in sim.events if isinstance(event, Loading)]


def evicted(sim: Sim) -> list[int]:
    return [event.model for event in sim.events if isinstance(event, Evicted)]


def test_a_second_request_joins_the_load_that_the_first_has_ordered() -> None:
    sim = played(Sim(slots_with(20, 2), policy="provision"), (0, 0), (5_000, 0))
    assert loads(sim) == [(0, 0)]
    assert ends(sim) == [42_000, 52_000]


def test_copies_of_a_start_run_while_requests_for_models_in_memory_execute() -> None:
    sim = played(
        Sim(slots_with(20, 2), policy="provision"), (0, 0), (50_000, 1), (51_000, 0), (70_000, 0)
    )
    assert ends(sim) == [42_000, 61_000, 80_000, 92_000], "the start ends as on an idle slot"


def test_a_start_delays_no_request_beyond_its_deadline() -> None:
    sim = played(Sim(slots_with(20, 2), policy="provision"), (0, 0), (50_000, 1))
    tight = Request(id=100, model=0, arrived_at_us=100_000, deadline_at_us=111_000, priority=0)
    sim.clock.call_at(100_000, lambda: sim.dispatcher.on_arrival(tight))
    sim.clock.run()
    assert ends(sim)[-1] == 110_000


def test_without_a_copy_stream_a_start_holds_its_slot() -> None:
    topology = slots_with(20, 2, copy_streams=False)
    sim = played(Sim(topology, policy="provision"), (0, 0), (50_000, 1), (51_000, 0))
    assert ends(sim) == [42_000, 92_000, 102_000]


def test_what_cannot_be_in_time_on_any_slot_is_refused_at_once() -> None:
    sim = played(Sim(slots_with(10, 2), policy="provision"), (0, 0), (1_000, 1), slo_us=50_000)
    drops = [event for event in sim.events if isinstance(event, Dropped)]
    assert [(drop.at_us, drop.reason) for drop in drops] == [(1_000, "deadline")]
    assert drops[0].retry_after_us > 0


def test_what_is_refused_for_a_moment_is_not_asked_for_again_at_once() -> None:
    topology = slots_with(20, 1)
    sim = played(Sim(topology, policy="provision"), (0, 0))
    late = played(sim, (60_000, 0), (60_000, 0), slo_us=2 * WARM_US - 1)
    (drop,) = [event for event in late.events if isinstance(event, Dropped)]
    assert drop.reason == "deadline"
    assert drop.retry_after_us == WARM_US


def test_the_model_of_a_promised_batch_stays_until_it_has_run() -> None:
    sim = played(Sim(slots_with(10, 2), policy="provision"), (0, 0), (1_000, 1))
    ran = [event.at_us for event in sim.events if isinstance(event, Ran)]
    assert loads(sim) == [(0, 0), (ran[0], 1)]
    assert ends(sim) == [42_000, 84_000]


def test_weighed_eviction_keeps_what_is_asked_for_often_and_lru_what_was_asked_last() -> None:
    often = [(100_000 * i, 0) for i in range(8)]
    arrivals = [*often, (750_000, 1), (850_000, 2)]
    assert evicted(played(Sim(slots_with(20, 3), policy="provision"), *arrivals)) == [1]
    assert evicted(played(Sim(slots_with(20, 3), policy="provision-lru"), *arrivals)) == [0]


def test_the_papers_server_copies_as_it_executes_and_refuses_nothing() -> None:
    arrivals = [(0, 0), (0, 1), (0, 0)]
    sim = played(Sim(slots_with(20, 2), policy="bound-lru"), *arrivals, slo_us=1)
    assert loads(sim) == [(0, 0), (42_000, 1)]
    assert ends(sim) == [42_000, 84_000, 94_000]


def test_a_load_that_fails_refuses_its_model_alone_until_it_is_admitted() -> None:
    sim = Sim(slots_with(20, 2), policy="provision")
    orders: list[int] = []
    succeed, dispatcher = sim.driver.load, sim.dispatcher

    def failing(load: Load) -> None:
        orders.append(load.model)
        if load.model == 1 and len(orders) < 3:
            sim.clock.call_at(sim.clock.now_us() + 500, lambda: dispatcher.on_load_failed(load))
        else:
            succeed(load)

    sim.driver.load = failing  # type: ignore[method-assign]
    played(sim, (0, 1), (100, 0), (200, 1), (3_000, 1))
    reasons = [(drop.request, drop.reason) for drop in sim.events if isinstance(drop, Dropped)]
    assert reasons == [(0, "failed"), (2, "failed"), (3, "failed")]
    assert len(ends(sim)) == 1, "the other model is served"
    assert dispatcher.residence(0, 0) == "loaded"
    assert dispatcher.residence(0, 1) == "absent"
    dispatcher.admit(1)
    played(sim, (500_000, 1))
    assert len(ends(sim)) == 2
    assert dispatcher.residence(0, 1) == "loaded"


def test_a_model_that_is_shut_leaves_behind_what_is_promised() -> None:
    sim = Sim(slots_with(20, 2), policy="provision")
    sim.clock.call_at(20_000, lambda: sim.dispatcher.shut(0))
    played(sim, (0, 0), (30_000, 0))
    assert ends(sim) == [42_000]
    assert evicted(sim) == [0]
    assert [drop.reason for drop in sim.events if isinstance(drop, Dropped)] == ["failed"]
