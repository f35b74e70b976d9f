"""The apps' process and a whole server: what app code does to itself, it does to nobody else."""

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from headrace.domain.errors import DocumentError
from headrace.serving.apps.host import AppHost
from helpers.apps import write_app_plan
from helpers.gateway import get
from helpers.live_server import LiveServer, serving
from helpers.migrating import ask_once
from helpers.traffic import infer_of
from helpers.waiting import wait_until

# One server for all, whose log is read in the end.
pytestmark = [pytest.mark.e2e, pytest.mark.xdist_group("app-process")]

FUNCTION = """
import asyncio, os, sys, time
from headrace.apps import InvalidInput, app, aside, gather, module, tensor

detect, vehicle, face = module("detect"), module("vehicle"), module("face")


async def leave():
    sys.exit(4)


@app(
    name="traffic",
    inputs=[tensor("x", "float32", (3,))],
    outputs=[tensor("y", "float32", (-1, 3))],
)
async def traffic(x):
    deed = int(x[0])
    if deed == 1:
        raise InvalidInput("a picture without pixels")
    if deed == 2:
        raise RuntimeError("secret of the operator")
    if deed == 3:
        sys.exit(3)
    if deed == 4:
        await gather(leave(), detect(x))
    if deed == 5:
        os._exit(5)
    if deed == 6:
        raise KeyboardInterrupt
    if deed == 7:
        time.sleep(1.5)
    if deed == 8:
        os.kill(os.getpid(), 9)
    if deed == 9:
        await aside(sys.exit, 9)
    if deed == 10:
        raise ValueError(f"a name that is no UTF-8: {os.fsdecode(bytes([255]))}")
    if deed == 11:
        await aside(next, iter([]))
    if deed == 12:
        await aside(time.sleep, 3600)
    found = await detect(x)
    return {"y": await gather(vehicle(found), face(found))}
"""
KILLED = (5, 8)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveServer]:
    folder = tmp_path_factory.mktemp("apps")
    plan = write_app_plan(folder, "plan.json", 400.0)
    function = folder / "traffic.py"
    function.write_text(FUNCTION)
    environment = {"XDG_CONFIG_HOME": str(folder), "HEADRACE_CACHE": str(folder / "cache")}
    options = (
        "--app",
        str(function),
        "--app-threads",
        "2",
        "--executor",
        "emulated",
        "--processes",
        "1",
    )
    with serving(plan, *options, "--policy", "reservation", environment=environment) as running:
        yield running
        running.signal(signal.SIGTERM)
        code, errors = running.wait()
    assert code == 0, errors
    # Once, whatever was asked for, and with its place.
    assert errors.count("RuntimeError: secret of the operator") == 1
    assert "ValueError: a name that is no UTF-8: \\udcff" in errors
    assert "RuntimeError: work aside raised StopIteration" in errors
    assert "holds up all apps" in errors
    assert "time.sleep(1.5)" in errors
    assert "app 'traffic' keeps a thread for work `aside`, sleep, after" in errors
    assert "ended with status 5" in errors
    assert "was ended by SIGKILL" in errors


def answered_again(server: LiveServer) -> bool:
    """While the process is started again, 503."""
    answer = ask_once(server, infer_of(0))
    assert answer.status == 200 or (answer.status == 503 and b"app-lost" in answer.body)
    return answer.status == 200


def test_an_input_that_the_app_refuses_gets_400_with_its_sentence(server: LiveServer) -> None:
    answer = ask_once(server, infer_of(1))
    assert answer.status == 400
    assert b"a picture without pixels" in answer.body
    metrics = ask_once(server, get("/metrics")).body
    assert b'outcome="invalid-input"' in metrics


@pytest.mark.parametrize("deed", [2, 3, 4, 6, 9, 10, 11])
def test_errors_of_the_apps_code_get_500_without_a_word_of_them(
    server: LiveServer, deed: int
) -> None:
    for _ in range(2):
        answer = ask_once(server, infer_of(deed))
        assert answer.status == 500
        assert b"secret" not in answer.body
        assert "retry-after" not in answer.headers
    assert ask_once(server, infer_of(0)).status == 200


@pytest.mark.parametrize("deed", KILLED)
def test_the_death_of_the_apps_process_costs_the_requests_in_it_and_no_more(
    server: LiveServer, deed: int
) -> None:
    answer = ask_once(server, infer_of(deed))
    assert answer.status == 503
    assert b"app-lost" in answer.body
    assert ask_once(server, get("/v2/health/live")).status == 200
    wait_until(lambda: answered_again(server), "the app's process is not started again")


def test_an_app_that_holds_its_loop_is_named_and_counted(server: LiveServer) -> None:
    assert ask_once(server, infer_of(7)).status == 200

    def is_counted() -> bool:
        metrics = ask_once(server, get("/metrics")).body
        held = [line for line in metrics.split(b"\n") if line.startswith(b"headrace_apps_held")]
        return bool(held) and float(held[-1].split()[-1]) > 1

    wait_until(is_counted, "the time is not counted")
    metrics = ask_once(server, get("/metrics")).body
    assert b"headrace_apps_cpu_seconds_total" in metrics
    assert b"headrace_apps_up 1.0" in metrics


def test_work_aside_that_its_request_has_left_is_counted(server: LiveServer) -> None:
    assert ask_once(server, infer_of(12, timeout=1_000_000)).status == 429

    def is_counted() -> bool:
        return b"headrace_apps_left_threads 1.0" in ask_once(server, get("/metrics")).body

    wait_until(is_counted, "the thread is not counted")


def test_a_file_that_ends_its_process_is_refused_with_how_it_ended(tmp_path: Path) -> None:
    file = tmp_path / "app.py"
    file.write_text("import os\nos._exit(7)\n")
    with pytest.raises(DocumentError, match="ended with status 7 while it loaded"):
        AppHost([file]).open()


def test_a_file_may_lie_in_a_folder_whose_name_is_no_utf_8(tmp_path: Path) -> None:
    folder = Path(os.fsdecode(bytes(tmp_path) + b"/caf\xe9"))
    folder.mkdir()
    file = folder / "app.py"
    file.write_text(FUNCTION)
    host = AppHost([file])
    try:
        (loaded,) = host.open()
    finally:
        host.close()
    assert loaded.path.endswith("/caf\\udce9/app.py")


def test_an_app_file_imports_nothing_from_beside_it_but_what_is_on_the_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "helper_of_mine.py").write_text("")
    file = tmp_path / "app.py"
    file.write_text("import helper_of_mine\n" + FUNCTION)
    monkeypatch.chdir(tmp_path)
    host = AppHost([file])
    with pytest.raises(DocumentError, match="No module named 'helper_of_mine'"):
        host.open()
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=os.pathsep)
    try:
        (loaded,) = host.open()
    finally:
        host.close()
    assert loaded.apps[0].name == "traffic"
