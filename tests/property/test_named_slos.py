"""Of a model with all devices to itself, the SLO that a refusal names is enough; less is not."""

import random
import re
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from headrace.domain.problem import PlanOptions, Problem
from headrace.planning import solve
from helpers.lengthy import with_lengthy
from helpers.problems import make_cluster, make_problem, make_profile

NAMED_TO_US = {"pooled": 1, "no-partitioning": 1, "shares": 100, "gpulet": 1_000}
"""By planner, how finely it names an SLO."""
HARDLY_ANY = {"m": 1e-3}
"""Requests per second, where a planner must be told."""


@st.composite
def problems(draw: st.DrawFn, planner: str) -> Problem:
    """One model, whose SLO is too short whatever the rest."""
    types = "a" if planner == "gpulet" else "abc"[: draw(st.integers(1, 3))]
    shares = (Fraction(1), Fraction(1, 2))[: draw(st.integers(1, 2))]
    profile = make_profile(
        blocks=draw(st.integers(1, 4)),
        devices={device: draw(st.sampled_from([0.5, 1.0, 3.0])) for device in types},
        max_batch=3,
        shares=shares,
        block_us=draw(st.sampled_from([50, 4_000])),
        seed=draw(st.integers(0, 1_000)),
    )
    gbps = draw(st.sampled_from([None, 0.1, 10.0]))
    options = PlanOptions(
        planner=planner,
        margin=draw(st.sampled_from([0.0, 0.15, 0.37, 0.4])),
        max_stages=1 if planner == "gpulet" else draw(st.integers(1, 3)),
        max_batch=draw(st.integers(1, 3)),
    )
    return make_problem(
        [replace(profile, gateway_us=draw(st.sampled_from([0, 1, 15, 300, 20_000])))],
        cluster=make_cluster({f"on-{t}": {t: 1} for t in types}, shares=shares, gbps=gbps),
        rates=HARDLY_ANY if planner in ("shares", "gpulet") else None,
        slo_us=1,
        options=options,
    )


def assert_enough_and_no_less_is(problem: Problem) -> None:
    def planned(slo_us: int) -> bool:
        demands = (replace(problem.demands[0], slo_us=slo_us),)
        return solve(replace(problem, demands=demands)).plan is not None

    refusal = solve(problem).refusal
    assert refusal is not None
    found = re.search(r"SLO of at least ([\d.]+) ms|slo_ms: (\d+)", refusal)
    assert found, refusal
    named_us = round(1_000 * float(found[1] or found[2]))

    assert planned(named_us), refusal
    less_us = named_us - NAMED_TO_US[problem.options.planner]
    assert less_us <= 0 or not planned(less_us), refusal


@pytest.mark.parametrize("planner", with_lengthy(NAMED_TO_US, lengthy=["shares"]))
@given(data=st.data())
def test_the_slo_that_is_named_is_enough_and_less_is_not(planner: str, data: st.DataObject) -> None:
    assert_enough_and_no_less_is(data.draw(problems(planner)))


@pytest.mark.lengthy
@pytest.mark.parametrize("shares", [(Fraction(1),), (Fraction(1), Fraction(1, 2))])
def test_it_counts_stages_that_have_to_share_the_one_device_that_suits_them(
    shares: tuple[Fraction, ...],
) -> None:
    """One device each of two types; each block is faster on one of them. Counted as if alone,
    stages of all these were told too little."""
    for seed in (1, 3, 6, 10):
        rng = random.Random(seed)
        profile = make_profile(
            blocks=3, devices={"a": 1.0, "b": 0.5}, max_batch=1, shares=shares, seed=seed
        )
        times = []
        for each in profile.block_times:
            factors = [rng.choice([0.2, 1.0, 3.0]) for _ in range(3)]
            times.append(
                replace(
                    each,
                    p50_us=_times(each.p50_us, factors),
                    p99_us=_times(each.p99_us, factors),
                )
            )
        assert_enough_and_no_less_is(
            make_problem(
                [replace(profile, block_times=tuple(times))],
                cluster=make_cluster(
                    {"on-a": {"a": 1}, "on-b": {"b": 1}}, shares=shares, gbps=None
                ),
                rates=HARDLY_ANY,
                slo_us=1,
                options=PlanOptions(planner="shares", margin=0.0, max_stages=3, max_batch=1),
            )
        )


def _times(rows: tuple[tuple[int, ...], ...], factors: list[float]) -> tuple[tuple[int, ...], ...]:
    return tuple(
        tuple(round(us * factor) for us in row) for row, factor in zip(rows, factors, strict=True)
    )
