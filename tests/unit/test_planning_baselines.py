"""The paper's baselines: whole models on whole devices, and replicated pairs."""

import pytest
from msgspec.structs import replace

from headrace.domain.errors import DocumentError
from headrace.domain.plan import Plan, PlanResult
from headrace.domain.problem import PlanOptions, Problem
from headrace.domain.profile import BlockTimes, Profile
from headrace.planning import PLANNERS
from headrace.verify import verify
from helpers.problems import QUARTERS, WHOLE, make_cluster, make_problem, make_profile

MARGINLESS = PlanOptions(margin=0.0)


def made(planner: str, problem: Problem) -> Plan:
    result: PlanResult = PLANNERS[planner](problem)
    assert result.plan is not None, result.refusal
    assert verify(result.plan, problem.profiles) == []
    return result.plan


def profile_by_hand(fast_us: tuple[int, int], slow_us: tuple[int, int]) -> Profile:
    """Two blocks, batch size 1, on devices "a" and "b"."""
    profile = make_profile(blocks=2, max_batch=1, cut_bytes=1)
    times = tuple(
        BlockTimes(
            device=device,
            share=WHOLE[0],
            p50_us=tuple((us,) for us in blocks),
            p99_us=tuple((us,) for us in blocks),
        )
        for device, blocks in (("a", fast_us), ("b", slow_us))
    )
    return replace(profile, block_times=times)


def test_no_partitioning_uses_whole_devices_only_and_one_stage() -> None:
    problem = make_problem([make_profile(shares=QUARTERS)], shares=QUARTERS)

    plan = made("no-partitioning", problem)

    assert plan.cluster == problem.cluster
    assert {slot.share for slot in plan.slots} == {WHOLE[0]}
    assert all(len(p.stages) == 1 for d in plan.deployments for p in d.pipelines)
    assert plan.stopped == "optimal"


def test_pairs_are_replicated_as_often_as_there_are_and_the_rest_runs_whole() -> None:
    # Whole: 10 ms on a, too slow on b. Cut: 5 ms on a, then 5 ms on b.
    profile = profile_by_hand(fast_us=(5_000, 5_000), slow_us=(40_000, 5_000))
    problem = make_problem(
        [profile],
        cluster=make_cluster({"n0": {"a": 3, "b": 2}}),
        slo_us=12_000,
        options=MARGINLESS,
    )

    plan = made("dart-r", problem)

    pipelines = plan.deployments[0].pipelines
    shapes = {tuple((s.device, len(s.pool)) for s in p.stages) for p in pipelines}
    assert shapes == {(("a", 2), ("b", 2)), (("a", 1),)}
    # Two pairs at one batch per 5 ms, one device alone at one per 10 ms.
    assert plan.objective == pytest.approx(2 / 0.005 + 1 / 0.010)
    assert (plan.planner, plan.stopped, plan.bound) == ("dart-r", "heuristic", None)


def test_a_pair_that_is_better_apart_runs_apart() -> None:
    profile = profile_by_hand(fast_us=(5_000, 5_000), slow_us=(6_000, 6_000))
    problem = make_problem(
        [profile],
        cluster=make_cluster({"n0": {"a": 2, "b": 2}}),
        slo_us=12_000,
        options=MARGINLESS,
    )

    plan = made("dart-r", problem)

    assert all(len(p.stages) == 1 for p in plan.deployments[0].pipelines)
    assert plan.objective == pytest.approx(2 / 0.010 + 2 / 0.012)


def test_where_one_stage_is_the_most_no_pair_has_two() -> None:
    """A problem's limit is one for all planners, so that they can be compared."""
    profile = profile_by_hand(fast_us=(5_000, 5_000), slow_us=(40_000, 5_000))
    cluster = make_cluster({"n0": {"a": 1, "b": 1}})
    options = replace(MARGINLESS, max_stages=1)
    problem = make_problem([profile], cluster=cluster, slo_us=12_000, options=options)

    (deployment,) = made("dart-r", problem).deployments

    assert [len(pipeline.stages) for pipeline in deployment.pipelines] == [1]


def test_for_the_sum_of_throughputs_devices_are_divided_as_without_partitioning() -> None:
    profiles = [make_profile(f"m{i}", devices={"a": 1.0, "b": 0.4}, seed=i) for i in range(2)]
    problem = make_problem(
        profiles,
        cluster=make_cluster({"n0": {"a": 3, "b": 4}, "n1": {"b": 5}}, gbps=10.0),
        options=PlanOptions(objective="throughput"),
    )
    whole, pairs = made("no-partitioning", problem), made("dart-r", problem)

    def devices(plan: Plan, model: str, device: str) -> int:
        return sum(slot.tenants[0].model == model and slot.device == device for slot in plan.slots)

    for device, owned in (("a", 3), ("b", 9)):
        used = {model: devices(whole, model, device) for model in ("m0", "m1")}
        spare = (owned - sum(used.values())) // 2
        for model, count in used.items():
            assert devices(pairs, model, device) <= count + spare


@pytest.mark.parametrize("seed", range(12))
def test_pairs_are_never_worse_than_whole_models_nor_better_than_pooled_pipelines(
    seed: int,
) -> None:
    profiles = [
        make_profile(f"m{i}", devices={"a": 1.0, "b": 0.4}, shares=QUARTERS, seed=9 * seed + i)
        for i in range(1 + seed % 3)
    ]
    problem = make_problem(
        profiles,
        cluster=make_cluster(
            {"n0": {"a": 2, "b": 4}, "n1": {"a": 2, "b": 4}}, shares=QUARTERS, gbps=10.0
        ),
        options=PlanOptions(max_stages=2),
    )

    whole, pairs, pooled = (
        made(name, problem).objective for name in ("no-partitioning", "dart-r", "pooled")
    )

    assert whole * (1 - 1e-9) <= pairs <= pooled * (1 + 1e-9)


def test_a_rate_that_pairs_do_not_carry_is_refused_with_both_figures() -> None:
    profile = make_profile(devices={"a": 1.0, "b": 0.4})
    problem = make_problem([profile], rates={"m": 1.0})
    able = made("dart-r", problem).deployments[0].throughput_rps
    demand = replace(problem.demands[0], rate_rps=able * 1.01)

    result = PLANNERS["dart-r"](replace(problem, demands=(demand,)))

    assert result.plan is None
    assert result.refusal


def test_three_device_types_are_refused_by_name() -> None:
    devices = {"a": 1.0, "b": 0.5, "c": 0.3}
    problem = make_problem([make_profile(devices=devices)])

    with pytest.raises(DocumentError, match="a, b, c"):
        PLANNERS["dart-r"](problem)
