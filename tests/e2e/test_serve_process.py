"""`headrace serve` as a process: it starts or says why not, and leaves nothing behind."""

import os
import resource
import signal
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from headrace.catalog.event_log import read_event_log
from headrace.domain.events import Answered, Arrived, Ran
from helpers.gateway import get, post, receive
from helpers.lengthy import with_lengthy
from helpers.live_server import (
    PATIENCE_S,
    LiveServer,
    alive,
    command,
    serving,
    write_plan,
)
from helpers.served import WIDTH, served_add_one, served_chain
from helpers.waiting import wait_until

pytestmark = pytest.mark.e2e
shared = pytest.mark.xdist_group("serve-process")
"""Of the tests of one server: one worker starts it."""

BODY = msgspec.json.encode(
    {"inputs": [{"name": "x", "shape": [1, WIDTH], "datatype": "FP32", "data": list(range(WIDTH))}]}
)
NOBODY = 65534
INFER = post("/v2/models/m/infer", BODY)


@pytest.fixture
def plan(tmp_path: Path) -> Path:
    return write_plan(served_add_one(tmp_path, slots=2), tmp_path)


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    return {"XDG_CONFIG_HOME": str(tmp_path)}


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveServer]:
    """One for the tests that leave it as it was."""
    folder = tmp_path_factory.mktemp("running")
    plan = write_plan(served_add_one(folder, slots=2), folder)
    with serving(plan, environment={"XDG_CONFIG_HOME": str(folder)}) as server:
        yield server


def connect(server: LiveServer) -> socket.socket:
    return socket.create_connection(("127.0.0.1", server.port), PATIENCE_S)


def run_failing(plan: Path, *arguments: str, environment: dict[str, str]) -> tuple[int, str]:
    done = subprocess.run(
        command(plan, *arguments),
        capture_output=True,
        text=True,
        check=False,
        timeout=PATIENCE_S,
        env={**os.environ, **environment},
    )
    return done.returncode, done.stderr


def shared_memory(processes: set[int]) -> set[str]:
    """Files of shared memory that these have mapped; other programs have theirs."""
    maps = (Path(f"/proc/{process}/maps").read_text() for process in processes)
    paths = (line.split(maxsplit=5)[-1] for mapped in maps for line in mapped.splitlines())
    return {path for path in paths if path.startswith("/dev/shm/")}


@pytest.mark.parametrize(
    "number", with_lengthy([signal.SIGTERM, signal.SIGINT], lengthy=[signal.SIGINT])
)
def test_a_signal_ends_it_cleanly_and_nothing_is_left(
    plan: Path, environment: dict[str, str], number: signal.Signals
) -> None:
    # After SIGTERM clients have a moment to go elsewhere; after SIGINT they have none.
    with serving(plan, "--lame-duck-s", "0.1", environment=environment) as server:
        with connect(server) as connection:
            connection.sendall(INFER)
            assert receive(connection).status == 200
            family = server.processes()
            assert len(family) == 3
            mapped = shared_memory(family)
            server.signal(number)
            code, errors = server.wait()
            assert connection.recv(1) == b"", "an idle connection was left open"
        assert code == 0, errors
        assert "Traceback" not in errors
        assert alive(family) == set()
        assert [path for path in mapped if os.path.exists(path)] == []


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="needs two cores")
def test_the_core_of_the_server_is_not_its_workers(
    tmp_path: Path, environment: dict[str, str]
) -> None:
    first, *others = sorted(os.sched_getaffinity(0))
    for executor, expected in (("onnx", {others[0]}), ("emulated", {first, *others})):
        folder = tmp_path / executor
        folder.mkdir()
        plan = write_plan(served_add_one(folder, slots=1), folder)
        options = ("--core", str(first), "--executor", executor)
        with serving(plan, *options, environment=environment) as server:
            gateway = server.process.pid
            [worker] = server.processes() - {gateway}
            assert os.sched_getaffinity(gateway) == {first}
            assert os.sched_getaffinity(worker) == expected
            server.signal(signal.SIGTERM)
            server.wait()


@shared
def test_the_soft_limit_of_descriptors_is_raised(running: LiveServer) -> None:
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    for process in running.processes():
        assert resource.prlimit(process, resource.RLIMIT_NOFILE) == (hard, hard)


