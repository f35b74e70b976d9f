"""The reference data on PPipe's artifact: its plans recomputed, its sessions repeated."""

from pathlib import Path

import numpy as np
import pytest
from benchmarks.ppipe.artifact import run_session
from benchmarks.ppipe.reference import (
    golden_names,
    golden_session,
    plan_files,
    profile_of,
    reference_folder,
)

from headrace.catalog.documents import read_problem, write_document
from headrace.catalog.ppipe.artifact import read_reference_plan
from headrace.catalog.ppipe.problem import write_problem
from headrace.catalog.ppipe.rule import evaluate
from headrace.planning.common.imported import place_reference
from headrace.verify import verify

FOLDER = reference_folder()
ALGORITHMS = ("v4", "bl", "dart-r")

pytestmark = [
    pytest.mark.skipif(
        FOLDER is None,
        reason="no reference data: set HEADRACE_REFERENCE to the folder with `ppipe`",
    ),
    # One worker compiles the artifact's rules.
    pytest.mark.xdist_group("artifact"),
]


def folder() -> Path:
    assert FOLDER is not None, "skipped otherwise"
    return FOLDER


def plans() -> list[Path]:
    if FOLDER is None:
        return []
    sets = sorted(path.name for path in (FOLDER / "artifact" / "data" / "plans").iterdir())
    return [path for name in sets for path in plan_files(FOLDER / "artifact", name, ALGORITHMS)]


@pytest.mark.parametrize("name", golden_names(FOLDER) if FOLDER else [])
def test_a_golden_session_is_repeated_request_for_request(name: str) -> None:
    golden = golden_session(folder(), name)

    outcome = run_session(golden.hardware, golden.arrivals_us, golden.mode)

    np.testing.assert_array_equal(outcome.started_us, golden.started_us)
    np.testing.assert_array_equal(outcome.done_us, golden.done_us)


def test_every_reference_plan_recomputes_to_what_it_states() -> None:
    for path in plans():
        plan = read_reference_plan(path)
        profiles = {d.model: profile_of(folder(), d.model) for d in plan.deployments}

        figures = evaluate(plan, profiles)

        assert figures.objective == pytest.approx(plan.stated_objective, rel=1e-6), path.name
        assert figures.faults == (), path.name


def test_every_reference_plan_places_and_verifies_as_ours(tmp_path: Path) -> None:
    written: set[str] = set()
    for path in plans():
        reference = read_reference_plan(path)
        for model in {d.model for d in reference.deployments} - written:
            write_document(profile_of(folder(), model), tmp_path / "profiles" / f"{model}.json")
            written.add(model)
        write_problem(reference, tmp_path / "problem.yaml")
        problem = read_problem(tmp_path / "problem.yaml")

        plan = place_reference(reference, problem)

        assert verify(plan, problem.profiles) == [], path.name
        assert plan.objective == pytest.approx(reference.stated_objective, rel=1e-6), path.name
