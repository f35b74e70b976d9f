"""Plans of more models than memory: planned, verified, refused, simulated."""

from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace
from typer.testing import CliRunner

from headrace.catalog.documents import read_plan, write_document
from headrace.cli import app
from headrace.dispatch.topology import Topology
from headrace.domain.cluster import Cluster, DeviceType, Node
from headrace.domain.errors import DocumentError, PlanError
from headrace.domain.plan import Plan
from headrace.domain.problem import Demand, PlanOptions, Problem
from headrace.domain.profile import Profile
from headrace.executors.table import kind_for
from headrace.metrics import run_report
from headrace.planning import solve
from headrace.simulation.offered.arrivals import Arrival
from headrace.simulation.session import simulate
from headrace.start_times import predicted_start
from headrace.verify import verify
from helpers.layers import with_layers
from helpers.problems import make_profile, profile_ref

MODELS = 8
MEMORY = 16_000_000
"""Of each of two devices; a model has 14 MB, of which 9 stay on the host if it is so planned."""


def problem(**changes: object) -> Problem:
    profiles = {f"m{i}": _profile(f"m{i}") for i in range(MODELS)}
    kind = DeviceType(name="gpu", memory_bytes=MEMORY, copy_stream=True)
    options = PlanOptions(planner="provisioned", provision="exact", margin=0.0)
    asked: dict[str, object] = {
        "cluster": Cluster(device_types=(kind,), nodes=(Node(name="n0", devices={"gpu": 2}),)),
        "demands": tuple(Demand(model=name, slo_us=100_000) for name in profiles),
        "profiles": profiles,
        "profile_refs": tuple(profile_ref(profile) for profile in profiles.values()),
        "options": options,
    }
    return Problem(**{**asked, **changes})  # type: ignore[arg-type]


def _profile(name: str) -> Profile:
    profile = make_profile(name, blocks=2, devices={"gpu": 1.0}, block_us=800, max_batch=2)
    return with_layers(profile, ("gpu",))


def planned(of: Problem) -> Plan:
    result = solve(of)
    assert result.plan is not None, result.refusal
    return result.plan


@pytest.mark.parametrize("provision", ["on-demand", "pipeswitch", "deepplan", "exact", "exact+pt"])
def test_every_model_is_planned_on_every_device_and_every_claim_holds(provision: str) -> None:
    of = problem(options=PlanOptions(planner="provisioned", provision=provision, margin=0.0))
    plan = planned(of)
    assert verify(plan, of.profiles) == []
    assert plan.is_provisioned
    topology = Topology.from_plan(plan, of.profiles)
    assert topology.memory_bytes == (MEMORY, MEMORY)
    assert all(model.routes[0].stages[0].slots == (0, 1) for model in topology.models)
    helped = {model.start is not None and model.start.uses_helper for model in topology.models}
    assert topology.links == (0, 1)
    assert (topology.helpers == (1, 0)) == (provision == "exact+pt") == (True in helped)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"objective": "throughput"},
        {"objective": "least-devices"},
        {"rate_headroom": 0.3},
        {"carried_parts": {"m0": 0.5, "m3": 0.25}},
    ],
    ids=str,
)
@pytest.mark.parametrize("gateway_us", [0, 900])
@pytest.mark.parametrize("stated_rates", [False, True])
def test_what_slots_carry_is_recomputed_as_it_was_planned(
    options: dict[str, Any], gateway_us: int, stated_rates: bool
) -> None:
    """The gateway passes on less of what slots carry where it takes 900 us."""
    base = problem()
    stated_rates |= options.get("objective") == "least-devices"
    of = problem(
        options=replace(base.options, **options),
        demands=tuple(
            replace(demand, weight=1.0 + i, rate_rps=20.0 + i if stated_rates else None)
            for i, demand in enumerate(base.demands)
        ),
        profiles={
            name: replace(profile, gateway_us=gateway_us, batch_overhead_us=50)
            for name, profile in base.profiles.items()
        },
    )
    assert verify(planned(of), of.profiles) == []


