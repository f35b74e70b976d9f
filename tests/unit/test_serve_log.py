"""The event log of a server that is killed has all but its last second; a full disk costs no more
than the log."""

import asyncio
from pathlib import Path

import pytest

from headrace.catalog.event_log import CHUNK_EVENTS, EventLogWriter, read_event_log
from headrace.domain.errors import DocumentError
from headrace.domain.events import Answered, EventLogHeader
from headrace.serving.core.epoch_logs import EpochLogs
from helpers.virtual_loop import VirtualTimeLoop

HEADER = EventLogHeader(
    clock="live", policy="reservation", models=("m",), pipelines=(("p0",),), slots=(), nodes=()
)
FULL_DISK = Path("/dev/full")
needs_full_disk = pytest.mark.skipif(not FULL_DISK.is_char_device(), reason="needs /dev/full")


def test_what_happened_is_on_disk_within_a_second(tmp_path: Path) -> None:
    path = tmp_path / "run.events"
    loop = VirtualTimeLoop()
    logs = EpochLogs(path)
    first = logs.open(HEADER)
    second = logs.open(HEADER)

    async def live_on() -> None:
        flusher = asyncio.ensure_future(logs.keep_flushed())
        assert first is not None
        assert second is not None
        first(Answered(1, 2, 3))
        second(Answered(4, 5, 6))
        await asyncio.wait({flusher}, timeout=1.1)
        flusher.cancel()

    loop.run_until_complete(live_on())
    assert read_event_log(path)[1] == [Answered(1, 2, 3)]
    assert read_event_log(tmp_path / "run.2.events")[1] == [Answered(4, 5, 6)]
    logs.close()
    loop.close()


def test_without_a_path_there_is_no_sink() -> None:
    assert EpochLogs(None).open(HEADER) is None


@needs_full_disk
def test_a_log_on_a_full_disk_is_refused_once_and_then_thrown_away() -> None:
    writer = EventLogWriter(FULL_DISK, HEADER)

    with pytest.raises(DocumentError, match="/dev/full: cannot write an event log: No space left"):
        writer.flush()

    for number in range(2 * CHUNK_EVENTS):
        writer.append(Answered(number, 2, 3))
    writer.close()


@needs_full_disk
def test_a_server_whose_log_meets_a_full_disk_says_so_once_and_serves_on(
    caplog: pytest.LogCaptureFixture,
) -> None:
    logs = EpochLogs(FULL_DISK)
    sink = logs.open(HEADER)
    assert sink is not None

    # More than the writer and the file's buffer hold, so that it is written from within.
    for number in range(100 * CHUNK_EVENTS):
        sink(Answered(number, 2, 3))
    logs.close()

    assert [record.levelname for record in caplog.records] == ["ERROR"]
    assert "No space left on device" in caplog.text
    assert "serving goes on" in caplog.text
