"""Event logs: what was written is what is read, and nothing else is accepted."""

import gzip
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.catalog.event_log import (
    CHUNK_EVENTS,
    LAST_US,
    EventLogWriter,
    read_event_log,
    read_header,
)
from headrace.domain.errors import DocumentError
from headrace.domain.events import (
    Answered,
    AnyEvent,
    Arrived,
    Called,
    Dispatched,
    Dropped,
    EventLogHeader,
    Ran,
    Reservation,
    SlotGained,
    SlotLost,
    Transferred,
)

HEADER = EventLogHeader(
    clock="live",
    policy="reservation",
    models=("a", "b"),
    pipelines=(("a/0",), ("b/0", "b/1")),
    slots=("s0", "s1"),
    nodes=("n0", "n1"),
)

numbers = st.integers(0, LAST_US)
instants = st.tuples(numbers, numbers).map(sorted)
"""Of what starts and ends."""
slots = st.integers(0, 1)
reservations = st.builds(Reservation, slots, numbers, numbers, numbers, numbers)
paths = st.lists(reservations, max_size=3).map(tuple)
events = st.one_of(
    st.builds(Arrived, numbers, numbers, st.integers(0, 1), numbers),
    st.builds(Dropped, numbers, numbers, st.text(max_size=20), numbers),
    st.builds(
        Dispatched,
        numbers,
        numbers,
        st.integers(0, 1),
        st.just(0),
        numbers,
        st.lists(numbers, max_size=4).map(tuple),
        paths,
    ),
    st.tuples(instants, numbers, slots, slots).map(
        lambda drawn: Transferred(drawn[0][1], drawn[1], drawn[1], drawn[2], drawn[3], drawn[0][0])
    ),
    st.tuples(instants, numbers, slots).map(
        lambda drawn: Ran(drawn[0][1], drawn[1], drawn[1], drawn[2], drawn[0][0])
    ),
    st.builds(Answered, numbers, numbers, numbers),
    st.builds(Called, numbers, numbers, numbers),
    st.builds(SlotLost, numbers, slots),
    st.builds(SlotGained, numbers, slots),
)


@given(st.lists(events, max_size=30))
def test_every_log_reads_back_as_it_was_written(log: list[AnyEvent]) -> None:
    with TemporaryDirectory() as folder:
        path = Path(folder) / "run.events"
        with EventLogWriter(path, HEADER) as writer:
            for event in log:
                writer.append(event)

        assert read_event_log(path) == (HEADER, log)
        assert len(path.read_bytes().splitlines()) == 1 + len(log)


def test_a_chunk_reaches_the_file_by_itself_and_a_flush_brings_the_rest(tmp_path: Path) -> None:
    path = tmp_path / "run.events"
    log: list[AnyEvent] = [SlotLost(i, 0) for i in range(CHUNK_EVENTS + 3)]
    writer = EventLogWriter(path, HEADER)
    for event in log:
        writer.append(event)
    writer.flush()

    assert read_event_log(path) == (HEADER, log)
    writer.close()
    writer.close()


def test_the_log_of_a_killed_writer_is_read_up_to_its_last_whole_line(tmp_path: Path) -> None:
    path = tmp_path / "run.events"
    with EventLogWriter(path, HEADER) as writer:
        writer.append(SlotLost(1, 0))
        writer.append(SlotLost(2, 0))
    path.write_bytes(path.read_bytes()[:-4])

    with pytest.raises(DocumentError, match="cut short"):
        read_event_log(path)
    assert read_event_log(path, allow_cut_short=True) == (HEADER, [SlotLost(1, 0)])


