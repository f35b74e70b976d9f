"""The timeline of a small hand-made log, compared with a stored file; then any log's validity.

To accept a changed picture: HEADRACE_UPDATE_GOLDEN=1 pytest tests/golden/test_timeline_golden.py
"""

import io
import itertools
import json
import os
from collections import defaultdict
from pathlib import Path
from typing import Any

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from headrace.domain.events import (
    Answered,
    AnyEvent,
    Arrived,
    Dispatched,
    Dropped,
    EventLogHeader,
    Evicted,
    Loaded,
    LoadFailed,
    Loading,
    Ran,
    Reservation,
    SlotGained,
    SlotLost,
    Transferred,
)
from headrace.reporting.chrome_trace import Slice, lanes
from headrace.reporting.timeline import timeline, write_timeline

GOLDEN = Path(__file__).parent / "timeline.trace.json"
HEADER = EventLogHeader(
    clock="virtual",
    policy="reservation",
    models=("reader",),
    pipelines=(("reader/0",),),
    slots=("slow0", "fast0", "fast1"),
    nodes=("left", "right", "right"),
)
LOG: list[AnyEvent] = [
    Arrived(1_000, 0, 0, 61_000),
    Arrived(1_500, 1, 0, 61_500),
    Dispatched(
        1_500,
        0,
        0,
        0,
        0,
        (0, 1),
        (Reservation(0, 0, 0, 1_500, 10_000), Reservation(1, 11_500, 2_000, 13_500, 8_000)),
    ),
    Ran(11_400, 0, 0, 0, 1_500),
    SlotLost(12_000, 1),
    # The path changes from stage 1 on: the reservation on fast0 is void.
    Dispatched(12_000, 0, 0, 0, 1, (0, 1), (Reservation(2, 12_000, 2_000, 14_000, 8_000),)),
    Transferred(14_100, 0, 1, 0, 2, 12_000),
    Ran(22_500, 0, 1, 2, 14_200),
    Answered(22_500, 0, 0),
    Answered(22_500, 1, 0),
    SlotGained(30_000, 1),
    Arrived(40_000, 2, 0, 41_000),
    Dropped(40_000, 2, "deadline", 5_000),
    Arrived(50_000, 3, 0, 55_000),
    Dispatched(
        50_000,
        1,
        0,
        0,
        0,
        (3,),
        (Reservation(0, 0, 0, 50_000, 4_000), Reservation(2, 54_000, 500, 54_500, 400)),
    ),
    Ran(56_000, 1, 0, 0, 50_000),
    # Hopeless by now: what it held on fast1 was released.
    Dropped(56_000, 3, "deadline", 1_000),
    SlotLost(57_000, 0),
    Arrived(58_000, 4, 0, 100_000),
]


def written(log: list[AnyEvent]) -> bytes:
    file = io.BytesIO()
    write_timeline(HEADER, log, file)
    return file.getvalue()


def rows_of(trace: dict[str, Any]) -> dict[str, list[dict[str, Any]]]:
    """Row label -> its slices."""
    names = {
        (e["pid"], e["tid"]): e["args"]["name"]
        for e in trace["traceEvents"]
        if e["name"] == "thread_name"
    }
    rows: dict[str, list[dict[str, Any]]] = {name: [] for name in names.values()}
    for e in trace["traceEvents"]:
        if e["ph"] == "X":
            rows[names[e["pid"], e["tid"]]].append(e)
    return rows


def test_the_picture_of_a_small_log_is_the_stored_one() -> None:
    picture = written(LOG)
    if os.environ.get("HEADRACE_UPDATE_GOLDEN") == "1":
        GOLDEN.write_bytes(picture)

    assert picture == GOLDEN.read_bytes()


def test_reserved_rows_show_what_was_valid_last() -> None:
    rows = rows_of(json.loads(written(LOG)))

    def spans(row: str) -> list[tuple[int, int]]:
        return [(e["ts"], e["dur"]) for e in rows[row]]

    # Time 0 is the first event, at 1,000 us.
    assert spans("slow0 reserved") == [(500, 10_000), (49_000, 4_000)]
    assert spans("fast0 reserved") == []
    assert spans("fast1 reserved") == [(13_000, 8_000)]
    assert spans("uplink reserved") == spans("downlink reserved") == [(11_000, 2_000)]
    assert spans("uplink") == spans("downlink") == [(11_000, 2_100)]


def test_lost_slots_are_marked_until_they_are_back_or_the_log_ends() -> None:
    rows = rows_of(json.loads(written(LOG)))

    lost = {
        row: [(e["ts"], e["dur"]) for e in slices if e["name"] == "SLOT LOST"]
        for row, slices in rows.items()
    }
    assert lost["fast0"] == [(11_000, 18_000)]
    assert lost["slow0"] == [(56_000, 1_000)]
    assert lost["fast1"] == []


