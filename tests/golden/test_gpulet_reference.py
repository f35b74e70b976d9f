"""gpu-lets' scenarios on the reference data: whatever is planned holds, and enough is planned."""

import pytest
from benchmarks.gpulets.scenarios import PLANNERS, run, solved
from benchmarks.gpulets.setting import MIXES, reference, verdicts

ROOT = reference()

pytestmark = pytest.mark.skipif(ROOT is None, reason="no reference data (HEADRACE_REFERENCE)")

EVERY = 40
LEAST = {"gpulet": 25, "gpulet+int": 24, "sbp": 20, "self-tuning": 24, "ideal": 26}
"""Scenarios of the 26 that each plans at least."""
CARRIED = {"gpulet": (11, 7, 8), "sbp": (7, 6, 4), "ideal": (12, 7, 9)}
"""Whole multiples of Table 5's mixes; time sharing alone can reach 8.45 of the first."""


@pytest.mark.parametrize("planner", PLANNERS)
def test_every_plan_of_the_scenarios_holds(planner: str) -> None:
    assert ROOT is not None
    known = dict(list(verdicts(ROOT).items())[::EVERY])

    tally = run(ROOT, planner, known)

    assert tally.broken == []
    assert len(tally.feasible) >= LEAST[planner]


@pytest.mark.parametrize("planner", CARRIED)
@pytest.mark.parametrize("mix", MIXES)
def test_multiples_of_table_5_are_carried(planner: str, mix: str) -> None:
    assert ROOT is not None
    multiple = CARRIED[planner][list(MIXES).index(mix)]

    result, wrong, _ = solved(ROOT, planner, [rate * multiple for rate in MIXES[mix]])

    assert result.plan is not None
    assert wrong == []
