"""Event logs of plans that followed each other, and how to read them as one.

A server that changes its plan writes one log per plan. Instants are on one clock and request ids
are common to all, so that the logs can be joined: models by name, slots and pipelines side by
side.
"""

from collections.abc import Iterator, Sequence
from heapq import merge
from typing import NamedTuple

import msgspec

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
    batches = 0
    for number, (header, events) in enumerate(epochs, start=1):
        shift = _Shift(
            models=tuple(models.index(name) for name in header.models),
            pipelines=tuple(len(pipelines[name]) for name in header.models),
            slots=len(slots),
            batches=batches,
        )
        for name, own in zip(header.models, header.pipelines, strict=True):
            pipelines[name] += [f"{number}:{pipeline}" for pipeline in own]
        slots += [f"{number}:{slot}" for slot in header.slots]
        nodes += header.nodes
        batches += 1 + max((e.batch for e in events if isinstance(e, Dispatched)), default=-1)
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
            resident_bytes=first.resident_bytes if len(epochs) == 1 else (),
        ),
        list(merge(*renumbered, key=lambda event: event.at_us)),
    )


class _Shift(NamedTuple):
    """From an epoch's indices to the joined log's."""

    models: tuple[int, ...]
    pipelines: tuple[int, ...]
    slots: int
    batches: int

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
            case Loading() | Loaded() | LoadFailed() | Evicted():
                slot, model = event.slot + self.slots, self.models[event.model]
                return change(event, slot=slot, model=model)
            case Answered() | Dropped() | Called() | Seen():
                return event  # an app's answer comes from no batch
