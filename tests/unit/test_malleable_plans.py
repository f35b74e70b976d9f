"""Planner malleable: what its plans promise, and what it refuses."""

import json
import re
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
from msgspec.structs import replace
from typer.testing import CliRunner

from headrace.catalog.documents import read_plan, read_problem, write_document
from headrace.cli import app
from headrace.commands.offer import explain_left_out, offered_rates, offers_of
from headrace.dispatch.topology import Topology
from headrace.domain.errors import DocumentError
from headrace.domain.plan import Plan
from headrace.domain.problem import Items, PlanOptions, Problem
from headrace.domain.profile import Profile, StageTimes
from headrace.planning import solve
from headrace.planning.common.candidates import Floats
from headrace.planning.depths.capacity import Capacity
from headrace.verify import verify
from helpers.problems import make_cluster, make_problem, make_profile, profiled_us

OPTIONS = PlanOptions(planner="malleable", margin=0.0)
TEN = Items(mean=10)


def problem_of(
    *profiles: Profile,
    items: Items = TEN,
    nodes: dict[str, dict[str, int]] | None = None,
    slo_us: int = 10_000_000,
    rates: dict[str, float] | None = None,
    **options: object,
) -> Problem:
    asked = make_problem(
        profiles,
        nodes=nodes or {"n0": {"a": 4}},
        slo_us=slo_us,
        rates=rates,
        options=replace(OPTIONS, **options),
    )
    return replace(asked, demands=tuple(replace(each, items=items) for each in asked.demands))


def on_a(name: str = "m", blocks: int = 6, **more: object) -> Profile:
    return make_profile(name, blocks=blocks, devices={"a": 1.0}, **more)  # type: ignore[arg-type]


def planned(problem: Problem) -> Plan:
    result = solve(problem)
    assert result.plan is not None, result.refusal
    assert verify(result.plan, problem.profiles) == []
    return result.plan


def refusal_of(problem: Problem) -> str:
    result = solve(problem)
    assert result.plan is None
    assert result.stopped == "infeasible"
    assert result.refusal is not None
    return result.refusal


def test_slots_of_one_kind_carry_their_number_over_the_time_of_a_request_on_one() -> None:
    profiles = [on_a("m0"), on_a("m1", blocks=3, seed=5)]
    problem = problem_of(*profiles)
    plan = planned(problem)
    medians = [profiled_us(each, "a", Fraction(1), 0, len(each.blocks), 1)[0] for each in profiles]
    each_rps = 4 / (10 * sum(medians) / 1e6)
    assert [d.throughput_rps for d in plan.deployments] == pytest.approx([each_rps, each_rps])
    assert plan.stopped == "optimal"
    assert plan.objective == pytest.approx(each_rps)


def test_the_sum_is_best_when_all_slots_serve_the_quicker_model() -> None:
    problem = problem_of(on_a("m0"), on_a("m1", blocks=3, seed=5), objective="throughput")
    plan = planned(problem)
    assert plan.stopped == "optimal"
    assert plan.deployments[0].throughput_rps == pytest.approx(0.0)
    assert "'m0' gets nothing" in plan.binding
    assert "the objective max-min, gives it some" in plan.binding


def test_a_model_that_a_plan_carries_nothing_of_is_left_out_of_the_load_and_named() -> None:
    problem = problem_of(on_a("m0"), on_a("m1", blocks=3, seed=5), objective="throughput")
    offers = offers_of(planned(problem))

    def rates(load_factor: float | None, model: str | None = None) -> dict[str, float]:
        return offered_rates(
            offers, rps=None, load_factor=load_factor, model=model, source="poisson"
        )

    assert list(rates(None)) == list(rates(0.5)) == ["m1"]
    assert explain_left_out(offers, rates(0.5), None).startswith("offering nothing of m0:")
    assert explain_left_out(offers, rates(0.5, "m1"), "m1") == ""
    with pytest.raises(DocumentError, match="carries no requests of m0"):
        rates(None, "m0")


def test_a_stage_that_is_quicker_when_measured_whole_is_used_and_believed() -> None:
    profile = on_a()
    times = profile.times("a", Fraction(1))
    assert times is not None
    halves = StageTimes(
        device="a", share=Fraction(1), first_block=0, end_block=5, p50_us=(900,), p99_us=(1_000,)
    )
    plan = planned(problem_of(replace(profile, stage_times=(halves,))))
    assert plan.deployments[0].depths[1].stages[0].end_block == 5


