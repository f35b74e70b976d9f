"""Of a model with all devices to itself, the SLO that a refusal names is enough; less is not."""

import re
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from headrace.domain.problem import PlanOptions, Problem
from headrace.planning import solve
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


@pytest.mark.parametrize("planner", NAMED_TO_US)
@given(data=st.data())
def test_the_slo_that_is_named_is_enough_and_less_is_not(planner: str, data: st.DataObject) -> None:
    problem = data.draw(problems(planner))

    def planned(slo_us: int) -> bool:
        demands = (replace(problem.demands[0], slo_us=slo_us),)
        return solve(replace(problem, demands=demands)).plan is not None

    refusal = solve(problem).refusal
    assert refusal is not None
    found = re.search(r"SLO of at least ([\d.]+) ms|slo_ms: (\d+)", refusal)
    assert found, refusal
    named_us = round(1_000 * float(found[1] or found[2]))

    assert planned(named_us), refusal
    less_us = named_us - NAMED_TO_US[planner]
    assert less_us <= 0 or not planned(less_us), refusal
