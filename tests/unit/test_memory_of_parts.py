"""Shared devices of which the parts share the memory, and splits that leave shares out."""

from fractions import Fraction

import pytest

from headrace.domain.cluster import Cluster, DeviceType, Node
from headrace.domain.plan import PlanResult
from headrace.domain.problem import PlanOptions
from headrace.planning import solve
from headrace.planning.shares import memory
from headrace.planning.shares.memory import memory_cuts, sums_of_weights
from headrace.verify import verify
from helpers.problems import make_problem, make_profile

HALF = Fraction(1, 2)


def two_halves(
    *, memory_bytes: int = 12_000_000, splits: tuple[tuple[Fraction, ...], ...] = ()
) -> PlanResult:
    """A large model and a small one on one device of two halves; each half carries either, or both
    in turns."""
    shares = (Fraction(1), HALF)
    large, small = (
        make_profile(
            name, blocks=1, devices={"gpu": 1.0}, shares=shares, weights_bytes=weights, block_us=us
        )
        for name, weights, us in (("large", 16_000_000, 4_000), ("small", 4_000_000, 1_000))
    )
    kind = DeviceType(name="gpu", shares=(HALF,), splits=splits, memory_bytes=memory_bytes)
    problem = make_problem(
        [large, small],
        cluster=Cluster(device_types=(kind,), nodes=(Node(name="n", devices={"gpu": 1}),)),
        slo_us=60_000,
        options=PlanOptions(planner="shares", margin=0.0),
    )
    result = solve(problem)
    if result.plan is not None:
        assert verify(result.plan, problem.profiles) == []
    return result


def test_parts_that_would_need_more_memory_than_half_are_put_beside_smaller_ones() -> None:
    roomy, tight = two_halves(memory_bytes=1 << 40), two_halves()

    assert roomy.plan is not None
    assert tight.plan is not None
    models = [{tenant.model for tenant in slot.tenants} for slot in tight.plan.slots]
    assert models == [{"large"}, {"small"}]
    assert tight.stopped == "optimal"
    assert tight.plan.objective < roomy.plan.objective


def test_where_memory_is_divided_in_too_many_ways_each_part_has_its_share(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(memory, "WAYS_MAX", 0)

    result = two_halves()

    assert result.plan is None
    assert result.stopped == "time-limit"


def test_many_sums_of_weights_are_not_named() -> None:
    assert sums_of_weights([7] * 64, 64) is None
    assert sums_of_weights([7] * 64, 3) == [0, 7, 14, 21]
    assert memory_cuts((Fraction(1, 4),) * 4, 1_000, list(range(0, 2_000, 2))) is None


def test_a_model_that_runs_only_on_a_share_of_no_split_is_refused() -> None:
    profile = make_profile(
        blocks=1, devices={"gpu": 1.0}, shares=(Fraction(1), HALF), weights_bytes=1
    )
    kind = DeviceType(name="gpu", shares=(Fraction(1), HALF), splits=((HALF, HALF),))
    times = profile.block_times
    whole, half = (next(t for t in times if t.share == s).p99_us[0][0] for s in (1, HALF))
    problem = make_problem(
        [profile],
        cluster=Cluster(device_types=(kind,), nodes=(Node(name="n", devices={"gpu": 1}),)),
        slo_us=whole + half,
        options=PlanOptions(planner="shares", margin=0.0),
    )

    result = solve(problem)

    assert result.plan is None
    assert "on 1/2 of a 'gpu'" in str(result.refusal)
