"""`headrace migrate` and SIGHUP against a real server under load."""

import dataclasses
import hashlib
import json
import os
import signal
import socket
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import msgspec
import pytest

from headrace.catalog.documents import write_document
from headrace.catalog.event_log import read_event_log
from headrace.domain.events import Answered, Arrived
from helpers.gateway import get, post
from helpers.live_server import PATIENCE_S, LiveServer, alive, serving, write_plan
from helpers.migrating import ask, ask_admin, ask_once, calling, migrate
from helpers.served import UNHURRIED_US, WIDTH, plan_by_hand, served_chain
from helpers.waiting import wait_until

pytestmark = pytest.mark.e2e

INPUT = {"name": "x", "shape": [1, WIDTH], "datatype": "FP32", "data": list(range(WIDTH))}
INFER = post("/v2/models/m/infer", json.dumps({"inputs": [INPUT]}).encode())
STAGE_US = 2_000


def plans(tmp_path: Path) -> tuple[Path, Path]:
    """A plan with one slot per stage, and one with two for the first; same profile."""
    served = served_chain(tmp_path, pools=(1, 1), stage_us=STAGE_US, slo_us=UNHURRIED_US)
    first = write_plan(served, tmp_path).rename(tmp_path / "first.json")
    wider = plan_by_hand([2, 1], 4, UNHURRIED_US, STAGE_US, "cpu", 1, None)
    served = type(served)(plan=wider, profiles=served.profiles, folders=served.folders)
    return first, write_plan(served, tmp_path)


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    return {"XDG_CONFIG_HOME": str(tmp_path), "HEADRACE_CACHE": str(tmp_path / "cache")}


@pytest.mark.lengthy
def test_the_plan_changes_twice_under_load_and_every_request_is_answered(
    tmp_path: Path, environment: dict[str, str]
) -> None:
    first, second = plans(tmp_path)
    log = tmp_path / "run.events"
    options = ("--executor", "emulated", "--events", str(log))
    with serving(first, *options, environment=environment) as server:
        with calling(server, INFER) as statuses:
            there = migrate(second, server)
            between = ask_once(server, INFER).status
            back = migrate(first, server, "--how", "flush")
            after = ask_once(server, INFER).status
            metrics = ask_once(server, get("/metrics")).body.decode()
        server.signal(signal.SIGTERM)
        code, errors = server.wait()
    assert code == 0, errors
    assert "Traceback" not in errors
    assert (there.returncode, back.returncode) == (0, 0), there.stderr + back.stderr
    assert json.loads(there.stdout)["how"] == "drain"
    assert "headrace_plan_number 3.0" in metrics
    assert 'headrace_slot_up{slot="slot2"}' not in metrics
    statuses += [between, after]
    assert len(statuses) > 20
    assert set(statuses) == {200}
    logs = [read_event_log(tmp_path / name)[1] for name in names(3)]
    assert all(any(isinstance(event, Answered) for event in events) for events in logs)
    arrived = [e.request for events in logs for e in events if isinstance(e, Arrived)]
    assert len(arrived) == len(set(arrived)) == len(statuses)


def names(count: int) -> list[str]:
    return ["run.events", *(f"run.{number}.events" for number in range(2, count + 1))]


@pytest.mark.lengthy
def test_a_plan_that_claims_too_much_is_refused_and_the_old_one_stays(
    tmp_path: Path, environment: dict[str, str]
) -> None:
    from headrace.catalog.documents import read_plan

    first, second = plans(tmp_path)
    boasting = read_plan(second)
    [deployment] = boasting.deployments
    faster = msgspec.structs.replace(deployment, throughput_rps=deployment.throughput_rps * 2)
    write_document(msgspec.structs.replace(boasting, deployments=(faster,)), second)
    with serving(first, environment=environment) as server:
        refused = migrate(second, server)
        assert refused.returncode == 4
        assert "fails verification" in refused.stderr
        missing = ask_admin(server, post("/admin/migrate", b'{"plan": "/nowhere/plan.json"}'))
        assert missing.status == 409
        assert ask_admin(server, post("/admin/migrate", b'{"plan": "plan.json"}')).status == 400
        assert ask_once(server, INFER).status == 200