@pytest.mark.parametrize("device", ["cpu", "cpu-fast"])
def test_a_core_is_not_said_to_execute_while_it_loads(device: str) -> None:
    with pytest.raises(DocumentError, match=r"copy_stream: its slots are cores(.|\n)*without it"):
        DeviceType(name=device, memory_bytes=MEMORY, copy_stream=True)
    assert kind_for(device, "auto") == "onnx"
    assert DeviceType(name="gpu", copy_stream=True).copy_stream


@pytest.mark.parametrize("copy_stream", [False, True])
def test_what_the_server_takes_between_two_batches_it_takes_of_starts_too(
    copy_stream: bool,
) -> None:
    kind = DeviceType(name="gpu", memory_bytes=MEMORY, copy_stream=copy_stream)
    cluster = Cluster(device_types=(kind,), nodes=(Node(name="n0", devices={"gpu": 2}),))
    without = problem(cluster=cluster)
    profiles = {
        name: replace(each, batch_overhead_us=90) for name, each in without.profiles.items()
    }
    of = replace(without, profiles=profiles)
    plan = planned(of)

    assert verify(plan, profiles) == []
    start = plan.deployments[0].start
    assert start is not None
    before, told = (predicted_start(start, each.profiles["m0"]) for each in (without, of))
    assert told.exec_us - before.exec_us == told.alone_us - before.alone_us == 90
    assert told.load_us == before.load_us


def test_what_a_plan_says_of_models_that_come_and_go_is_recomputed() -> None:
    of = problem()
    plan = planned(of)
    first, *others = plan.deployments
    pipeline = first.pipelines[0]
    wrong = {
        "start": replace(first, cold_share=0.123),
        "throughput": replace(first, throughput_rps=9_000.0, pipelines=(
            replace(pipeline, throughput_rps=9_000.0, stages=(
                replace(pipeline.stages[0], throughput_rps=9_000.0),)),)),
        "latency": replace(first, pipelines=(replace(pipeline, latency_us=1),)),
    }  # fmt: skip
    for check, deployment in wrong.items():
        mutated = replace(plan, deployments=(deployment, *others))
        assert check in {each.check for each in verify(mutated, of.profiles)}, check
    tiny = replace(plan.cluster.device_types[0], memory_bytes=1_000)
    cluster = replace(plan.cluster, device_types=(tiny,))
    assert "memory" in {each.check for each in verify(replace(plan, cluster=cluster), of.profiles)}
    slow = tuple(replace(each, slo_us=4_000, budget_us=4_000) for each in plan.deployments)
    demands = tuple(replace(each, slo_us=4_000) for each in plan.demands)
    late = replace(plan, deployments=slow, demands=demands)
    assert "slo" in {each.check for each in verify(late, of.profiles)}


def test_devices_of_one_switch_share_a_link_and_are_helped_from_behind_another() -> None:
    kind = DeviceType(name="gpu", memory_bytes=MEMORY, copy_stream=True, devices_per_link=2)
    options = PlanOptions(planner="provisioned", provision="exact+pt", margin=0.0)
    nodes = (Node(name="n0", devices={"gpu": 4}), Node(name="n1", devices={"gpu": 3}))
    of = problem(cluster=Cluster(device_types=(kind,), nodes=nodes), options=options)
    plan = planned(of)
    assert verify(plan, of.profiles) == []
    topology = Topology.from_plan(plan, of.profiles)
    assert topology.links == (0, 0, 2, 2, 4, 4, 6)
    assert topology.helpers == (2, 3, 0, 1, 6, 6, 4)
    pair = Cluster(device_types=(kind,), nodes=(Node(name="n0", devices={"gpu": 2}),))
    with pytest.raises(DocumentError, match="one link on node 'n0'"):
        solve(problem(cluster=pair, options=options))


def test_links_that_are_shared_carry_less() -> None:
    rates = []
    for per in (1, 4):
        kind = DeviceType(name="gpu", memory_bytes=MEMORY, copy_stream=True, devices_per_link=per)
        of = problem(
            cluster=Cluster(device_types=(kind,), nodes=(Node(name="n0", devices={"gpu": 4}),)),
            options=PlanOptions(planner="provisioned", provision="pipeswitch", margin=0.0),
        )
        plan = planned(of)
        assert verify(plan, of.profiles) == []
        rates.append(plan.objective)
    assert rates[1] < rates[0]


