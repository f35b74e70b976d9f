"""A server's log tells the simulator how long its stages take."""

import msgspec
import numpy as np
import pytest

from headrace.dispatch.topology import Topology
from headrace.domain.errors import PlanError
from headrace.domain.events import Answered, AnyEvent, Dispatched, EventLogHeader, Ran
from headrace.simulation.driver import exact_durations
from headrace.simulation.measured import MeasuredDurations, measured_durations
from helpers.sim import Sim, request
from helpers.topologies import make_route, make_stage, make_topology

PROFILED_US = 10_000
SERVED_US = 13_000
GAP_US = 700


def pair_of_slots() -> Topology:
    return make_topology(
        [make_route(make_stage([0], [PROFILED_US]), make_stage([1], [PROFILED_US]))]
    )


def served_log(
    topology: Topology, count: int, every_us: int = 1_000
) -> tuple[EventLogHeader, list[AnyEvent]]:
    """A run in which stages took SERVED_US, and the dispatcher heard of it GAP_US later."""
    sim = Sim(topology, durations=lambda stage, size: SERVED_US + GAP_US)
    sim.run([request(i, i * every_us, 10**9) for i in range(count)])
    events = [
        Ran(e.at_us - GAP_US, e.batch, e.stage, e.slot, e.started_at_us)
        if isinstance(e, Ran)
        else e
        for e in sim.events
    ]
    return topology.event_log_header("live", "reservation"), events


@pytest.mark.parametrize("every_us", [1_000, 1_000_000])
def test_times_are_from_the_order_to_the_report(every_us: int) -> None:
    """Whether batches wait for each other or not."""
    topology = make_topology([make_route(make_stage([0], [PROFILED_US]))])
    header, events = served_log(topology, 100, every_us)
    durations = measured_durations(topology, header, events, np.random.default_rng(0))
    stage = topology.models[0].routes[0].stages[0]
    assert {durations.span(stage, 1).whole_us for _ in range(50)} == {SERVED_US + GAP_US}


def test_the_dispatcher_learns_the_run_and_not_the_way_back() -> None:
    """As of a live worker, which tells when it started and ended."""
    topology = make_topology([make_route(make_stage([0], [PROFILED_US]))])
    header, events = served_log(topology, 100)
    spans = measured_durations(topology, header, events, np.random.default_rng(0))
    sim = Sim(topology, durations=spans)
    sim.run([request(0, 0, 10**9)])

    assert spans.span(topology.models[0].routes[0].stages[0], 1) == (0, SERVED_US, GAP_US)
    (ran,) = [event for event in sim.events if isinstance(event, Ran)]
    (answered,) = [event for event in sim.events if isinstance(event, Answered)]
    assert ran.at_us - ran.started_at_us == SERVED_US
    assert answered.at_us - ran.at_us == GAP_US


def test_reports_between_stages_count_once() -> None:
    topology = pair_of_slots()
    header, events = served_log(topology, 100, 1_000_000)
    durations = measured_durations(topology, header, events, np.random.default_rng(0))
    first, second = topology.models[0].routes[0].stages
    for _ in range(50):
        assert durations.span(first, 1).whole_us + durations.span(second, 1).whole_us == 2 * (
            SERVED_US + GAP_US
        )


def test_what_a_worker_was_sent_before_it_woke_up_counts() -> None:
    topology = make_topology([make_route(make_stage([0], [PROFILED_US]))])
    header, events = served_log(topology, 100, 1_000_000)
    woken_us = 300
    late = [
        Ran(e.at_us, e.batch, e.stage, e.slot, e.started_at_us + woken_us)
        if isinstance(e, Ran)
        else e
        for e in events
    ]
    durations = measured_durations(topology, header, late, np.random.default_rng(0))
    stage = topology.models[0].routes[0].stages[0]
    assert durations.span(stage, 1).whole_us == SERVED_US + GAP_US


def test_a_batch_that_goes_on_by_another_slot_was_ordered_when_it_was_first_sent() -> None:
    topology = pair_of_slots()
    header, events = served_log(topology, 100, 1_000_000)
    woken_us = 300
    logged: list[AnyEvent] = []
    for e in events:
        if isinstance(e, Ran) and e.stage == 0:
            began_us = e.started_at_us + woken_us
            logged.append(msgspec.structs.replace(e, started_at_us=began_us))
            logged.append(Dispatched(e.at_us, e.batch, 0, 0, 1, (e.batch,), ()))
        else:
            logged.append(e)
    durations = measured_durations(topology, header, logged, np.random.default_rng(0))
    stage = topology.models[0].routes[0].stages[0]
    assert durations.span(stage, 1).before_us == woken_us


