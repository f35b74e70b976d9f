"""Functions that studies call in tests, by name, in other processes."""

import os
import signal
from dataclasses import dataclass
from fractions import Fraction

from headrace.domain.errors import InfeasibleError


@dataclass(frozen=True, slots=True, kw_only=True)
class Halved:
    """A task with what JSON has not."""

    value: float
    part: Fraction = Fraction(1, 2)


def halved(task: Halved) -> Halved:
    return Halved(value=task.value * float(task.part), part=task.part)


def process_id(task: int) -> int:
    return os.getpid()


def refused(task: int) -> int:
    if task == 2:
        raise InfeasibleError(f"no plan for {task}")
    return task


def broken(task: int) -> int:
    return task // 0


def wrong(task: int) -> int:
    return f"not {task}"  # type: ignore[return-value]


def killed(task: int) -> int:
    if task == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    return task


def printed(task: int) -> int:
    print(f"task {task}")  # noqa: T201
    return task


def slow(begun: str) -> int:
    """Says at this named pipe that it runs, and does until it is killed."""
    with open(begun, "wb") as pipe:
        pipe.write(b"begun")
    signal.pause()
    return 0
