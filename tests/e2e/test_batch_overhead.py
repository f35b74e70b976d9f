"""What a batch costs besides its execution is measured, and part of every prediction."""

import asyncio
from fractions import Fraction
from pathlib import Path

import msgspec

from headrace import planning
from headrace.cost import TimedStage, cost_model
from headrace.dispatch.topology import Topology
from headrace.domain.events import Ran
from headrace.serving.engine.overhead import (
    NODE,
    STAGE_US,
    measure_batch_overhead_us,
    median_gap_us,
)
from headrace.verify import verify
from helpers.agents import agents, cluster_of
from helpers.problems import make_problem, make_profile

WHOLE = Fraction(1)


def test_the_control_path_costs_something() -> None:
    # How much is the machine's affair; nothing at all would be a bug.
    assert asyncio.run(measure_batch_overhead_us()) > 0


def test_by_way_of_an_agent_it_is_measured_alike(tmp_path: Path) -> None:
    with agents(tmp_path, NODE) as (node,):
        assert asyncio.run(measure_batch_overhead_us(cluster_of(node))) > 0


def test_it_is_the_time_between_batches_and_not_their_length() -> None:
    runs = [
        Ran(ended_us, number, 0, 0, ended_us - STAGE_US)
        for number, ended_us in enumerate((1_000, 1_700, 2_450, 9_000))
    ]
    assert median_gap_us(runs) == 250


def test_it_is_added_once_to_each_stage() -> None:
    plain = make_profile(blocks=4)
    costly = msgspec.structs.replace(plain, batch_overhead_us=300)
    for first, end in ((0, 4), (1, 3)):
        stage = TimedStage(plain.model, "a", WHOLE, first, end)
        before = cost_model({plain.model: plain}).latency(stage, 2)
        after = cost_model({costly.model: costly}).latency(stage, 2)
        assert after == (before.p50_us + 300, before.p99_us + 300)


def test_planner_verifier_and_dispatcher_count_it_alike() -> None:
    costly = msgspec.structs.replace(
        make_profile(blocks=4, measured_stages=True), batch_overhead_us=300
    )
    problem = make_problem([costly])
    plan = planning.solve(problem).plan
    assert plan is not None
    assert verify(plan, problem.profiles) == []
    free = msgspec.structs.replace(costly, batch_overhead_us=0)
    assert verify(plan, {costly.model: free}), "without the overhead the figures are other ones"
    (pipeline, *_), (route, *_) = (
        plan.deployments[0].pipelines,
        Topology.from_plan(plan, problem.profiles).models[0].routes,
    )
    assert [s.latency_us for s in pipeline.stages] == [t.p99_us[-1] for t in route.stages]
