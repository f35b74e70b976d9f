"""What a policy is: one module with these functions and tables, and one line in `POLICIES`.

The kernel keeps queues, rows and the order of events; a policy says what to do with requests that
wait, where a batch goes next, and when. Between an arrival and an answer it is asked:

    on_arrived       a request is in its queue
    decide           send the first requests, wait, or drop the first; whenever one may be due
    on_dispatched    what was sent is a batch now; `path` has its way as `decide` has found it
    next_hop         before each stage: settle its hop, or say why to drop the batch
    transfer_at      its links are idle: may its tensors go?  ┐ order of execution: at once, or
    start_at         its slot is idle: may it run?            ┘ not before an instant
    on_transferred   ┐
    on_started       │ what really happened, earlier or later than foreseen
    on_ended         ┘
    forget           the batch ends here, answered or dropped: release what it still holds
    reroute          a slot ahead of the batch is lost: another way from that stage on
    on_slot_lost, on_slot_gained   a slot has left its pools, or is back and idle
    on_level_changed               batches of a stage take longer or shorter on a slot (`drift`)

Policies that serve requests of many items (`malleable`) keep these in tables of their own:

    open_request, give_up_request  it arrives as a whole; its client went away
    serve            at the end of every event: something may have become possible
    put_back         where a request goes whose batch was lost or is run again in halves
    on_answered      a batch's last stage has run, before it is forgotten

Policies of models that come and go (`provision`) hear of loads:

    on_loaded, on_load_failed  what was ordered has come about, or cannot
    on_admitted      a model's requests are to be taken from now on, or refused

They are compiled functions of a `State` and integers, without effects outside the state. A caller
is compiled for the policy's kind of state, so that `s.policy.decide(s, ...)` is a plain call,
mostly inlined. A policy may take functions of another as its own, as `batch_aware` takes
`reactive`'s.

FIELDS   adds fields to records: {"slots": {"free_at": 0}}: table, field, value at first
TABLES   adds tables: {"lines": layout.Table(...)}
lay_out  fills what was added, from the topology and the policy's parameters, once

A reason to drop is an index into `journal.REASONS`; NO_REASON is none.
"""

from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from typing import Any, NamedTuple, Protocol

import numpy as np

from headrace.compilation.loops import hot
from headrace.dispatch.kernel import queues
from headrace.dispatch.kernel.layout import COMMON, State, Table, ints
from headrace.dispatch.topology import Topology

SEND, WAIT, DROP = range(3)

NO_REASON = -1

SLOT_RECOVERY_US = 1_000_000
"""When to try again after a pool has lost all its slots: about a worker's restart."""


class Decision(NamedTuple):
    """What to do with the requests that wait for a model."""

    what: int
    """SEND the first `size` requests on `route`; WAIT until `at_us`, or until `size` requests wait;
    DROP the first request for a `reason`."""
    route: int
    size: int
    at_us: int
    reason: int
    retry_after_us: int


@hot
def send(route: int, size: int) -> Decision:
    """Make the first `size` requests a batch; its path lies in the route's rows of `path`."""
    return Decision(SEND, route, size, 0, NO_REASON, 0)


@hot
def wait(at_us: int, size: int) -> Decision:
    """Decide again at that instant; before it only once `size` requests wait, or at an event."""
    return Decision(WAIT, 0, size, at_us, NO_REASON, 0)


@hot
def drop(reason: int, retry_after_us: int) -> Decision:
    """Refuse the first request, with advice when to try again."""
    return Decision(DROP, 0, 0, 0, reason, retry_after_us)


