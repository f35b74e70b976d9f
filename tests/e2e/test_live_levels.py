"""A live engine knows what its stages really take: as it is told at the start, then as it sees."""

import asyncio
from pathlib import Path

import numpy as np
import pytest

from headrace.serving.engine.engine import Engine
from helpers.served import WIDTH, Client, Served, served_chain

pytestmark = pytest.mark.e2e

WAIT_S = 300.0
"""Far more than anything here takes on a busy machine; only a hang reaches it."""
ROW = np.ones((1, WIDTH), np.float32)


def ratios(engine: Engine) -> list[tuple[str, float]]:
    return [(time.stage, time.ratio) for time in engine._current.levels()]


async def started(served: Served, levels: dict[str, float]) -> Engine:
    engine = served.engine(levels=levels)
    await engine.start()
    return engine


def test_an_engine_starts_from_the_levels_that_it_is_told(tmp_path: Path) -> None:
    served = served_chain(tmp_path, pools=(2, 1))

    async def test() -> None:
        engine = await started(served, {"m/p/0": 3.0})
        try:
            assert ratios(engine) == [("m/p/0", 3.0), ("m/p/0", 3.0), ("m/p/1", 1.0)]
            shown = [each for slot in engine.status().slots for each in slot.time_ratios]
            assert shown == [("m/p/0", 1.0), ("m/p/0", 1.0), ("m/p/1", 1.0)], "nothing runs"
        finally:
            await engine.stop()

    asyncio.run(asyncio.wait_for(test(), WAIT_S))


def test_a_stage_that_takes_longer_than_its_profile_says_is_found_to(tmp_path: Path) -> None:
    """No stage takes as little as a microsecond: its level rises to the most there is."""
    served = served_chain(tmp_path, pools=(1,), stage_us=1)

    async def test() -> None:
        engine = await started(served, {})
        try:
            client = Client(engine)
            while ratios(engine) != [("m/p/0", 32.0)]:
                await client.send(ROW)
        finally:
            await engine.stop()

    asyncio.run(asyncio.wait_for(test(), WAIT_S))
