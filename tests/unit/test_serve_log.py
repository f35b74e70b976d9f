"""The event log of a server that is killed has all but its last second."""

import asyncio
from pathlib import Path

from headrace.catalog.event_log import read_event_log
from headrace.domain.events import Answered, EventLogHeader
from headrace.serving.epoch_logs import EpochLogs
from helpers.virtual_loop import VirtualTimeLoop


def test_what_happened_is_on_disk_within_a_second(tmp_path: Path) -> None:
    path = tmp_path / "run.events"
    header = EventLogHeader(
        clock="live", policy="reservation", models=("m",), pipelines=(("p0",),), slots=(), nodes=()
    )
    loop = VirtualTimeLoop()
    logs = EpochLogs(path)
    first = logs.open(header)
    second = logs.open(header)

    async def live_on() -> None:
        flusher = asyncio.ensure_future(logs.keep_flushed())
        first(Answered(1, 2, 3))
        second(Answered(4, 5, 6))
        await asyncio.wait({flusher}, timeout=1.1)
        flusher.cancel()

    loop.run_until_complete(live_on())
    assert read_event_log(path)[1] == [Answered(1, 2, 3)]
    assert read_event_log(tmp_path / "run.2.events")[1] == [Answered(4, 5, 6)]
    logs.close()
    loop.close()