def test_of_a_slot_that_holds_one_model_and_a_half_one_counts() -> None:
    options = PlanOptions(planner="provisioned", provision="pipeswitch", margin=0.0)
    plan = planned(problem(options=options))
    size = sum(layer.weights_bytes for layer in _profile("m0").layers)
    assert MEMORY // size == 1
    shares = [each.cold_share for each in plan.deployments]
    assert shares == pytest.approx([1 - 2 / MODELS] * MODELS)


def test_a_model_larger_than_memory_is_refused_with_what_it_needs_and_what_is_there() -> None:
    kind = DeviceType(name="gpu", memory_bytes=4_000_000, copy_stream=True)
    cluster = Cluster(device_types=(kind,), nodes=(Node(name="n0", devices={"gpu": 2}),))
    refusal = solve(problem(cluster=cluster)).refusal or ""
    assert "'m0'" in refusal
    assert "4,000,000" in refusal


def _measured(**memory: tuple[int, int]) -> Problem:
    """As `problem`, with what some models hold and work with measured, bytes."""
    profiles = dict(problem().profiles)
    for name, (held, working) in memory.items():
        times = tuple(
            replace(each, held_bytes=held, working_bytes=working)
            for each in profiles[name].layer_times
        )
        profiles[name] = replace(profiles[name], layer_times=times)
    refs = tuple(profile_ref(each) for each in profiles.values())
    return problem(profiles=profiles, profile_refs=refs)


def test_every_slot_keeps_room_for_the_largest_run_and_models_count_as_measured() -> None:
    of = _measured(m0=(7_000_000, 2_000_000))
    plan = planned(of)
    assert verify(plan, of.profiles) == []
    topology = Topology.from_plan(plan, of.profiles)
    assert topology.memory_bytes == (MEMORY - 2_000_000, MEMORY - 2_000_000)
    sizes = [model.start.held_bytes for model in topology.models if model.start]
    assert sizes[0] == 7_000_000
    assert max(sizes[1:]) < 7_000_000
    # What was planned without it is told that it does not hold.
    unaware = planned(problem())
    assert {each.check for each in verify(unaware, of.profiles)} >= {"start"}


def test_weights_that_layers_share_are_held_once_where_memory_was_measured() -> None:
    of = _measured(m0=(7_000_000, 0))
    shared = replace(
        of.profiles["m0"],
        layers=tuple(
            replace(layer, weights_bytes=8_000_000 if layer.weights_bytes else 0)
            for layer in of.profiles["m0"].layers
        ),
        blocks=tuple(replace(each, weights_bytes=4_000_000) for each in of.profiles["m0"].blocks),
    )
    of = replace(of, profiles={**of.profiles, "m0": shared})
    plan = planned(of)
    assert verify(plan, of.profiles) == []
    start = Topology.from_plan(plan, of.profiles).models[0].start
    assert start is not None
    assert start.resident_bytes > start.held_bytes == 8_000_000


def test_a_model_that_fits_alone_but_not_beside_the_largest_run_is_refused() -> None:
    of = _measured(m0=(1, 1_500_000), m1=(15_000_000, 0))
    assert "to load and run 'm0'" in (solve(of).refusal or "")
    plan = planned(problem())
    assert "memory" in {each.check for each in verify(plan, of.profiles)}


def _weightless(profile: Profile) -> Profile:
    (times,) = profile.layer_times
    none = (0,) * times.count
    return replace(
        profile,
        layers=tuple(replace(layer, weights_bytes=0) for layer in profile.layers),
        layer_times=(
            replace(
                times,
                load_p50_us=none,
                load_p99_us=none,
                saved_us=none,
                host_p50_us=times.inside_p50_us,
                host_p99_us=times.inside_p99_us,
                forward_us=none,
            ),
        ),
    )


