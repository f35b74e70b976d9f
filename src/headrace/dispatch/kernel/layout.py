"""The dispatcher's whole state as arrays of records, and how to lay out a topology in them.

Rows refer to each other by index; -1 is "none". Instants and durations are microseconds. A hop's
row is `batch row x stages_max + stage`. A hop can be promised to three lines at once: its slot, an
uplink and a downlink; its promises are the rows `3 x hop + 0, 1, 2`.
"""

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from headrace.dispatch.kernel.pointers import NUMBER as NUMBER
from headrace.dispatch.kernel.pointers import Ints as Ints
from headrace.dispatch.kernel.pointers import addresses as addresses
from headrace.dispatch.kernel.pointers import define_table

Records = npt.NDArray[np.void]

NEVER_US = 1 << 62
JOURNAL_WIDTH = 10


def _ints(*names: str) -> list[tuple[str, str]]:
    return [(name, "i8") for name in names]


WORLD = np.dtype(
    _ints("policy", "fill", "stages_max", "size_max", "queue_max", "queue_room", "has_links")
    + _ints("slots", "nodes", "draining", "next_batch", "uses", "probes")
    + _ints("free_batch", "free_request", "first_batch", "last_batch", "batches", "requests")
    + _ints("first_waiting", "links_wake_at", "next_end_at", "moved", "journal")
)
"""One row: limits, counters and the heads of lists."""

MODEL = np.dtype(
    _ints("first_route", "end_route", "queue_from", "queued", "fill_size", "wake_at", "turn_at")
)
"""`fill_size`: the queue waits until it has so many requests; 0: a decision is due."""

ROUTE = np.dtype(
    _ints("batch_size", "shrunk", "first_stage", "stages", "waiting", "end_at", "done")
    + _ints("collect_us", "patience_us", "longest_us", "is_part", "gap", "turn_at", "turn")
)
"""`shrunk`: since its path was last idle, a batch was smaller than planned because full ones came
too late. `waiting`, `end_at`, `done`: scratch of a decision that compares routes. The rest is of
`batch_aware`: a batch that is not full goes when its first request has waited for `patience_us`;
`longest_us` is what one takes at most, of any size; `gap` and `turn_at` are nanoseconds of load."""

STAGE = np.dtype(
    [*_ints("first_pool", "end_pool", "input_bytes", "output_bytes"), ("bytes_per_us", "f8")]
)
"""`bytes_per_us`: no link into the stage is faster; 0: there may be none to cross."""

SLOT = np.dtype(
    _ints("node", "alive", "running_hop", "running", "first_ready", "wake_at", "free_at")
    + _ints("last_use", "route", "due_at", "given", "seen", "first_at", "tightest_at")
)
"""`running`: the batch on the slot; `running_hop`: the same as the reservations know it. `route`
and what follows it are of `batch_aware`: `given` requests are to run next, of which the first came
at `first_at` and the most urgent must end at `tightest_at`.
`free_at`, `last_use`: of the reactive policy."""

NODE = np.dtype(
    [
        ("bytes_per_us", "f8"),
        *_ints("sending", "sending_attempt", "sending_to", "receiving"),
        *_ints("probe", "probe_at", "probe_us"),
    ]
)
"""`bytes_per_us` 0: never the limit. `sending`: id of the batch on the uplink, -1: idle.
`probe…`: the transfer to this node that the probe of that number has found."""

LINE = np.dtype(_ints("first", "last", "free_from", "full_from", "full_to", "full_for"))
"""The promises of a slot, an uplink or a downlink, in order of start. From `free_from` on there
is none. In [full_from, full_to) no gap starts that is as long as `full_for`."""

PROMISE = np.dtype(_ints("start", "end", "before", "after", "line"))

HOP = np.dtype(_ints("slot", "transfer_at", "transfer_us", "start_at", "latency_us", "moved"))
"""`moved`: it is in the list of hops that have moved."""

BATCH = np.dtype(
    _ints("id", "model", "route", "size", "stage", "attempt", "deadline_at", "last_deadline_at")
    + _ints("hops", "next_ready", "next_waiting", "before", "after", "mark")
)
"""`deadline_at`, `last_deadline_at`: the tightest and the loosest of its requests. `mark`: scratch
of `follow_moved`."""

REQUEST = np.dtype(_ints("id", "arrived_at", "deadline_at", "priority", "after", "slot"))
"""`slot`: that is to run it, where the policy says so before it starts (`batch_aware`)."""


class State(NamedTuple):
    """Shapes: S slots, N nodes, B rows for batches, M stages_max, K size_max."""

    world: Any
    """(1,)"""
    models: Any
    routes: Any
    """Of all models, one after the other."""
    stages: Any
    """Of all routes, one after the other."""
    pools: Any
    """Slots of all stages, one pool after the other."""
    p50_us: Any
    """(stages x K,): entry stage x K + b - 1 is batch size b."""
    slack_us: Any
    """(routes x K,): how much later than by medians a batch may end."""
    slots: Any
    ends_at: Any
    """(S,): what runs on a slot is promised to end then, or later; NEVER_US: nothing runs."""
    nodes: Any
    lines: Any
    """(S + 2 N,): slots, uplinks, downlinks."""
    promises: Any
    """(3 B M,)"""
    hops: Any
    """(B M,)"""
    path: Any
    """(routes x M,): what the last probe of each route found."""
    batches: Any
    """(B,)"""
    members: Any
    """(B K,): rows of a batch's requests."""
    requests: Any
    queues: Any
    """(models x queue_room,): rings of requests, most urgent first."""
    moved: Any
    """(B M,): hops that have moved since the batches behind them were placed anew."""
    affected: Any
    """(B,): scratch of `follow_moved`."""
    journal: Any
    """(rows x JOURNAL_WIDTH,): what has happened and what is to be done, in order."""


_DTYPES = {
    "world": WORLD,
    "models": MODEL,
    "routes": ROUTE,
    "stages": STAGE,
    "slots": SLOT,
    "nodes": NODE,
    "lines": LINE,
    "promises": PROMISE,
    "hops": HOP,
    "path": HOP,
    "batches": BATCH,
    "requests": REQUEST,
}
"""The others hold plain numbers."""


state_at = define_table("State", State._fields, _DTYPES)
"""(addresses of a state) -> the state in compiled code."""
