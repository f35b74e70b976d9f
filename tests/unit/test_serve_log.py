"""The event log of a server that is killed has all but its last second; a full disk, and a reader
that stalls, cost no more than the log."""

import asyncio
import os
import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import msgspec
import pytest

from headrace.catalog.event_log import (
    CHUNK_EVENTS,
    PIPE_BYTES,
    EventLogWriter,
    read_event_log,
    read_header,
)
from headrace.domain.errors import DocumentError
from headrace.domain.events import Answered, EventLogHeader
from headrace.serving.core.epoch_logs import EpochLogs
from helpers.left_behind import descriptors
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


def test_a_log_is_whole_and_takes_no_descriptor_when_the_last_that_writes_to_it_has_left(
    tmp_path: Path,
) -> None:
    path, before = tmp_path / "run.events", descriptors()
    logs = EpochLogs(path)
    sink = logs.open(HEADER)
    assert sink is not None
    logs.join(sink)
    logs.leave(sink)
    assert descriptors() == before + 1
    sink(Answered(1, 2, 3))
    logs.leave(sink)
    assert descriptors() == before
    assert read_event_log(path)[1] == [Answered(1, 2, 3)]
    logs.close()


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


def test_a_log_that_is_copied_and_truncated_while_it_is_written_becomes_two(tmp_path: Path) -> None:
    """As `logrotate` does with `copytruncate`."""
    path, copy = tmp_path / "run.events", tmp_path / "run.events.1"
    first, second = [[Answered(n, 2, 3) for n in range(begin, begin + 300)] for begin in (0, 300)]
    with EventLogWriter(path, HEADER) as writer:
        for event in first:
            writer.append(event)
        writer.flush()
        copy.write_bytes(path.read_bytes())
        os.truncate(path, 0)
        for event in second:
            writer.append(event)
    assert read_event_log(copy) == (HEADER, first)
    assert read_event_log(path) == (HEADER, second)


@pytest.mark.parametrize("left_bytes", [0, 20])
def test_a_truncated_log_of_an_idle_server_has_its_header_again_at_the_next_flush(
    tmp_path: Path, left_bytes: int
) -> None:
    path = tmp_path / "run.events"
    with EventLogWriter(path, HEADER) as writer:
        writer.append(Answered(1, 2, 3))
        for number in (2, 3):
            writer.flush()
            os.truncate(path, left_bytes)
            writer.flush()
            assert read_event_log(path) == (HEADER, [])
            writer.append(Answered(number, 2, 3))
            writer.flush()
            assert read_event_log(path) == (HEADER, [Answered(number, 2, 3)])


HANG_S = 300
MORE_THAN_A_PIPE_HOLDS = [Answered(number, 2, 3) for number in range(PIPE_BYTES // 10)]


@pytest.fixture
def pipe(tmp_path: Path) -> Iterator[Path]:
    """Who waits at it for ever is interrupted."""

    def interrupt(*_: object) -> None:
        raise AssertionError("waits for a pipe's reader")

    path = tmp_path / "pipe"
    os.mkfifo(path)
    before = signal.signal(signal.SIGALRM, interrupt)
    signal.alarm(HANG_S)
    yield path
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


def test_a_server_whose_logs_reader_stalls_says_so_once_and_serves_on(
    pipe: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """What the pipe took is whole lines, for a reader that goes on."""
    received = tmp_path / "received.events"
    with open(os.open(pipe, os.O_RDONLY | os.O_NONBLOCK), "rb") as reader:
        logs = EpochLogs(pipe)
        sink = logs.open(HEADER)
        assert sink is not None
        for event in MORE_THAN_A_PIPE_HOLDS:
            sink(event)
        logs.close()
        received.write_bytes(reader.read())

    assert [record.levelname for record in caplog.records] == ["ERROR"]
    assert f"{pipe}: cannot write an event log: its reader does not keep up" in caplog.text
    assert "serving goes on" in caplog.text
    header, events = read_event_log(received)
    assert header == msgspec.structs.replace(HEADER, run=header.run)
    assert 0 < len(events) < len(MORE_THAN_A_PIPE_HOLDS)
    assert events == MORE_THAN_A_PIPE_HOLDS[: len(events)]


def test_a_server_does_not_wait_for_a_pipes_first_reader(pipe: Path) -> None:
    with pytest.raises(DocumentError, match="nobody reads this pipe; start its reader first"):
        EpochLogs(pipe).open(HEADER)


def test_a_simulated_run_waits_for_whoever_reads_its_log(pipe: Path, tmp_path: Path) -> None:
    received = tmp_path / "received.events"
    with ThreadPoolExecutor(1) as pool:
        reading = pool.submit(pipe.read_bytes)
        with EventLogWriter(pipe, HEADER) as writer:
            for event in MORE_THAN_A_PIPE_HOLDS:
                writer.append(event)
        received.write_bytes(reading.result())

    assert read_event_log(received) == (HEADER, MORE_THAN_A_PIPE_HOLDS)


def begin(path: Path, plans: int) -> None:
    """A server that had so many plans, without a request."""
    logs = EpochLogs(path)
    for _ in range(plans):
        logs.open(HEADER)
    logs.close()


def test_the_logs_of_a_run_replace_all_that_the_run_before_has_left(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    begin(tmp_path / "run.events", 11)
    (tmp_path / "run.3.events").unlink()
    with caplog.at_level("INFO"):
        begin(tmp_path / "run.events", 2)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["run.2.events", "run.events"]
    [record] = caplog.records
    assert "run.11.events" in record.getMessage()
    headers = [read_event_log(tmp_path / name)[0] for name in ("run.events", "run.2.events")]
    assert headers[0].run == headers[1].run
    assert [header.number for header in headers] == [1, 2]


def test_what_only_has_the_name_of_a_later_log_stays(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    begin(tmp_path / "run.events", 3)
    (tmp_path / "run.7.events").write_bytes((tmp_path / "run.3.events").read_bytes())
    EventLogWriter(tmp_path / "run.2.events", HEADER).close()
    (tmp_path / "run.4.events").write_text("notes")
    (tmp_path / "run.5.events").mkdir()
    os.mkfifo(tmp_path / "run.6.events")
    for name in ("run.20261126.events", "run.8000.events", "run.x.events", "runs.2.events"):
        begin(tmp_path / name, 1)
    before = {path.name for path in tmp_path.iterdir()}
    begin(tmp_path / "run.events", 1)
    assert {path.name for path in tmp_path.iterdir()} == before - {"run.3.events"}
    assert caplog.records == []


def test_a_later_log_that_is_still_written_stays_and_is_named(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    begin(tmp_path / "run.events", 1)
    run = read_header(tmp_path / "run.events").run
    second = msgspec.structs.replace(HEADER, run=run, number=2)
    with EventLogWriter(tmp_path / "run.2.events", second) as writer:
        writer.flush()
        begin(tmp_path / "run.events", 1)
    assert (tmp_path / "run.2.events").exists()
    [record] = caplog.records
    assert "run.2.events" in record.getMessage()


def test_a_server_that_cannot_begin_its_log_removes_none(tmp_path: Path) -> None:
    begin(tmp_path / "run.events", 2)
    running = EpochLogs(tmp_path / "run.events")
    running.open(HEADER)
    running.open(HEADER)
    with pytest.raises(DocumentError, match="another process writes an event log there"):
        EpochLogs(tmp_path / "run.events").open(HEADER)
    running.close()
    assert (tmp_path / "run.2.events").exists()
