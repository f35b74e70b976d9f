"""A server of models that come and go, asked far less than planned, moves to fewer devices."""

import json
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from headrace.catalog.documents import plan_profiles, read_plan, read_problem, write_document
from headrace.catalog.event_log import read_event_log
from headrace.domain.epochs import EpochLog, joined
from headrace.metrics import outcomes
from headrace.planning import solve
from headrace.verify import verify
from helpers.gateway import post
from helpers.live_server import serving
from helpers.migrating import another_serves, ask_once, calling, ended_with_copy
from helpers.served import UNHURRIED_US, WIDTH
from helpers.served_provisioned import WEIGHTS_BYTES, expected, provisioned
from helpers.waiting import wait_until

pytestmark = [pytest.mark.e2e, pytest.mark.lengthy]

PLANNED_RPS = 1_500.0
"""More than a device runs in the profile's millisecond each; clients ask far less, however idle
the machine is."""
PROBLEM = f"""\
schema: headrace.problem/1
cluster:
  devices: {{cpu: {{memory_bytes: {2 * WEIGHTS_BYTES}}}}}
  nodes: [{{name: local, devices: {{cpu: 2}}}}]
models:
  - {{profile: m0.profile.json, slo_ms: {UNHURRIED_US / 1000}, rate_rps: {PLANNED_RPS}}}
  - {{profile: m1.profile.json, slo_ms: {UNHURRIED_US / 1000}, rate_rps: 50}}
options: {{planner: provisioned, provision: exact, objective: least-devices}}
"""


def write_provisioned_plan(folder: Path) -> Path:
    for name, profile in provisioned(folder, models=2, room=2, slots=2).profiles.items():
        write_document(profile, folder / f"{name}.profile.json")
    (folder / "problem.yaml").write_text(PROBLEM)
    found = solve(read_problem(folder / "problem.yaml"))
    assert found.plan is not None, found.refusal
    write_document(found.plan, folder / "plan.json")
    return folder / "plan.json"


def test_fewer_devices_serve_what_is_asked_and_no_request_is_lost(tmp_path: Path) -> None:
    path = write_provisioned_plan(tmp_path)
    assert len(read_plan(path).slots) == 2
    environment = {"XDG_CONFIG_HOME": str(tmp_path), "HEADRACE_CACHE": str(tmp_path / "cache")}
    replan = ("--replan", "--replan-after-s", "6", "--no-rehearsal")
    events = ("--events", str(tmp_path / "run.events"))
    row = np.random.default_rng(0).standard_normal((1, WIDTH)).astype(np.float32)
    inputs = {"name": "x", "shape": [1, WIDTH], "datatype": "FP32", "data": row[0].tolist()}
    request = post("/v2/models/m0/infer", json.dumps({"inputs": [inputs]}).encode())
    with serving(path, *replan, *events, environment=environment) as server:
        with calling(server, request) as statuses:
            wait_until(partial(another_serves, server), "no other plan came into service")
            last = json.loads(ask_once(server, request).body)
        errors = ended_with_copy(server, tmp_path / "plan.replanned.json")
    assert "the request rate has changed (m0 is asked" in errors
    assert "migrated by flush" in errors
    assert set(statuses) == {200}
    answer = np.array(last["outputs"][0]["data"], np.float32).reshape(1, -1)
    np.testing.assert_allclose(answer, expected(tmp_path, "m0", row), 1e-4, 1e-5)

    made = read_plan(tmp_path / "plan.replanned.json")
    assert verify(made, plan_profiles(made, tmp_path / "plan.replanned.json")) == []
    assert (made.is_provisioned, len(made.slots)) == (True, 1)
    rates = {demand.model: demand.rate_rps for demand in made.demands}
    assert rates == {"m0": pytest.approx(PLANNED_RPS / 10), "m1": 50.0}  # nobody asked for m1
    logs = [tmp_path / "run.events", tmp_path / "run.2.events"]
    found = outcomes(*joined([EpochLog(*read_event_log(log)) for log in logs]))
    assert len(found["m0"]) == len(statuses) + 1
    assert all(each.ended_at_us is not None for each in found["m0"])
