"""What happened, in order: the one event log that simulator and server both write.

Instants are integer microseconds on the dispatcher's clock. Slots, models and pipelines are
indices into the header's lists, so that a million events stay small; on disk an event is one
JSON array per line, its kind first.
"""

from typing import Literal

import msgspec


class Event(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Base of all events; `at_us` is when it happened (ended, for work that takes time)."""

    at_us: int


class Arrived(Event, frozen=True, array_like=True, gc=False, tag="arrived"):
    request: int
    model: int
    deadline_at_us: int


class Dropped(Event, frozen=True, array_like=True, gc=False, tag="dropped"):
    request: int
    reason: str
    retry_after_us: int


class Reservation(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """One stage of a batch's path as it was promised."""

    slot: int
    transfer_at_us: int
    transfer_us: int
    start_at_us: int
    latency_us: int


class Dispatched(Event, frozen=True, array_like=True, gc=False, tag="dispatched"):
    """A batch got its path. Repeated, with the remaining stages, as it goes on by other slots.

    Times that move while the slots stay are not repeated, and policies that choose a slot as each
    stage begins tell the first alone.
    """

    batch: int
    model: int
    pipeline: int
    first_stage: int
    requests: tuple[int, ...]
    path: tuple[Reservation, ...]


class Transferred(Event, frozen=True, array_like=True, gc=False, tag="transferred"):
    """A batch's tensors reached the slot that runs `stage`."""

    batch: int
    stage: int
    from_slot: int
    to_slot: int
    started_at_us: int


class Ran(Event, frozen=True, array_like=True, gc=False, tag="ran"):
    batch: int
    stage: int
    slot: int
    started_at_us: int


class Answered(Event, frozen=True, array_like=True, gc=False, tag="answered"):
    request: int
    batch: int


class Called(Event, frozen=True, array_like=True, gc=False, tag="called"):
    """A request of an app called a module: the dispatcher knows the call as a request."""

    request: int
    """The app's."""
    call: int


class Seen(Event, frozen=True, array_like=True, gc=False, tag="seen"):
    """A client had what became of its request, as the client tells it. Of rehearsals only."""

    request: int
    scheduled_at_us: int
    """When it was to be sent; latency counts from there."""
    sent_at_us: int


class Opened(Event, frozen=True, array_like=True, gc=False, tag="opened"):
    """A request of many items arrived: they are the requests from this one on."""

    request: int
    model: int
    deadline_at_us: int
    items: int
    priority: int


class Placed(Event, frozen=True, array_like=True, gc=False, tag="placed"):
    """A request of many items is served by these slots from now on, its next items by one after the
    other; none: it waits."""

    request: int
    """Its first item's."""
    ends_at_us: int
    """When its last item is back, as far as is known, if it keeps these."""
    slots: tuple[int, ...]


class SlotLost(Event, frozen=True, array_like=True, gc=False, tag="slot-lost"):
    slot: int


class SlotGained(Event, frozen=True, array_like=True, gc=False, tag="slot-gained"):
    slot: int


class Loading(Event, frozen=True, array_like=True, gc=False, tag="loading"):
    """A model's weights are on their way to a slot: its copy stream is busy with them from now."""

    load: int
    """Its number: no other load has it."""
    slot: int
    model: int


class Loaded(Event, frozen=True, array_like=True, gc=False, tag="loaded"):
    """All that the model's start brings is in the slot's memory (header: `resident_bytes`)."""

    load: int
    slot: int
    model: int
    started_at_us: int


class LoadFailed(Event, frozen=True, array_like=True, gc=False, tag="load-failed"):
    """The model could not be brought there; nothing of it is on the slot."""

    load: int
    slot: int
    model: int


class Evicted(Event, frozen=True, array_like=True, gc=False, tag="evicted"):
    """The model's weights left the slot's memory: nothing ran of it there, or was promised to."""

    slot: int
    model: int


AnyEvent = (
    Arrived
    | Dropped
    | Dispatched
    | Transferred
    | Ran
    | Answered
    | Called
    | Seen
    | Opened
    | Placed
    | SlotLost
    | SlotGained
    | Loading
    | Loaded
    | LoadFailed
    | Evicted
)


class EventLogHeader(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """First line of an event log file, a JSON object."""

    schema: Literal["headrace.events/1"] = "headrace.events/1"
    clock: Literal["virtual", "live"]
    policy: str
    models: tuple[str, ...]
    pipelines: tuple[tuple[str, ...], ...]
    """Per model, the names of its pipelines."""
    slots: tuple[str, ...]
    nodes: tuple[str, ...]
    """Per slot, the name of its node."""
    resident_bytes: tuple[int, ...] = ()
    """Per model, what its start copies to a slot, not what it holds there; none: all weights are in
    memory."""
    run: str = ""
    """Of a server's logs, one for each of its plans: which run they are of; empty: a log that
    stands alone."""
    number: int = 1
    """Which of the run's logs, from 1."""
