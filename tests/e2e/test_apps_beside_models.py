"""A server of an app, a model and a model in stages that share emulated devices."""

import json
import signal
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from headrace.catalog.documents import read_problem, write_document
from headrace.catalog.event_log import read_event_log
from headrace.domain.events import Arrived
from headrace.planning import solve
from helpers.gateway import Reply, post
from helpers.live_server import LiveServer, serving
from helpers.migrating import ask_once
from helpers.together import FUNCTION, write_together

pytestmark = [pytest.mark.e2e, pytest.mark.xdist_group("apps-beside-models")]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("together")
    problem = read_problem(write_together(folder))
    plan = solve(problem).plan
    assert plan is not None
    write_document(
        msgspec.structs.replace(plan, profiles=problem.profile_refs), folder / "plan.json"
    )
    (folder / "traffic.py").write_text(FUNCTION)
    return folder


@pytest.fixture(scope="module")
def server(folder: Path) -> Iterator[LiveServer]:
    environment = {"XDG_CONFIG_HOME": str(folder), "HEADRACE_CACHE": str(folder / "cache")}
    options = ("--app", str(folder / "traffic.py"), "--events", str(folder / "run.events"))
    emulated = ("--executor", "emulated", "--processes", "1")
    with serving(folder / "plan.json", *options, *emulated, environment=environment) as running:
        yield running
        running.signal(signal.SIGTERM)
        code, errors = running.wait()
    assert code == 0, errors
    # Calls, requests of models and requests of the app are in one log.
    header, events = read_event_log(folder / "run.events", allow_cut_short=False)
    assert header.models == ("rank", "large", "traffic.detect", "traffic.read", "traffic")
    arrived = {event.model for event in events if isinstance(event, Arrived)}
    assert arrived == set(range(5))


def asked(server: LiveServer, name: str, batched: bool) -> Reply:
    """One request, which may take as long as the machine is busy."""
    shape = [1, 4] if batched else [4]
    body = {
        "inputs": [{"name": "x", "shape": shape, "datatype": "FP32", "data": [1, 2, 3, 4]}],
        "parameters": {"timeout": 600_000_000},
    }
    return ask_once(server, post(f"/v2/models/{name}/infer", json.dumps(body).encode()))


def test_models_and_apps_are_asked_under_their_names_and_modules_are_not(
    server: LiveServer, folder: Path
) -> None:
    index = ask_once(server, post("/v2/repository/index", b"{}"))
    assert [each["name"] for each in json.loads(index.body)] == ["rank", "large", "traffic"]
    assert ask_once(server, post("/v2/models/traffic.read/infer", b"{}")).status == 404

    for name, batched in (("rank", True), ("large", True), ("traffic", False)):
        answer = asked(server, name, batched)
        assert answer.status == 200, answer.body
    [output] = json.loads(answer.body)["outputs"]
    assert output["shape"] == [2, 4]


def test_what_is_no_request_of_a_model_is_refused_beside_apps_too(server: LiveServer) -> None:
    assert ask_once(server, post("/v2/models/rank/infer", b"{}")).status == 400
    assert asked(server, "rank", False).status == 400
