"""The dispatcher's whole state as tables of records.

Rows refer to each other by index; -1 is "none". Instants and durations are microseconds. A batch's
hops are the rows `batch x stages_max + stage`, one per stage of its path.

A policy adds what it alone needs: fields to these records, and tables (`contract`). So a state has
the fields of one policy, and every function of the kernel is compiled for that kind of state.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from headrace.compilation.tables import NUMBER as NUMBER
from headrace.compilation.tables import Ints as Ints

NEVER_US = 1 << 62
"""Later than every instant, and longer than every duration."""


SHIFT = 16
ONE = 1 << SHIFT
"""A level of 1: batches take what the profile says (`drift`)."""


def ints(*names: str) -> np.dtype[Any]:
    """A record of whole numbers."""
    return np.dtype([(name, "i8") for name in names])


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """How many there are, or is room for."""

    models: int
    routes: int
    stages: int
    slots: int
    nodes: int
    stages_max: int
    """Of any route."""
    size_max: int
    """The largest planned batch size of any route."""
    places: int
    """Slots in all pools together."""
    requests: int
    """Room for so many, and for as many batches: none is without a request."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """One table: what a row holds, and how many there are."""

    rows: Callable[[Sizes], int]
    item: np.dtype[Any] = NUMBER
    empty: Mapping[str, int] = field(default_factory=dict)
    """Field -> what a new row holds; 0 where nothing is said. Of plain numbers, the field is ""."""
    copied: bool = True
    """What it holds stays where it is when it grows. Else it means nothing between events, or is
    moved by whoever knows how."""


WORLD = ints(
    *("stages_max", "size_max", "queue_max", "queues_from", "queues_end"),
    *("slots", "nodes", "has_links"),
    *("draining", "next_batch", "free_batch", "free_request", "first_batch", "last_batch"),
    *("batches", "requests", "first_waiting", "links_wake_at", "journal", "event", "apart"),
    *("logged", "drifted", "margin", "now_us"),
)
"""One row: limits, counters and the heads of lists. `queues_from`, `queues_end`: where rings lie in
`queues`. `journal`: how many numbers were written. `event`: how many there were, the last one at
`now_us`. `apart`: requests that are. `logged`: 0 where nobody reads the log of events. `drifted`:
places and routes whose times are not the profile's any more. `margin`: rows of requests that one
event may need."""

MODEL = ints(
    *("first_route", "end_route", "queue_at", "queue_room", "queue_from", "queued"),
    *("fill_size", "wake_at", "closed", "in_turns"),
)
"""`queue_at`: where its ring lies in `queues`; `queue_room`: how long it is; `queue_from`: where in
it the first of the `queued` is. `fill_size`: the queue waits until it has so many requests; 0: a
decision is due. `closed`: nobody can join those that a decision is about. `in_turns`: it waits for
turns on slots that others have as well; set by policies that give them."""

ROUTE = ints(
    *("batch_size", "first_stage", "stages"),
    *("slo_us", "late_us", "missed", "missed_us", "widened"),
)
"""`slo_us`: of its model. `widened`: its slack is so many times the profile's. `late_us`:
learned slack; `missed`, `missed_us`: of deadlines, lately (`drift`)."""

STAGE = np.dtype(
    [
        *ints("first_pool", "end_pool", "input_bytes", "output_bytes").descr,
        ("bytes_per_us", "f8"),
        *ints("route", "level", "least_level", "spread", "scatter").descr,
    ]
)
"""`bytes_per_us`: no link into the stage is faster; 0: there may be none to cross. `level`: of its
pool on the whole; `least_level`: of any place of it; `spread`: of its times; `scatter`:
of its places, added up (`drift`)."""

LEARNED = ints(
    *("reports", "reported_at", "scatter"),
    *("up", "up_total", "up_most", "up_count", "down", "down_total", "down_count"),
    *("mean_total", "mean_count"),
)
"""Of a place, see `drift`: reports since its worker started, and when the last one came; how far
ratios are from the level, in the mean; two tests, and the ratios since the sum of each was last 0:
their total, the largest, and how many; of ratios since the level was last looked at, the same."""

SLOT = ints(
    *("node", "alive", "running", "first_ready", "wake_at", "started_at"),
    *("cold", "cold_more_us", "cold_tail_us"),
)
"""`running`: the batch on the slot, since `started_at`. `cold`: it started before its model was
loaded, takes `cold_more_us` more than one in memory, and behind the load `cold_tail_us` at least
(`start_times.Start`).
`first_ready`: of a list of batches that wait for it."""

NODE = np.dtype(
    [("bytes_per_us", "f8"), *ints("sending", "sending_attempt", "sending_to", "receiving").descr]
)
"""`bytes_per_us` 0: never the limit. `sending`: id of the batch on the uplink, -1: idle."""

HOP = ints("slot", "place", "transfer_at", "transfer_us", "start_at", "latency_us")
"""`place`: where the slot stands in `pools`, for the stage."""

BATCH = ints(
    *("id", "model", "route", "size", "stage", "attempt", "deadline_at", "last_deadline_at"),
    *("hops", "next_ready", "next_waiting", "before", "after", "held_up", "rerouted"),
)
"""`deadline_at`, `last_deadline_at`: the tightest and the loosest of its requests. `hops`: stages
that have a hop, those that are over included. `held_up`: if it is late, not for times (`drift`).
`rerouted`: it goes on by other slots than were noted last (`flow.note_path`)."""

REQUEST = ints("id", "arrived_at", "deadline_at", "priority", "after", "apart", "losses")
"""`apart`: only requests of the same number run in one batch; 0 for nearly all (see `splitting`).
`losses`: workers that were lost while they ran it."""

FIRST_NONE = {"free_batch": -1, "free_request": -1, "first_batch": -1, "last_batch": -1}

COMMON: dict[str, Table] = {
    "world": Table(
        rows=lambda n: 1,
        item=WORLD,
        empty={**FIRST_NONE, "first_waiting": -1, "links_wake_at": -1, "logged": 1, "margin": 1},
    ),
    "models": Table(rows=lambda n: n.models, item=MODEL, empty={"wake_at": -1}),
    "routes": Table(rows=lambda n: n.routes, item=ROUTE, empty={"widened": ONE}),
    "stages": Table(rows=lambda n: n.stages, item=STAGE, empty={"level": ONE, "least_level": ONE}),
    "pools": Table(rows=lambda n: n.places),
    "level": Table(rows=lambda n: n.places, empty={"": ONE}),
    "learned": Table(rows=lambda n: n.places, item=LEARNED),
    "p50_us": Table(rows=lambda n: n.stages * n.size_max),
    "slack_us": Table(rows=lambda n: n.routes * n.size_max),
    "profiled_slack_us": Table(rows=lambda n: n.routes * n.size_max),
    "slots": Table(
        rows=lambda n: n.slots,
        item=SLOT,
        empty={"alive": 1, "running": -1, "first_ready": -1, "wake_at": -1},
    ),
    "nodes": Table(rows=lambda n: n.nodes, item=NODE, empty={"sending": -1}),
    "hops": Table(rows=lambda n: n.requests * n.stages_max, item=HOP),
    "path": Table(rows=lambda n: n.routes * n.stages_max, item=HOP),
    "batches": Table(rows=lambda n: n.requests, item=BATCH, empty={"id": -1}),
    "members": Table(rows=lambda n: n.requests * n.size_max),
    "requests": Table(rows=lambda n: n.requests, item=REQUEST),
    "queues": Table(rows=lambda n: 2 * half_of_queues(n), copied=False),
    "journal": Table(rows=lambda n: _journal_room(n), copied=False),
}
"""The tables that every policy has:

