"""What the gateway takes of a request is part of latency, throughput, plan and simulation."""

import re
from pathlib import Path

import numpy as np
import pytest
from msgspec.structs import replace
from typer.testing import CliRunner

from headrace.catalog.documents import write_document
from headrace.cli import app
from headrace.dispatch.topology import Topology
from headrace.domain.errors import ProfileError
from headrace.domain.events import Answered, Arrived, Dispatched
from headrace.domain.plan import Plan, PlanResult
from headrace.domain.problem import PlanOptions, Problem
from headrace.domain.profile import Profile, Provenance
from headrace.planning import solve
from headrace.simulation.gateway import through_gateway
from headrace.simulation.migration import simulate_migration
from headrace.simulation.offered.arrivals import Arrival
from headrace.simulation.served_gateway import LEAST_REQUESTS
from headrace.simulation.session import simulate
from headrace.verify import verify
from helpers.problems import make_problem, make_profile, unhurried

SLO_US = 100_000


def profile(model: str, gateway_us: int, *, device: str = "a", block_us: int = 10) -> Profile:
    made = make_profile(model, blocks=2, devices={device: 1.0}, max_batch=8, block_us=block_us)
    return replace(made, gateway_us=gateway_us)


def planned(problem: Problem) -> Plan:
    result = solve(replace(problem, options=unhurried(problem.options)))
    assert result.plan is not None
    assert verify(result.plan, problem.profiles) == []
    return result.plan


def test_a_plan_promises_no_more_than_the_gateway_passes_on_and_says_so() -> None:
    plan = planned(make_problem([profile("m", 40)], nodes={"n": {"a": 4}}, slo_us=SLO_US))

    (deployment,) = plan.deployments
    assert sum(pipeline.throughput_rps for pipeline in deployment.pipelines) > 100_000
    assert deployment.throughput_rps == plan.objective == plan.bound == 25_000
    assert plan.stopped == "optimal"
    assert "it takes 40 us per request: at most 25,000 requests/s" in plan.binding


@pytest.mark.parametrize("cores", ["cpu", "cpu-efficient"])
def test_beside_the_gateway_a_slot_pays_what_it_takes_there(cores: str) -> None:
    alone = profile("m", 40, device=cores, block_us=1_000)
    shared = replace(alone, gateway_shared_us=200)

    of_alone, of_shared = (
        planned(make_problem([each], nodes={"n": {cores: 1}}, slo_us=SLO_US)).objective
        for each in (alone, shared)
    )

    assert 1e6 / of_shared - 1e6 / of_alone == pytest.approx(160)
    with pytest.raises(ProfileError, match="gateway_shared_us is negative"):
        replace(alone, gateway_shared_us=-1)


def test_several_models_share_the_gateway_by_their_weights() -> None:
    problem = make_problem(
        [profile("m", 40), profile("n", 600)],
        nodes={"n0": {"a": 4}},
        slo_us=SLO_US,
        weights={"m": 5.0, "n": 1.0},
    )
    plan = planned(problem)

    assert [d.throughput_rps for d in plan.deployments] == pytest.approx([6250, 1250])
    assert plan.stopped == "optimal"


def test_throughput_goes_to_the_models_that_cost_the_gateway_least() -> None:
    problem = make_problem(
        [profile("m", 40), profile("n", 600)],
        nodes={"n0": {"a": 4}},
        slo_us=SLO_US,
        rates={"n": 100.0},
        options=PlanOptions(objective="throughput"),
    )
    plan = planned(problem)

    assert [d.throughput_rps for d in plan.deployments] == pytest.approx([23_500, 100])


def test_of_the_most_throughput_no_model_is_left_with_nothing() -> None:
    problem = make_problem(
        [profile("m", 40), profile("n", 600)],
        nodes={"n0": {"a": 4}},
        slo_us=SLO_US,
        options=PlanOptions(objective="throughput"),
    )
    plan = planned(problem)

    own = [sum(p.throughput_rps for p in d.pipelines) for d in plan.deployments]
    parts = [d.throughput_rps / rps for d, rps in zip(plan.deployments, own, strict=True) if rps]
    taken_us = sum(d.throughput_rps * us for d, us in zip(plan.deployments, (40, 600), strict=True))
    assert min(own) > 0
    assert parts == pytest.approx([parts[0]] * len(parts))
    assert taken_us == pytest.approx(1e6)
    assert plan.gap is not None
    assert plan.gap > 0
    assert "the same part of what its slots can do" in plan.binding


