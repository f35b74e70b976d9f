"""The OCR example asks for what its machine can give, and its plan fits the cores."""

from pathlib import Path

import pytest
from examples.demo.shell import StepFailedError
from examples.ocr.pages import MEAN_LINES, PAGES
from examples.ocr.problem import MODULES, SLO_FACTOR, choose, problem_text
from examples.ocr.run import largest_plan, tell

from headrace.catalog.documents import read_problem, write_document
from headrace.domain.profile import Profile
from headrace.planning import solve
from headrace.profiling.shares import parse_shares, with_shares
from helpers.problems import make_profile


def profiles(block_us: int) -> dict[str, Profile]:
    shares = parse_shares(["1/2", "1/4"])
    return {
        name: with_shares(
            make_profile(name, devices={"cpu": 1.0}, block_us=block_us * factor), "cpu", shares
        )
        for name, factor in zip(MODULES, (40, 1, 22), strict=True)
    }


@pytest.mark.parametrize("block_us", [30, 200, 50_000])
@pytest.mark.parametrize("cores", [2, 4])
def test_the_largest_rate_that_fits_the_cores_is_planned_and_proven_cheapest(
    tmp_path: Path, block_us: int, cores: int
) -> None:
    measured = profiles(block_us)
    for name, profile in measured.items():
        write_document(profile, tmp_path / f"{name}.profile.json")

    first = choose(measured, cores_here=cores)
    wish = largest_plan(tmp_path, first)
    problem = read_problem(tmp_path / "problem.yaml")

    assert (tmp_path / "problem.yaml").read_text() == problem_text(wish)
    assert wish.rate_rps <= first.rate_rps
    assert problem.apps[0].rate_rps == wish.rate_rps
    assert problem.apps[0].module("recognise").fan_out.mean == MEAN_LINES
    result = solve(problem)
    assert result.plan is not None
    assert result.stopped == "optimal"


def test_the_objective_is_a_round_multiple_of_the_three_networks_latency() -> None:
    measured = profiles(100)
    once_us = sum(
        p.block_times[0].p99_us[i][0] for p in measured.values() for i in range(len(p.blocks))
    )
    once_us += sum(p.batch_overhead_us for p in measured.values())

    slo_ms = choose(measured, cores_here=2).slo_ms

    assert slo_ms % 50 == 0
    assert 0 <= slo_ms * 1000 - SLO_FACTOR * once_us < 50_000


def test_pages_differ_in_how_many_lines_they_have_and_one_line_is_turned() -> None:
    assert len({len(page.lines) for page in PAGES}) > 1
    assert sum(page.turned is not None for page in PAGES) == 1


@pytest.mark.parametrize("name", ["nowhere.jpg", "text.jpg"])
def test_a_picture_that_cannot_be_read_ends_the_example_before_it_begins(
    tmp_path: Path, name: str
) -> None:
    (tmp_path / "text.jpg").write_text("no picture")
    folder = tmp_path / "ocr"
    folder.touch()  # a step of the example would fail on it

    with pytest.raises(StepFailedError, match=rf"--picture .*{name} cannot be read: "):
        tell(folder, duration_s=1.0, budget_s=1.0, pictures=[tmp_path / name])
