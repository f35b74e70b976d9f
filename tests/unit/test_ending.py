"""What a signal does to a command that has processes or files to tidy up, wherever it comes."""

import asyncio
import ctypes
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Coroutine, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import uvloop

from headrace import cli
from headrace.commands.ending import dropped_ends_raised_again, orderly_end
from helpers.live_server import PATIENCE_S

RunLoop = Callable[[Coroutine[Any, Any, None]], None]


@pytest.fixture(autouse=True)
def _handlers() -> Iterator[None]:
    numbers = (signal.SIGTERM, signal.SIGHUP)
    before = [signal.signal(number, signal.SIG_DFL) for number in numbers]
    yield
    for number, how in zip(numbers, before, strict=True):
        signal.signal(number, how)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_signal_lets_a_command_tidy_up_and_a_second_one_does_not_disturb(number: int) -> None:
    tidied = []

    @orderly_end()
    def command() -> None:
        try:
            signal.raise_signal(number)
        finally:
            signal.raise_signal(signal.SIGTERM)
            tidied.append("files")

    with pytest.raises(SystemExit) as ended:
        command()

    assert (ended.value.code, tidied) == (128 + number, ["files"])
    assert signal.getsignal(number) is signal.SIG_DFL


def test_a_signal_that_is_ignored_stays_so() -> None:
    signal.signal(signal.SIGHUP, signal.SIG_IGN)

    with orderly_end():
        signal.raise_signal(signal.SIGHUP)

    assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN


def test_a_signal_while_a_connection_reads_ends_the_command_and_not_the_connection() -> None:
    class Signalled(asyncio.Protocol):
        def data_received(self, data: bytes) -> None:
            signal.raise_signal(signal.SIGTERM)

    async def read() -> None:
        ours, theirs = socket.socketpair()
        with theirs:
            await asyncio.get_running_loop().create_connection(Signalled, sock=ours)
            theirs.send(b"x")
            await asyncio.wait_for(asyncio.Event().wait(), PATIENCE_S)

    with pytest.raises(SystemExit) as ended, orderly_end():
        uvloop.run(read())

    assert ended.value.code == 143


@pytest.mark.parametrize("run_loop", [asyncio.run, uvloop.run])
def test_more_signals_do_not_disturb_what_a_loop_tidies_up(run_loop: RunLoop) -> None:
    tidied = []

    async def serve() -> None:
        try:
            signal.raise_signal(signal.SIGTERM)
            signal.raise_signal(signal.SIGHUP)
            await asyncio.wait_for(asyncio.Event().wait(), PATIENCE_S)
        finally:
            signal.raise_signal(signal.SIGTERM)
            await asyncio.sleep(0)
            tidied.append("connections")

    with pytest.raises(SystemExit) as ended, orderly_end():
        run_loop(serve())

    assert (ended.value.code, tidied) == (143, ["connections"])


def test_where_somebody_drops_the_first_signal_the_second_one_ends_the_command() -> None:
    @orderly_end()
    def command() -> None:
        with suppress(BaseException):
            signal.raise_signal(signal.SIGTERM)
        signal.raise_signal(signal.SIGHUP)

    with pytest.raises(SystemExit) as ended:
        command()

    assert ended.value.code == 143


# -- where Python drops exceptions ----------------------------------------------------------------


def sort_by_a_function_that_c_calls(number: int) -> None:
    comparison = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p)

    def signalled(_a: int, _b: int) -> int:
        signal.raise_signal(number)
        return 0

    # More than one call: the next one comes before C is done.
    ctypes.CDLL(None).qsort((ctypes.c_int * 3)(), 3, 4, comparison(signalled))


class Signalled:
    def __init__(self, number: int) -> None:
        self._number = number

    def __del__(self) -> None:
        signal.raise_signal(self._number)


@pytest.fixture
def not_ignored() -> Iterator[None]:
    """As it is in what a script runs in the background."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("not_ignored")
@pytest.mark.parametrize("somewhere", [sort_by_a_function_that_c_calls, Signalled])
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_an_end_that_python_drops_is_raised_again_outside_and_quietly(
    somewhere: Callable[[int], object], number: int, capfd: pytest.CaptureFixture[str]
) -> None:
    went_on: list[str] = []

    def command() -> None:
        somewhere(number)
        len(went_on)  # any call
        went_on.append("with what was broken")

    with (
        pytest.raises((SystemExit, KeyboardInterrupt)) as ended,
        dropped_ends_raised_again(),
        orderly_end(),
    ):
        command()

    assert went_on == []
    assert (ended.type is SystemExit) == (number == signal.SIGTERM)
    assert (sys.getprofile(), capfd.readouterr().err) == (None, "")


def test_what_else_python_drops_is_said_as_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[object] = []
    monkeypatch.setattr(sys, "unraisablehook", lambda dropped: said.append(dropped.exc_type))

    with dropped_ends_raised_again():
        ctypes.CFUNCTYPE(None)(lambda: 1 // 0)()

    assert said == [ZeroDivisionError]


def test_the_program_ends_by_a_signal_inside_a_function_that_c_calls(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    @orderly_end()
    def command() -> None:
        sort_by_a_function_that_c_calls(signal.SIGTERM)
        raise RuntimeError("it goes on")

    monkeypatch.setattr(cli.app, "registered_commands", list(cli.app.registered_commands))
    cli.app.command("break")(command)
    monkeypatch.setattr(sys, "argv", ["headrace", "break"])

    with pytest.raises(SystemExit) as ended:
        cli.main()

    assert (ended.value.code, capfd.readouterr().err) == (143, "")


FUNCTION = """
from headrace.compilation.loops import compiled

@compiled
def doubled(number):
    return 2 * number
"""
COMPILES = """
import os, signal
from numba.core.codegen import JITCodeLibrary
from headrace.commands.ending import dropped_ends_raised_again, orderly_end
from functions import doubled

class Signalled(JITCodeLibrary):
    @classmethod
    def _object_compiled_hook(cls, module, code):
        os.kill(os.getpid(), signal.SIGTERM)
        super()._object_compiled_hook(module, code)

JITCodeLibrary._object_compiled_hook = Signalled._object_compiled_hook
with dropped_ends_raised_again(), orderly_end():
    print("begins", flush=True)
    print(doubled(21))
"""


def test_a_signal_while_a_function_is_compiled_ends_the_command_quietly(tmp_path: Path) -> None:
    """LLVM tells of machine code by a function that C calls; without that, numba cannot go on."""
    (tmp_path / "functions.py").write_text(FUNCTION)

    done = subprocess.run(
        [sys.executable, "-B", "-c", COMPILES],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
    )

    assert (done.returncode, done.stdout, done.stderr) == (143, "begins\n", "")
