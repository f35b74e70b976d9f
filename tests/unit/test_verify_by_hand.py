"""Figures of the verifier against cases worked out by hand, each at the edge of what it allows."""

from fractions import Fraction

import pytest
from msgspec.structs import replace

from headrace.domain.app import App
from headrace.domain.layers import LayerTimes, Residency, Transfer
from headrace.domain.plan import Plan
from headrace.domain.problem import Problem
from headrace.domain.profile import Profile
from headrace.planning import solve
from headrace.verify import Violation, verify
from headrace.verify.case import Case
from headrace.verify.figures import stage_rates
from headrace.verify.starts import faults_of_start
from helpers.apps import make_app_problem
from helpers.served import plan_by_hand, profile_by_hand
from helpers.verified_plans import SHAPES

BATCH, STAGE_US = 4, 1_000
HALF = Fraction(1, 2)


def chain(
    *pools: int,
    device: str = "gpu",
    nodes: int = 1,
    gbps: float | None = None,
    cut_bytes: int = 64,
    gateway_us: int = 0,
) -> tuple[Plan, Profile]:
    """A stage of one block for every pool; batches of four take each of them 1 ms."""
    cuts = [f"h{i}" for i in range(len(pools))]
    profile = profile_by_hand(cuts, BATCH, STAGE_US, device)
    blocks = tuple(replace(b, cut_bytes=cut_bytes, weights_bytes=1_000) for b in profile.blocks)
    plan = plan_by_hand(pools, BATCH, 1_000_000, STAGE_US, device, nodes, gbps)
    return plan, replace(profile, blocks=blocks, gateway_us=gateway_us)


def found(plan: Plan, profile: Profile, check: str) -> list[Violation]:
    return [each for each in verify(plan, {"m": profile}) if each.check == check]


def with_device(plan: Plan, **changes: object) -> Plan:
    (kind,) = plan.cluster.device_types
    cluster = replace(plan.cluster, device_types=(replace(kind, **changes),))
    return replace(plan, cluster=cluster)


# -- resources ------------------------------------------------------------------------------------


@pytest.mark.parametrize(("memory_bytes", "faults"), [(1_000, 0), (999, 2)])
def test_every_block_of_a_stage_is_in_memory_the_last_one_too(
    memory_bytes: int, faults: int
) -> None:
    plan, profile = chain(1, 1)
    assert len(found(with_device(plan, memory_bytes=memory_bytes), profile, "memory")) == faults


@pytest.mark.parametrize(("gbps", "faults"), [(0.128, 0), (0.127, 4)])
def test_half_of_what_goes_between_two_nodes_leaves_neither(gbps: float, faults: int) -> None:
    # Each pool has a slot on each node: of a million requests of 64 bytes a second every pair of
    # slots carries a quarter, 16 MB/s, and one pair leaves each node.
    plan, profile = chain(2, 2, nodes=2, gbps=gbps)
    (deployment,) = plan.deployments
    pipeline = replace(deployment.pipelines[0], throughput_rps=1e6)
    plan = replace(plan, deployments=(replace(deployment, pipelines=(pipeline,)),))
    assert len(found(plan, profile, "links")) == faults


def test_nothing_is_transferred_within_one_node_however_slow_its_link_is() -> None:
    plan, profile = chain(1, 1, gbps=0.001, cut_bytes=40_000)
    assert found(plan, profile, "transfer") == []
    plan, profile = chain(1, 1, nodes=2, gbps=0.001, cut_bytes=40_000)
    (violation,) = found(plan, profile, "transfer")
    assert violation.needed == "1280000"  # 4 x 40,000 bytes at 0.125 bytes/us


def test_the_gateway_takes_its_part_of_the_first_slots_only() -> None:
    plan, profile = chain(1, 1, device="cpu", gateway_us=100)
    case = Case(plan, {"m": profile})
    (planned,) = case.pipelines
    first, second = (stage_rates(case, planned, index) for index in range(2))
    assert first is not None
    assert second is not None
    assert first.running_rps == pytest.approx(BATCH * 1e6 / (STAGE_US + BATCH * 100))
    assert second.running_rps == pytest.approx(BATCH * 1e6 / STAGE_US)