def test_rates_beyond_the_gateway_are_refused_with_what_would_fit() -> None:
    result = solve(
        make_problem(
            [profile("m", 40)], nodes={"n": {"a": 4}}, rates={"m": 50_000.0}, slo_us=SLO_US
        )
    )

    assert result.plan is None
    assert result.stopped == "infeasible"
    assert "needs  2 s of every second, 40 us per request" in (result.refusal or "")


def test_the_rates_that_a_refusal_for_the_gateway_names_are_not_refused_again() -> None:
    def solved(rate_rps: float) -> PlanResult:
        return solve(
            make_problem(
                [profile("m", 40)], nodes={"n": {"a": 40}}, rates={"m": rate_rps}, slo_us=SLO_US
            )
        )

    # Two thirds: 0.67 would be too much.
    refusal = solved(37_500.0).refusal or ""
    part = re.search(r"rates of ([\d.]+) times these", refusal)
    assert part is not None
    assert "gateway" not in (solved(37_500.0 * float(part[1])).refusal or "")


def test_on_the_gateways_own_cores_its_time_is_the_workers_loss() -> None:
    def rate(device: str, gateway_us: int) -> float:
        made = profile("m", gateway_us, device=device, block_us=1_000)
        return planned(make_problem([made], nodes={"n": {device: 1}}, slo_us=SLO_US)).objective

    alone_us, beside_us = (1e6 / rate("cpu", gateway_us) for gateway_us in (0, 300))

    assert beside_us - alone_us == pytest.approx(300)
    assert rate("a", 300) == rate("a", 0)


def test_the_gateways_time_leaves_the_latency_budget() -> None:
    tight = make_problem([profile("m", 0, block_us=4_000)], nodes={"n": {"a": 1}})
    budget_us = planned(tight).deployments[0].pipelines[0].latency_us
    slo_us = int(budget_us / 0.6) + 2
    exact = replace(tight, demands=(replace(tight.demands[0], slo_us=slo_us),))
    dearer = replace(exact, profiles={"m": profile("m", 5_000, block_us=4_000)})

    batch = planned(exact).deployments[0].pipelines[0].batch_size
    assert planned(dearer).deployments[0].pipelines[0].batch_size < batch


def test_requests_pass_the_gateway_one_after_the_other() -> None:
    rng = np.random.default_rng(1)
    arrived = np.sort(rng.integers(0, 10_000, size=200))
    taken = rng.integers(0, 120, size=200)

    free, expected = 0, []
    for at, cost in zip(arrived.tolist(), taken.tolist(), strict=True):
        free = max(free, at) + cost
        expected.append(free)

    assert through_gateway(arrived, taken).tolist() == expected


@pytest.mark.parametrize("jitter", [False, True])
def test_simulated_latency_has_the_gateways_time_and_its_queue(jitter: bool) -> None:
    plan = planned(make_problem([profile("m", 0, block_us=4_000)], nodes={"n": {"a": 1}}))
    costly = {"m": profile("m", 500, block_us=4_000)}
    arrivals = [Arrival(at_us=at_us, model="m") for at_us in (1_000, 1_000, 900_000)]

    _, free = simulate(plan, {"m": profile("m", 0, block_us=4_000)}, arrivals, jitter=jitter)
    _, events = simulate(plan, costly, arrivals, jitter=jitter)

    assert [e.at_us for e in events if isinstance(e, Arrived)] == [1_000, 1_000, 900_000]
    assert [e.at_us for e in events] == sorted(e.at_us for e in events)
    last_free = [e.at_us for e in free if isinstance(e, Answered)][-1]
    last = [e.at_us for e in events if isinstance(e, Answered)][-1]
    assert last - last_free == 500


