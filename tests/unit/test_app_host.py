"""The apps' process and a server that gets no more threads or processes."""

import asyncio
import os
import subprocess
import threading
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from headrace.apps import app, tensor
from headrace.commands import event_loop
from headrace.domain.errors import DocumentError, ProcessLimitError
from headrace.serving.apps import host as module
from headrace.serving.apps.frames import FromApps, Tensors
from headrace.serving.apps.host import AppHost
from headrace.serving.workers import restart_delays
from helpers.cores import GONE
from helpers.live_server import PATIENCE_S, alive
from helpers.served_app import FakeModules, Served
from helpers.waiting import until, wait_until

pytestmark = pytest.mark.e2e

APP = """
import signal
from pathlib import Path
from headrace.apps import app, tensor

if Path(__file__).with_name("hang").exists():
    signal.pause()


@app(name="app", inputs=[tensor("x", "float32", (2,))], outputs=[tensor("y", "float32", (2,))])
async def function(x):
    return {"y": x}
"""

STARTS_A_CHILD = """
import ctypes, os, signal, subprocess
from pathlib import Path

child = {start}
Path(__file__).with_name("child").write_text(str(child))
"""
FORKED = "os.fork() or signal.pause()"
FORKED_BY_A_LIBRARY = "ctypes.PyDLL(None).fork() or signal.pause()"
RUN = "subprocess.Popen(['sleep', '3600'], close_fds=False).pid"


@app(name="app", inputs=[tensor("x", "float32", (2,))], outputs=[tensor("y", "float32", (2,))])
async def same(x: object) -> dict[str, object]:
    return {"y": x}


class Heard:
    """What a host tells its runtime."""

    def __init__(self) -> None:
        self.times_up = 0
        self.times_lost = 0

    def on_frame(self, frame: FromApps, tensors: Tensors) -> None:
        raise AssertionError("nothing was asked for")

    def on_up(self) -> None:
        self.times_up += 1

    def on_lost(self, why: str) -> None:
        self.times_lost += 1


def refuse_thread(_: threading.Thread) -> None:
    raise RuntimeError("can't start new thread")


def refuse_process(*_: object, **__: object) -> None:
    raise BlockingIOError(11, "Resource temporarily unavailable")


def with_host(
    folder: Path, use: Callable[[AppHost, Heard], Awaitable[None]], before: str = ""
) -> None:
    """`before`: code that the app file has before its function."""
    file = folder / "app.py"
    file.write_text(before + APP)
    host = AppHost([file], threads=1)
    host.events = heard = Heard()
    host.open()

    async def server() -> None:
        await host.start()
        async with asyncio.timeout(PATIENCE_S):
            await use(host, heard)

    try:
        event_loop.run(server())
    finally:
        host.close()


def kill(host: AppHost) -> int:
    process = process_of(host)
    os.kill(process, 9)
    return process


def process_of(host: AppHost) -> int:
    process = host.status().process_id
    assert process is not None
    return process


def is_gone(process: int) -> bool:
    """Also as a child that nobody has waited for."""
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return True
    return False


def test_apps_come_back_to_a_server_that_gets_no_thread(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def use(host: AppHost, heard: Heard) -> None:
        monkeypatch.setattr(threading.Thread, "start", refuse_thread)
        killed = kill(host)
        await until(lambda: heard.times_up == 2)
        assert is_gone(killed)
        serving = process_of(host)
        await host.stop()
        assert is_gone(serving)

    with_host(tmp_path, use)


def test_apps_start_and_come_back_where_the_cores_that_they_had_are_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "allowed_cores", lambda: (GONE,))

    async def use(host: AppHost, heard: Heard) -> None:
        kill(host)
        await until(lambda: heard.times_up == 2)
        assert os.sched_getaffinity(process_of(host)) == os.sched_getaffinity(0)
        await host.stop()

    with_host(tmp_path, use)


def test_apps_are_started_when_the_system_has_a_process_for_them_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(restart_delays, "RESTART_DELAYS_S", (0.0,))

    async def use(host: AppHost, heard: Heard) -> None:
        with monkeypatch.context() as limited:
            limited.setattr(subprocess, "Popen", refuse_process)
            kill(host)
            await until(lambda: host.status().restarts >= 2)
        await until(lambda: heard.times_up == 2)
        await host.stop()

    with_host(tmp_path, use)
    assert "the apps' process cannot be started: a limit of processes" in caplog.text


def test_a_stop_while_the_apps_are_loaded_again_leaves_no_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def use(host: AppHost, heard: Heard) -> None:
        (tmp_path / "hang").touch()
        killed = kill(host)
        await until(lambda: host.status().process_id not in (killed, None))
        loading = process_of(host)
        monkeypatch.setattr(threading.Thread, "start", refuse_thread)
        await host.stop()
        assert is_gone(loading)

    with_host(tmp_path, use)


@pytest.mark.parametrize(
    "start", [FORKED, FORKED_BY_A_LIBRARY, RUN], ids=["forked", "forked-by-a-library", "run"]
)
def test_processes_that_apps_start_do_not_hide_their_end_and_end_with_them(
    tmp_path: Path, start: str
) -> None:
    async def use(host: AppHost, heard: Heard) -> None:
        first = child_of(tmp_path)
        kill(host)
        await until(lambda: heard.times_up == 2)
        await until(lambda: not alive({first}))
        second = child_of(tmp_path)
        assert alive({second})
        await host.stop()
        await until(lambda: not alive({second}))

    with_host(tmp_path, use, STARTS_A_CHILD.format(start=start))


@pytest.mark.parametrize("start", [FORKED, RUN], ids=["forked", "run"])
def test_processes_that_apps_start_do_not_hide_that_they_cannot_be_loaded(
    tmp_path: Path, start: str
) -> None:
    file = tmp_path / "app.py"
    file.write_text(STARTS_A_CHILD.format(start=start) + "os._exit(7)")
    with pytest.raises(DocumentError, match="ended with status 7 while it loaded"):
        AppHost([file]).open()
    wait_until(lambda: not alive({child_of(tmp_path)}), "what it started is left")


def test_what_apps_print_goes_to_standard_error_line_by_line_and_the_rest_at_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    # Buffers are what this is about.
    monkeypatch.delenv("PYTHONUNBUFFERED", raising=False)
    printed = [capfd.readouterr()]

    def has_come() -> bool:
        printed.append(capfd.readouterr())
        return any("a line\n" in each.err for each in printed)

    async def use(host: AppHost, heard: Heard) -> None:
        await until(has_come)
        await host.stop()
        printed.append(capfd.readouterr())

    with_host(tmp_path, use, "print('a line')\nprint('caf\\xe9 and half a line', end='')\n")
    assert "café and half a line" in printed[-1].err
    assert not any(each.out for each in printed)


def child_of(folder: Path) -> int:
    """Of an app that STARTS_A_CHILD."""
    return int((folder / "child").read_text())


def test_apps_that_get_no_process_name_the_limit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(subprocess, "Popen", refuse_process)
    with pytest.raises(ProcessLimitError, match="the apps' process cannot be started"):
        AppHost([tmp_path / "app.py"]).open()


def test_the_models_are_stopped_also_where_the_apps_are_not() -> None:
    stopped: list[str] = []

    class Modules(FakeModules):
        async def stop(self) -> None:
            stopped.append("models")

    async def fail() -> None:
        raise ProcessLimitError("a thread")

    async def test() -> None:
        served = Served(same, Modules())
        served.host.stop = fail  # type: ignore[method-assign]
        with pytest.raises(ProcessLimitError):
            await served.runtime.stop()

    asyncio.run(test())
    assert stopped == ["models"]
