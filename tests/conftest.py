"""Shared test set-up: `from helpers.NAME import X` works everywhere, and Hypothesis is seeded."""

import sys
from pathlib import Path

from hypothesis import settings

sys.path.insert(0, str(Path(__file__).parent))

settings.register_profile("headrace", deadline=None, derandomize=True, max_examples=100)
settings.load_profile("headrace")