@pytest.mark.parametrize("provision", ["exact", "exact-by-layer", "exact+pt"])
def test_a_model_without_weights_starts_as_soon_as_it_is_open(provision: str) -> None:
    options = PlanOptions(planner="provisioned", provision=provision, margin=0.0)
    of = problem(options=options)
    of = replace(of, profiles={**of.profiles, "m0": _weightless(of.profiles["m0"])})
    plan = planned(of)
    assert verify(plan, of.profiles) == []
    (times,) = of.profiles["m0"].layer_times
    start = plan.deployments[0].start
    assert start is not None
    assert start.start_us == times.open_p99_us + sum(times.inside_p99_us)


def test_a_start_beyond_the_objective_is_refused_with_the_least_objective() -> None:
    demands = tuple(Demand(model=f"m{i}", slo_us=4_000) for i in range(MODELS))
    refusal = solve(problem(demands=demands)).refusal or ""
    assert "misses its SLO even alone" in refusal
    assert "try" in refusal


def test_a_models_own_margin_holds_for_it_alone() -> None:
    options = PlanOptions(
        planner="provisioned", provision="exact", margin=0.0, model_margins={"m1": 0.5}
    )
    of = problem(options=options)
    plan = planned(of)
    budgets = {deployment.model: deployment.budget_us for deployment in plan.deployments}
    assert budgets == {name: 50_000 if name == "m1" else 100_000 for name in budgets}
    assert verify(plan, of.profiles) == []
    tight = replace(of, options=replace(options, model_margins={"m1": 0.99}))
    assert "SLO 100.0 ms less a margin of 99%" in (solve(tight).refusal or "")


