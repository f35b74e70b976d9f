"""A command that may crash in code that is not ours runs in a process of its own."""

import signal
import subprocess
import sys

import pytest

GUARDED = """
import os, signal, sys
from headrace.commands.guarded import guarded
sys.argv = ["headrace", "profile", "my model.onnx"]
def command():
    {command}
guarded(command)
"""
WAITS = "print('ready', flush=True); signal.pause()"


def started(script: str) -> subprocess.Popen[str]:
    pipe = subprocess.PIPE
    return subprocess.Popen([sys.executable, "-c", script], stdout=pipe, stderr=pipe, text=True)


def ended(command: str) -> tuple[int, str]:
    """Exit code, and what was said."""
    process = started(GUARDED.format(command=command))
    _, said = process.communicate()
    return process.returncode, said


@pytest.mark.parametrize(("command", "code"), [("pass", 0), ("sys.exit(3)", 3)])
def test_a_command_that_ends_by_itself_ends_the_program_so(command: str, code: int) -> None:
    assert ended(command) == (code, "")


@pytest.mark.parametrize(
    ("name", "what"), [("SIGSEGV", "has crashed (SIGSEGV)"), ("SIGKILL", "more memory")]
)
def test_a_crash_is_told_with_the_model_and_what_to_do(name: str, what: str) -> None:
    code, said = ended(f"os.kill(os.getpid(), signal.{name})")

    assert code == 128 + signal.Signals[name]
    assert "`headrace profile 'my model.onnx'`" in said
    assert what in " ".join(said.split())
    assert "  try  " in said


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_what_the_program_is_told_its_command_is_told(number: signal.Signals) -> None:
    script = GUARDED.format(
        command=f"signal.signal({int(number)}, lambda *told: sys.exit(7)); {WAITS}"
    )
    process = started(script)
    assert process.stdout is not None
    process.stdout.readline()
    process.send_signal(number)

    assert process.communicate()[1] == ""
    assert process.returncode == 7


def test_a_command_that_is_told_to_end_ends_the_program_by_the_same_signal() -> None:
    process = started(GUARDED.format(command=WAITS))
    assert process.stdout is not None
    process.stdout.readline()
    process.terminate()

    assert process.communicate()[1] == ""
    assert process.returncode == -signal.SIGTERM


def test_profile_is_such_a_command() -> None:
    process = started(
        "import os, signal, sys, headrace.cli as cli\n"
        "sys.argv = ['headrace', 'profile', 'm.onnx']\n"
        "cli.main = lambda: os.kill(os.getpid(), signal.SIGSEGV)\n"
        "cli.program()"
    )

    assert "`headrace profile m.onnx`: what runs the model has crashed" in process.communicate()[1]
