"""A server whose model is asked at other sizes than planned gets a plan for these by itself."""

import json
from functools import partial
from pathlib import Path

import pytest

from headrace.catalog.documents import plan_profiles, read_plan, read_problem, write_document
from headrace.catalog.event_log import read_event_log
from headrace.planning import solve
from headrace.verify import verify
from helpers.gateway import post
from helpers.live_server import serving
from helpers.migrating import another_serves, calling, ended_with_copy
from helpers.problems import make_profile
from helpers.served import UNHURRIED_US
from helpers.sized import sized_profile
from helpers.waiting import wait_until

pytestmark = [pytest.mark.e2e, pytest.mark.lengthy]

PROBLEM = f"""\
schema: headrace.problem/1
cluster:
  devices: {{a: {{}}}}
  nodes: [{{name: local, devices: {{a: 6}}}}]
models:
  - {{profile: text.profile.json, slo_ms: {UNHURRIED_US / 1000}, weight: 4, shapes: {{16: 1}}}}
  - {{profile: other.profile.json, slo_ms: {UNHURRIED_US / 1000}}}
"""
FRACTION = 0.5


def write_sized_plan(folder: Path) -> Path:
    write_document(sized_profile(), folder / "text.profile.json")
    other = make_profile("other", seed=1, devices={"a": 1.0})
    write_document(other, folder / "other.profile.json")
    (folder / "problem.yaml").write_text(PROBLEM)
    plan = solve(read_problem(folder / "problem.yaml")).plan
    assert plan is not None
    write_document(plan, folder / "plan.json")
    return folder / "plan.json"


def text_of(tokens: int) -> bytes:
    ids = {"name": "ids", "shape": [1, tokens], "datatype": "INT64", "data": [1] * tokens}
    return post("/v2/models/text/infer", json.dumps({"inputs": [ids]}).encode())


def test_longer_texts_get_a_plan_for_them_and_no_request_is_lost(tmp_path: Path) -> None:
    path = write_sized_plan(tmp_path)
    environment = {"XDG_CONFIG_HOME": str(tmp_path), "HEADRACE_CACHE": str(tmp_path / "cache")}
    replan = ("--replan", "--replan-after-s", "6", "--replan-fraction", str(FRACTION))
    emulated = ("--executor", "emulated", "--processes", "1", "--pad", "text")
    events = ("--events", str(tmp_path / "run.events"))
    with serving(path, *emulated, *replan, *events, environment=environment) as server:
        with calling(server, text_of(200)) as statuses:
            wait_until(partial(another_serves, server), "no other plan came into service")
        errors = ended_with_copy(server, tmp_path / "plan.replanned.json")
    assert "the load ratio has shifted to" in errors
    assert set(statuses) == {200}

    made = read_plan(tmp_path / "plan.replanned.json")
    assert verify(made, plan_profiles(made, tmp_path / "plan.replanned.json")) == []
    [text] = [demand for demand in made.demands if demand.model == "text"]
    assert text.shapes["256"] == pytest.approx(max(text.shapes.values()))
    assert text.shapes["16"] < text.shapes["256"]
    headers = [read_event_log(log)[0] for log in sorted(tmp_path.glob("run*.events"))]
    assert all("text.256" in header.models for header in headers)