@pytest.mark.parametrize(
    "beside_bytes", [MEMORY * 100, MEMORY * 69 // 80], ids=["unknown", "too small"]
)
def test_devices_that_no_model_can_run_on_are_no_room_for_them(
    beside_bytes: int, tmp_path: Path
) -> None:
    """Two models for one device that holds one; beside it another, of which nothing is known, or
    which holds none."""
    known = ("gpu", "npu") if beside_bytes < MEMORY else ("gpu",)
    profiles = {
        name: with_layers(
            make_profile(
                name,
                blocks=2,
                devices=dict.fromkeys(known, 1.0),
                block_us=800,
                weights_bytes=6_000_000,
            ),
            known,
        )
        for name in ("m0", "m1")
    }
    for name, profile in profiles.items():
        write_document(profile, tmp_path / f"{name}.profile.json")
    path = tmp_path / "problem.yaml"
    path.write_text(
        f"""
schema: headrace.problem/1
cluster:
  devices:
    gpu: {{memory_bytes: {MEMORY}}}
    npu: {{memory_bytes: {beside_bytes}}}
  nodes:
    - {{name: n0, devices: {{gpu: 1, npu: 1}}}}
models:
  - {{name: m0, profile: m0.profile.json, slo_ms: 100}}
  - {{name: m1, profile: m1.profile.json, slo_ms: 100}}
options: {{margin: 0.0, provision: pipeswitch}}
"""
    )
    ended = CliRunner().invoke(app, ["plan", str(path), "-o", str(tmp_path / "plan.json")])
    assert ended.exit_code == 0, ended.output
    plan = read_plan(tmp_path / "plan.json")
    assert plan.is_provisioned
    assert {slot.device for slot in plan.slots} == {"gpu"}


def test_devices_are_counted_for_stated_rates() -> None:
    options = PlanOptions(
        planner="provisioned", provision="exact", margin=0.0, objective="least-devices"
    )
    demands = tuple(Demand(model=f"m{i}", slo_us=100_000, rate_rps=10.0) for i in range(MODELS))
    of = problem(options=options, demands=demands)
    plan = planned(of)
    assert plan.objective == 1
    assert verify(plan, of.profiles) == []
    many = tuple(replace(each, rate_rps=1_000.0) for each in demands)
    assert "devices of type 'gpu'" in (solve(problem(demands=many)).refusal or "")


@pytest.mark.parametrize(
    ("per", "nodes", "rate_rps", "enough"),
    [(1, [4], 1, 2), (2, [4], 1, 3), (1, [4], 200, 3), (1, [2, 2], 1, 2), (1, [2, 2], 200, 4)],
)
def test_devices_that_are_counted_are_enough_to_help_each_other(
    per: int, nodes: list[int], rate_rps: float, enough: int
) -> None:
    """Three carry the higher rates, and the third one alone on its node would have no helper."""
    kind = DeviceType(name="gpu", memory_bytes=MEMORY, copy_stream=True, devices_per_link=per)
    options = PlanOptions(
        planner="provisioned", provision="exact+pt", margin=0.0, objective="least-devices"
    )
    of = problem(
        cluster=Cluster(
            device_types=(kind,),
            nodes=tuple(Node(name=f"n{i}", devices={"gpu": n}) for i, n in enumerate(nodes)),
        ),
        options=options,
        demands=tuple(
            Demand(model=f"m{i}", slo_us=100_000, rate_rps=rate_rps) for i in range(MODELS)
        ),
    )
    plan = planned(of)
    assert plan.objective == len(plan.slots) == enough
    assert verify(plan, of.profiles) == []


def test_a_measured_start_of_the_whole_and_a_copy_stream_are_refused_together() -> None:
    """Of the first nothing says which part of it others may run beside."""
    of = problem()
    times = tuple(
        replace(each, start_p50_us=30_000, start_p99_us=31_000)
        for each in of.profiles["m0"].layer_times
    )
    profiles = {**of.profiles, "m0": replace(of.profiles["m0"], layer_times=times)}
    with pytest.raises(DocumentError, match=r"'m0' states starts(.|\n)*copy_stream"):
        solve(replace(of, profiles=profiles))

    kinds = tuple(replace(kind, copy_stream=False) for kind in of.cluster.device_types)
    alone = replace(of, profiles=profiles, cluster=replace(of.cluster, device_types=kinds))
    assert verify(planned(alone), profiles) == []


def test_a_device_without_its_memory_is_refused() -> None:
    cluster = Cluster(
        device_types=(DeviceType(name="gpu"),), nodes=(Node(name="n0", devices={"gpu": 2}),)
    )
    with pytest.raises(DocumentError, match="memory_bytes"):
        solve(problem(cluster=cluster))


def test_a_plan_of_starts_with_all_weights_in_memory_is_not_run() -> None:
    of = problem()
    plan = planned(of)
    kept = tuple(replace(each, cold_share=None) for each in plan.deployments)
    with pytest.raises(PlanError, match="come and go"):
        Topology.from_plan(replace(plan, deployments=kept), of.profiles)


def test_a_simulated_session_reports_how_models_came_and_went() -> None:
    of = problem()
    plan = planned(of)
    arrivals = [Arrival(at_us=30_000 * i, model=f"m{i * 7 % MODELS}") for i in range(60)]
    header, events = simulate(plan, of.profiles, arrivals, policy="provision", jitter=False)
    told = run_report("simulated", header, events)
    assert told.weights is not None
    assert told.total.slo_attainment == 1.0
    assert told.weights.loads >= MODELS
    assert told.weights.cold >= MODELS
    assert told.weights.moved_bytes == told.weights.loads * header.resident_bytes[0]
    assert Fraction(told.weights.cold, 60) == pytest.approx(told.weights.cold_share)


def test_bytes_moved_are_those_that_starts_copy_whatever_their_models_hold() -> None:
    """Measured memory counts layers that stay on the host: mapped pages are held, too."""
    of = _measured(**{f"m{i}": (14_000_000, 0) for i in range(MODELS)})
    plan = planned(of)
    arrivals = [Arrival(at_us=30_000 * i, model=f"m{i % MODELS}") for i in range(MODELS)]
    header, events = simulate(plan, of.profiles, arrivals, policy="provision", jitter=False)

    copied = {
        each.model: sum(layer.weights_bytes for layer in of.profiles[each.model].layers)
        - each.start.host_bytes
        for each in plan.deployments
        if each.start is not None
    }
    assert header.resident_bytes == tuple(copied[name] for name in header.models)
    assert max(copied.values()) < 14_000_000
    weights = run_report("simulated", header, events).weights
    assert weights is not None
    assert weights.moved_bytes == sum(copied.values())