def test_a_log_that_says_too_little_leaves_it_to_the_profile() -> None:
    topology = pair_of_slots()
    header, events = served_log(topology, 10)
    durations = measured_durations(topology, header, events, np.random.default_rng(0))
    stage = topology.models[0].routes[0].stages[0]
    assert durations.span(stage, 1).whole_us == exact_durations(stage, 1)


def test_the_log_of_another_plan_is_refused() -> None:
    header, events = served_log(pair_of_slots(), 1)
    other = make_topology([make_route(make_stage([0], [PROFILED_US]))])
    with pytest.raises(PlanError, match="slots"):
        measured_durations(other, header, events, np.random.default_rng(0))


def test_the_log_of_a_plan_with_other_pipelines_on_the_same_slots_is_refused() -> None:
    header, events = served_log(pair_of_slots(), 1)
    stages = make_stage([0], [PROFILED_US]), make_stage([1], [PROFILED_US])
    other = make_topology([make_route(*stages, name="p0"), make_route(*stages, name="p1")])
    with pytest.raises(PlanError, match="not of this one"):
        measured_durations(other, header, events, np.random.default_rng(0))


def test_a_batch_larger_than_the_plan_has_is_refused() -> None:
    topology = pair_of_slots()
    header, events = served_log(topology, 1)
    most = topology.models[0].routes[0].batch_size
    larger = [
        msgspec.structs.replace(event, requests=tuple(range(most + 1)))
        if isinstance(event, Dispatched)
        else event
        for event in events
    ]
    with pytest.raises(PlanError, match=f"a batch of {most + 1} requests .* up to {most} at once"):
        measured_durations(topology, header, larger, np.random.default_rng(0))


@pytest.mark.parametrize("stage", [-1, 2])
def test_the_run_of_a_stage_that_the_plan_does_not_have_is_refused(stage: int) -> None:
    topology = pair_of_slots()
    header, events = served_log(topology, 1)
    first = next(event for event in events if isinstance(event, Ran))
    events.append(Ran(first.at_us, first.batch, stage, first.slot, first.started_at_us))
    with pytest.raises(PlanError, match=f"stage {stage} of a pipeline with 2"):
        measured_durations(topology, header, events, np.random.default_rng(0))


def test_batches_with_neighbours_take_as_long_as_the_logs_with_as_many() -> None:
    """In the log, whoever starts beside another takes twice as long."""
    topology = make_topology(
        [make_route(make_stage([0], [PROFILED_US])), make_route(make_stage([1], [PROFILED_US]))]
    )
    stages = [route.stages[0] for route in topology.models[0].routes]
    events: list[AnyEvent] = []
    for batch in range(0, 200, 2):
        start_us = batch * 100_000
        for beside in (0, 1):
            number, slot = batch + beside, beside
            at_us = start_us + 1_000 * beside
            took_us = PROFILED_US * (1 + beside)
            events.append(Dispatched(at_us, number, 0, slot, 0, (number,), ()))
            events.append(Ran(at_us + took_us, number, 0, slot, at_us))
            # A second batch, so that there are gaps to know.
            again_us = at_us + took_us
            if not beside:
                events.append(Dispatched(at_us, 1_000 + number, 0, slot, 0, (1_000 + number,), ()))
                events.append(Ran(again_us + took_us, 1_000 + number, 0, slot, again_us))
    header = topology.event_log_header("live", "reservation")
    durations = measured_durations(topology, header, events, np.random.default_rng(0))
    assert isinstance(durations, MeasuredDurations)

    second = stages[1]
    alone_us = durations.span(stages[0], 1).whole_us
    beside_us = durations.span(second, 1).whole_us
    durations.note(Ran(0, 0, 0, 1, 0))
    durations.note(Ran(0, 0, 0, 0, 0))

    assert (alone_us, beside_us) == (PROFILED_US, 2 * PROFILED_US)
    assert durations.span(stages[0], 1).whole_us == PROFILED_US
