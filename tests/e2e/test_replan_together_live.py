"""`headrace serve --replan` of apps and models that share devices: a model is asked more often."""

import json
from functools import partial
from pathlib import Path

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
from helpers.together import FUNCTION, write_together
from helpers.waiting import wait_until

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.lengthy,
    pytest.mark.xdist_group("apps-beside-models"),
]

PLANNED_RPS = 1.0
"""Two clients ask many times as often, on a slow machine too."""


def request_for(name: str, shape: list[int]) -> bytes:
    """One that may take as long as the machine is busy."""
    row = {"name": "x", "shape": shape, "datatype": "FP32", "data": [1, 2, 3, 4]}
    body = {"inputs": [row], "parameters": {"timeout": 600_000_000}}
    return post(f"/v2/models/{name}/infer", json.dumps(body).encode())


def test_a_model_beside_an_app_gets_a_plan_for_its_rate_and_no_request_of_either_is_lost(
    tmp_path: Path,
) -> None:
    problem = write_together(tmp_path)
    problem.write_text(problem.read_text().replace("rate_rps: 50", f"rate_rps: {PLANNED_RPS}"))
    began = solve(read_problem(problem)).plan
    assert began is not None
    write_document(began, tmp_path / "plan.json")
    (tmp_path / "traffic.py").write_text(FUNCTION)
    environment = {"XDG_CONFIG_HOME": str(tmp_path), "HEADRACE_CACHE": str(tmp_path / "cache")}
    options = ("--app", str(tmp_path / "traffic.py"), "--executor", "emulated", "--processes", "1")
    replan = ("--replan", "--replan-after-s", "6", "--events", str(tmp_path / "run.events"))
    with serving(tmp_path / "plan.json", *options, *replan, environment=environment) as server:
        app = request_for("traffic", [4])
        with calling(server, request_for("rank", [1, 4])) as of_model:
            with calling(server, app, clients=1) as of_app:
                wait_until(partial(another_serves, server), "no other plan came into service")
            after = ask_once(server, app).status
        errors = ended_with_copy(server, tmp_path / "plan.replanned.json")
    assert "the request rate has changed" in errors
    assert {*of_model, *of_app, after} == {200}

    made = read_plan(tmp_path / "plan.replanned.json")
    assert verify(made, plan_profiles(made, tmp_path / "plan.replanned.json")) == []
    assert made.is_together
    [rank, large] = made.demands
    assert rank.rate_rps is not None
    assert rank.rate_rps > 2 * PLANNED_RPS
    assert large.rate_rps == 20.0  # nobody asked for it
    plans = 1 + len(list(tmp_path.glob("run.*.events")))
    names = ["run.events", *(f"run.{number}.events" for number in range(2, plans + 1))]
    found = outcomes(*joined([EpochLog(*read_event_log(tmp_path / name)) for name in names]))
    assert len(found["rank"]) == len(of_model)
    assert len(found["traffic"]) == len(of_app) + 1
