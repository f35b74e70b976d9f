"""The machine that measures: what it is, and how to keep still on one core of it."""

import gc
import os
import platform
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path

import numpy as np
import onnx

from headrace import __version__


def cpu_name() -> str:
    """The processor's model name, as the system reports it."""
    try:
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        pass  # not Linux
    return platform.processor() or platform.machine()


def software_versions(libraries: Sequence[str]) -> dict[str, str]:
    """Versions of everything that a measurement depends on.

    Args:
        libraries: modules of the executor that is measured; see `Measurement.libraries`.
    """
    return {
        "headrace": __version__,
        "numpy": str(np.__version__),
        "onnx": str(onnx.__version__),
        **{name: str(import_module(name).__version__) for name in libraries},
        "python": platform.python_version(),
    }


@contextmanager
def one_quiet_core() -> Iterator[None]:
    """Keep this thread on one core and the garbage collector off while it measures.

    The last core that we may use: interrupts and other programs tend to the first.
    """
    can_pin = hasattr(os, "sched_setaffinity")
    allowed = os.sched_getaffinity(0) if can_pin else set()
    collecting = gc.isenabled()
    try:
        if can_pin:
            os.sched_setaffinity(0, {max(allowed)})
        gc.disable()
        yield
    finally:
        if can_pin:
            os.sched_setaffinity(0, allowed)
        if collecting:
            gc.enable()
