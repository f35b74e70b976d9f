"""`python -m headrace.profiling.pair_worker`: one of two processes that run models side by side.

Each has a core of its own, or a part of a device that its environment has settled. Lines of JSON on
standard input and output: first the profiles to open (`Opening`), answered when they are open; then
windows (`Window`), each answered by what its runs took (`Took`). Both processes have one clock, the
system's monotonic one, so a window begins and ends in both at the same instant.
"""

import gc
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from headrace.catalog.documents import read_profile
from headrace.catalog.stage_files import model_format, stage_path, stage_weights
from headrace.domain.elements import element_dtype
from headrace.domain.errors import HeadraceError
from headrace.executors.base import Measurement
from headrace.executors.table import measurement
from headrace.profiling.items import random_items
from headrace.profiling.ranges import as_they_lie

SEED = 0


class Opening(msgspec.Struct, frozen=True, kw_only=True):
    """What to open."""

    device: str
    core: int | None
    """To be kept to; None: any."""
    profiles: tuple[str, ...]
    """Files."""
    max_batch: tuple[int, ...]
    """Of each, the largest batch that will run."""


class Window(msgspec.Struct, frozen=True, kw_only=True):
    """Run one model again and again, from one instant until another."""

    profile: int
    batch_size: int
    begins_at_ns: int
    """On the system's monotonic clock."""
    ends_at_ns: int


class Took(msgspec.Struct, frozen=True, kw_only=True):
    """What the runs that lay in the window took of the core, or of the device."""

    samples_ns: tuple[int, ...] = ()
    core_share: float = 1.0
    """Part of the window's time that the core gave to it."""
    multiprocessors: int | None = None
    """In the first answer: that the process can use; None: the device does not say."""
    error: str | None = None


class _Opened:
    """A whole model, and the memory that its runs read and write."""

    def __init__(self, path: Path, device: str, max_batch: int) -> None:
        profile = read_profile(path)
        folder = path.parent
        self.how: Measurement = measurement(device, model_format(profile, folder))
        content = stage_path(profile, folder, 0, len(profile.blocks)).read_bytes()
        self._model = self.how.open(content, stage_weights(profile, folder))
        items = random_items(profile.inputs, max_batch, np.random.default_rng(SEED))
        self._inputs = as_they_lie(profile.inputs, items)
        self._outputs: dict[str, NDArray[Any]] = {
            spec.name: np.empty((max_batch, *spec.item_shape), element_dtype(spec))
            for spec in profile.outputs
        }
        self._runs: dict[int, Callable[[], None]] = {}

    def at(self, batch_size: int) -> Callable[[], None]:
        """One run; the first of a batch size happens here, so that it is not measured."""
        if batch_size not in self._runs:
            run = self._model.bound(
                {name: array[:batch_size] for name, array in self._inputs.items()},
                {name: array[:batch_size] for name, array in self._outputs.items()},
            )
            run()
            self._runs[batch_size] = run
        return self._runs[batch_size]


def main() -> int:
    gc.disable()
    lines, answers = sys.stdin.buffer, sys.stdout.buffer
    sys.stdout = sys.stderr  # what libraries print is no answer
    opening = msgspec.json.decode(lines.readline(), type=Opening)
    if opening.core is not None and hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {opening.core})
    try:
        opened = [
            _Opened(Path(path), opening.device, most)
            for path, most in zip(opening.profiles, opening.max_batch, strict=True)
        ]
        counted = opened[0].how.multiprocessors
        _answer(answers, Took(multiprocessors=None if counted is None else counted()))
    except HeadraceError as error:
        return _answer(answers, Took(error=str(error)))
    for line in lines:
        window = msgspec.json.decode(line, type=Window)
        model = opened[window.profile]
        try:
            _answer(answers, _run(model.at(window.batch_size), model.how.timer_ns, window))
        except HeadraceError as error:
            return _answer(answers, Took(error=str(error)))
    return 0


def _run(run: Callable[[], None], timer_ns: Callable[[], int], window: Window) -> Took:
    """The neighbour has company until the window ends, so the last run, which ends behind it, is
    run and not counted."""
    samples = []
    while time.monotonic_ns() < window.begins_at_ns:
        pass  # a sleep would wake up late, and on a core that has slowed down
    began_ns, busy_ns = time.monotonic_ns(), timer_ns()
    while True:
        before_ns = timer_ns()
        run()
        took_ns = timer_ns() - before_ns
        if time.monotonic_ns() > window.ends_at_ns:
            break
        samples.append(took_ns)
    wall_ns = max(1, time.monotonic_ns() - began_ns)
    return Took(samples_ns=tuple(samples), core_share=min(1.0, (timer_ns() - busy_ns) / wall_ns))


def _answer(file: Any, took: Took) -> int:
    file.write(msgspec.json.encode(took) + b"\n")
    file.flush()
    return 0 if took.error is None else 2


if __name__ == "__main__":
    sys.exit(main())
