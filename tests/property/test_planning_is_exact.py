"""On tiny problems, the planner against trying everything."""

from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from headrace.domain.problem import Objective, PlanOptions, Problem
from headrace.planning import PLANNERS, solve
from headrace.verify import verify
from helpers.brute_force import BruteForce
from helpers.problems import make_cluster, make_problem, make_profile

SHARES = st.sampled_from(
    [
        (Fraction(1),),
        (Fraction(1), Fraction(1, 2)),
        (Fraction(1), Fraction(1, 3)),
        (Fraction(2, 3), Fraction(1, 3)),
        (Fraction(3, 5), Fraction(2, 5), Fraction(1, 2)),
    ]
)


@st.composite
def tiny_problems(draw: st.DrawFn, *, models: int = 1) -> Problem:
    """One or two device types, up to three devices of each, up to four blocks."""
    shares = draw(SHARES)
    devices = draw(st.sampled_from([{"a": 1.0}, {"a": 1.0, "b": 0.5}]))
    if len(shares) > 2:
        devices = {"a": 1.0}
    seed = draw(st.integers(0, 10_000))
    profiles = [
        make_profile(
            f"m{i}",
            blocks=draw(st.integers(1, 3 if models > 1 else 4)),
            devices=devices,
            max_batch=draw(st.integers(1, 3)),
            shares=shares,
            cut_bytes=draw(st.sampled_from([10_000, 400_000])),
            fixed_fraction=draw(st.sampled_from([0.0, 0.5, 0.8])),
            seed=seed + i,
            measured_stages=draw(st.booleans()),
        )
        for i in range(models)
    ]
    most = 2 if models > 1 or (len(devices) > 1 and len(shares) > 1) else 3
    nodes = {
        f"n{i}": {device: draw(st.integers(1, most - i)) for device in devices}
        for i in range(draw(st.integers(1, 2 if most > 2 else 1)))
    }
    if draw(st.booleans()):
        nodes["far"] = {"a": 1}
    cluster = make_cluster(
        nodes,
        shares=shares,
        gbps=draw(st.sampled_from([None, 0.2, 10.0])),
        prices={"a": 2.0, "b": 0.7},
        max_utilisation=draw(st.sampled_from([1.0, 0.9])),
    )
    slo_us = {p.model: draw(st.integers(20, 160)) * 1_000 for p in profiles}
    return make_problem(
        profiles,
        cluster=cluster,
        slo_us=slo_us,
        weights={p.model: draw(st.sampled_from([0.5, 1.0, 3.0])) for p in profiles},
        options=PlanOptions(
            max_stages=draw(st.integers(1, 3)), margin=draw(st.sampled_from([0.0, 0.4]))
        ),
    )


@st.composite
def problems_with_a_scarce_type(draw: st.DrawFn) -> Problem:
    """The first model runs on type a alone, and its least pipeline may take every device of it."""
    seed = draw(st.integers(0, 10_000))
    on = [{"a": 1.0}, draw(st.sampled_from([{"b": 1.0}, {"a": 1.0, "b": 0.5}]))]
    profiles = [
        make_profile(f"m{i}", blocks=draw(st.integers(1, 2)), devices=devices, seed=seed + i)
        for i, devices in enumerate(on)
    ]
    return make_problem(
        profiles,
        cluster=make_cluster({"n0": {"a": draw(st.integers(1, 2)), "b": draw(st.integers(1, 4))}}),
        weights={p.model: draw(st.sampled_from([0.5, 1.0, 3.0])) for p in profiles},
        options=PlanOptions(max_stages=2, max_batch=draw(st.integers(1, 2))),
    )


@st.composite
def problems_short_of_memory(draw: st.DrawFn) -> Problem:
    """Whole models, or one model in stages: few slots, of several weights each."""
    models = draw(st.integers(1, 2))
    shares = draw(
        st.sampled_from([(Fraction(1), Fraction(1, 2)), (Fraction(1, 2), Fraction(2, 5))])
    )
    seed = draw(st.integers(0, 10_000))
    profiles = [
        make_profile(
            f"m{i}",
            blocks=1 if models > 1 else 2,
            devices={"a": 1.0},
            max_batch=2,
            shares=shares,
            fixed_fraction=draw(st.sampled_from([0.0, 0.8])),
            weights_bytes=draw(st.sampled_from([500, 1_000])),
            seed=seed + i,
        )
        for i in range(models)
    ]
    heaviest = max(profile.weights_bytes(0, 1) for profile in profiles)
    room = draw(st.sampled_from([1.0, 1.3, 1.7, 2.0]))
    cluster = make_cluster(
        {"n0": {"a": draw(st.integers(1, 3 if models > 1 else 2))}},
        shares=shares,
        prices={"a": 2.0},
        memory_bytes={"a": int(room * heaviest)},
    )
    return make_problem(
        profiles,
        cluster=cluster,
        slo_us={p.model: draw(st.integers(20, 160)) * 1_000 for p in profiles},
        options=PlanOptions(max_stages=2),
    )


