"""No refusal says that what is needed is what there is."""

import re
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from headrace.domain.apart import apart, ms_apart, ms_enough
from headrace.domain.plan import PlanResult
from headrace.domain.problem import Items, PlanOptions, Problem
from headrace.planning import solve
from helpers.apps import make_app_problem
from helpers.layers import with_layers
from helpers.problems import make_cluster, make_problem, make_profile
from helpers.shared import shared_problem
from helpers.verified_plans import SHAPES

RATES = st.floats(1e-3, 1e6)


@given(RATES, st.integers(1, 10**12))
def test_rates_that_differ_look_different(rate_rps: float, part: int) -> None:
    less_rps = rate_rps * (1 - 1 / (part + 1))

    assert (len(set(apart(rate_rps, less_rps))) == 1) == (rate_rps == less_rps)


@given(st.integers(1, 10**9), st.integers(1, 3_000))
def test_microseconds_that_differ_look_different(us: int, more_us: int) -> None:
    needed, there = ms_apart(us + more_us, us)

    assert needed != there
    assert Fraction(ms_enough(us + more_us)) * 1000 >= us + more_us


@given(RATES)
def test_what_is_equal_stays_short(rate_rps: float) -> None:
    first, second = apart(rate_rps, rate_rps)

    assert first == second
    assert len(first.lstrip("0.").replace(".", "")) <= 7


def test_a_rate_has_no_exponent() -> None:
    assert apart(1_234_567.0, 0.25) == ("1234567", "0.25")


def _slower(problem: Problem, planner: str, slo_us: int) -> Problem:
    return replace(
        problem,
        demands=tuple(replace(demand, slo_us=slo_us) for demand in problem.demands),
        options=replace(problem.options, planner=planner),
    )


def _needed_us(problem: Problem) -> int:
    """The least SLO that is not refused."""
    too_short, enough = 0, 200_000
    while enough - too_short > 1:
        middle = (too_short + enough) // 2
        if solve(_slower(problem, problem.options.planner, middle)).plan is None:
            too_short = middle
        else:
            enough = middle
    return enough


def _problem(planner: str) -> Problem:
    if planner == "malleable":
        problem = make_problem([make_profile(blocks=5)], options=PlanOptions(planner=planner))
        demands = (replace(problem.demands[0], items=Items(mean=4)),)
        return replace(problem, demands=demands, options=replace(problem.options, margin=0.0))
    if planner == "provisioned":
        profile = with_layers(make_profile(devices={"gpu": 1.0}), ("gpu",))
        return make_problem(
            [profile],
            cluster=make_cluster({"n": {"gpu": 1}}, memory_bytes={"gpu": 1 << 34}),
            options=PlanOptions(planner=planner, margin=0.0),
        )
    if planner == "pooled":
        return make_problem([make_profile()], options=PlanOptions(margin=0.0))
    return shared_problem(planner, models=1, seed=3)


@pytest.mark.parametrize("planner", ["pooled", "gpulet", "sbp", "malleable", "provisioned"])
def test_a_microsecond_too_little_is_seen_and_what_is_named_does(planner: str) -> None:
    problem = _problem(planner)
    needed_us = _needed_us(problem)
    refusal = solve(_slower(problem, planner, needed_us - 1)).refusal
    assert refusal is not None
    needs = re.search(r"needs +([\d.]+) ms", refusal)
    has = re.search(r"has +([\d.]+) ms", refusal)
    named = re.search(r"(?:an SLO of(?: at least)? |slo_ms: )([\d.]+)", refusal)
    assert needs is not None
    assert has is not None
    assert named is not None

    assert float(needs[1]) > float(has[1])
    assert solve(_slower(problem, planner, round(float(named[1]) * 1000))).plan is not None


def test_an_app_is_told_an_slo_with_its_margin_and_overhead() -> None:
    problem = make_app_problem("harpagon", slo_ms=10)
    app = replace(problem.apps[0], code_us=1_500)
    options = replace(problem.options, margin=0.2)
    problem = replace(problem, apps=(app,), options=options)
    refusal = solve(problem).refusal
    assert refusal is not None
    named_ms = float(refusal.split("an SLO of ")[1].split(" ms")[0])
    longer = replace(app, slo_us=round(named_ms * 1000))

    assert solve(replace(problem, apps=(longer,))).plan is not None


def test_models_that_come_and_go_are_told_rates_that_are_carried() -> None:
    problem = _provisioned_with_rates(1.0)
    plan = solve(problem).plan
    assert plan is not None
    most = plan.objective
    refused = solve(_provisioned_with_rates(most * 1.0001)).refusal
    assert refused is not None
    part = float(refused.split("rates of ")[1].split(" times")[0])

    assert "need 1.0001 times the time" in refused
    assert solve(_provisioned_with_rates(most * 1.0001 * part)).plan is not None


