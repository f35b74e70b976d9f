"""Apps that share devices with models: rates of both are followed, as those of apps are."""

from collections.abc import Mapping
from pathlib import Path

import pytest

from headrace.catalog.documents import read_problem, write_document
from headrace.planning import solve
from headrace.serving.changes.plan_watch import ReplanRule, planned_loads
from helpers.replanned import ReplanningServer, asked
from helpers.together import write_together

AFTER_S = 300.0
HOUR_S = 3_600.0
PLANNED_RPS = {"traffic": 25.0, "rank": 50.0, "large": 20.0}


def served(folder: Path, rates_rps: Mapping[str, float], until_s: float) -> ReplanningServer:
    plan = solve(read_problem(write_together(folder))).plan
    assert plan is not None
    write_document(plan, folder / "plan.json")
    server = ReplanningServer(folder / "plan.json", asked(rates_rps), ReplanRule(after_s=AFTER_S))
    assert server.plan.is_together
    return server.run(until_s)


def test_rates_that_stay_as_planned_change_nothing(tmp_path: Path) -> None:
    assert served(tmp_path, PLANNED_RPS, 24 * HOUR_S).planned_at_s == []


@pytest.mark.parametrize(
    ("more", "waits_s"),
    [({"traffic": 75.0}, AFTER_S), ({"rank": 150.0}, AFTER_S), ({"large": 8.0}, 3 * AFTER_S)],
)
def test_what_has_changed_is_planned_for_once_and_the_rest_keeps_its_rate(
    tmp_path: Path, more: Mapping[str, float], waits_s: float
) -> None:
    now_rps = {**PLANNED_RPS, **more}
    server = served(tmp_path, now_rps, 6 * HOUR_S)
    assert [at_s for at_s, _ in server.plans] == [pytest.approx(waits_s, abs=1.0)]
    assert planned_loads(server.plan) == pytest.approx(now_rps, rel=0.01)
    assert server.plan.is_together
    assert [demand.priority for demand in server.plan.demands] == [1, 0]


def test_a_model_and_an_app_that_nobody_has_asked_for_keep_their_rates(tmp_path: Path) -> None:
    server = served(tmp_path, {"traffic": 0.0, "rank": 150.0, "large": 0.0}, 6 * HOUR_S)
    assert planned_loads(server.plan) == pytest.approx({**PLANNED_RPS, "rank": 150.0}, rel=0.01)
