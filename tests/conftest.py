"""Shared test set-up: `from helpers.NAME import X` works everywhere, and Hypothesis is seeded."""

import os
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
        from headrace.simulation.warm_up import warm_up

        warm_up(tuple(POLICIES))
