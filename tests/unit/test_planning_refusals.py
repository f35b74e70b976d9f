"""A refusal names the binding constraint, and what it names as feasible is, and barely."""

import math
import re
from fractions import Fraction

import pytest
from msgspec.structs import replace

from headrace.domain.errors import DocumentError
from headrace.domain.plan import PlanResult
from headrace.domain.problem import Demand, PlanOptions, Problem
from headrace.planning import solve
from helpers.problems import make_cluster, make_problem, make_profile

HALVES = (Fraction(1), Fraction(1, 2))


def refusal_of(problem: Problem) -> str:
    result = solve(problem)
    assert result.plan is None
    assert result.stopped == "infeasible"
    assert result.refusal is not None
    return result.refusal


def with_slo(problem: Problem, slo_us: int) -> PlanResult:
    return solve(replace(problem, demands=(replace(problem.demands[0], slo_us=slo_us),)))


def named_slo_us(refusal: str) -> int:
    found = re.search(r"SLO of at least (\d+)\.(\d{3}) ms", refusal)
    assert found, refusal
    return int(found[1] + found[2])


@pytest.mark.parametrize("margin", [0.0, 0.4, 0.37])
@pytest.mark.parametrize("max_stages", [1, 3])
@pytest.mark.parametrize("seed", range(3))
def test_the_named_slo_is_feasible_and_less_is_not(
    margin: float, max_stages: int, seed: int
) -> None:
    profile = make_profile(blocks=4, devices={"a": 1.0, "b": 0.9}, seed=seed)
    problem = make_problem(
        [profile],
        nodes={"n0": {"a": 1}, "n1": {"b": 1}},
        gbps=10.0,
        slo_us=5_000,
        options=PlanOptions(margin=margin, max_stages=max_stages),
    )

    slo_us = named_slo_us(refusal_of(problem))

    assert with_slo(problem, slo_us).plan is not None
    assert with_slo(problem, slo_us - 1).plan is None


def test_two_stages_are_timed_with_their_transfer() -> None:
    problem = make_problem(
        nodes={"n0": {"a": 1}, "n1": {"b": 1}},
        gbps=0.01,
        slo_us=5_000,
        options=PlanOptions(min_stages=2),
    )

    slo_us = named_slo_us(refusal_of(problem))

    assert with_slo(problem, slo_us).plan is not None
    assert with_slo(problem, slo_us - 1).plan is None


def test_every_model_that_misses_its_slo_is_named() -> None:
    profiles = [make_profile(f"m{i}", seed=i) for i in range(3)]
    problem = make_problem(profiles, slo_us={"m0": 1_000, "m1": 500_000, "m2": 2_000})

    refusal = refusal_of(problem)

    assert "'m0'" in refusal
    assert "'m2'" in refusal
    assert "'m1'" not in refusal


@pytest.mark.parametrize("objective", ["throughput", "max-min", "least-cost"])
def test_the_named_rate_is_feasible_and_more_is_not(objective: str) -> None:
    cluster = make_cluster({"n0": {"a": 2, "b": 2}}, prices={"a": 2.0, "b": 1.0}, shares=HALVES)
    problem = make_problem(
        [make_profile(shares=HALVES)],
        cluster=cluster,
        rates={"m": 5_000.0},
        options=PlanOptions(objective=objective),  # type: ignore[arg-type]
    )

    refusal = refusal_of(problem)

    found = re.search(r"rate_rps of at most ([\d.]+) rps of 'm'", refusal)
    assert found, refusal
    rate = float(found[1])
    for asked, feasible in ((rate, True), (rate * 1.0001, False)):
        demand = replace(problem.demands[0], rate_rps=asked)
        assert (solve(replace(problem, demands=(demand,))).plan is not None) is feasible


def test_rates_of_several_models_are_named_at_the_scale_that_fits_at_once() -> None:
    profiles = [make_profile(f"m{i}", seed=i) for i in range(2)]
    problem = make_problem(profiles, rates={"m0": 900.0, "m1": 300.0})

    refusal = refusal_of(problem)

    tried = refusal.split("rate_rps of at most")[1]
    rates = [float(rate) for rate in re.findall(r"([\d.]+) rps of", tried)]
    assert rates[0] / rates[1] == pytest.approx(3.0, rel=1e-4)
    for scale, feasible in ((1.0, True), (1.001, False)):
        demands = tuple(
            replace(demand, rate_rps=rate * scale)
            for demand, rate in zip(problem.demands, rates, strict=True)
        )
        assert (solve(replace(problem, demands=demands)).plan is not None) is feasible


def test_the_named_devices_are_enough_and_fewer_are_not() -> None:
    problem = make_problem(
        [make_profile(devices={"a": 1.0})], nodes={"n0": {"a": 2}}, rates={"m": 700.0}
    )

    found = re.search(r"or (\d+) 'a' more", refusal_of(problem))

    assert found
    for more, feasible in ((int(found[1]), True), (int(found[1]) - 1, False)):
        cluster = make_cluster({"n0": {"a": 2 + more}})
        assert (solve(replace(problem, cluster=cluster)).plan is not None) is feasible