@pytest.mark.parametrize(("part", "share"), [(1.0, Fraction(1)), (0.5, Fraction(1)), (1.0, HALF)])
def test_a_slot_has_its_share_of_its_nodes_link_and_its_model_its_part(
    part: float, share: Fraction
) -> None:
    plan, profile = chain(1, 1, nodes=2, gbps=0.001)
    times = tuple(replace(each, share=share) for each in profile.block_times)
    plan = with_device(plan, shares=(share,))
    deployments = tuple(
        replace(
            deployment,
            pipelines=tuple(
                replace(p, stages=tuple(replace(stage, share=share) for stage in p.stages))
                for p in deployment.pipelines
            ),
        )
        for deployment in plan.deployments
    )
    slots = tuple(replace(slot, share=share) for slot in plan.slots)
    options = replace(plan.options, link_parts={"m": part})
    plan = replace(plan, deployments=deployments, slots=slots, options=options)
    case = Case(plan, {"m": replace(profile, block_times=times)})
    rates = stage_rates(case, case.pipelines[0], 0)
    assert rates is not None
    # 125,000 bytes/s among the two devices of a node, 64 bytes a request.
    assert rates.total_rps == pytest.approx(125_000 * part * float(share) / 2 / 64)


# -- claims ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(("bound", "faults"), [(1.0, 0), (3.0, 1)])
def test_fewer_devices_than_a_plans_may_be_proven_and_more_may_not(
    bound: float, faults: int
) -> None:
    plan, profile = chain(1, 1)
    options = replace(plan.options, objective="least-devices")
    plan = replace(plan, options=options, objective=2.0, bound=bound, gap=0.5)
    assert len(found(plan, profile, "bound")) == faults


# -- apps -----------------------------------------------------------------------------------------


def planned(problem: Problem) -> Plan:
    plan = solve(problem).plan
    assert plan is not None
    assert verify(plan, problem.profiles) == []
    return plan


def said(plan: Plan, problem: Problem) -> set[str]:
    return {violation.what for violation in verify(plan, problem.profiles)}


def test_only_the_last_entry_of_a_module_has_machines_that_are_not_full() -> None:
    problem = make_app_problem("harpagon-optimal", rate_rps=130.0, slo_ms=150.0)
    plan = planned(problem)
    at, deployment = next((at, d) for at, d in enumerate(plan.deployments) if len(d.pipelines) > 1)
    first, *others = deployment.pipelines
    assert first.load is not None
    load = replace(first.load, machines=first.load.machines - 0.5)
    broken = replace(deployment, pipelines=(replace(first, load=load), *others))
    deployments = (*plan.deployments[:at], broken, *plan.deployments[at + 1 :])
    assert "machines" in said(replace(plan, deployments=deployments), problem)


def test_two_machines_of_a_configuration_collect_together_and_no_third_one() -> None:
    problem = make_app_problem("harp-dt", rate_rps=400.0, slo_ms=150.0)
    loads = [
        (pipeline, pipeline.load)
        for deployment in planned(problem).deployments
        for pipeline in deployment.pipelines
        if pipeline.load is not None and pipeline.load.machines > 2 and pipeline.batch_size > 1
    ]
    assert loads
    for pipeline, load in loads:
        two_rps = 2 * pipeline.stages[0].throughput_rps / len(pipeline.stages[0].pool)
        assert load.collect_us == pytest.approx(1e6 * pipeline.batch_size / two_rps, abs=1)


def test_the_gateway_passes_every_call_of_a_module_not_one_a_request() -> None:
    problem = make_app_problem()
    plan = planned(problem)
    # 60 requests/s with 2.5 calls of "cars" each: 8 ms a call are 1.2 s of every second.
    slow = replace(problem.profiles["cars"], gateway_us=8_000)
    found = verify(plan, {**problem.profiles, "cars": slow})
    assert "gateway" in {violation.check for violation in found}


def rounds() -> tuple[Problem, Plan]:
    """All modules of a small app in turns on one device, the second and third behind the first."""
    problem = make_app_problem(rate_rps=20)
    options = replace(problem.options, bill="devices", planner="least-cost")
    problem = replace(problem, options=options)
    return problem, planned(problem)


def changed_app(plan: Plan, app: App) -> Plan:
    (claim,) = plan.apps
    return replace(plan, apps=(replace(claim, app=app),))


def test_what_lies_between_two_turns_counts_in_the_duty_cycle() -> None:
    problem, plan = rounds()
    (slot,) = plan.slots
    (claim,) = plan.apps
    assert slot.duty_us is not None
    busy_us = sum(p.stages[0].latency_us for d in plan.deployments for p in d.pipelines)
    left_us = slot.duty_us - busy_us
    assert left_us >= 0
    modules = {each.name: each for each in claim.app.modules}
    for code_us, fits in ((left_us, True), (left_us + 1, False)):
        slow = replace(modules["vehicle"], code_us=code_us)
        app = replace(claim.app, modules=tuple({**modules, "vehicle": slow}.values()))
        what = "turns (us) and the gaps between them exceed the duty cycle"
        assert (what not in said(changed_app(plan, app), problem)) == fits


