"""A server whose standard streams are closed, stalled, or left by who reads them."""

import os
import signal
import socket
import subprocess
from contextlib import suppress
from pathlib import Path

import msgspec
import pytest

from helpers.gateway import get, post, receive
from helpers.lengthy import with_lengthy
from helpers.live_server import PATIENCE_S, command, redirected, serving, write_plan
from helpers.served import WIDTH, served_add_one
from helpers.waiting import wait_until

pytestmark = pytest.mark.e2e

BODY = msgspec.json.encode(
    {"inputs": [{"name": "x", "shape": [1, WIDTH], "datatype": "FP32", "data": [0.0] * WIDTH}]}
)
INFER = post("/v2/models/m/infer", BODY)


@pytest.fixture
def plan(tmp_path: Path) -> Path:
    return write_plan(served_add_one(tmp_path, slots=1), tmp_path)


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    return {"XDG_CONFIG_HOME": str(tmp_path)}


def test_a_reader_of_its_log_that_stalls_keeps_nobody_waiting(
    plan: Path, environment: dict[str, str], tmp_path: Path
) -> None:
    os.mkfifo(tmp_path / "log")
    log = os.open(tmp_path / "log", os.O_RDWR | os.O_NONBLOCK)
    with suppress(BlockingIOError):
        while True:
            os.write(log, b".")
    with serving(plan, environment=environment, redirections=f"2> {tmp_path}/log") as server:
        server.signal(signal.SIGHUP)  # which is logged
        for _ in range(3):
            with socket.create_connection(("127.0.0.1", server.port)) as connection:
                connection.sendall(INFER)
                assert receive(connection).status == 200
        server.signal(signal.SIGTERM)
        assert server.wait()[0] == 0
    os.close(log)


@pytest.mark.parametrize("said", with_lengthy(["people", "programs"], lengthy=["programs"]))
def test_a_reader_of_ready_that_leaves_does_not_end_it(
    plan: Path, environment: dict[str, str], said: str
) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    process = subprocess.Popen(
        command(plan, "--port", str(port), *(["--json"] if said == "programs" else [])),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={**os.environ, **environment},
    )
    assert process.stdout is not None
    process.stdout.close()

    def is_ready() -> bool:
        with suppress(OSError), socket.create_connection(("127.0.0.1", port)) as connection:
            connection.sendall(get("/v2/health/ready"))
            return receive(connection).status == 200
        return process.poll() is not None

    wait_until(is_ready, "it is never ready")
    process.send_signal(signal.SIGTERM)
    assert process.stderr is not None
    errors = process.stderr.read().decode()
    assert process.wait(PATIENCE_S) == 0, errors


@pytest.mark.lengthy
def test_without_standard_streams_servers_end_and_loads_are_reported_as_ever(
    plan: Path, environment: dict[str, str]
) -> None:
    program = command(plan)[0]
    with serving(plan, environment=environment, redirections="<&- 2>&-") as server:
        words = [program, "load", server.url, "--model", "m", "--rps", "50", "--duration-s", "0.2"]
        loaded = subprocess.run(
            redirected([*words, "--json"], "<&- 2>&-"),
            stdout=subprocess.PIPE,
            env={**os.environ, **environment},
            timeout=PATIENCE_S,
        )
        server.signal(signal.SIGTERM)
        code, _ = server.wait()

    assert (code, loaded.returncode) == (0, 0)
    assert msgspec.json.decode(loaded.stdout)["models"]
