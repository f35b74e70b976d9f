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
    """Compile the dispatch kernels once, before several workers would at the same time."""
    if "PYTEST_XDIST_WORKER" not in os.environ:
        from headrace.dispatch.policies import POLICIES

        of_modules = {policy.module.__name__: name for name, policy in POLICIES.items()}
        compiling = [
            subprocess.Popen([sys.executable, "-c", _WARM_UP, name]) for name in of_modules.values()
        ]
        for process in compiling:
            process.wait()


_WARM_UP = """
import sys
from headrace.simulation.warm_up import warm_up
warm_up((sys.argv[1],))
"""
"""In a process per policy: they compile side by side."""
