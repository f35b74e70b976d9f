"""The demo asks for what its machine can give, whatever machine that is."""

from pathlib import Path

import pytest
from examples.demo.problem import SLO_FACTOR, Wish, choose, problem_text

from headrace.catalog.documents import read_problem, write_document
from helpers.problems import make_profile


@pytest.mark.parametrize("block_us", [300, 4_000, 90_000])
def test_the_objective_is_a_round_multiple_of_the_whole_models_latency(block_us: int) -> None:
    profile = make_profile("m", devices={"cpu": 1.0}, block_us=block_us)
    whole_us = sum(row[0] for row in profile.block_times[0].p99_us)

    slo_ms = choose(profile, cores_here=2).slo_ms

    assert slo_ms % 10 == 0
    assert 0 <= slo_ms * 1000 - SLO_FACTOR * whole_us < 10_000


@pytest.mark.parametrize(("here", "used"), [(1, 1), (2, 2), (4, 4), (64, 4)])
def test_no_more_than_four_cores_are_used(here: int, used: int) -> None:
    profile = make_profile("m", devices={"cpu": 1.0})

    assert choose(profile, cores_here=here).cores == used


def test_workers_with_cores_of_their_own_are_planned_busier() -> None:
    profile = make_profile("m", devices={"cpu": 1.0})

    shared, own = choose(profile, cores_here=2), choose(profile, cores_here=16)

    assert shared.max_utilisation < own.max_utilisation < 1


@pytest.mark.parametrize(("cores", "stages"), [(1, 1), (2, 2), (4, 2)])
def test_the_problem_is_one_that_headrace_reads(tmp_path: Path, cores: int, stages: int) -> None:
    write_document(make_profile("m", devices={"cpu": 1.0}), tmp_path / "m.profile.json")
    wish = Wish(slo_ms=130, cores=cores, max_utilisation=0.5)
    (tmp_path / "problem.yaml").write_text(problem_text(wish, "m.profile.json"))

    problem = read_problem(tmp_path / "problem.yaml")

    assert problem.demands[0].slo_us == 130_000
    assert problem.cluster.count("cpu") == cores
    assert problem.options.min_stages == stages
