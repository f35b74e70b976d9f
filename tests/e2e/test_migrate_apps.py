"""`headrace migrate` against a server of an app: its requests go on, whichever plan answers."""

import signal
from pathlib import Path

import pytest

from headrace.catalog.event_log import read_event_log
from headrace.domain.epochs import EpochLog, joined
from headrace.domain.events import Answered, Arrived
from headrace.metrics import outcomes
from helpers.apps import write_app_plan
from helpers.gateway import get
from helpers.live_server import serving, write_plan
from helpers.migrating import ask_once, calling, migrate
from helpers.served import served_chain
from helpers.traffic import FUNCTION, INFER

pytestmark = pytest.mark.e2e


@pytest.mark.lengthy
def test_an_app_changes_its_plan_under_load_and_every_request_is_answered(tmp_path: Path) -> None:
    first = write_app_plan(tmp_path, "first.json", 400.0)
    second = write_app_plan(tmp_path, "second.json", 300.0)
    models = write_plan(served_chain(tmp_path), tmp_path)
    function = tmp_path / "traffic.py"
    function.write_text(FUNCTION)
    log = tmp_path / "run.events"
    environment = {"XDG_CONFIG_HOME": str(tmp_path), "HEADRACE_CACHE": str(tmp_path / "cache")}
    options = ("--app", str(function), "--executor", "emulated", "--processes", "1")
    with serving(
        first, *options, "--policy", "reservation", "--events", str(log), environment=environment
    ) as server:
        with calling(server, INFER) as statuses:
            there = migrate(second, server)
            back = migrate(first, server, "--how", "flush")
            refused = migrate(models, server)
        assert b"headrace_plan_number 3.0" in ask_once(server, get("/metrics")).body
        server.signal(signal.SIGTERM)
        code, errors = server.wait()
    assert code == 0, errors
    assert "Traceback" not in errors
    assert (there.returncode, back.returncode) == (0, 0), there.stderr + back.stderr
    assert "functions for" in refused.stderr
    assert len(statuses) > 10
    assert set(statuses) == {200}
    logs = [
        EpochLog(*read_event_log(tmp_path / name))
        for name in ("run.events", "run.2.events", "run.3.events")
    ]
    for header, events in logs:
        app = header.models.index("traffic")
        assert any(isinstance(event, Arrived) and event.model == app for event in events)
        assert any(isinstance(event, Answered) and event.batch == -1 for event in events)
    found = outcomes(*joined(logs))
    assert len(found["traffic"]) == len(statuses)
    assert all(outcome.ended_at_us is not None for outcome in found["traffic"])
    assert len(found["traffic.vehicle"]) == 2 * len(statuses)
