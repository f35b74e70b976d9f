"""`benchmarks.ppipe.stage_sizes`: what batch sizes per stage could add to pipelines."""

import pytest
from benchmarks.ppipe.stage_sizes import largest_relaxed_rps
from msgspec.structs import replace

from headrace.domain.profile import Profile
from headrace.planning import solve
from helpers.problems import make_problem, make_profile


def two_halves() -> Profile:
    """The first block runs fast on `a` and the second on `b`, which gains nothing by batching."""
    profile = make_profile(blocks=2, max_batch=2, cut_bytes=0)
    slow = 1_000_000, 1_100_000
    rows = {"a": ((1_000, 1_100), slow), "b": (slow, (4_000, 8_000))}
    times = [
        replace(times, p50_us=rows[times.device], p99_us=rows[times.device])
        for times in profile.block_times
    ]
    return replace(profile, block_times=tuple(times))


def test_a_size_for_each_stage_by_hand() -> None:
    problem = make_problem([two_halves()], nodes={"local": {"a": 1, "b": 8}}, slo_us=5_200)
    # Two at a time fit on `a`, and not on `b` behind it.
    assert largest_relaxed_rps(problem, 0.0, per_stage=False) == pytest.approx(1_000)
    assert largest_relaxed_rps(problem, 0.0, per_stage=True) == pytest.approx(2 / 1_100e-6)
    assert largest_relaxed_rps(problem, 0.03, per_stage=True) == pytest.approx(1_000)


@pytest.mark.parametrize("seed", range(8))
def test_no_plan_is_above_the_relaxation_nor_that_above_the_one_with_more_sizes(seed: int) -> None:
    profiles = [make_profile(f"m{i}", blocks=5, seed=10 * seed + i) for i in range(2)]
    problem = make_problem(
        profiles, nodes={"n0": {"a": 3, "b": 2}, "n1": {"b": 2}}, gbps=1.0, weights={"m0": 2.0}
    )
    options = replace(problem.options, margin=0.2, max_stages=2)
    plan = solve(replace(problem, options=options)).plan
    assert plan is not None

    one = largest_relaxed_rps(problem, 0.2, per_stage=False)

    assert plan.objective <= one * (1 + 1e-9)
    assert one <= largest_relaxed_rps(problem, 0.2, per_stage=True) * (1 + 1e-9)
