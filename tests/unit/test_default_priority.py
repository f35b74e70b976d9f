"""A model's own priority is that of requests which state none, live and simulated."""

from dataclasses import replace

import msgspec
import numpy as np
import pytest

from headrace.catalog.problem_file import ModelEntry
from headrace.dispatch.topology import Topology
from headrace.serving.engine.inference import Inference
from headrace.serving.engine.pending import PendingRequests
from headrace.simulation.compiled import offer
from headrace.simulation.offered.arrivals import Arrival
from headrace.simulation.session import requests_of
from helpers.gateway import served_model
from helpers.problems import make_plan, make_problem, make_profile
from helpers.topologies import make_route, make_stage, make_topology


@pytest.mark.parametrize(("stated", "wanted"), [(0, 3), (1, 1), (7, 7)])
def test_a_server_and_the_simulator_give_it_to_requests_that_state_none(
    stated: int, wanted: int
) -> None:
    route = make_route(make_stage([0], [10_000]))
    plain = make_topology([route], [route])
    topology = replace(plain, models=(plain.models[0], replace(plain.models[1], priority=3)))
    pending = PendingRequests(lambda: 0, lambda callback: None)
    x = np.zeros(4, np.float32).tobytes()
    inference = Inference(
        model="adder", items=1, inputs=(x,), on_done=lambda result: None, priority=stated
    )

    (live,) = pending.open(inference, 1, replace(served_model(), priority=3))
    (simulated,) = requests_of([Arrival(at_us=0, model="m1", priority=stated)], topology)

    assert (live.priority, simulated.priority) == (wanted, wanted)
    offered = offer(topology, np.arange(4), np.array([0, 1, 1, 0]))
    assert offered.priority.tolist() == [0, 3, 3, 0]


def test_it_must_be_a_priority_that_clients_could_state() -> None:
    for priority in (-1, 1_000_001):
        with pytest.raises(msgspec.ValidationError, match="priority"):
            msgspec.convert({"profile": "p", "slo_ms": 1, "priority": priority}, ModelEntry)


def test_the_plan_brings_it_to_the_dispatcher() -> None:
    profile = make_profile()
    problem = make_problem([profile])
    plan = make_plan(problem)
    asked = msgspec.structs.replace(
        plan,
        demands=tuple(msgspec.structs.replace(demand, priority=5) for demand in plan.demands),
    )

    (model,) = Topology.from_plan(asked, problem.profiles).models

    assert model.priority == 5