def test_a_request_on_the_gateways_cores_pays_for_it_in_throughput() -> None:
    profile = make_profile("m", blocks=6, devices={"cpu": 1.0})
    without = problem_of(profile, nodes={"n0": {"cpu": 2}})
    paying = problem_of(replace(profile, gateway_us=5_000), nodes={"n0": {"cpu": 2}})
    held_us = 2e6 / planned(without).objective
    assert planned(paying).objective == pytest.approx(2e6 / (held_us + 5_000))


def test_depths_that_gain_nothing_are_left_out() -> None:
    rows = ((100,), (9_000,), (100,), (100,))
    profile = on_a(blocks=4)
    times = replace(profile.block_times[0], p50_us=rows, p99_us=rows)
    heavy = replace(profile, block_times=(times,))
    found = planned(problem_of(heavy)).deployments[0].depths
    # A fourth slot would leave the block of 9 ms as it is.
    assert [depth.pace_us for depth in found] == [9_300, 9_100, 9_000]
    single = planned(problem_of(heavy, items=Items())).deployments[0]
    assert [len(depth.stages) for depth in single.depths] == [1]


def test_items_that_go_through_together_are_a_batch() -> None:
    plan = planned(problem_of(on_a(max_batch=4), item_batch=4))
    depth = plan.deployments[0].depths[0]
    assert depth.batch_size == 4
    alone_us = depth.fill_us + 2 * depth.pace_us  # 10 items in 3 batches
    tight = problem_of(on_a(max_batch=4), item_batch=4, max_depth=1, slo_us=alone_us - 1)
    assert f"{alone_us / 1000:.3f} ms" in refusal_of(tight)
    planned(problem_of(on_a(max_batch=4), item_batch=4, max_depth=1, slo_us=alone_us))


def test_shisha_is_a_baseline_that_verifies_and_is_not_called_optimal() -> None:
    problem = problem_of(on_a(blocks=12), partition="shisha")
    assert planned(problem).stopped == "heuristic"


def test_an_slo_that_no_depth_keeps_names_the_nearest_slo_and_items() -> None:
    problem = problem_of(on_a())
    [depth] = planned(problem_of(on_a(), max_depth=1)).deployments[0].depths
    quickest = planned(problem).deployments[0].depths[-1]
    least_us = quickest.fill_us + 9 * quickest.pace_us
    refusal = refusal_of(problem_of(on_a(), slo_us=least_us - 1, margin=0.0))
    named = re.search(r"try    requests of at most 9 items, or an SLO of ([\d.]+) ms", refusal)
    assert named is not None
    assert least_us <= round(float(named[1]) * 1000) < least_us + 100
    planned(problem_of(on_a(), slo_us=least_us))
    assert "requests of at most" not in refusal_of(problem_of(on_a(), slo_us=depth.fill_us - 1))


