"""Processes that end with their parent."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from headrace.children import child_command
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
