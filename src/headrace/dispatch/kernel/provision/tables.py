"""What is kept of models that come and go: where each is, what is on its way, and how often it is
asked for."""

from collections.abc import Mapping
from typing import Any, Literal

import numpy as np

from headrace.dispatch.kernel.layout import LEARNED, ONE, Table, ints
from headrace.dispatch.topology import Topology

Residence = Literal["absent", "awaited", "loading", "loaded"]
"""Of a model and a slot: `awaited` until the copy stream begins it."""

STATES: tuple[Residence, ...] = ("absent", "awaited", "loading", "loaded")
ABSENT, AWAITED, LOADING, LOADED = range(4)

LRU, WEIGHED = range(2)
"""Who leaves: the one unused for longest; or the one whose bytes are missed least (`eviction`)."""

STAY = ints(
    *("state", "pending", "leaving", "load", "begins_at", "memory_at", "used_at", "next_load"),
)
"""Of a model on a slot. `pending`: batches promised to run there that have not ended. `leaving`:
takes no more of them, since its memory is promised to another. `load`: the number of the one that
brings it or brought it. `begins_at`: when the copy stream begins it, as foreseen or as it was.
`memory_at`: when its memory is there, as foreseen. `used_at`: when it last ended a batch or came.
`next_load`: the next of the loads that wait, in order of their numbers, -1: none."""

START = np.dtype(
    [
        *ints("load_us", "exec_us", "last_us", "slack_us", "bytes", "helper", "more_us").descr,
        *ints("load_spread").descr,
        *ints("closed", "asked_at", "asked").descr,
        ("gap_us", "f8"),
    ]
)
"""Of a model, see `start_times.Start`. `more_us`: what execution of a start takes more than a
batch in memory. `load_spread`: of `load_us`, as of a stage's times (`drift`). `closed`: its
requests are refused. `asked_at`, `asked`: when its last request came, and how many did; `gap_us`:
between them, a moving mean."""

RULES = ints(
    *("eviction", "bound", "in_order", "refuses", "ahead", "keep_percent"),
    *("first_load", "loads", "after", "memory_at", "cold", "asked", "first_at"),
)
"""One row. `eviction`: LRU or WEIGHED. `bound`: a model runs on one slot only. `in_order`: batches
run in the order in which they came. `refuses`: what cannot be in time is refused. `ahead`: copies
run before execution begins. `keep_percent`: see `policy`. `first_load`: of the loads that wait;
`loads`: numbers that were given. `after`, `memory_at`, `cold`: what `decide` has found, see
`policy.Offer`. `asked`, `first_at`: requests of all models, and when the first came."""

PARAMETERS = ("eviction", "bound", "in_order", "refuses", "ahead", "keep_percent")

FIELDS = {
    "slots": {
        "memory_bytes": 0,
        "held_bytes": 0,
        "promised_bytes": 0,
        "leaving_bytes": 0,
        "copies": 0,
        "helper": -1,
        "link": 0,
        "copying": -1,
        "bringing": 0,
        "free_at": 0,
        "taken": 0,
        "first_there": -1,
        "load_level": ONE,
    },
    "batches": {"before_there": -1, "next_there": -1, "there": -1, "cold": 0},
}
"""Of slots: `held_bytes` are of models that are loaded or being loaded, `promised_bytes` of those
that a batch was promised or that are on their way, unless they are leaving (`leaving_bytes`):
neither of the two is ever above `memory_bytes`. `copies`: the copy stream runs beside execution.
`link`: the first slot whose link to host memory it shares, itself if no other; only in that one's
row `copying`, `free_at` and `taken` count. `copying`: the slot whose load has the link now;
`bringing`: the model of its own last load. `free_at`, `taken`: scratch of `loads`. `first_there`:
of its batches that have not ended, in the order in which they run. `load_level`: loads take so many
times what is profiled there (`learned`). Of batches: their neighbours in
that list, and the slot whose list it is; -1: none. `cold`: it was the first to need the load that
brings its model."""

TABLES = {
    "stays": Table(
        rows=lambda n: n.models * n.slots, item=STAY, empty={"load": -1, "next_load": -1}
    ),
    "starts": Table(rows=lambda n: n.models, item=START),
    "learned_loads": Table(rows=lambda n: n.slots, item=LEARNED),
    "rules": Table(rows=lambda n: 1, item=RULES, empty={"first_load": -1}),
}
"""stays   slots x models: a model on a slot
starts  of each model
learned_loads  of each slot, what `learned` keeps
rules   which variant this is, and the loads that wait"""


def lay_out(state: Any, topology: Topology, parameters: Mapping[str, int]) -> None:
    """Parameters: PARAMETERS, fields of RULES; what is not said is 0."""
    for name in PARAMETERS:
        state.rules[name] = parameters.get(name, 0)
    for model, each in enumerate(topology.models):
        start = each.start
        assert start is not None, "chosen_for admits plans in which every model has a start"
        row = state.starts[model : model + 1]
        row["load_us"], row["exec_us"], row["last_us"] = start.load_us, start.exec_us, start.last_us
        row["slack_us"], row["bytes"] = start.slack_us, start.held_bytes
        row["helper"] = start.uses_helper
        wider = (start.load99_us - start.load_us) / max(1, start.load_us)
        row["load_spread"] = round(ONE * max(1 / 32, wider))
        row["more_us"] = start.exec_us - each.routes[0].stages[0].p50_us[0]
    slots = state.slots
    slots["memory_bytes"], slots["helper"] = topology.memory_bytes, topology.helpers
    slots["link"] = topology.links
    slots["copies"] = topology.copy_streams if parameters.get("ahead") else 0