def _provisioned_with_rates(rate_rps: float) -> Problem:
    """Of each model the same; 1: max-min of its throughput."""
    planned = SHAPES["provisioned"]()
    options = replace(planned.plan.options, objective="max-min")
    rate = None if rate_rps == 1.0 else rate_rps
    return Problem(
        cluster=planned.plan.cluster,
        demands=tuple(replace(demand, rate_rps=rate) for demand in planned.plan.demands),
        profiles=dict(planned.profiles),
        profile_refs=planned.plan.profiles,
        options=options,
    )


def test_a_planner_that_misses_a_plan_names_an_slo_with_which_it_finds_one() -> None:
    """It said that it needs what it has."""
    problem = make_app_problem("nexus", slo_ms=400)
    longest = solve(problem).plan
    assert longest is not None
    slo_us = next(
        slo_us
        for slo_us in range(longest.apps[0].worst_case_us, 0, -1_000)
        if "finds no plan" in (_with_slo(problem, slo_us).refusal or "")
    )
    refusal = _with_slo(problem, slo_us).refusal
    assert refusal is not None
    named_ms = float(refusal.split("an SLO of ")[1].split(" ms")[0])

    assert round(named_ms * 1000) > slo_us
    assert _with_slo(problem, round(named_ms * 1000)).plan is not None
    assert "--planner least-cost" in refusal


def _with_slo(problem: Problem, slo_us: int) -> PlanResult:
    return solve(replace(problem, apps=(replace(problem.apps[0], slo_us=slo_us),)))


@pytest.mark.parametrize("planner", ["gpulet", "provisioned"])
def test_every_model_that_is_too_slow_is_named_at_once(planner: str) -> None:
    """Not one after the other, each when the one before was mended."""
    if planner == "provisioned":
        problem = _provisioned_with_rates(1.0)
    else:
        problem = shared_problem(planner, models=3, seed=3)
    tiny = _slower(problem, planner, 1_000)
    refusal = solve(tiny).refusal
    assert refusal is not None
    named = dict(
        re.findall(r"model '(\w+)'[^\n]*\n.*\n.*\n.*?(?:an SLO of|slo_ms:) ([\d.]+)", refusal)
    )

    assert named.keys() == {demand.model for demand in problem.demands}
    mended = tuple(
        replace(demand, slo_us=round(float(named[demand.model]) * 1000), rate_rps=0.001)
        for demand in problem.demands
    )
    assert "SLO" not in (solve(replace(tiny, demands=mended)).refusal or "")


def test_layers_placed_for_few_starts_do_not_refuse_what_others_can() -> None:
    """Where hardly any request is a start, all weights are copied, which takes longer than the SLO;
    with layers left on the host a start is in time."""
    problem = _provisioned_with_rates(1.0)
    exact = replace(problem.options, provision="exact", margin=0.0)
    problem = replace(problem, options=exact)
    refusal = solve(_slower(problem, "provisioned", 1_000)).refusal
    assert refusal is not None
    named_ms = max(map(float, re.findall(r"an SLO of ([\d.]+)", refusal)))
    plan = solve(_slower(problem, "provisioned", round(named_ms * 1000))).plan

    assert plan is not None
    assert all(each.start is not None and each.start.host for each in plan.deployments)


@pytest.mark.parametrize("planner", ["no-partitioning", "pooled"])
def test_weights_that_no_device_holds_are_what_is_refused(planner: str) -> None:
    """Not a lack of devices, of which there are plenty."""
    profile = make_profile(blocks=2)
    weights = profile.weights_bytes(0, 2)
    problem = make_problem(
        [profile],
        cluster=make_cluster(
            {"n": {"a": 4, "b": 4}}, memory_bytes={"a": weights - 1, "b": weights - 1}
        ),
        options=PlanOptions(planner=planner, max_stages=1),
    )
    refusal = solve(problem).refusal
    assert refusal is not None

    assert f"needs  {weights:,} bytes" in refusal
    assert f"has    {weights - 1:,} bytes per a" in refusal
    assert ("--planner pooled" in refusal) == (planner == "no-partitioning")


@pytest.mark.parametrize("planner", ["gpulet", "sbp", "self-tuning"])
def test_heuristics_of_shared_devices_name_devices_that_do(planner: str) -> None:
    problem = shared_problem(planner, seed=5, models=4, devices=1, load=2.5)
    refusal = solve(problem).refusal
    assert refusal is not None
    found = re.search(r"(\d+) of type 'gpu', with which it does", refusal)
    assert found is not None
    count = int(found[1])

    assert solve(_with_devices(problem, count)).plan is not None
    assert solve(_with_devices(problem, count - 1)).plan is None


def _with_devices(problem: Problem, count: int) -> Problem:
    node = replace(problem.cluster.nodes[0], devices={"gpu": count})
    return replace(problem, cluster=replace(problem.cluster, nodes=(node,)))