@pytest.mark.parametrize("rate_rps", [None, 1e5], ids=["plan", "refusal"])
def test_once_time_is_up_the_first_prices_that_prove_a_bound_are_the_last(
    rate_rps: float | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    profiles = [on_a(f"m{i}", seed=i) for i in range(5)]
    asked = None if rate_rps is None else {each.model: rate_rps for each in profiles}
    tried = []
    proven_at = Capacity._bound_at

    def noted(of: Capacity, prices: Floats) -> float:
        tried.append(proven_at(of, prices))
        return tried[-1]

    monkeypatch.setattr(Capacity, "_bound_at", noted)
    result = solve(problem_of(*profiles, rates=asked, time_limit_s=1e-9))
    assert sum(np.isfinite(tried)) == 1
    assert np.isfinite(tried[-1])
    if result.plan is not None:
        assert result.bound is not None
        assert result.plan.objective <= result.bound < np.inf


def test_rates_beyond_the_slots_name_the_rates_that_fit() -> None:
    most_rps = planned(problem_of(on_a())).objective
    refusal = refusal_of(problem_of(on_a(), rates={"m": 2 * most_rps}))
    assert "has    0.5 times these" in refusal
    planned(problem_of(on_a(), rates={"m": 0.999 * most_rps}))


def test_weights_that_no_device_holds_are_refused_and_small_devices_are_not_used() -> None:
    profile = make_profile("m", blocks=4, devices={"a": 1.0, "b": 1.0})
    needed = profile.weights_bytes(0, 4)
    for room, expected in (({"a": needed - 1, "b": needed}, {"b"}), ({"b": needed}, {"a", "b"})):
        cluster = make_cluster({"n0": {"a": 1, "b": 1}}, memory_bytes=room)
        problem = make_problem([profile], cluster=cluster, options=OPTIONS, slo_us=10_000_000)
        demands = (replace(problem.demands[0], items=Items(mean=10)),)
        assert {
            slot.device for slot in planned(replace(problem, demands=demands)).slots
        } == expected
    cluster = make_cluster({"n0": {"a": 1, "b": 1}}, memory_bytes={"a": needed - 1, "b": 1})
    problem = make_problem([profile], cluster=cluster, options=OPTIONS)
    refusal = refusal_of(problem)
    assert f"would need {needed:,}" in refusal


@pytest.mark.parametrize("cores", ["cpu", "cpu-efficient"])
def test_cores_of_a_machine_hold_the_weights_once_together(cores: str) -> None:
    profile = make_profile("m", blocks=4, devices={cores: 1.0})
    half = profile.weights_bytes(0, 4) // 2 + 1
    cluster = make_cluster({"n0": {cores: 2}}, memory_bytes={cores: half})
    planned(make_problem([profile], cluster=cluster, options=OPTIONS))
    cluster = make_cluster({"n0": {cores: 2}}, memory_bytes={cores: half - 2})
    assert "memory" in refusal_of(make_problem([profile], cluster=cluster, options=OPTIONS))


def test_models_share_slots_of_parts_of_devices() -> None:
    half = Fraction(1, 2)
    profile = make_profile("m", blocks=4, devices={"a": 1.0}, shares=[half])
    cluster = make_cluster({"n0": {"a": 2}}, shares=[half])
    problem = make_problem([profile], cluster=cluster, options=OPTIONS, slo_us=10_000_000)
    assert [slot.name for slot in planned(problem).slots] == [
        *("n0/a-0/0", "n0/a-0/1", "n0/a-1/0", "n0/a-1/1")
    ]


@pytest.mark.parametrize(
    ("changed", "says"),
    [
        ({"max_depth": 7}, "a depth of 7 is beyond what model 'm' can have"),
        ({"max_depth": 5}, "needs  5 slots"),
        ({"max_items": 9}, "its requests have more items than are allowed"),
        ({"item_batch": 5}, "was not profiled at batch size 5"),
        ({"objective": "least-cost"}, "the objectives max-min and throughput"),
        ({"objective": "least-devices"}, "does not count devices"),
        ({"planner": "pooled"}, "answers items one by one"),
        ({"planner": "pooled", "max_depth": 4}, "max_depth is of malleable plans"),
        ({"max_stages": 4}, "max_stages is of pipelines"),
        ({"max_batch": 4}, "try    item_batch"),
    ],
)
def test_what_cannot_be_planned_is_refused_in_a_sentence(
    changed: dict[str, object], says: str
) -> None:
    asked = problem_of(on_a())
    asked = replace(asked, options=replace(asked.options, **changed))
    with pytest.raises(DocumentError, match=says):
        solve(asked)


@pytest.mark.parametrize(
    ("items", "says"),
    [
        ({"mean": 0.5}, "must lie in 1"),
        ({"mean": 2.5}, "a fixed number is whole"),
        ({"mean": 2, "sigma": 0.5}, "has no sigma"),
        ({"mean": 2, "distribution": "log-normal"}, "sigma 0 of log-normal"),
        ({"mean": 2, "distribution": "log-normal", "sigma": float("nan")}, "sigma nan"),
        ({"mean": float("nan")}, "must lie in 1"),
    ],
)
def test_numbers_of_items_that_mean_nothing_are_refused(
    items: dict[str, object], says: str
) -> None:
    with pytest.raises(DocumentError, match=says):
        Items(**items)  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["max_depth", "max_items", "item_batch"])
def test_options_below_one_are_refused(name: str) -> None:
    with pytest.raises(DocumentError, match=f"{name} 0 must lie in"):
        replace(OPTIONS, **{name: 0})


