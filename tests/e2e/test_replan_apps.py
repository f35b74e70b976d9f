"""`headrace serve --replan`: an app is asked many times as often as its plan was made for."""

from pathlib import Path

import pytest

from headrace.catalog.documents import plan_profiles, read_plan
from headrace.catalog.event_log import read_event_log
from headrace.domain.epochs import EpochLog, joined
from headrace.metrics import outcomes
from headrace.verify import verify
from helpers.apps import write_app_plan
from helpers.gateway import get
from helpers.live_server import serving
from helpers.migrating import ask_once, calling, ended_with_copy
from helpers.traffic import FUNCTION, INFER
from helpers.waiting import wait_until

pytestmark = [pytest.mark.e2e, pytest.mark.lengthy]

PLANNED_RPS = 1.0
"""Two clients ask many times as often, on a slow machine too."""


def test_an_app_that_is_asked_more_often_gets_a_plan_for_that_and_no_request_is_lost(
    tmp_path: Path,
) -> None:
    plan = write_app_plan(tmp_path, "plan.json", 4_000.0, PLANNED_RPS)
    function = tmp_path / "traffic.py"
    function.write_text(FUNCTION)
    log = tmp_path / "run.events"
    environment = {"XDG_CONFIG_HOME": str(tmp_path), "HEADRACE_CACHE": str(tmp_path / "cache")}
    options = ("--app", str(function), "--executor", "emulated", "--processes", "1")
    replan = ("--replan", "--replan-after-s", "6", "--policy", "reservation")
    with serving(plan, *options, *replan, "--events", str(log), environment=environment) as server:

        def another_serves() -> bool:
            metrics = ask_once(server, get("/metrics")).body
            return b"headrace_plan_number 2.0" in metrics and b"headrace_migrating 0.0" in metrics

        with calling(server, INFER) as statuses:
            wait_until(another_serves, "no other plan came into service")
        errors = ended_with_copy(server, tmp_path / "plan.replanned.json")
    assert "planning anew" in errors

    made = read_plan(tmp_path / "plan.replanned.json")
    assert verify(made, plan_profiles(made, tmp_path / "plan.replanned.json")) == []
    assert made.apps[0].app.rate_rps > 2 * PLANNED_RPS

    assert set(statuses) == {200}
    logs = [EpochLog(*read_event_log(tmp_path / name)) for name in ("run.events", "run.2.events")]
    found = outcomes(*joined(logs))["traffic"]
    assert len(found) == len(statuses)
    assert all(outcome.ended_at_us is not None for outcome in found)
