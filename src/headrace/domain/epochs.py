"""Event logs of plans that followed each other, and how to read them as one.

A server that changes its plan writes one log per plan. Instants are on one clock and request ids
are common to all, so that the logs can be joined: models by name, slots and pipelines side by
side.
"""

from collections.abc import Iterator, Sequence
from heapq import merge
from itertools import pairwise
from typing import NamedTuple

import msgspec

from headrace.domain.errors import DocumentError
from headrace.domain.events import (
    Answered,
    AnyEvent,
    Arrived,
    Called,
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
    Seen,
    SlotGained,
    SlotLost,
    Transferred,
)


class EpochLog(NamedTuple):
    """What happened under one plan."""

    header: EventLogHeader
    events: Sequence[AnyEvent]


def check_one_run(names: Sequence[str], epochs: Sequence[EpochLog]) -> None:
    """Refuse what cannot be the logs of one server, in their order.

    Args:
        names: of the logs' files.

    Raises:
        DocumentError: they are of several runs, or in another order; names two of the files.
    """
    for (before, first), (after, second) in pairwise(zip(names, epochs, strict=True)):
        one, other = first.header, second.header
        if one.run != other.run:
            raise DocumentError(_apart(before, after, "they are of different runs"))
        if one.run and one.number >= other.number:
            raise DocumentError(
                f"{before} and {after}: logs {one.number} and {other.number} of their server;"
                " name each log once, in the order of their numbers"
            )
    arrived: dict[int, str] = {}
    for name, epoch in zip(names, epochs, strict=True):
        own = {event.request for event in epoch.events if isinstance(event, Arrived)}
        if twice := own & arrived.keys():
            request = min(twice)
            why = f"request {request} arrived in both"
            raise DocumentError(_apart(arrived[request], name, why))
        arrived |= dict.fromkeys(own, name)


def _apart(one: str, other: str, why: str) -> str:
    return (
        f"{one} and {other}: not logs of one run of a server: {why}; only those can be joined\n"
        "  try    each log on its own"
    )


def joined(epochs: Sequence[EpochLog]) -> EpochLog:
    """One log of them all. Names of slots and pipelines get the epoch's number, from 1.

    A single epoch is returned as it is.
    """
    if len(epochs) == 1:
        return epochs[0]
    models = tuple(dict.fromkeys(name for epoch in epochs for name in epoch.header.models))
    pipelines: dict[str, list[str]] = {name: [] for name in models}
    slots: list[str] = []
    nodes: list[str] = []
    renumbered = []
    batches = loads = 0
    for number, (header, events) in enumerate(epochs, start=1):
        shift = _Shift(
            models=tuple(models.index(name) for name in header.models),
            pipelines=tuple(len(pipelines[name]) for name in header.models),
            slots=len(slots),
            batches=batches,
            loads=loads,
        )
        for name, own in zip(header.models, header.pipelines, strict=True):
            pipelines[name] += [f"{number}:{pipeline}" for pipeline in own]
        slots += [f"{number}:{slot}" for slot in header.slots]
        nodes += header.nodes
        batches += 1 + max((e.batch for e in events if isinstance(e, Dispatched)), default=-1)
        loads += 1 + max((e.load for e in events if isinstance(e, Loading)), default=-1)
        renumbered.append(shift.all(events))
    first = epochs[0].header
    return EpochLog(
        EventLogHeader(
            clock=first.clock,
            policy=first.policy,
            models=models,
            pipelines=tuple(tuple(pipelines[name]) for name in models),
            slots=tuple(slots),
            nodes=tuple(nodes),
            resident_bytes=_resident_bytes(epochs, models),
        ),
        list(merge(*renumbered, key=lambda event: event.at_us)),
    )


def _resident_bytes(epochs: Sequence[EpochLog], models: Sequence[str]) -> tuple[int, ...]:
    """Of each model; 0 where its weights were in memory all the time."""
    known = {
        name: size
        for header, _ in epochs
        for name, size in zip(header.models, header.resident_bytes, strict=False)
    }
    return tuple(known.get(name, 0) for name in models) if known else ()


class _Shift(NamedTuple):
    """From an epoch's indices to the joined log's."""

    models: tuple[int, ...]
    pipelines: tuple[int, ...]
    slots: int
    batches: int
    loads: int

    def all(self, events: Sequence[AnyEvent]) -> Iterator[AnyEvent]:
        # Ends are logged with the worker's own, earlier, instants; `merge` needs rising ones.
        return iter(sorted(map(self.one, events), key=lambda event: event.at_us))

    def one(self, event: AnyEvent) -> AnyEvent:
        change = msgspec.structs.replace
        match event:
            case Arrived() | Opened():
                return change(event, model=self.models[event.model])
            case Placed():
                return change(event, slots=tuple(slot + self.slots for slot in event.slots))
            case Dispatched():
                return change(
                    event,
                    batch=event.batch + self.batches,
                    model=self.models[event.model],
                    pipeline=event.pipeline + self.pipelines[event.model],
                    path=tuple(change(hop, slot=hop.slot + self.slots) for hop in event.path),
                )
            case Transferred():
                return change(
                    event,
                    batch=event.batch + self.batches,
                    from_slot=event.from_slot + self.slots,
                    to_slot=event.to_slot + self.slots,
                )
            case Ran():
                return change(event, batch=event.batch + self.batches, slot=event.slot + self.slots)
            case Answered(batch=batch) if batch >= 0:
                return change(event, batch=batch + self.batches)
            case SlotLost() | SlotGained():
                return change(event, slot=event.slot + self.slots)
            case Loading() | Loaded() | LoadFailed():
                return change(
                    event,
                    load=event.load + self.loads,
                    slot=event.slot + self.slots,
                    model=self.models[event.model],
                )
            case Evicted():
                return change(event, slot=event.slot + self.slots, model=self.models[event.model])
            case Answered() | Dropped() | Called() | Seen():
                return event  # an app's answer comes from no batch