def test_what_a_change_of_depth_costs_reaches_the_dispatcher() -> None:
    plan = planned(problem_of(on_a(), move_ms=2.5))
    assert Topology.from_plan(plan, {"m": on_a()}).move_us == 2_500
    with pytest.raises(DocumentError, match=r"move_ms -1 must lie in 0\.\.60,000"):
        replace(OPTIONS, move_ms=-1.0)


def test_a_problem_file_says_items_as_a_number_or_as_a_distribution(tmp_path: Path) -> None:
    write_document(on_a(), tmp_path / "m.profile.json")
    for written, expected in (
        ("20", Items(mean=20)),
        (
            "{mean: 20, distribution: log-normal, sigma: 0.6}",
            Items(mean=20, distribution="log-normal", sigma=0.6),
        ),
    ):
        path = tmp_path / "problem.yaml"
        path.write_text(
            "schema: headrace.problem/1\n"
            "cluster: {devices: {a: {}}, nodes: [{name: n0, devices: {a: 4}}]}\n"
            f"models: [{{profile: m.profile.json, slo_ms: 9000, items: {written}}}]\n"
            "options: {planner: malleable, max_items: 100, max_depth: 3}\n"
        )
        problem = read_problem(path)
        assert problem.demands[0].items == expected
        deployment = planned(problem).deployments[0]
        assert deployment.max_items == 100
        assert len(deployment.depths) == 3


def test_a_core_on_a_node_that_is_not_there_is_found_and_no_crash() -> None:
    problem = problem_of(make_profile("m", devices={"cpu": 1.0}), nodes={"n0": {"cpu": 4}})
    plan = planned(problem)
    first, *others = plan.slots
    elsewhere = replace(plan, slots=(replace(first, node="n9"), *others))

    assert "place" in {found.check for found in verify(elsewhere, problem.profiles)}


def test_a_slot_that_no_depth_uses_is_found() -> None:
    profile = make_profile("m", devices={"fast": 1.0, "slow": 0.1})
    problem = problem_of(profile, nodes={"n0": {"fast": 3, "slow": 1}})
    plan = planned(problem)
    kinds = {(stage.device, stage.share) for d in plan.deployments[0].depths for stage in d.stages}
    [unused] = {"fast", "slow"} - {device for device, _ in kinds}
    spare = replace(plan.slots[0], name="n0/spare", device=unused, device_index=0)

    assert not verify(plan, problem.profiles)
    [found] = verify(replace(plan, slots=(*plan.slots, spare)), problem.profiles)
    assert (found.check, found.where) == ("pool", "slot n0/spare")


def test_the_command_plans_explains_and_overrides_the_file(tmp_path: Path) -> None:
    write_document(on_a(), tmp_path / "m.profile.json")
    (tmp_path / "problem.yaml").write_text(
        "schema: headrace.problem/1\n"
        "cluster: {devices: {a: {}}, nodes: [{name: n0, devices: {a: 4}}]}\n"
        "models: [{profile: m.profile.json, slo_ms: 300, items: 10}]\n"
    )
    out = tmp_path / "plan.json"
    given = ["plan", str(tmp_path / "problem.yaml"), "-o", str(out), "--planner", "malleable"]
    run = CliRunner(env={"COLUMNS": "80"})
    shown = run.invoke(app, [*given, "--max-depth", "3", "--max-items", "50", "--explain"])
    assert shown.exit_code == 0, shown.output
    assert max(map(len, shown.stdout.splitlines())) <= 80
    assert "with more than" in " ".join(shown.stdout.split())
    plan = read_plan(out)
    assert len(plan.deployments[0].depths) == 3
    assert plan.deployments[0].max_items == 50
    assert run.invoke(app, ["verify", str(out)]).exit_code == 0
    told = run.invoke(app, [*given, "--json", "--partition", "shisha", "--item-batch", "2"])
    assert json.loads(told.stdout)["deployments"][0]["depths"][0]["batch_size"] == 2
    simulated = run.invoke(app, [*given, "--margin", "auto"])
    assert "--margin auto: simulates pipelines" in str(simulated.exception)
    wrong = run.invoke(app, [*given, "--partition", "random"])
    assert isinstance(wrong.exception, DocumentError)
    assert "--partition: 'random' is none of exact, shisha" in str(wrong.exception)