class PolicyModule(Protocol):
    """The functions that every policy module has."""

    @property
    def FIELDS(self) -> Mapping[str, Mapping[str, int]]: ...

    @property
    def TABLES(self) -> Mapping[str, Table]: ...

    @property
    def __name__(self) -> str: ...

    @property
    def __file__(self) -> str | None: ...

    def __hash__(self) -> int: ...

    def lay_out(self, state: Any, topology: Topology, parameters: Mapping[str, int]) -> None: ...

    def on_arrived(self, s: State, request: int) -> None: ...

    def decide(self, s: State, model: int, now_us: int) -> Decision: ...

    def on_dispatched(self, s: State, batch: int) -> None: ...

    def next_hop(self, s: State, batch: int, now_us: int) -> int: ...

    def transfer_at(self, s: State, hop: int, now_us: int) -> int: ...

    def start_at(self, s: State, hop: int, now_us: int) -> int: ...

    def on_transferred(self, s: State, hop: int, now_us: int) -> None: ...

    def on_started(self, s: State, hop: int, now_us: int) -> None: ...

    def on_ended(self, s: State, hop: int, now_us: int) -> None: ...

    def forget(self, s: State, batch: int) -> None: ...

    def reroute(self, s: State, batch: int, first_stage: int, now_us: int) -> int: ...

    def on_slot_lost(self, s: State, slot: int) -> None: ...

    def on_slot_gained(self, s: State, slot: int, now_us: int) -> None: ...

    def on_level_changed(self, s: State, stage: int, place: int, now_us: int) -> None: ...

    def open_request(
        self,
        s: State,
        now_us: int,
        first_id: int,
        model: int,
        arrived_at: int,
        deadline_at: int,
        priority: int,
        items: int,
    ) -> None: ...

    def give_up_request(self, s: State, request_id: int, now_us: int) -> None: ...

    def serve(self, s: State, now_us: int) -> None: ...

    def put_back(self, s: State, model: int, request: int) -> None: ...

    def on_answered(self, s: State, batch: int) -> None: ...

    def on_loaded(self, s: State, load: int, slot: int, started_at: int, now_us: int) -> None: ...

    def on_load_failed(self, s: State, load: int, slot: int, now_us: int) -> None: ...

    def on_admitted(self, s: State, model: int, admitted: int, now_us: int) -> None: ...


@cache
def tables_of(policy: PolicyModule) -> dict[str, Table]:
    """All tables of a policy's state, the fields that it adds included.

    Raises:
        ValueError: it adds fields to a table that there is not.
    """
    tables: dict[str, Table] = {**COMMON, **policy.TABLES}
    for name, fields in policy.FIELDS.items():
        if name not in tables:
            raise ValueError(f"policy {policy.__name__} adds fields to {name!r}, which is no table")
        table = tables[name]
        tables[name] = replace(
            table,
            item=np.dtype([*table.item.descr, *ints(*fields).descr]),
            empty={**table.empty, **fields},
        )
    return tables


# -- what a policy may take as its own ------------------------------------------------------------


@hot
def at_once(_s: State, _hop: int, now_us: int) -> int:
    """Of `transfer_at` and `start_at`: as soon as links or slot are idle."""
    return now_us


@hot
def ignore_arrival(_s: State, _request: int) -> None:
    """Of `on_arrived`."""


@hot
def ignore_level(_s: State, _stage: int, _place: int, _now_us: int) -> None:
    """Of `on_level_changed`."""


@hot
def ignore_items(
    _s: State,
    _now_us: int,
    _first_id: int,
    _model: int,
    _arrived_at: int,
    _deadline_at: int,
    _priority: int,
    _items: int,
) -> None:
    """Of `open_request`: no driver tells such a policy of a request as a whole."""


@hot
def ignore_give_up(_s: State, _request_id: int, _now_us: int) -> None:
    """Of `give_up_request`."""


@hot
def ignore_serve(_s: State, _now_us: int) -> None:
    """Of `serve`: all that waits is in queues."""


@hot
def ignore_answer(_s: State, _batch: int) -> None:
    """Of `on_answered`."""


@hot
def ignore_loaded(_s: State, _load: int, _slot: int, _started_at: int, _now_us: int) -> None:
    """Of `on_loaded`: all weights are in memory."""


@hot
def ignore_load_failed(_s: State, _load: int, _slot: int, _now_us: int) -> None:
    """Of `on_load_failed`."""


@hot
def ignore_admitted(_s: State, _model: int, _admitted: int, _now_us: int) -> None:
    """Of `on_admitted`."""


@hot
def put_in_queue(s: State, model: int, request: int) -> None:
    """Of `put_back`."""
    queues.insert(s, model, request)


@hot
def ignore_hop(_s: State, _hop: int, _now_us: int) -> None:
    """Of `on_transferred`, `on_started`, `on_ended`."""