def test_a_simulated_migration_counts_the_gateway_like_any_simulation() -> None:
    plan = planned(make_problem([profile("m", 0, block_us=4_000)], nodes={"n": {"a": 1}}))
    costly = {"m": profile("m", 500, block_us=4_000)}
    arrivals = [Arrival(at_us=at_us, model="m") for at_us in (1_000, 1_000, 900_000)]
    never_us = 10**9

    _, alone = simulate(plan, costly, arrivals, jitter=False)
    run = simulate_migration((plan, costly), (plan, costly), arrivals, at_us=never_us, jitter=False)
    moved = simulate_migration((plan, costly), (plan, costly), arrivals, at_us=500_000)

    assert [e for e in run.epochs[0].events if e.at_us < never_us] == alone
    reached = [e.at_us for epoch in moved.epochs for e in epoch.events if isinstance(e, Arrived)]
    assert reached == [1_000, 1_000, 900_000]


def test_a_request_that_reaches_the_machine_after_its_model_has_left_is_not_served() -> None:
    models = [profile("m", 0, block_us=4_000), profile("o", 0, block_us=4_000)]
    both = planned(make_problem(models, nodes={"n": {"a": 2}}))
    one = planned(make_problem(models[1:], nodes={"n": {"a": 2}}))
    costly = {model.model: replace(model, gateway_us=500) for model in models}
    arrivals = [Arrival(at_us=at_us, model=name) for at_us in (1_000, 9_800) for name in "mo"]
    run = simulate_migration(
        (both, costly), (one, {"o": costly["o"]}), arrivals, at_us=10_000, jitter=False
    )

    assert run.unserved == {"m": 1}
    assert run.done_at_us is not None
    answered = [e for epoch in run.epochs for e in epoch.events if isinstance(e, Answered)]
    assert len(answered) == 3


def test_with_a_servers_log_requests_wait_as_long_as_they_did_there() -> None:
    plan = planned(make_problem([profile("m", 0, block_us=4_000)], nodes={"n": {"a": 1}}))
    profiles = {"m": profile("m", 500, block_us=4_000)}
    slo_us = plan.deployments[0].slo_us
    header = Topology.from_plan(plan, profiles).event_log_header("live", "reservation")
    way_us = 3_000
    # Far enough apart that the log has seconds: microseconds make a hundred thousand windows.
    instants = [50_000 * number for number in range(LEAST_REQUESTS)]
    served = [Arrived(at_us + way_us, at_us, 0, at_us + slo_us) for at_us in instants]
    arrivals = [Arrival(at_us=at_us, model="m") for at_us in (1_000, 900_000)]

    def wait_us(events: list[Arrived]) -> int:
        _, found = simulate(plan, profiles, arrivals, times=(header, events))
        return [event.at_us for event in found if isinstance(event, Dispatched)][-1] - 900_000

    assert wait_us(served) == way_us
    # With later deadlines they would have reached the machine after the dispatcher.
    later = [replace(e, deadline_at_us=e.deadline_at_us + way_us + 1) for e in served]
    assert wait_us(later) == profiles["m"].gateway_us
    assert wait_us(served[1:]) == profiles["m"].gateway_us


@pytest.mark.parametrize(("gateway_us", "warned"), [(0, True), (40, False)])
def test_a_plan_from_a_profile_without_the_gateway_says_so(
    tmp_path: Path, gateway_us: int, warned: bool
) -> None:
    measured = Provenance(kind="measured", date="2026-01-01T00:00:00Z")
    made = replace(profile("m", gateway_us), provenance=measured)
    write_document(made, tmp_path / "m.json")
    file = tmp_path / "problem.yaml"
    file.write_text("""schema: headrace.problem/1
cluster:
  devices: {a: {}}
  nodes: [{name: n, devices: {a: 1}}]
models: [{profile: m.json, slo_ms: 100}]
""")

    done = CliRunner().invoke(app, ["plan", str(file), "-o", str(tmp_path / "plan.json")])

    assert done.exit_code == 0
    assert ("'m' does not say what a request takes the gateway" in done.stderr) == warned
