"""What a server of one's own says, and what is asked of it."""

import os

import pytest

from headrace.load.child_server import TAIL_BYTES, Tail


def test_what_is_said_is_read_however_much_it_is_and_its_end_is_kept() -> None:
    """More than a pipe holds: who writes would wait for ever for whoever does not read."""
    reading, writing = os.pipe()
    tail = Tail(os.fdopen(reading, "rb"))

    with os.fdopen(writing, "wb") as said:
        said.write(b"request\n" * (1 << 17))
        said.write(b"error: no such file\n")

    assert tail.text().endswith("request\nerror: no such file")
    assert len(tail.text()) < TAIL_BYTES


@pytest.mark.parametrize(
    ("said", "kept"),
    [
        ("a warning " * TAIL_BYTES + "\nerror: no such file\n", "error: no such file"),
        ("x" * TAIL_BYTES + "the end", "x" * (TAIL_BYTES - 7) + "the end"),
        ("one\ntwo\n", "one\ntwo"),
    ],
)
def test_what_is_kept_begins_with_a_line(said: str, kept: str) -> None:
    reading, writing = os.pipe()
    tail = Tail(os.fdopen(reading, "rb"))
    with os.fdopen(writing, "wb") as stream:
        stream.write(said.encode())
    assert tail.text() == kept
