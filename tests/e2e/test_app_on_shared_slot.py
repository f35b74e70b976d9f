"""An app whose modules take turns on one slot, live: its function, in rounds, by a plan of whole
devices."""

import signal
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from headrace.catalog.event_log import read_event_log
from headrace.domain.events import Answered, Dispatched, Ran
from headrace.metrics import outcomes
from helpers.apps import write_app_plan
from helpers.live_server import serving
from helpers.migrating import ask_once
from helpers.traffic import FUNCTION, INFER

pytestmark = pytest.mark.e2e

REQUESTS = 20


def test_an_apps_function_is_answered_by_modules_in_turns_on_one_slot(tmp_path: Path) -> None:
    devices = {"T4": 1, "A100": 1}
    plan = write_app_plan(tmp_path, "plan.json", 1000.0, 20.0, devices, bill="devices")
    function, log = tmp_path / "traffic.py", tmp_path / "run.events"
    function.write_text(FUNCTION)
    environment = {"XDG_CONFIG_HOME": str(tmp_path), "HEADRACE_CACHE": str(tmp_path / "cache")}
    options = ("--app", str(function), "--executor", "emulated", "--processes", "1")
    with serving(plan, *options, "--events", str(log), environment=environment) as server:
        with ThreadPoolExecutor(4) as clients:
            asked = [clients.submit(ask_once, server, INFER) for _ in range(REQUESTS)]
            statuses = [each.result().status for each in asked]
        server.signal(signal.SIGTERM)
        code, errors = server.wait()
    assert code == 0, errors
    assert "Traceback" not in errors
    assert statuses == [200] * REQUESTS

    header, events = read_event_log(log)
    assert header.policy == "rounds"
    assert len(header.slots) == 1
    found = outcomes(header, events)
    assert len(found["traffic"]) == REQUESTS
    calls = {"traffic.detect": 1, "traffic.vehicle": 2, "traffic.face": 1}
    for module, per_request in calls.items():
        ends = [outcome.ended_at_us for outcome in found[module]]
        assert len(ends) == per_request * REQUESTS
        assert None not in ends
    ran = [event for event in events if isinstance(event, Ran)]
    models = {event.batch: event.model for event in events if isinstance(event, Dispatched)}
    assert {event.slot for event in ran} == {0}
    assert {header.models[models[event.batch]] for event in ran} == set(calls)
    assert any(isinstance(event, Answered) and event.batch == -1 for event in events)
