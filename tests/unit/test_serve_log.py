"""The event log of a server that is killed has all but its last second."""

import asyncio
from pathlib import Path

from headrace.catalog.event_log import EventLogWriter, read_event_log
from headrace.commands.serve import keep_flushed
from headrace.domain.events import Answered, EventLogHeader
from helpers.virtual_loop import VirtualTimeLoop


def test_what_happened_is_on_disk_within_a_second(tmp_path: Path) -> None:
    path = tmp_path / "run.events"
    header = EventLogHeader(
        clock="live", policy="reservation", models=("m",), pipelines=(("p0",),), slots=(), nodes=()
    )
    loop = VirtualTimeLoop()
    with EventLogWriter(path, header) as log:

        async def live_on() -> None:
            flusher = asyncio.ensure_future(keep_flushed(log))
            log.append(Answered(1, 2, 3))
            await asyncio.wait({flusher}, timeout=1.1)
            flusher.cancel()

        loop.run_until_complete(live_on())
        assert read_event_log(path)[1] == [Answered(1, 2, 3)]
    loop.close()
