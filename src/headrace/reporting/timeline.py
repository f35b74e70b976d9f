"""An event log as a picture: what every slot and link did, beside what was reserved for it."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import BinaryIO

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
    Opened,
    Placed,
    Ran,
    Reservation,
    SlotGained,
    SlotLost,
    Transferred,
)
from headrace.reporting.chrome_trace import (
    Instant,
    Process,
    Row,
    Slice,
    Span,
    write_chrome_trace,
)


def write_timeline(header: EventLogHeader, events: Sequence[AnyEvent], file: BinaryIO) -> int:
    """Write the log as Chrome trace JSON; returns the number of trace events.

    One process per node, with two rows per slot (what ran, what was reserved), one for its copy
    stream where models were loaded, and two rows per direction of its link where tensors crossed
    it, and an instant per eviction; one process per model, with a span per
    request (of one of many items, per item, and per set of slots that served it) and an instant per
    drop. Time 0 is the first event's earliest instant.
    """
    origin_us = min((_began_us(event) for event in events), default=0)
    about = {
        "source": "headrace",
        "policy": header.policy,
        "clock": header.clock,
        "origin_us": origin_us,
    }
    return write_chrome_trace(timeline(header, events), file, origin_us=origin_us, about=about)


def timeline(header: EventLogHeader, events: Iterable[AnyEvent]) -> list[Process]:
    """The picture's rows, before they become a file."""
    picture = _Picture(header)
    for event in events:
        picture.add(event)
    return picture.finished()


def _began_us(event: AnyEvent) -> int:
    return event.started_at_us if isinstance(event, Ran | Transferred | Loaded) else event.at_us


@dataclass(slots=True)
class _Batch:
    """What is known so far of one batch."""

    dispatched: Dispatched
    reserved: dict[int, Reservation]
    """Stage -> the newest reservation."""
    open_requests: int
    stages_run: int = 0


