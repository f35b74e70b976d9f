"""Waiting for what another process does, and leaving it the processor meanwhile."""

import asyncio
import time
from collections.abc import Callable

from helpers.live_server import PATIENCE_S

LOOK_EVERY_S = 0.005
"""No verdict depends on it: too seldom only takes longer."""


async def until(holds: Callable[[], bool]) -> None:
    """Whoever calls it has a time limit for the whole test."""
    while not holds():
        await asyncio.sleep(LOOK_EVERY_S)


def wait_until(holds: Callable[[], bool], otherwise: str) -> None:
    """
    Raises:
        AssertionError: it did not come to hold within the tests' patience; says `otherwise`.
    """
    until_s = time.monotonic() + PATIENCE_S
    while not holds():
        assert time.monotonic() < until_s, otherwise
        time.sleep(LOOK_EVERY_S)