@contextmanager
def after_a_failed_exchange(
    tmp_path: Path, environment: dict[str, str]
) -> Iterator[tuple[LiveServer, Callable[[], int], list[str]]]:
    """A server whose only slot has no worker: its device has no memory for two plans, so the old
    worker had to go first, and the new one finds no readable stage. Yields how to mend that, and
    the names of the slots that are out."""
    served = served_chain(tmp_path, pools=(1,), stage_us=STAGE_US, slo_us=UNHURRIED_US)
    # The weights of a block are 1 byte.
    [kind] = served.plan.cluster.device_types
    kinds = (msgspec.structs.replace(kind, memory_bytes=1),)
    cluster = msgspec.structs.replace(served.plan.cluster, device_types=kinds)
    served = dataclasses.replace(served, plan=msgspec.structs.replace(served.plan, cluster=cluster))
    plan = write_plan(served, tmp_path)
    with serving(plan, environment=environment) as server:
        assert ask_once(server, INFER).status == 200
        [stage] = (tmp_path / "cache").rglob("*.onnx")
        sound = stage.read_bytes()
        wrong = b"not a model"
        stage.write_bytes(wrong)
        # As if it had been extracted so: what is damaged would be extracted again.
        stage.with_suffix(".sha256").write_text(hashlib.sha256(wrong).hexdigest())
        done = migrate(plan, server)
        assert done.returncode == 0, done.stderr
        yield server, partial(stage.write_bytes, sound), json.loads(done.stdout)["slots_out"]


def test_a_slot_whose_new_worker_cannot_load_comes_into_service_when_it_can(
    tmp_path: Path, environment: dict[str, str]
) -> None:
    with after_a_failed_exchange(tmp_path, environment) as (server, mend, out):
        assert out == ["slot0"]
        metrics = ask_once(server, get("/metrics")).body.decode()
        assert 'headrace_slots_out{why="load-failed"} 1.0' in metrics
        ready = ask_once(server, get("/v2/health/ready"))
        assert (ready.status, ready.json["slots_out"]) == (503, 1)
        refused = ask_once(server, INFER)
        assert (refused.status, refused.json["reason"]) == (503, "no-slot")
        assert int(refused.headers["retry-after"]) >= 1
        mend()
        with socket.create_connection(("127.0.0.1", server.port), PATIENCE_S) as probe:
            wait_until(lambda: ask(probe, get("/v2/health/ready")).status == 200, "out for good")
            assert ask(probe, INFER).status == 200
            metrics = ask(probe, get("/metrics")).body.decode()
        assert 'headrace_slots_out{why="load-failed"} 0.0' in metrics
        server.signal(signal.SIGTERM)
        code, errors = server.wait()
    assert code == 0, errors
    assert "Traceback" not in errors
    assert errors.count("out of service") == 1, errors


@pytest.mark.lengthy
def test_a_server_that_retries_a_worker_ends_on_sigterm_and_leaves_nothing(
    tmp_path: Path, environment: dict[str, str]
) -> None:
    with after_a_failed_exchange(tmp_path, environment) as (server, _, _):
        processes = server.processes()
        server.signal(signal.SIGTERM)
        code, errors = server.wait()
        assert code == 0, errors
        assert "Traceback" not in errors
        assert alive(processes) == set()


def test_sighup_reads_the_plan_file_again(tmp_path: Path, environment: dict[str, str]) -> None:
    first, second = plans(tmp_path)
    with serving(first, "--executor", "emulated", environment=environment) as server:
        second.replace(first)
        server.signal(signal.SIGHUP)
        with socket.create_connection(("127.0.0.1", server.port), PATIENCE_S) as probe:

            def is_served() -> bool:
                assert ask(probe, INFER).status == 200
                return b"headrace_plan_number 2.0" in ask(probe, get("/metrics")).body

            wait_until(is_served, "the plan file was not read again")
            assert ask(probe, INFER).json["outputs"][0]["shape"] == [1, WIDTH]


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can act as another user")
def test_without_a_token_other_users_may_infer_but_not_change_the_plan(
    tmp_path: Path, environment: dict[str, str]
) -> None:
    first, second = plans(tmp_path)
    program = (
        "import socket, sys\n"
        "where = sys.argv[1]\n"
        "if where.isdigit():\n"
        "    connection = socket.create_connection(('127.0.0.1', int(where)))\n"
        "else:\n"
        "    connection = socket.socket(socket.AF_UNIX)\n"
        "    try:\n"
        "        connection.connect(where)\n"
        "    except PermissionError:\n"
        "        sys.exit(print('may not enter'))\n"
        "connection.sendall(sys.stdin.buffer.read())\n"
        "print(connection.recv(65536).decode('latin-1').split(' ')[1])\n"
    )
    body = json.dumps({"plan": str(second)}).encode()
    with serving(first, "--no-auth", "--executor", "emulated", environment=environment) as server:
        statuses = [
            subprocess.run(
                ["/usr/bin/env", "python3", "-I", "-c", program, where],
                input=request,
                stdout=subprocess.PIPE,
                check=True,
                cwd="/",
                timeout=PATIENCE_S,
                user=65534,
            ).stdout.decode()
            for where, request in (
                (str(server.port), INFER),
                (str(server.port), post("/admin/migrate", body)),
                (server.admin_socket, post("/admin/migrate", body)),
            )
        ]
    assert [status.strip() for status in statuses] == ["200", "404", "may not enter"]