class _Picture:
    """Reads events in order; collects slices per row."""

    def __init__(self, header: EventLogHeader) -> None:
        self._header = header
        self._nodes = list(dict.fromkeys(header.nodes))
        self._ran = [Row(label=slot) for slot in header.slots]
        self._reserved = [Row(label=f"{slot} reserved") for slot in header.slots]
        self._copies: dict[int, Row] = {}
        self._loading: dict[int, Loading] = {}
        self._evicted: dict[str, list[Instant]] = {}
        self._links: dict[tuple[str, str, bool], Row] = {}
        self._models = [Process(name=f"requests of {model}") for model in header.models]
        self._batches: dict[int, _Batch] = {}
        self._batch_of: dict[int, int] = {}
        self._arrived: dict[int, Arrived] = {}
        self._lost_at_us: dict[int, int] = {}
        self._opened: dict[int, Opened] = {}
        self._whole: dict[int, int] = {}
        self._placed: dict[int, Placed] = {}
        self._last_us = 0

    def add(self, event: AnyEvent) -> None:
        self._last_us = max(self._last_us, event.at_us)
        match event:
            case Arrived():
                self._arrived[event.request] = event
            case Dispatched():
                self._on_dispatched(event)
            case Transferred():
                self._on_transferred(event)
            case Ran():
                self._on_ran(event)
            case Answered():
                self._on_answered(event)
            case Dropped():
                self._on_dropped(event)
            case Opened():
                self._opened[event.request] = event
                items = range(event.request, event.request + event.items)
                self._whole.update(dict.fromkeys(items, event.request))
            case Placed():
                self._end_places(event.request, event.at_us)
                self._placed[event.request] = event
            case Loading():
                self._loading[event.load] = event
            case Loaded():
                self._end_load(event.load, event.at_us, "")
            case LoadFailed():
                self._end_load(event.load, event.at_us, "failed: ")
            case Evicted():
                self._on_evicted(event)
            case SlotLost():
                self._on_lost(event)
            case SlotGained():
                self._on_gained(event)

    def finished(self) -> list[Process]:
        for batch in self._batches.values():
            self._draw_reservations(batch)
        for slot in sorted(self._lost_at_us):
            self._draw_lost(slot, self._last_us)
        for load in list(self._loading):
            self._end_load(load, self._last_us, "unfinished: ")
        for request in list(self._arrived):
            self._end_request(request, self._last_us, "unfinished", {})
        for request in list(self._placed):
            self._end_places(request, self._last_us)
        return [self._node_process(node) for node in self._nodes] + self._models

    def _on_dispatched(self, event: Dispatched) -> None:
        known = self._batches.get(event.batch)
        if known is None:
            known = _Batch(event, {}, len(event.requests))
            self._batches[event.batch] = known
            for request in event.requests:
                # A batch that lost its slot before it ran is dissolved and its requests regroup.
                self._leave_batch(request)
                self._batch_of[request] = event.batch
        # A new path replaces the old one from its first stage on, to the end.
        self._release(known, event.first_stage)
        known.dispatched = event
        for stage, hop in enumerate(event.path, start=event.first_stage):
            known.reserved[stage] = hop

    def _on_transferred(self, event: Transferred) -> None:
        args = {"batch": event.batch, "stage": event.stage}
        self._draw_transfer(
            event.from_slot, event.to_slot, event.started_at_us, event.at_us, args, reserved=False
        )

    def _on_ran(self, event: Ran) -> None:
        batch = self._batches.get(event.batch)
        args: dict[str, object] = {"batch": event.batch}
        name = f"stage {event.stage}"
        if batch is not None:
            batch.stages_run = max(batch.stages_run, event.stage + 1)
            args = self._batch_args(batch, event.stage)
            name = self._stage_name(batch, event.stage)
            if (promised := batch.reserved.get(event.stage)) is not None:
                args["started_after_reserved_us"] = event.started_at_us - promised.start_at_us
                args["ran_longer_than_reserved_us"] = (
                    event.at_us - event.started_at_us - promised.latency_us
                )
        more = batch is not None and event.stage + 1 in batch.reserved
        self._ran[event.slot].slices.append(
            Slice(
                start_us=event.started_at_us,
                end_us=event.at_us,
                name=name,
                args=args,
                flow_in=f"{event.batch}.{event.stage}" if event.stage else None,
                flow_out=f"{event.batch}.{event.stage + 1}" if more else None,
            )
        )

    def _on_answered(self, event: Answered) -> None:
        arrived = self._arrived.get(event.request)
        if arrived is not None:
            slack_us = arrived.deadline_at_us - event.at_us
            outcome = "in time" if slack_us >= 0 else "late"
            args = {"batch": event.batch, "slack_us": slack_us}
            self._end_request(event.request, event.at_us, outcome, args)

    def _on_dropped(self, event: Dropped) -> None:
        arrived = self._arrived.get(event.request)
        if arrived is not None:
            self._models[arrived.model].instants.append(
                Instant(
                    at_us=event.at_us,
                    name=f"dropped: {event.reason}",
                    args={"request": event.request, "retry_after_us": event.retry_after_us},
                )
            )
            self._end_request(event.request, event.at_us, "dropped", {"reason": event.reason})
        self._leave_batch(event.request)

    def _on_evicted(self, event: Evicted) -> None:
        name = f"evicted: {self._header.models[event.model]}"
        instant = Instant(
            at_us=event.at_us, name=name, args={"slot": self._header.slots[event.slot]}
        )
        self._evicted.setdefault(self._header.nodes[event.slot], []).append(instant)

    def _on_lost(self, event: SlotLost) -> None:
        self._lost_at_us.setdefault(event.slot, event.at_us)
        for load in [load for load, it in self._loading.items() if it.slot == event.slot]:
            self._end_load(load, event.at_us, "cut short: ")

    def _end_load(self, load: int, at_us: int, how: str) -> None:
        """Draw for how long a copy stream was busy with a model's weights."""
        begun = self._loading.pop(load, None)
        if begun is None:
            return  # of a log that begins later, or of a slot that was lost
        model, slot = self._header.models[begun.model], self._header.slots[begun.slot]
        args: dict[str, object] = {"load": load}
        if self._header.resident_bytes:
            args["bytes"] = self._header.resident_bytes[begun.model]
        row = self._copies.setdefault(begun.slot, Row(label=f"{slot} copies"))
        row.slices.append(
            Slice(start_us=begun.at_us, end_us=at_us, name=f"{how}{model}", args=args)
        )

    def _on_gained(self, event: SlotGained) -> None:
        if event.slot in self._lost_at_us:
            self._draw_lost(event.slot, event.at_us)
            del self._lost_at_us[event.slot]

    def _leave_batch(self, request: int) -> None:
        batch = self._batches.get(self._batch_of.pop(request, -1))
        if batch is None:
            return
        batch.open_requests -= 1
        if batch.open_requests == 0:
            # Nobody is left to run for: what the batch still held was released.
            self._release(batch, batch.stages_run)

    def _release(self, batch: _Batch, first_stage: int) -> None:
        for stage in [stage for stage in batch.reserved if stage >= first_stage]:
            del batch.reserved[stage]

    def _end_request(
        self, request: int, at_us: int, outcome: str, args: Mapping[str, object]
    ) -> None:
        arrived = self._arrived.pop(request)
        facts = {"request": request, "slo_us": arrived.deadline_at_us - arrived.at_us, **args}
        self._models[arrived.model].spans.append(
            Span(id=request, start_us=arrived.at_us, end_us=at_us, name=outcome, args=facts)
        )
        first = self._whole.pop(request, -1)
        if first >= 0 and not self._is_open(first):
            self._end_places(first, at_us)

    def _is_open(self, request: int) -> bool:
        """Whether any item of a request has not ended."""
        items = self._opened[request].items
        return any(item in self._arrived for item in range(request, request + items))

    def _end_places(self, request: int, at_us: int) -> None:
        """Draw for how long these slots have served a request of many items."""
        placed = self._placed.pop(request, None)
        opened = self._opened.get(request)
        if placed is None or not placed.slots or opened is None:
            return
        slots = [self._header.slots[slot] for slot in placed.slots]
        self._models[opened.model].spans.append(
            Span(
                id=request,
                start_us=placed.at_us,
                end_us=at_us,
                name=f"on {len(slots)} slots",
                args={"request": request, "slots": slots, "ends_at_us": placed.ends_at_us},
            )
        )

    def _draw_reservations(self, batch: _Batch) -> None:
        for stage, hop in sorted(batch.reserved.items()):
            args = self._batch_args(batch, stage)
            self._reserved[hop.slot].slices.append(
                Slice(
                    start_us=hop.start_at_us,
                    end_us=hop.start_at_us + hop.latency_us,
                    name=self._stage_name(batch, stage),
                    args=args,
                )
            )
            before = batch.reserved.get(stage - 1)
            if before is not None and hop.transfer_us > 0:
                ends_us = hop.transfer_at_us + hop.transfer_us
                self._draw_transfer(
                    before.slot, hop.slot, hop.transfer_at_us, ends_us, args, reserved=True
                )

    def _draw_transfer(
        self,
        from_slot: int,
        to_slot: int,
        start_us: int,
        end_us: int,
        args: Mapping[str, object],
        *,
        reserved: bool,
    ) -> None:
        """On the sender's uplink and the receiver's downlink; within a node no link is used."""
        source, target = self._header.nodes[from_slot], self._header.nodes[to_slot]
        if source == target:
            return
        for node, direction, peer in ((source, "uplink", target), (target, "downlink", source)):
            row = self._links.setdefault(
                (node, direction, reserved),
                Row(label=f"{direction} reserved" if reserved else direction),
            )
            name = f"to {peer}" if direction == "uplink" else f"from {peer}"
            row.slices.append(Slice(start_us=start_us, end_us=end_us, name=name, args=args))

    def _draw_lost(self, slot: int, until_us: int) -> None:
        self._ran[slot].slices.append(
            Slice(start_us=self._lost_at_us[slot], end_us=until_us, name="SLOT LOST")
        )

    def _stage_name(self, batch: _Batch, stage: int) -> str:
        model = self._header.models[batch.dispatched.model]
        return f"{model} stage {stage} x{len(batch.dispatched.requests)}"

    def _batch_args(self, batch: _Batch, stage: int) -> dict[str, object]:
        event = batch.dispatched
        return {
            "batch": event.batch,
            "pipeline": self._header.pipelines[event.model][event.pipeline],
            "stage": stage,
            "requests": list(event.requests),
        }

    def _node_process(self, node: str) -> Process:
        rows: list[Row] = []
        for slot, home in enumerate(self._header.nodes):
            if home == node:
                rows += [self._ran[slot], self._reserved[slot]]
                if slot in self._copies:
                    rows.append(self._copies[slot])
        for direction in ("uplink", "downlink"):
            for reserved in (False, True):
                if (row := self._links.get((node, direction, reserved))) is not None:
                    rows.append(row)
        return Process(name=node, rows=rows, instants=self._evicted.get(node, []))
