"""What a server says on standard error, where its reader is behind, or gone."""

import os
from collections.abc import Iterator
from contextlib import suppress

import pytest

from headrace.serving.server_log import Unhurried

LINE = b"x" * 999 + b"\n"
SOON_S = 0.01
PATIENCE_S = 60.0


@pytest.fixture
def pipe() -> Iterator[tuple[int, int]]:
    """Where to read and where to write, of 64 KiB."""
    reads, writes = os.pipe()
    yield reads, writes
    os.close(writes)
    os.close(reads)


def read(descriptor: int, count: int) -> bytes:
    read = b""
    while len(read) < count:
        read += os.read(descriptor, count - len(read))
    return read


def filled(descriptor: int) -> int:
    """How many bytes it took."""
    count = 0
    os.set_blocking(descriptor, False)
    with suppress(BlockingIOError):
        while True:
            count += os.write(descriptor, b".")
    os.set_blocking(descriptor, True)
    return count


def test_who_writes_does_not_wait_for_the_reader_who_gets_all_of_it(pipe: tuple[int, int]) -> None:
    reads, writes = pipe
    count = filled(writes)
    log = Unhurried(writes)

    assert [log.write(LINE) for _ in range(500)] == [len(LINE)] * 500
    assert not log.drain(SOON_S)

    assert read(reads, count + 500 * len(LINE)) == b"." * count + LINE * 500
    assert log.drain(PATIENCE_S)


def test_what_does_not_fit_is_left_out_and_the_log_says_how_much(pipe: tuple[int, int]) -> None:
    reads, writes = pipe
    count = filled(writes)
    log = Unhurried(writes, behind_bytes=2 * len(LINE))
    for _ in range(5):
        log.write(LINE)
    read(reads, count)
    assert log.drain(PATIENCE_S)

    log.write(b"on\n")

    left_out = b"... 3000 bytes of this log are left out: its reader was behind\n"
    said = 2 * LINE + left_out + b"on\n"
    assert read(reads, len(said)) == said


def test_a_descriptor_that_somebody_else_made_non_blocking_loses_nothing(
    pipe: tuple[int, int],
) -> None:
    reads, writes = pipe
    log = Unhurried(writes)
    os.set_blocking(writes, False)
    for _ in range(200):
        log.write(LINE)

    assert read(reads, 200 * len(LINE)) == LINE * 200


def test_a_reader_that_has_gone_stops_nothing() -> None:
    reads, writes = os.pipe()
    os.close(reads)
    log = Unhurried(writes)
    log.write(LINE)
    assert log.drain(PATIENCE_S)
    os.close(writes)


def test_a_forked_child_writes_by_itself(pipe: tuple[int, int]) -> None:
    reads, writes = pipe
    log = Unhurried(writes)
    child = os.fork()
    if child == 0:
        with suppress(BaseException):
            log.write(b"from the child\n")
            log.drain()
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    assert read(reads, 15) == b"from the child\n"