@pytest.mark.parametrize("members", [1, 2])
def test_a_log_that_was_gzipped_since_is_read_as_it_is(tmp_path: Path, members: int) -> None:
    path = tmp_path / "run.events.1.gz"
    with EventLogWriter(path, HEADER) as writer:
        writer.append(SlotLost(1, 0))
        writer.append(SlotLost(2, 0))
    plain = path.read_bytes()
    cuts = [0, len(plain) // 2, len(plain)] if members == 2 else [0, len(plain)]
    packed = b"".join(gzip.compress(plain[a:b]) for a, b in pairwise(cuts))
    path.write_bytes(packed)

    assert read_event_log(path) == (HEADER, [SlotLost(1, 0), SlotLost(2, 0)])
    assert read_header(path) == HEADER


def test_of_a_gzipped_log_that_is_cut_short_or_damaged_the_same_is_told_as_of_others(
    tmp_path: Path,
) -> None:
    path = tmp_path / "run.events.1.gz"
    with EventLogWriter(path, HEADER) as writer:
        for at_us in range(1, 1001):
            writer.append(SlotLost(at_us, 0))
    packed = gzip.compress(path.read_bytes())
    path.write_bytes(packed[: len(packed) // 2])
    with pytest.raises(DocumentError, match=r"run\.events\.1\.gz: cut short"):
        read_event_log(path)
    header, events = read_event_log(path, allow_cut_short=True)
    assert header == HEADER
    assert 0 < len(events) < 1000

    path.write_bytes(packed[:-8] + bytes(8))
    with pytest.raises(DocumentError, match=r"run\.events\.1\.gz:1002: damaged gzipped data"):
        read_event_log(path, allow_cut_short=True)


@pytest.mark.parametrize(
    "line",
    [
        b"",
        b"[]",
        b"{}",
        b"null",
        b'["exploded",1]',
        b'["arrived",1,2]',
        b'["arrived",1,2,0,"soon"]',
        b'["arrived",1.5,2,0,3]',
        b'["arrived",1,2,2,3]',
        b'["ran",1,0,0,-1,0]',
        b'["ran",1,0,0,2,0]',
        b'["transferred",1,0,0,0,5,0]',
        b'["dispatched",1,0,0,1,0,[1],[]]',
        b'["dispatched",1,0,0,0,0,[1],[[9,0,0,0,0]]]',
        b'["dropped",1,0,"\xff",0]',
        b"[" * 5000,
    ],
)
def test_a_line_that_is_no_event_of_this_log_is_refused_by_its_number(
    tmp_path: Path, line: bytes
) -> None:
    path = tmp_path / "run.events"
    good = msgspec.json.encode(SlotLost(1, 0))
    path.write_bytes(b"\n".join([msgspec.json.encode(HEADER), good, line, good]) + b"\n")

    with pytest.raises(DocumentError) as refusal:
        read_event_log(path)

    assert f"{path}:3:" in str(refusal.value)


@pytest.mark.parametrize(
    "header",
    [
        b"",
        b"[]",
        b'{"schema":"headrace.events/2"}',
        msgspec.json.encode(HEADER).replace(b'"n1"', b'"n1","n2"'),
        msgspec.json.encode(HEADER).replace(b'"clock"', b'"colour":1,"clock"'),
    ],
)
def test_a_header_that_is_none_is_refused(tmp_path: Path, header: bytes) -> None:
    path = tmp_path / "run.events"
    path.write_bytes(header + b"\n")

    with pytest.raises(DocumentError, match=":1:"):
        read_event_log(path)


def test_a_missing_log_and_an_unwritable_place_are_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(DocumentError, match=r"nowhere\.events"):
        read_event_log(tmp_path / "nowhere.events")
    with pytest.raises(DocumentError, match="cannot write"):
        EventLogWriter(tmp_path / "no-folder" / "run.events", HEADER)
    (tmp_path / "empty").write_bytes(b"")
    with pytest.raises(DocumentError, match="empty: is empty; an event log begins with"):
        read_event_log(tmp_path / "empty")


@pytest.mark.parametrize(
    "event",
    [Ran(5, 0, 0, 0, 6), Transferred(5, 0, 0, 0, 1, 6), SlotLost(-1, 0), SlotLost(2**63, 0)],
)
def test_instants_that_cannot_be_are_refused(tmp_path: Path, event: AnyEvent) -> None:
    path = tmp_path / "run.events"
    with EventLogWriter(path, HEADER) as writer:
        writer.append(event)
    with pytest.raises(DocumentError, match=r"run\.events:2: an instant is negative"):
        read_event_log(path)
