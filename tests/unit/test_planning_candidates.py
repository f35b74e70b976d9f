"""The planner's tables against the profile's own look-ups, and its pipelines against the budget."""

from fractions import Fraction

import numpy as np
import pytest

from headrace.domain.errors import DocumentError
from headrace.domain.problem import PlanOptions
from headrace.planning.common import candidates
from headrace.planning.common.allotments import allotments_within, memory_limited
from headrace.planning.common.candidates import NEVER_US, budget_us, cost_tables, feasible_pipelines
from headrace.planning.common.dominance import undominated
from headrace.planning.common.hardware import Hardware
from headrace.planning.common.patterns import maximal_patterns
from helpers.brute_force import link_rps, transfer_us
from helpers.problems import QUARTERS, make_cluster, make_problem, make_profile, profiled_us

HALVES = (Fraction(1), Fraction(1, 2))


@pytest.mark.parametrize("measured", [False, True])
def test_every_candidate_costs_what_the_profile_says(measured: bool) -> None:
    profile = make_profile(blocks=4, shares=HALVES, measured_stages=measured)
    cluster = make_cluster(
        {"n0": {"a": 2}, "n1": {"a": 1, "b": 3}},
        shares=HALVES,
        gbps={"n0": 1.0, "n1": 0.3},
        max_utilisation=0.8,
    )
    tables = cost_tables(problem := make_problem([profile], cluster=cluster), problem.demands[0])

    for k, (device, share) in enumerate(tables.kinds):
        for b in range(4):
            for i in range(4):
                for j in range(i + 1, 5):
                    p50_us, p99_us = profiled_us(profile, device, share, i, j, b + 1)
                    crossing = max(profile.input_cut_bytes(i), profile.output_cut_bytes(j))
                    rate = min(
                        (b + 1) * 1e6 / p50_us * 0.8, link_rps(cluster, device, share, crossing)
                    )
                    assert tables.p99_us[b, k, i, j] == p99_us
                    assert tables.rate_rps[b, k, i, j] == pytest.approx(rate, rel=1e-12)


def test_every_hop_takes_what_the_slower_link_takes() -> None:
    profile = make_profile(blocks=3)
    cluster = make_cluster({"n0": {"a": 1}, "n1": {"b": 1}}, gbps={"n0": 4.0, "n1": 0.7})
    tables = cost_tables(problem := make_problem([profile], cluster=cluster), problem.demands[0])

    for b in range(4):
        for a, (device, _) in enumerate(tables.kinds):
            for c, (after, _) in enumerate(tables.kinds):
                for cut in (1, 2):
                    size = (b + 1) * profile.blocks[cut - 1].cut_bytes
                    expected = transfer_us(cluster, device, after, size)
                    assert tables.transfer_us[b, a, c, cut] == expected


def test_nothing_crosses_a_network_on_a_single_node() -> None:
    problem = make_problem(gbps=0.001)
    tables = cost_tables(problem, problem.demands[0])

    assert (tables.transfer_us == 0).all()
    assert np.isfinite(tables.rate_rps).all()


def test_what_was_not_profiled_or_does_not_fit_the_memory_is_impossible() -> None:
    profile = make_profile(blocks=2, devices={"a": 1.0}, weights_bytes=1_000)
    cluster = make_cluster({"n0": {"a": 1, "z": 1}}, memory_bytes={"a": 1_600})
    problem = make_problem([profile], cluster=cluster)
    tables = cost_tables(problem, problem.demands[0])

    assert (tables.p99_us[:, 1] == NEVER_US).all()
    assert (tables.p99_us[:, 0, 0, 2] == NEVER_US).all()
    assert (tables.p99_us[:, 0, 0, 1] < NEVER_US).all()


def test_pipelines_keep_budget_depth_and_cover_all_blocks() -> None:
    profile = make_profile(blocks=5, shares=HALVES)
    problem = make_problem([profile], nodes={"n0": {"a": 1}, "n1": {"b": 1}}, gbps=1.0)
    tables = cost_tables(problem, problem.demands[0])

    pipelines = feasible_pipelines(tables, 45_000, min_stages=2, max_stages=3)

    depth = (pipelines.kinds >= 0).sum(axis=1)
    assert len(pipelines) > 50
    assert pipelines.latency_us.max() <= 45_000
    assert set(depth) == {2, 3}
    assert (pipelines.ends[:, -1] == 5).all()
    assert (np.diff(pipelines.ends, axis=1)[:, 0] > 0).all()


def test_too_many_pipelines_are_refused_before_memory_runs_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(candidates, "PIPELINES_MAX", 10)
    problem = make_problem()
    tables = cost_tables(problem, problem.demands[0])

    with pytest.raises(DocumentError, match="lower max_stages"):
        feasible_pipelines(tables, 100_000, min_stages=1, max_stages=3)


def test_a_margin_means_its_decimal_value() -> None:
    # 0.1 + 0.2 style traps: in binary floating point 100 x (1 - 0.42) is 57.99...
    assert budget_us(100, 0.42) == 58
    assert budget_us(300_001, 0.4) == 180_000
    assert budget_us(1_000, 0.0) == 1_000


def test_patterns_cut_a_device_in_every_fullest_way() -> None:
    patterns = maximal_patterns(QUARTERS, device="a")

    assert set(patterns) == {
        (1, 0, 0, 0),
        (0, 2, 0, 0),
        (0, 1, 1, 0),
        (0, 1, 0, 2),
        (0, 0, 3, 0),
        (0, 0, 2, 1),
        (0, 0, 1, 2),
        (0, 0, 0, 4),
    }


def test_patterns_heed_memory() -> None:
    halves = [Fraction(1, 2), Fraction(1, 2)]

    patterns = maximal_patterns(halves, device="a", weights_bytes=[6, 4], memory_bytes=10)

    assert set(patterns) == {(1, 1), (0, 2)}


@pytest.mark.lengthy
def test_shares_that_combine_in_too_many_ways_are_refused() -> None:
    with pytest.raises(DocumentError, match="coarser shares"):
        maximal_patterns([Fraction(i, 60) for i in range(1, 61)], device="a")


def test_pruning_keeps_the_best_pipeline_of_every_set_of_slots() -> None:
    problem = make_problem([make_profile(blocks=5, shares=HALVES)], shares=HALVES)
    hardware = Hardware.of(problem.cluster)
    tables = cost_tables(problem, problem.demands[0])
    every = feasible_pipelines(tables, 60_000, min_stages=1, max_stages=3)
    kept = undominated(every, memory_limited(every, hardware))

    assert 0 < len(kept) < len(every)
    prices = np.zeros(len(hardware.kinds))
    of_all, of_kept = (allotments_within(p, hardware, prices, 0.0, 1.0) for p in (every, kept))
    for use, rps in zip(of_all.use, of_all.throughput_rps, strict=True):
        enough = (of_kept.use <= use).all(axis=1)
        assert of_kept.throughput_rps[enough].max() >= rps * (1 - 1e-12)


def test_a_smaller_max_batch_leaves_larger_batches_out() -> None:
    problem = make_problem(options=PlanOptions(max_batch=2))

    assert len(cost_tables(problem, problem.demands[0]).p99_us) == 2
