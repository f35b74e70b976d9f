"""A slice of `make fuzz`: no mutant crashes, hangs or is wrongly accepted."""

import logging
from collections.abc import Iterator
from pathlib import Path

import pytest
from msgspec.structs import replace

from fuzz.configs import Configs
from fuzz.corpus import make_corpus
from fuzz.files import Files
from fuzz.judge import Unkept, judge_figures
from fuzz.problems import Problems
from fuzz.protocol import Protocol
from headrace.catalog.documents import plan_profiles, read_plan

FILES = 150
INPUTS = 600
CONFIGS = 1_000
PROBLEMS = 60
UNHURRIED_S = 300.0
SEED = 7


@pytest.fixture(autouse=True)
def logging_as_before() -> Iterator[None]:
    """Protocol listens to all errors, and silences what is below them."""
    ours, root = logging.getLogger("headrace"), logging.getLogger()
    level, handlers = ours.level, list(root.handlers)
    yield
    ours.setLevel(level)
    for handler in set(root.handlers) - set(handlers):
        root.removeHandler(handler)


def test_no_mutant_of_a_file_does_harm(tmp_path: Path) -> None:
    files = Files(make_corpus(tmp_path), SEED)
    files.check_originals()

    became = {files.run(number) for number in range(FILES)}

    # The mutants reach every depth: some are refused, some accepted and run.
    assert {"plan refused", "plan rejected", "plan accepted", "problem planned"} <= became


def test_no_mutant_of_a_triton_configuration_does_harm(tmp_path: Path) -> None:
    configs = Configs(tmp_path, SEED)

    became = {configs.run(number) for number in range(CONFIGS)}

    assert became == {"config refused", "config read"}


@pytest.mark.lengthy
def test_no_random_problem_is_planned_worse_by_an_exact_planner_than_by_another() -> None:
    problems = Problems(SEED, UNHURRIED_S)

    became = {problems.run(number) for number in range(PROBLEMS)}

    assert {"pooled: planned", "shares: planned", "dart-r: planned", "gpulet: planned"} <= became


def test_no_sequence_of_bytes_does_harm() -> None:
    protocol = Protocol(SEED)

    became = {protocol.run(number) for number in range(INPUTS)}

    assert {"200", "400", "401", "no answer"} <= became


def test_a_case_is_the_same_whenever_it_is_made(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    one, two = (Files(make_corpus(tmp_path / name), SEED) for name in "ab")

    # Plans state how long planning took, so that those files differ from run to run.
    assert [one.content(n)[:2] for n in range(50)] == [two.content(n)[:2] for n in range(50)]
    assert [Protocol(SEED).content(n) for n in range(50)] == [
        Protocol(SEED).content(n) for n in range(50)
    ]


@pytest.mark.parametrize("name", ["single.plan.json", "several.plan.json", "shared.plan.json"])
def test_the_judge_notices_what_a_blind_verifier_would_accept(name: str, tmp_path: Path) -> None:
    make_corpus(tmp_path)
    plan = read_plan(tmp_path / name)
    profiles = plan_profiles(plan, tmp_path / name)
    judge_figures(plan, profiles)

    for wrong in (
        replace(plan, objective=plan.objective * 2),
        replace(plan, slots=plan.slots[1:]),
        replace(plan, deployments=(replace(plan.deployments[0], rate_rps=1e9),)),
        replace(plan, options=replace(plan.options, margin=0.999)),
    ):
        with pytest.raises(Unkept):
            judge_figures(wrong, profiles)