def test_a_round_that_is_followed_carries_all_of_its_modules_calls() -> None:
    problem, plan = rounds()
    (claim,) = plan.apps
    (slot,) = plan.slots
    vehicle = next(d for d in plan.deployments if d.module == "vehicle")
    assert slot.duty_us is not None
    carried_rps = sum(1e6 * p.batch_size / slot.duty_us for p in vehicle.pipelines)
    what = f"load (rps) of {claim.app.name}/vehicle on slot {slot.name}, which others follow"
    for part, fits in ((1.0, True), (1.01, False)):
        app = replace(claim.app, rate_rps=part * carried_rps / 2.5)
        assert (what not in said(changed_app(plan, app), problem)) == fits


# -- starts, and models that come and go ----------------------------------------------------------


def times(layers: int, start_us: int = 0) -> LayerTimes:
    each = (1_000,) * layers
    return LayerTimes(
        device="gpu",
        share=Fraction(1),
        load_p50_us=each,
        load_p99_us=each,
        saved_us=(0,) * layers,
        inside_p50_us=each,
        inside_p99_us=each,
        host_p50_us=each,
        host_p99_us=each,
        start_p50_us=start_us,
        start_p99_us=start_us,
    )


def start(*transfers: tuple[int, ...], start_us: int) -> Residency:
    return Residency(
        planner="by-hand",
        device="gpu",
        share=Fraction(1),
        batch_size=1,
        host=(),
        transfers=tuple(Transfer(layers=layers) for layers in transfers),
        host_bytes=0,
        start_us=start_us,
    )


def test_no_start_is_sooner_than_was_measured_of_the_whole() -> None:
    layers = [8, 8]
    # By layers: 1 ms until the first is there, then it runs while the second comes.
    assert faults_of_start(times(2), layers, start((0,), (1,), start_us=3_000)) == []
    measured = times(2, start_us=9_000)
    assert faults_of_start(measured, layers, start((0,), (1,), start_us=3_000)) != []
    assert faults_of_start(measured, layers, start((0,), (1,), start_us=9_000)) == []


def test_no_layer_is_copied_behind_one_that_runs_later() -> None:
    (fault,) = faults_of_start(times(3), [8, 8, 8], start((0, 2), (1,), start_us=5_000))
    assert "not in the order of the layers, at layer 1" in fault


def test_a_helper_that_was_not_measured_is_a_fault_and_no_traceback() -> None:
    over_helper = replace(start(start_us=3_000), transfers=(Transfer(layers=(0, 1), helper=True),))
    (fault,) = faults_of_start(times(2), [8, 8], over_helper)
    assert "layer 0 comes over a helper, and the profile has no forward_us" in fault


def test_a_start_takes_what_the_server_and_the_gateway_take_besides() -> None:
    shape = SHAPES["provisioned"]()
    deployment = shape.plan.deployments[0]
    assert deployment.start is not None
    slow = replace(shape.profiles[deployment.model], batch_overhead_us=90, gateway_us=70)
    for budget_us, fits in ((0, True), (-1, False)):
        budget_us += deployment.start.start_us + 90 + 70
        planned = replace(deployment, budget_us=budget_us)
        plan = replace(shape.plan, deployments=(planned, *shape.plan.deployments[1:]))
        found = verify(plan, {**shape.profiles, deployment.model: slow})
        late = [each for each in found if each.what == "start (us), gateway included"]
        assert (late == []) == fits


# -- slowdowns ------------------------------------------------------------------------------------


def test_below_the_smallest_measured_batch_what_it_uses_of_the_device_is_that_batchs() -> None:
    shape = SHAPES["turns"]()
    assert verify(shape.plan, shape.profiles) == []
    least = {
        name: replace(
            profile,
            utilisation=tuple(
                replace(
                    used,
                    batch_sizes=(100, 200),
                    l2=(max(used.l2), 0.0),
                    dram=(max(used.dram), 0.0),
                )
                for used in profile.utilisation
            ),
        )
        for name, profile in shape.profiles.items()
    }
    # The largest figures of all: no slowdown that was enough for less is.
    most = {
        name: replace(
            profile,
            utilisation=tuple(
                replace(used, l2=(max(used.l2),) * 2, dram=(max(used.dram),) * 2)
                for used in profile.utilisation
            ),
        )
        for name, profile in least.items()
    }
    assert verify(shape.plan, least) == verify(shape.plan, most) != []


