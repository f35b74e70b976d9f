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
    """In a process per core: where nothing is kept yet, every policy takes some ten seconds."""
    from headrace.dispatch.policies import POLICIES

    of_modules = {policy.module.__name__: name for name, policy in POLICIES.items()}
    names, cores = list(of_modules.values()), len(os.sched_getaffinity(0))
    compiling = [
        subprocess.Popen([sys.executable, "-c", _WARM_UP, *names[core::cores]])
        for core in range(min(cores, len(names)))
    ]
    for process in compiling:
        process.wait()


_WARM_UP = """
import sys
from headrace.simulation.warm_up import warm_up
warm_up(tuple(sys.argv[1:]))
"""