models    routes of all models lie one after the other, as do `stages` of all routes
pools     slots of all stages, one pool after the other
level     of each place of `pools`: batches there take so many times what is profiled (`drift`)
p50_us    as profiled: entry stage x size_max + b - 1 is batch size b
slack_us  entry route x size_max + b - 1: how much later than by medians a batch may end; at first
          `profiled_slack_us` (read it with `drift.slack_us`)
path      routes x stages_max: the hops that the last decision has found for each route
members   batches x size_max: rows of a batch's requests
queues    a ring of requests for each model, most urgent first, and as much room again (`queues`)
journal   what has happened and what is to be done, in order (see `journal`)
"""


FIRST_IN_RING = 4
"""Room of a model's first ring."""


def half_of_queues(n: Sizes) -> int:
    """Twice the room of rings that hold all requests, each with room for twice its own."""
    return 2 * (n.models * FIRST_IN_RING + 2 * n.requests)


def _journal_room(n: Sizes) -> int:
    """Numbers that one event may write: every batch may get a new path twice, be started and woken
    for, and end; every request may be refused."""
    per_batch = 96 + 2 * n.size_max + 10 * n.stages_max
    return 256 + 16 * (n.slots + n.models) + n.requests * per_batch


def merged(*fields: Mapping[str, Mapping[str, int]]) -> dict[str, dict[str, int]]:
    """The fields that several modules add."""
    tables = {table for each in fields for table in each}
    return {
        table: {name: value for each in fields for name, value in each.get(table, {}).items()}
        for table in sorted(tables)
    }


class State:
    """What functions of the kernel take: the tables by name, and the policy's module.

    For type checkers only. Compiled functions see tables without checks, plain Python sees
    `tables.CheckedTables`, and whoever lays a state out has a tuple of numpy arrays.
    """

    policy: Any

    def __getattr__(self, table: str) -> Any: ...