STRANGER = """
import socket, sys
held = [socket.create_connection(("127.0.0.1", int(sys.argv[1]))) for _ in range(int(sys.argv[2]))]
print(len(held), flush=True)
sys.stdin.read()
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can act as another user")
def test_where_descriptors_are_few_a_strangers_connections_shut_nobody_out(
    plan: Path, environment: dict[str, str]
) -> None:
    with serving(plan, environment=environment, before="ulimit -n 256") as server:
        stranger = subprocess.Popen(
            ["/usr/bin/env", "python3", "-I", "-c", STRANGER, str(server.port), "300"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            cwd="/",
            user=NOBODY,
        )
        with stranger:
            assert stranger.stdout is not None
            assert stranger.stdout.readline() == b"300\n"
            with connect(server) as connection:
                connection.sendall(INFER)
                assert receive(connection).status == 200
            assert stranger.stdin is not None
            stranger.stdin.close()
        server.signal(signal.SIGTERM)
        code, errors = server.wait()
    assert code == 0, errors
    assert errors.count("the server may have no more than 256 files open") == 1, errors


@pytest.mark.lengthy
def test_ctrl_c_at_the_terminal_reaches_the_workers_too_and_still_answers(
    plan: Path, environment: dict[str, str]
) -> None:
    with serving(plan, environment=environment) as server:
        family = server.processes()
        os.killpg(server.process.pid, signal.SIGINT)
        code, errors = server.wait()
        assert code == 0, errors
        assert "Traceback" not in errors
        assert alive(family) == set()


@shared
def test_workers_are_in_the_servers_session_where_niceness_holds_and_in_groups_of_their_own(
    running: LiveServer,
) -> None:
    workers = running.processes() - {running.process.pid}
    assert workers
    assert {os.getsid(worker) for worker in workers} == {os.getsid(running.process.pid)}
    assert all(os.getpgid(worker) == worker for worker in workers)


def test_what_was_accepted_is_answered_before_it_ends(
    tmp_path: Path, environment: dict[str, str]
) -> None:
    # An emulated slot holds each batch so long that all are open when the signal is heard.
    slow = served_chain(tmp_path, pools=(1,), batch_size=4, stage_us=3_000_000)
    plan = write_plan(slow, tmp_path)
    with serving(plan, "--executor", "emulated", environment=environment) as server:
        with connect(server) as probe:
            connections = [connect(server) for _ in range(8)]
            for connection in connections:
                connection.sendall(INFER)
            wait_until_open(probe, 8)
        server.signal(signal.SIGTERM)
        replies = [receive(connection) for connection in connections]
        assert [reply.status for reply in replies] == [200] * 8
        assert all(reply.headers["connection"] == "close" for reply in replies)
        with pytest.raises(ConnectionRefusedError):
            connect(server)
        code, errors = server.wait()
        assert code == 0, errors
        for connection in connections:
            connection.close()


def wait_until_open(probe: socket.socket, count: int) -> None:
    """Ask the metrics until that many inferences are open."""

    def are_open() -> bool:
        probe.sendall(get("/metrics"))
        return f"headrace_open_inferences {float(count)}" in receive(probe).body.decode()

    wait_until(are_open, "not as many are ever open")


def test_every_request_is_answered_when_a_worker_is_killed(
    tmp_path: Path, environment: dict[str, str]
) -> None:
    served = served_chain(tmp_path, pools=(2,), batch_size=2, stage_us=20_000)
    plan = write_plan(served, tmp_path)
    with serving(plan, "--executor", "emulated", environment=environment) as server:
        connections = [connect(server) for _ in range(8)]
        statuses = []
        for round_number in range(12):
            for connection in connections:
                connection.sendall(INFER)
            if round_number == 4:
                os.kill(min(server.processes() - {server.process.pid}), signal.SIGKILL)
            statuses += [receive(connection).status for connection in connections]
        assert len(statuses) == 12 * 8
        assert set(statuses) <= {200, 429, 503, 504}
        assert statuses.count(200) >= 90
        for connection in connections:
            connection.close()


@pytest.mark.lengthy
def test_a_second_signal_does_not_wait(tmp_path: Path, environment: dict[str, str]) -> None:
    slow = served_chain(tmp_path, pools=(1,), stage_us=200_000_000, slo_us=900_000_000)
    plan = write_plan(slow, tmp_path)
    with serving(plan, "--executor", "emulated", environment=environment) as server:
        with connect(server) as connection, connect(server) as probe:
            connection.sendall(INFER)
            wait_until_open(probe, 1)
            server.signal(signal.SIGTERM)
            # The idle connection is closed by the first signal: it has been noticed.
            assert probe.recv(1) == b""
            family = server.processes()
            server.signal(signal.SIGTERM)
            code, errors = server.wait()
        assert code == 0, errors
        assert alive(family) == set()


@pytest.mark.lengthy
def test_the_event_log_is_whole_after_a_clean_end(
    plan: Path, environment: dict[str, str], tmp_path: Path
) -> None:
    log = tmp_path / "run.events"
    with serving(plan, "--events", str(log), environment=environment) as server:
        with connect(server) as connection:
            for _ in range(3):
                connection.sendall(INFER)
                assert receive(connection).status == 200
        server.signal(signal.SIGTERM)
        assert server.wait()[0] == 0
    header, events = read_event_log(log)
    assert header.models == ("m",)
    assert sum(isinstance(event, Arrived) for event in events) == 3
    ran_at_us = {event.batch: event.at_us for event in events if isinstance(event, Ran)}
    answered = [event for event in events if isinstance(event, Answered)]
    assert len(answered) == 3
    assert all(event.at_us >= ran_at_us[event.batch] for event in answered), "on one clock"


@shared
def test_the_server_outlives_bad_clients(running: LiveServer) -> None:
    for rubbish in (b"\x00" * 1000, INFER[:-5], b"GET / HTTP/1.1\r\n\r\n", b""):
        with connect(running) as connection:
            connection.sendall(rubbish)
    with connect(running) as huge:
        huge.sendall(b"POST /v2/models/m/infer HTTP/1.1\r\nHost: localhost\r\n")
        huge.sendall(b"Content-Length: 2147483648\r\n\r\n" + b"x" * 100_000)
        assert receive(huge).status == 413
    with connect(running) as good:
        good.sendall(INFER)
        assert receive(good).json["outputs"][0]["data"] == list(range(1, WIDTH + 1))


@shared
@pytest.mark.skipif(os.geteuid() != 0, reason="only root can act as another user")
def test_another_user_of_this_machine_needs_the_token(running: LiveServer) -> None:
    program = (
        "import socket, sys\n"
        "connection = socket.create_connection(('127.0.0.1', int(sys.argv[1])))\n"
        "connection.sendall(sys.stdin.buffer.read())\n"
        "print(connection.recv(65536).decode('latin-1').split(' ')[1])\n"
    )

    def status(request: bytes, user: int | None = None) -> str:
        done = subprocess.run(
            ["/usr/bin/env", "python3", "-I", "-c", program, str(running.port)],
            input=request,
            stdout=subprocess.PIPE,
            check=True,
            cwd="/",
            timeout=PATIENCE_S,
            user=user,
        )
        return done.stdout.decode().strip()

    token = Path(str(running.token_file)).read_text().strip()
    assert status(get("/v2")) == "200"
    assert status(get("/v2"), NOBODY) == "401"
    assert status(INFER, NOBODY) == "401"
    assert status(get("/v2/health/live"), NOBODY) == "200"
    request = get("/v2", f"Authorization: Bearer {token}")
    assert status(request, NOBODY) == "200"


def test_a_port_in_use_is_a_clear_error(plan: Path, environment: dict[str, str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        code, errors = run_failing(plan, "--port", str(port), environment=environment)
    assert code == 2
    assert f"127.0.0.1:{port} is in use" in errors
    assert "Traceback" not in errors


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("--host", "0.0.0.0", "--no-auth"), "--no-auth on 0.0.0.0"),
        (("--host", "no-such-host.invalid"), "cannot listen on no-such-host.invalid"),
        (("--policy", "magic"), "--policy 'magic' is unknown"),
        (("--executor", "magic"), "--executor 'magic' is unknown"),
        (("--core", "9999"), "this process may use cores"),
        (("--events", "/nonexistent/folder/log"), "cannot write an event log"),
    ],
)
def test_what_cannot_be_served_says_why(
    plan: Path, environment: dict[str, str], arguments: tuple[str, ...], sentence: str
) -> None:
    code, errors = run_failing(plan, "--port", "0", *arguments, environment=environment)
    assert code == 2, errors
    assert sentence in errors
    assert "Traceback" not in errors


def test_a_token_file_that_others_can_read_stops_the_start(
    plan: Path, environment: dict[str, str], tmp_path: Path
) -> None:
    token = tmp_path / "shared-token"
    token.write_text("a-token-of-some-length\n")
    token.chmod(0o644)
    code, errors = run_failing(plan, "--token-file", str(token), environment=environment)
    assert code == 2
    assert "chmod 600" in errors


def test_a_plan_that_claims_too_much_is_not_served(plan: Path, environment: dict[str, str]) -> None:
    from headrace.catalog.documents import read_plan, write_document

    boasting = read_plan(plan)
    [deployment] = boasting.deployments
    faster = msgspec.structs.replace(deployment, throughput_rps=deployment.throughput_rps * 2)
    write_document(msgspec.structs.replace(boasting, deployments=(faster,)), plan)
    code, errors = run_failing(plan, "--port", "0", environment=environment)
    assert code == 4
    assert "the plan fails verification" in errors


def test_ready_is_said_to_the_service_manager_and_for_people_with_the_next_step(
    plan: Path, environment: dict[str, str], tmp_path: Path
) -> None:
    manager = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    manager.bind(str(tmp_path / "notify"))
    environment |= {"NOTIFY_SOCKET": str(tmp_path / "notify")}
    process = subprocess.Popen(
        command(plan, "--port", "0"),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, **environment, "COLUMNS": "120"},
    )
    assert process.stdout is not None
    said = ""
    while "listening on" not in said:
        line = process.stdout.readline()
        assert line, process.communicate()[1]
        said += line
    with manager:
        assert manager.recv(100, socket.MSG_DONTWAIT) == b"READY=1"
    process.send_signal(signal.SIGTERM)
    rest, errors = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 0, errors
    for word in ("READY", "pipeline", "stages (blocks)", "predicted p99 ms", "throughput /s"):
        assert word in said + rest
    assert "headrace load http://127.0.0.1:" in errors


@shared
def test_a_requests_clock_starts_when_it_reached_the_machine(running: LiveServer) -> None:
    hurried = msgspec.json.encode(msgspec.json.decode(BODY) | {"parameters": {"timeout": 500_000}})
    with connect(running) as patient, connect(running) as waiting:
        for connection in (patient, waiting):
            connection.sendall(INFER)
            assert receive(connection).status == 200
        running.signal(signal.SIGSTOP)
        waiting.sendall(post("/v2/models/m/infer", hurried))
        patient.sendall(INFER)
        waiting.settimeout(1.0)
        with pytest.raises(TimeoutError):
            waiting.recv(1)
        running.signal(signal.SIGCONT)
        waiting.settimeout(PATIENCE_S)
        refused = receive(waiting)
        assert (refused.status, refused.json["reason"]) == (429, "deadline")
        assert receive(patient).status == 200


@shared
def test_behind_a_proxy_of_the_same_user_nobody_is_let_in_without_the_token(
    running: LiveServer, plan: Path, environment: dict[str, str]
) -> None:
    # What docs/how-to/secure-a-server.md says: first a proxy that says so, then one that does not.
    forwarded = get("/v2", "X-Forwarded-For: 192.0.2.1")
    for request, status in ((get("/v2"), 200), (forwarded, 401)):
        with connect(running) as connection:
            connection.sendall(request)
            assert receive(connection).status == status
    with serving(plan, "--require-token", environment=environment) as server:
        token = Path(str(server.token_file)).read_text().strip()
        bearer = f"Authorization: Bearer {token}"
        for request, status in ((get("/v2"), 401), (get("/v2", bearer), 200)):
            with connect(server) as connection:
                connection.sendall(request)
                assert receive(connection).status == status
