"""On the published planning problems of PPipe: as good as the published plans, and proven."""

import pytest
from benchmarks.ppipe import planning_rows
from benchmarks.ppipe.planning_rows import published
from benchmarks.ppipe.reference import reference_folder

from helpers.lengthy import with_lengthy
from helpers.problems import HANG_S

FOLDER = reference_folder()

pytestmark = pytest.mark.skipif(
    FOLDER is None, reason="no reference data: set HEADRACE_REFERENCE to the folder with `ppipe`"
)


@pytest.mark.parametrize("rule", with_lengthy(["artifact", "free"], lengthy=["free"]))
@pytest.mark.parametrize("plan_set", ["maf19", "ablation"])
def test_every_published_plan_is_matched_or_beaten_and_the_best_is_proven(
    plan_set: str, rule: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert FOLDER is not None, "skipped otherwise"
    # How soon it is proven is the benchmark's question, and a busy machine's answer is no failure.
    monkeypatch.setattr(planning_rows, "TIME_LIMIT_S", HANG_S)
    for row in published(FOLDER, plan_set, rule):
        assert row.reference is not None
        assert row.ours >= row.reference * (1 - 1e-6), row.name
        assert row.proven, row.name
