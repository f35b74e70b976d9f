"""Shared test set-up: `from helpers.NAME import X` works everywhere, and Hypothesis is seeded."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import settings

sys.path.insert(0, str(Path(__file__).parent))

settings.register_profile("headrace", deadline=None, derandomize=True, max_examples=100)
settings.load_profile("headrace")


def pytest_configure(config: pytest.Config) -> None:
    """Before there are workers: what they would otherwise all do, and at the same time."""
    if "PYTEST_XDIST_WORKER" not in os.environ:
        _keep_bytecode()
        # OpenBLAS starts a thread per core in each of some two hundred processes that import numpy,
        # and every one looks for work for 50 ms.
        os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
        several = bool(config.getoption("numprocesses", None))
        _compile([*_kernels(), *(_planners() if several else [])])


def _keep_bytecode() -> None:
    """Some environments turn it off: then each of some two hundred processes that tests start
    compiles the whole package first, and every xdist worker all tests."""
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    sys.dont_write_bytecode = False


def _kernels() -> list[str]:
    """A policy per module of the dispatcher."""
    from headrace.dispatch.policies import MALLEABLE, POLICIES, PROVISIONING

    named = {**MALLEABLE, **POLICIES, **PROVISIONING}
    return list({policy.module.__name__: name for name, policy in named.items()}.values())


def _planners() -> list[str]:
    from helpers.compiled import PLANS

    return [f"{_PLAN}{name}" for name in PLANS]


def _compile(names: list[str]) -> None:
    """In a process per core, each of which takes the next name from a pipe: where nothing is kept
    yet, every one takes some ten seconds, and some take twice as long as others."""
    cores = len(os.sched_getaffinity(0))
    reader, writer = os.pipe()
    os.write(writer, b"".join(name.encode().ljust(_NAME_BYTES) for name in names))
    os.close(writer)
    tests = str(Path(__file__).parent)
    compiling = [
        subprocess.Popen(
            [sys.executable, "-c", _WARM_UP, str(_NAME_BYTES), _PLAN, tests], stdin=reader
        )
        for _ in range(min(cores, len(names)))
    ]
    os.close(reader)
    for process in compiling:
        process.wait()


_NAME_BYTES = 64
"""Of equal length, so that whoever reads gets a whole one."""
_PLAN = "plan: "
_WARM_UP = """
import os, sys
from headrace.simulation.warm_up import warm_up
size, plan, tests = int(sys.argv[1]), *sys.argv[2:]
sys.path[:0] = [tests, os.path.dirname(tests)]
while name := os.read(0, size):
    name = name.decode().strip()
    if name.startswith(plan):
        from helpers.compiled import compile_by
        compile_by(name.removeprefix(plan))
    else:
        warm_up((name,))
"""
