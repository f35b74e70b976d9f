"""Chrome trace JSON, which Perfetto and chrome://tracing open: rows of slices, spans, instants.

Written line by line and in a fixed order, so that two traces of equal logs are equal files.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, BinaryIO

import msgspec


@dataclass(frozen=True, slots=True, kw_only=True)
class Slice:
    """Something that a row did from `start_us` to `end_us`."""

    start_us: int
    end_us: int
    name: str
    args: Mapping[str, Any] = field(default_factory=dict)
    flow_in: str | None = None
    """Identity of the arrow that ends here."""
    flow_out: str | None = None
    """Identity of the arrow that starts here."""


@dataclass(slots=True, kw_only=True)
class Row:
    """One line of the picture. Slices may overlap; the overlapping ones get lines of their own."""

    label: str
    slices: list[Slice] = field(default_factory=list)


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """Something that overlaps freely with its like; drawn wherever there is room."""

    id: int
    start_us: int
    end_us: int
    name: str
    args: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Instant:
    at_us: int
    name: str
    args: Mapping[str, Any] = field(default_factory=dict)


@dataclass(slots=True, kw_only=True)
class Process:
    """A titled group of rows."""

    name: str
    rows: list[Row] = field(default_factory=list)
    spans: list[Span] = field(default_factory=list)
    instants: list[Instant] = field(default_factory=list)


def write_chrome_trace(
    processes: Sequence[Process], file: BinaryIO, *, origin_us: int, about: Mapping[str, Any]
) -> int:
    """Write the trace and return how many events it has.

    Args:
        origin_us: becomes time 0 of the trace.
        about: free facts, shown by the viewer as metadata.
    """
    encode = msgspec.json.Encoder().encode
    head = encode({"displayTimeUnit": "ms", "otherData": dict(about)})
    file.write(head[:-1] + b',"traceEvents":[\n')
    count = 0
    for event in _trace_events(processes, origin_us):
        file.write((b",\n" if count else b"") + encode(event))
        count += 1
    file.write(b"\n]}\n")
    return count


def lanes(slices: Iterable[Slice]) -> list[list[Slice]]:
    """Distribute slices over as few lanes as it takes for none to overlap, by start."""
    result: list[list[Slice]] = []
    for piece in sorted(slices, key=lambda piece: (piece.start_us, piece.end_us, piece.name)):
        for lane in result:
            if lane[-1].end_us <= piece.start_us:
                lane.append(piece)
                break
        else:
            result.append([piece])
    return result


def _trace_events(processes: Sequence[Process], origin_us: int) -> Iterator[dict[str, Any]]:
    for pid, process in enumerate(processes, start=1):
        yield _named("process_name", pid, 0, {"name": process.name})
        yield _named("process_sort_index", pid, 0, {"sort_index": pid})
        tid = 0
        for row in process.rows:
            # A row without slices is kept: an idle slot is something to see.
            for number, lane in enumerate(lanes(row.slices) or [[]], start=1):
                tid += 1
                label = row.label if number == 1 else f"{row.label} ({number})"
                yield _named("thread_name", pid, tid, {"name": label})
                yield _named("thread_sort_index", pid, tid, {"sort_index": tid})
                for piece in lane:
                    yield from _slice_events(piece, pid, tid, origin_us)
        for span in process.spans:
            yield from _span_events(span, pid, origin_us)
        for instant in process.instants:
            yield {
                "ph": "i",
                "pid": pid,
                "tid": 0,
                "ts": instant.at_us - origin_us,
                "s": "p",
                "name": instant.name,
                "args": dict(instant.args),
            }


def _named(kind: str, pid: int, tid: int, args: dict[str, Any]) -> dict[str, Any]:
    return {"ph": "M", "pid": pid, "tid": tid, "name": kind, "args": args}


def _slice_events(piece: Slice, pid: int, tid: int, origin_us: int) -> Iterator[dict[str, Any]]:
    start_us = piece.start_us - origin_us
    yield {
        "ph": "X",
        "pid": pid,
        "tid": tid,
        "ts": start_us,
        "dur": max(0, piece.end_us - piece.start_us),
        "name": piece.name,
        "args": dict(piece.args),
    }
    arrow = {"cat": "batch", "name": "next stage", "pid": pid, "tid": tid, "ts": start_us}
    if piece.flow_in is not None:
        # "bp": "e" ties the head of the arrow to the enclosing slice, not to the next one.
        yield {"ph": "f", "bp": "e", "id": piece.flow_in, **arrow}
    if piece.flow_out is not None:
        yield {"ph": "s", "id": piece.flow_out, **arrow}


def _span_events(span: Span, pid: int, origin_us: int) -> Iterator[dict[str, Any]]:
    common = {"cat": "request", "id": str(span.id), "pid": pid, "tid": 0, "name": span.name}
    yield {"ph": "b", "ts": span.start_us - origin_us, **common, "args": dict(span.args)}
    yield {"ph": "e", "ts": span.end_us - origin_us, **common}