def test_a_type_that_does_not_help_keeps_nobody_from_naming_one_that_does() -> None:
    """Nothing fits a's memory. Of b a third would do for each, which the relaxation takes."""
    speeds = {"a": 1.0, "b": 4.0, "c": 1.0}
    profiles = [make_profile(f"m{i}", devices=speeds) for i in range(3)]
    nodes = {"n0": dict.fromkeys(speeds, 1)}
    cluster = make_cluster(nodes, memory_bytes={"a": 1})

    refusal = refusal_of(make_problem(profiles, cluster=cluster, slo_us=10**6))

    assert "1 'b' more or 1 'c' more" in refusal
    assert "'a' more" not in refusal


@pytest.mark.parametrize("objective", ["throughput", "max-min"])
def test_a_model_is_never_left_without_a_pipeline(objective: str) -> None:
    profiles = [make_profile(f"m{i}", devices={"a": 1.0}, seed=i) for i in range(3)]
    options = PlanOptions(objective=objective)  # type: ignore[arg-type]
    problem = make_problem(profiles, nodes={"n0": {"a": 2}}, options=options)

    assert "1 'a' more" in refusal_of(problem)
    roomy = solve(replace(problem, cluster=make_cluster({"n0": {"a": 3}})))
    assert roomy.plan is not None
    assert all(deployment.pipelines for deployment in roomy.plan.deployments)


def test_a_device_that_was_not_profiled_is_named() -> None:
    problem = make_problem([make_profile(devices={"a": 1.0})], nodes={"n0": {"z": 2}})

    refusal = refusal_of(problem)

    assert "not profiled" in refusal
    assert "1 z" in refusal
    assert "1 a" in refusal


def test_weights_that_fit_no_device_are_named() -> None:
    cluster = make_cluster({"n0": {"a": 2}}, memory_bytes={"a": 1_000})

    assert "weights do not fit" in refusal_of(make_problem(cluster=cluster))


@pytest.mark.parametrize("planner", ["no-partitioning", "dart-r"])
def test_stages_are_advised_only_for_a_model_that_can_be_cut(planner: str) -> None:
    cluster = make_cluster({"n0": {"a": 2}}, memory_bytes={"a": 1_000})
    for blocks, told in ((1, False), (2, True)):
        problem = make_problem(
            [make_profile(blocks=blocks)], cluster=cluster, options=PlanOptions(planner=planner)
        )
        refusal = solve(problem).refusal
        assert refusal is not None
        assert "weights do not fit" in refusal
        assert ("cuts models into stages" in refusal) == told


def test_more_stages_than_blocks_cannot_be_cut() -> None:
    problem = make_problem([make_profile(blocks=2)], options=PlanOptions(min_stages=3))

    assert "cannot be cut" in refusal_of(problem)


@pytest.mark.parametrize(
    ("problem", "missing"),
    [
        (make_problem(options=PlanOptions(objective="least-cost")), "rate_rps"),
        (
            make_problem(rates={"m": 1.0}, options=PlanOptions(objective="least-cost")),
            "price_per_hour",
        ),
        (make_problem(options=PlanOptions(planner="crystal-ball")), "crystal-ball"),
    ],
)
def test_a_problem_that_lacks_what_its_options_need_is_bad_input(
    problem: Problem, missing: str
) -> None:
    with pytest.raises(DocumentError, match=missing):
        solve(problem)


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("max_batch", 0),
        ("time_limit_s", 0.0),
        ("time_limit_s", math.nan),
        ("time_limit_s", math.inf),
        ("margin", math.nan),
        ("max_stages", 0),
    ],
)
def test_an_option_out_of_its_range_is_bad_input_whatever_the_planner(
    option: str, value: float
) -> None:
    with pytest.raises(DocumentError, match=option):
        replace(PlanOptions(), **{option: value})


@pytest.mark.parametrize("rate_rps", [0.0, -1.0, 5e-324, 1e10])
def test_a_rate_that_is_asked_for_is_one_to_plan_with(rate_rps: float) -> None:
    with pytest.raises(DocumentError, match="is not a rate from 1e-06 to 1e"):
        Demand(model="m", slo_us=1, rate_rps=rate_rps)


@pytest.mark.parametrize("weight", [0.0, -1.0, 1e-300, 1e12, 1e300])
def test_a_weight_beyond_what_can_be_compared_is_refused(weight: float) -> None:
    """`max-min` once called devices too few for weights of 1e12, and proved it."""
    with pytest.raises(DocumentError, match=r"weight .* must lie in \[1e-06, 1e\+09\]"):
        Demand(model="m", slo_us=1_000, weight=weight)


@pytest.mark.parametrize("planner", ["pooled", "shares"])
@pytest.mark.parametrize("weights", [(1e9, 1e9), (1e-6, 1e-6), (1e-6, 1e9)])
def test_weights_of_any_size_that_is_allowed_carry_as_much(
    planner: str, weights: tuple[float, float]
) -> None:
    profiles = [make_profile(name, blocks=1, devices={"a": 1.0}) for name in ("m0", "m1")]

    def carried(m0: float, m1: float) -> float:
        problem = make_problem(
            profiles,
            weights={"m0": m0, "m1": m1},
            options=PlanOptions(planner=planner, margin=0.0),
        )
        plan = solve(problem).plan
        assert plan is not None
        return plan.objective * max(m0, m1)

    alike = carried(1.0, 1.0)
    assert carried(*weights) >= alike * (1 - 1e-6)


def test_a_problem_without_models_and_apps_says_so() -> None:
    problem = make_problem()
    with pytest.raises(DocumentError, match="has nothing to serve; add `models`, or `apps`"):
        replace(problem, demands=())
