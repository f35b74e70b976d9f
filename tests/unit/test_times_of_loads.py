"""What loads take: simulated with the profile's spread, as a server's log has them, and learned."""

from collections.abc import Sequence
from dataclasses import replace
from math import log

import numpy as np
import pytest

from headrace.dispatch.topology import StageTable, Topology
from headrace.domain.events import Answered, AnyEvent, Arrived, Dropped, Loaded, Loading, Ran
from headrace.simulation.compiled import Offered, run
from headrace.simulation.driver import Z99, Durations, Slower, Span, Spans, exact_durations
from headrace.simulation.measured import measured_durations
from headrace.start_times import Start
from helpers.sim import Sim, request
from helpers.topologies import make_route, make_stage, make_topology

WARM_US, LOAD_US = 10_000, 40_000
SECOND_US = 1_000_000


def one_slot(models: int, *, copies: bool = False, slo_us: int = SECOND_US) -> Topology:
    """With memory for one model."""
    start = Start(LOAD_US, WARM_US, LOAD_US + WARM_US, 0, 10, load99_us=2 * LOAD_US)
    topology = make_topology(
        *([make_route(make_stage([0], [WARM_US]))] for _ in range(models)), slo_us=slo_us
    )
    return replace(
        topology,
        models=tuple(replace(model, start=start) for model in topology.models),
        memory_bytes=(10,),
        copy_streams=(copies,),
        helpers=(-1,),
        links=(0,),
    )


def in_turn(topology: Topology, count: int, slo_us: int = SECOND_US) -> list[tuple[int, int, int]]:
    """A request each second, of one model after the other: each is a start."""
    models = len(topology.models)
    return [(n * SECOND_US, n * SECOND_US + slo_us, n % models) for n in range(count)]


def played(
    topology: Topology, arrivals: Sequence[tuple[int, int, int]], durations: Durations | Spans
) -> list[AnyEvent]:
    sim = Sim(topology, policy="provision", durations=durations)
    asked = [request(n, at, due, model=m) for n, (at, due, m) in enumerate(arrivals)]
    return sim.run(asked)


def load_times(events: Sequence[AnyEvent]) -> list[int]:
    ordered = {event.load: event.at_us for event in events if isinstance(event, Loading)}
    return [event.at_us - ordered[event.load] for event in events if isinstance(event, Loaded)]


class Served(Spans):
    """Loads take so many times the profile, and the batch behind one `first_us`."""

    def __init__(self, loads: float, first_us: int = WARM_US) -> None:
        super().__init__(exact_durations)
        self._loads, self._first_us = loads, first_us

    def first_span(self, stage: StageTable, batch_size: int, more_us: int) -> Span:
        return Span(0, self._first_us, 0)

    def load_us(self, start: Start) -> int:
        return round(start.load_us * self._loads)


def test_simulated_loads_have_the_spread_of_the_profile() -> None:
    topology = one_slot(2)
    sim = Sim(topology, policy="provision", jitter_seed=3)
    asked = [request(n, at, due, model=m) for n, (at, due, m) in enumerate(in_turn(topology, 400))]
    logarithms = np.log(load_times(sim.run(asked)))
    assert np.mean(logarithms) == pytest.approx(log(LOAD_US), abs=0.05)
    assert np.std(logarithms) == pytest.approx(log(2) / Z99, rel=0.1)


@pytest.mark.parametrize("copies", [False, True])
def test_a_log_says_what_loads_take_and_what_the_batch_behind_one_does(copies: bool) -> None:
    """Of three models with twelve starts each, which alone were too few."""
    topology = one_slot(3, copies=copies)
    arrivals = sorted(
        arrival
        for at, due, model in in_turn(topology, 36)
        for arrival in ((at, due, model), (at + 500_000, due + 500_000, model))
    )
    events = played(topology, arrivals, Served(1.25, first_us=15_000))
    header = topology.event_log_header("live", "provision")
    found = measured_durations(topology, header, events, np.random.default_rng(0))
    model = topology.models[2]
    [stage] = model.routes[0].stages
    assert model.start is not None
    assert found.load_us(model.start) == 50_000
    assert found.span(stage, 1).whole_us == WARM_US
    if not copies:
        assert found.first_span(stage, 1, 0).whole_us == 15_000


@pytest.mark.parametrize("copies", [False, True])
def test_starts_that_take_twice_as_long_are_known_after_a_few(copies: bool) -> None:
    patience_us = LOAD_US + 3 * WARM_US
    topology = one_slot(2, copies=copies, slo_us=patience_us)
    events = played(topology, in_turn(topology, 30, patience_us), Served(2.0))
    due = {event.request: event.deadline_at_us for event in events if isinstance(event, Arrived)}
    late = [e.request for e in events if isinstance(e, Answered) and e.at_us > due[e.request]]
    dropped = [event.request for event in events if isinstance(event, Dropped)]
    assert late[:3] == [0, 1, 2], "nobody knew"
    assert dropped[0] < 10, "it cannot be in time, and is refused at once"
    assert late[-1] > dropped[0], "what was learned is forgotten where nothing is tried any more"


@pytest.mark.parametrize(
    ("copies", "exec_us", "tail_us", "factor", "end_us"),
    [
        (True, WARM_US, 2_000, 0.5, LOAD_US + 1_000),
        (False, WARM_US, 2_000, 0.5, LOAD_US + 1_000),
        (False, WARM_US, 2_000, 2.0, LOAD_US + 4_000),
        # Execution begins as late as medians allow.
        (True, WARM_US, 2_000, 2.0, LOAD_US + 2_000 - WARM_US + 2 * WARM_US),
        # A measured start may have more in its tail than execution.
        (False, WARM_US, WARM_US + 3_000, 0.5, LOAD_US + 3_000 + WARM_US // 2),
        # By the times of its layers a model may run faster than by those of its blocks.
        (False, WARM_US // 2, 2_000, 0.1, LOAD_US),
    ],
)
def test_only_what_is_left_behind_a_load_is_as_many_times_longer(
    copies: bool, exec_us: int, tail_us: int, factor: float, end_us: int
) -> None:
    start = Start(LOAD_US, exec_us, LOAD_US + tail_us, 0, 10)
    topology = one_slot(1, copies=copies)
    topology = replace(topology, models=(replace(topology.models[0], start=start),))
    slower = Slower(stages=(factor,), slots=(1.0,))
    sim = Sim(topology, policy="provision", slower=slower)
    events = sim.run([request(0, 0, SECOND_US)])
    assert [event.at_us for event in events if isinstance(event, Answered)] == [end_us]
    log: list[AnyEvent] = []
    zero = np.zeros(1, dtype=np.int64)
    offered = Offered(
        arrived_at_us=zero, model=zero, deadline_at_us=zero + SECOND_US, priority=zero
    )
    run(topology, "provision", offered, slower=slower, log=log)
    assert log == events


def test_starts_that_take_what_the_profile_says_teach_nothing() -> None:
    patience_us = LOAD_US + WARM_US
    topology = one_slot(2, slo_us=patience_us)
    events = played(topology, in_turn(topology, 40, patience_us), exact_durations)
    assert not [event for event in events if isinstance(event, Dropped)]
    assert [e.at_us % SECOND_US for e in events if isinstance(e, Ran)] == [patience_us] * 40