def test_what_smaller_batches_cost_their_neighbours_is_reckoned_with() -> None:
    shape = SHAPES["turns"]()
    louder = {
        name: replace(
            profile,
            utilisation=tuple(
                # As the plan has it at the size of its batches, and all of the device below.
                replace(
                    used, batch_sizes=(1, 2), l2=(1.0, used.at(2)[0]), dram=(1.0, used.at(2)[1])
                )
                for used in profile.utilisation
            ),
        )
        if name == "m0"
        else profile
        for name, profile in shape.profiles.items()
    }
    of_two = next(each for each in shape.plan.deployments if each.model == "m0")
    assert [pipeline.batch_size for pipeline in of_two.pipelines] == [2]

    found = [each for each in verify(shape.plan, louder) if each.check == "slowdown"]

    # Its own is, too, which may be slowed more in smaller batches.
    assert sorted(each.where.split(", ")[1] for each in found) == [
        "m0/p0/stage 0",
        "m2/p0/stage 0",
        "m3/p0/stage 0",
    ]


def slower_alone(profile: Profile, size: int, us: int) -> Profile:
    """One takes so much longer than so many, of every block."""

    def slower(row: tuple[int, ...]) -> tuple[int, ...]:
        return (row[size - 1] + us, *row[1:])

    times = tuple(
        replace(each, p99_us=tuple(map(slower, each.p99_us))) for each in profile.block_times
    )
    return replace(profile, block_times=times)


@pytest.mark.parametrize(("us", "found"), [(0, []), (1, ["m0/p0/stage 0"])])
def test_a_turn_takes_as_long_as_the_slowest_batch_that_may_run_in_it(
    us: int, found: list[str]
) -> None:
    shape = SHAPES["turns"]()
    # Its batches are of two, as above.
    profiles = {**shape.profiles, "m0": slower_alone(shape.profiles["m0"], 2, us)}

    violations = verify(shape.plan, profiles)

    assert [each.where for each in violations if each.check == "latency"][:1] == found


@pytest.mark.parametrize(("us", "found"), [(0, False), (1, True)])
def test_a_machine_of_an_app_takes_as_long_as_the_slowest_batch_that_it_may_be_given(
    us: int, found: bool
) -> None:
    problem = make_app_problem()
    plan = solve(problem).plan
    assert plan is not None
    (detect,) = (each for each in plan.deployments if each.module == "detect")
    size = min(pipeline.batch_size for pipeline in detect.pipelines)
    assert size > 1
    slower = {**problem.profiles, "ssd": slower_alone(problem.profiles["ssd"], size, us)}

    assert ("latency" in {each.check for each in verify(plan, slower)}) == found


def test_a_batch_of_a_pipeline_is_counted_at_its_planned_size() -> None:
    shape = SHAPES["single"]()
    (deployment,) = shape.plan.deployments
    size = max(pipeline.batch_size for pipeline in deployment.pipelines)
    assert size > 1

    assert verify(shape.plan, {"m": slower_alone(shape.profiles["m"], size, 1)}) == []


def test_a_turn_of_a_pipeline_without_stages_is_found_and_no_crash() -> None:
    problem = make_app_problem(rate_rps=20)
    problem = replace(problem, options=replace(problem.options, bill="devices"))
    plan = planned(problem)
    first, *others = plan.deployments
    bare = replace(first, pipelines=tuple(replace(p, stages=()) for p in first.pipelines))

    violations = verify(replace(plan, deployments=(bare, *others)), problem.profiles)

    assert "blocks" in {found.check for found in violations}


def test_a_turn_on_a_slot_that_is_not_there_is_found_and_no_crash() -> None:
    problem = make_app_problem(rate_rps=20)
    problem = replace(problem, options=replace(problem.options, bill="devices"))
    plan = planned(problem)
    first, *others = plan.deployments
    (stage,) = first.pipelines[0].stages
    missing = replace(stage, pool=("s9", *stage.pool))
    turn = replace(first.pipelines[0], stages=(missing,))
    broken = replace(first, pipelines=(turn, *first.pipelines[1:]))

    violations = verify(replace(plan, deployments=(broken, *others)), problem.profiles)

    assert {"pool", "duty"} <= {found.check for found in violations}