def test_copy_streams_show_the_loads_that_they_were_busy_with() -> None:
    header = msgspec.structs.replace(HEADER, models=("reader", "writer"), resident_bytes=(500, 70))
    log: list[AnyEvent] = [
        Loading(1_000, 0, 1, 0),
        Loading(1_200, 1, 0, 1),
        Loaded(4_000, 0, 1, 0, 1_000),
        Evicted(4_100, 1, 0),
        Loading(4_100, 2, 1, 1),
        LoadFailed(4_500, 1, 0, 1),
        SlotLost(5_000, 1),
        Loading(6_000, 3, 2, 0),
        LoadFailed(6_500, 2, 1, 1),
        Arrived(9_000, 0, 0, 20_000),
    ]
    file = io.BytesIO()

    write_timeline(header, log, file)

    trace = json.loads(file.getvalue())
    rows = rows_of(trace)
    assert [
        (row, e["name"], e["ts"], e["dur"], e["args"]["load"], e["args"]["bytes"])
        for row in rows
        if row.endswith(" copies")
        for e in rows[row]
    ] == [
        ("slow0 copies", "failed: writer", 200, 3_300, 1, 70),
        ("fast0 copies", "reader", 0, 3_000, 0, 500),
        ("fast0 copies", "cut short: writer", 3_100, 900, 2, 70),
        ("fast1 copies", "unfinished: reader", 5_000, 3_000, 3, 500),
    ]
    evictions = [e for e in trace["traceEvents"] if e["ph"] == "i"]
    assert [(e["name"], e["ts"], e["args"]) for e in evictions] == [
        ("evicted: reader", 3_100, {"slot": "fast0"})
    ]


def test_a_log_without_loads_has_no_rows_for_copy_streams() -> None:
    assert not [row for row in rows_of(json.loads(written(LOG))) if row.endswith(" copies")]


def test_every_request_is_a_span_with_its_slack() -> None:
    trace = json.loads(written(LOG))

    begun = [e for e in trace["traceEvents"] if e["ph"] == "b"]
    assert {e["id"]: e["name"] for e in begun} == {
        "0": "in time",
        "1": "in time",
        "2": "dropped",
        "3": "dropped",
        "4": "unfinished",
    }
    assert begun[0]["args"]["slack_us"] == 61_000 - 22_500
    drops = [e["name"] for e in trace["traceEvents"] if e["ph"] == "i"]
    assert drops == ["dropped: deadline"] * 2


def test_a_batch_that_is_dissolved_gives_its_reservations_back() -> None:
    hop = Reservation(1, 0, 0, 100, 50)
    regrouped: list[AnyEvent] = [
        Arrived(0, 0, 0, 1_000),
        Dispatched(0, 0, 0, 0, 0, (0,), (hop,)),
        SlotLost(50, 1),
        Dispatched(50, 1, 0, 0, 0, (0,), (Reservation(2, 0, 0, 60, 50),)),
    ]

    left, right, _ = timeline(HEADER, regrouped)

    assert left.rows[0].slices == []
    reserved = {row.label: row.slices for row in right.rows if row.label.endswith("reserved")}
    assert reserved["fast0 reserved"] == []
    assert [piece.start_us for piece in reserved["fast1 reserved"]] == [60]


def test_an_empty_log_is_still_a_picture_of_idle_slots() -> None:
    rows = rows_of(json.loads(written([])))

    assert set(rows) == {name for slot in HEADER.slots for name in (slot, f"{slot} reserved")}


small = st.integers(0, 200)
slots = st.integers(0, 2)
events = st.one_of(
    st.builds(Arrived, small, small, st.just(0), small),
    st.builds(Dropped, small, small, st.just("deadline"), small),
    st.builds(
        Dispatched,
        small,
        st.integers(0, 5),
        st.just(0),
        st.just(0),
        st.integers(0, 1),
        st.lists(small, min_size=1, max_size=3).map(tuple),
        st.lists(st.builds(Reservation, slots, small, small, small, small), max_size=2).map(tuple),
    ),
    st.builds(Answered, small, small, st.integers(0, 5)),
    st.builds(SlotLost, small, slots),
    st.builds(SlotGained, small, slots),
    st.builds(
        lambda start, length, batch, stage, slot: Ran(start + length, batch, stage, slot, start),
        small,
        small,
        st.integers(0, 5),
        st.integers(0, 1),
        slots,
    ),
)


@given(st.lists(events, max_size=40))
def test_whatever_the_log_the_trace_is_valid(log: list[AnyEvent]) -> None:
    trace = json.loads(written(log))

    rows = defaultdict(list)
    open_spans = set()
    for e in trace["traceEvents"]:
        assert {"ph", "pid", "tid", "name"} <= e.keys()
        if e["ph"] == "X":
            assert e["dur"] >= 0
            rows[e["pid"], e["tid"]].append(e)
        elif e["ph"] == "b":
            open_spans.add((e["pid"], e["id"], e["name"]))
        elif e["ph"] == "e":
            open_spans.discard((e["pid"], e["id"], e["name"]))
    assert not open_spans
    for slices in rows.values():
        ends = [e["ts"] + e["dur"] for e in slices]
        assert all(end <= later["ts"] for end, later in zip(ends, slices[1:], strict=False))


@given(st.lists(st.tuples(small, small), max_size=30))
def test_lanes_keep_every_slice_and_never_overlap(spans: list[tuple[int, int]]) -> None:
    pieces = [Slice(start_us=start, end_us=start + length, name="x") for start, length in spans]

    found = lanes(pieces)

    assert sorted(map(id, (piece for lane in found for piece in lane))) == sorted(map(id, pieces))
    for lane in found:
        assert all(a.end_us <= b.start_us for a, b in itertools.pairwise(lane))
