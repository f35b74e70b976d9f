"""Processes that end with their parent, and what a signal does to a command that has some."""

import asyncio
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import uvloop

from headrace.children import child_command
from headrace.commands.ending import orderly_end
from helpers.live_server import PATIENCE_S, alive
from helpers.waiting import wait_until

_PARENT = """
import subprocess, sys
from headrace.children import child_command
child = subprocess.Popen(child_command("helpers.waits_for_ever"), stdout=subprocess.PIPE)
print(child.stdout.readline().decode().strip(), flush=True)
sys.stdin.read()
"""
needs_linux = pytest.mark.skipif(sys.platform != "linux", reason="asks the kernel of Linux")


@needs_linux
def test_a_child_ends_with_a_parent_that_is_killed() -> None:
    command = [sys.executable, "-c", _PARENT]
    # The child is a module of the tests.
    found = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[1])}
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=found
    ) as parent:
        assert parent.stdout is not None
        child = int(parent.stdout.readline())
        assert alive({child}) == {child}
        parent.kill()
    wait_until(lambda: not alive({child}), "a child outlives its parent")


@needs_linux
def test_a_child_whose_parent_has_ended_already_does_not_begin() -> None:
    """It was started by another process than it is told."""
    command = child_command("helpers.waits_for_ever")
    command[command.index(str(os.getpid()))] = "1"

    done = subprocess.run(command, capture_output=True, timeout=PATIENCE_S, check=False)

    assert (done.returncode, done.stdout) == (1, b"")
    assert b"has ended already" in done.stderr


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
