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
        _compile_kernels()


def _keep_bytecode() -> None:
    """Some environments turn it off: then each of some two hundred processes that tests start
    compiles the whole package first, and every xdist worker all tests."""
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    sys.dont_write_bytecode = False


def _compile_kernels() -> None:
    """In a process per core, each of which takes the next policy from a pipe: where nothing is kept
    yet, every one takes some ten seconds, and some take twice as long as others."""
    from headrace.dispatch.policies import MALLEABLE, POLICIES, PROVISIONING

    named = {**MALLEABLE, **POLICIES, **PROVISIONING}
    of_modules = {policy.module.__name__: name for name, policy in named.items()}
    names, cores = list(of_modules.values()), len(os.sched_getaffinity(0))
    reader, writer = os.pipe()
    os.write(writer, b"".join(name.encode().ljust(_NAME_BYTES) for name in names))
    os.close(writer)
    compiling = [
        subprocess.Popen([sys.executable, "-c", _WARM_UP, str(_NAME_BYTES)], stdin=reader)
        for _ in range(min(cores, len(names)))
    ]
    os.close(reader)
    for process in compiling:
        process.wait()


_NAME_BYTES = 64
"""Of equal length, so that whoever reads gets a whole one."""
_WARM_UP = """
import os, sys
from headrace.simulation.warm_up import warm_up
while name := os.read(0, int(sys.argv[1])):
    warm_up((name.decode().strip(),))
"""