def assert_optimal(problem: Problem) -> None:
    result = solve(problem)
    best = BruteForce(problem).best()
    if best is None:
        assert result.plan is None
        assert result.stopped == "infeasible"
        assert result.refusal
        return
    assert result.plan is not None, result.refusal
    assert verify(result.plan, problem.profiles) == []
    assert result.stopped == "optimal"
    assert result.plan.objective == pytest.approx(best, rel=1e-6)
    assert result.bound == pytest.approx(best, rel=1e-6)


@given(problem=tiny_problems())
@settings(max_examples=30)
def test_one_model_gets_the_most_throughput_there_is(problem: Problem) -> None:
    assert_optimal(problem)


@given(problem=problems_with_a_scarce_type())
@settings(max_examples=40)
def test_a_model_that_takes_a_whole_type_at_its_least_keeps_no_other_low(problem: Problem) -> None:
    assert_optimal(problem)


@given(problem=tiny_problems(models=2), objective=st.sampled_from(["throughput", "max-min"]))
@settings(max_examples=25)
def test_two_models_get_the_best_split_there_is(problem: Problem, objective: str) -> None:
    options = replace(problem.options, objective=objective)
    assert_optimal(replace(problem, options=options))


@given(problem=tiny_problems(), part=st.floats(0.05, 1.2))
@settings(max_examples=40)
def test_a_rate_is_carried_at_the_least_cost_there_is(problem: Problem, part: float) -> None:
    most = BruteForce(problem).best()
    rate = part * (most or 100.0)
    demand = replace(problem.demands[0], rate_rps=rate)
    options = replace(problem.options, objective="least-cost")
    assert_optimal(replace(problem, demands=(demand,), options=options))


@given(problem=tiny_problems(models=2), part=st.floats(0.05, 0.8))
@settings(max_examples=25)
def test_two_rates_are_carried_at_the_least_cost_there_is(problem: Problem, part: float) -> None:
    most = BruteForce(replace(problem, options=replace(problem.options, objective="max-min")))
    rate = part * (most.best() or 100.0)
    demands = tuple(replace(d, rate_rps=rate * d.weight) for d in problem.demands)
    options = replace(problem.options, objective="least-cost")
    assert_optimal(replace(problem, demands=demands, options=options))


@given(problem=tiny_problems(models=2), part=st.floats(0.2, 1.0))
@settings(max_examples=15)
def test_a_rate_is_kept_while_throughput_is_maximised(problem: Problem, part: float) -> None:
    problem = replace(problem, options=replace(problem.options, objective="throughput"))
    alone = BruteForce(replace(problem, demands=problem.demands[:1])).best()
    rated = replace(problem.demands[0], rate_rps=part * (alone or 100.0))
    assert_optimal(replace(problem, demands=(rated, problem.demands[1])))


@given(
    problem=problems_short_of_memory(),
    objective=st.sampled_from(["throughput", "max-min", "least-cost"]),
)
@settings(max_examples=30)
def test_memory_is_filled_as_well_as_it_can_be(problem: Problem, objective: Objective) -> None:
    if objective == "least-cost":
        rates = replace(problem, options=replace(problem.options, objective="max-min"))
        rate = 0.7 * (BruteForce(rates).best() or 100.0)
        demands = tuple(replace(d, rate_rps=rate * d.weight) for d in problem.demands)
        problem = replace(problem, demands=demands)
    assert_optimal(replace(problem, options=replace(problem.options, objective=objective)))


@given(problem=tiny_problems())
@settings(max_examples=40)
def test_cutting_models_never_does_harm(problem: Problem) -> None:
    whole = PLANNERS["no-partitioning"](problem)
    pooled = PLANNERS["pooled"](problem)

    if whole.plan is not None:
        assert pooled.plan is not None
        assert pooled.plan.objective >= whole.plan.objective * (1 - 1e-9)
        assert verify(whole.plan, problem.profiles) == []
        assert all(len(p.stages) == 1 for d in whole.plan.deployments for p in d.pipelines)


@given(problem=tiny_problems(models=2))
@settings(max_examples=15)
def test_equal_problems_get_equal_plans(problem: Problem) -> None:
    first, second = solve(problem), solve(problem)

    assert (first.plan is None) == (second.plan is None)
    if first.plan is not None and second.plan is not None:
        assert replace(first.plan, runtime_s=0.0) == replace(second.plan, runtime_s=0.0)
