"""What is kept of requests of many items, and how long the rest of one lasts.

A *request* here has items; a row of `requests` in the kernel's own tables is one item that was
sent. Its *places* are the slots that serve it, one per stage of a route; routes of a model are its
depths. A batch goes through all stages of the route that was its request's when it was sent. As a
place belongs to one request at a time and takes batches in the order in which they were sent, n
batches more end at

    max over stages j of  (when place j has done what it was given) + rest_j + (n - 1) widest_j

rest_j: the times of stages j and later, and of the hops between their places, summed; widest_j: the
longest of them, since a batch is sent on while the next one runs. This is exact where batches take
what is predicted and links are idle, also while batches of an earlier depth are still on their way.
"""

from collections.abc import Mapping
from typing import Any

from headrace.compilation.loops import hot, kernel
from headrace.dispatch.kernel import reactive
from headrace.dispatch.kernel.drift import of_stage_us, slack_us
from headrace.dispatch.kernel.layout import State, Table, ints, merged
from headrace.dispatch.kernel.links import transfer_us
from headrace.dispatch.topology import Topology

BY_DEADLINE, ACCORDION, CONFORMING, FASTEST, BUFFERED, ONE_STAGE = range(6)
"""Rules: who gets how many places (parameter `rule`)."""

FREE, WAITING, UNDER_WAY = range(3)
"""States of a row of `items_of`."""

FIELDS = merged(
    reactive.FIELDS,
    {
        "slots": {"kind": 0, "place": 0, "owner": -1, "pending": 0, "counted": 1, "finish_at": 0},
        "requests": {"of": -1},
        "batches": {"of": -1},
    },
)
"""`kind`: slots of one kind serve the same stages; `place`: where it stands among them. `owner`:
the request that it serves; -1: it is free. `pending`: hops given to it that are not over.
`counted`: it is in service. `finish_at`: by the dropout predictor, when it has done what was
foreseen for it. `of`: the row of `items_of` that an item or a batch belongs to."""

TABLES: dict[str, Table] = {
    "rules": Table(
        rows=lambda n: 1,
        item=ints(
            *("rule", "predictor", "window_percent", "move_us", "kinds"),
            *("stale", "idle", "first_waiting", "last_waiting", "waiting", "under_way"),
            *("free_row", "rows_used", "wake_at"),
        ),
        empty=dict.fromkeys(("idle", "first_waiting", "last_waiting", "free_row", "wake_at"), -1),
    ),
    "items_of": Table(
        rows=lambda n: n.requests,
        item=ints(
            *("id", "model", "items", "sent", "on_way", "back", "returned", "first_returned"),
            *("arrived_at", "deadline_at", "priority", "state", "route", "target", "ready_at"),
            *("last_end_at", "lost", "behind", "before", "after", "aside", "grown"),
        ),
        empty={"id": -1, "first_returned": -1, "route": -1, "target": -1, "behind": -1},
    ),
    "held": Table(rows=lambda n: n.requests * n.stages_max),
    "under_way": Table(rows=lambda n: n.requests),
    "kinds": Table(rows=lambda n: n.slots, item=ints("free", "spare")),
    "needs": Table(rows=lambda n: n.routes * n.slots),
    "paces": Table(
        rows=lambda n: n.stages, item=ints("kind", "us", "sent_us", "rest_us", "widest_us")
    ),
    "chosen": Table(rows=lambda n: n.slots),
    "tried": Table(rows=lambda n: n.stages_max),
    "turns": Table(rows=lambda n: n.requests),
}
"""rules      one row: parameters, and heads of lists. `stale`: places must be given anew; `idle`:
           the slot that may take its request's next batch; `wake_at`: when they are given anew in
           any case, -1: when something happens
items_of   requests. `id`: of its first item, the others follow. Items are not sent yet, returned
           from lost batches, on their way, or back; others are gone. `target`: the route it is
           about to get; `ready_at`: its blocks are moved by then; `last_end_at`: of all batches
           sent; `behind`: the request whose places it waits for; `aside`: it stands back, see
           `standing_back`; `grown`: more places would not help it now
held       items_of x stages_max: the slot of each stage of its route
under_way  rows of `items_of` that have places or batches, the first to get places first
kinds      slots that are free, and those that would be with all targets met
needs      routes x slots: slots of each kind
paces      per stage, at its route's batch size: `us`; `sent_us`, what tensors take to come there at
           least; sums and maxima over it, all later ones, and the hops between
chosen     scratch
tried      scratch: the slots of a route's stages
turns      scratch: rows of requests
"""


def lay_out(state: Any, topology: Topology, parameters: Mapping[str, int]) -> None:
    rules = state.rules
    for name in ("rule", "predictor", "window_percent"):
        rules[name] = parameters.get(name, 0)
    rules["move_us"] = topology.move_us
    pools: dict[tuple[int, ...], int] = {}
    routes = [route for model in topology.models for route in model.routes]
    stage_row = 0
    for number, route in enumerate(routes):
        for stage in route.stages:
            kind = pools.setdefault(stage.slots, len(pools))
            state.paces["kind"][stage_row] = kind
            state.needs[number * len(topology.slots) + kind] += 1
            stage_row += 1
    rules["kinds"] = len(pools)
    for pool, kind in pools.items():
        state.kinds["free"][kind] = len(pool)
        for place, slot in enumerate(pool):
            state.slots["kind"][slot], state.slots["place"][slot] = kind, place
    state.world["margin"] = 2 + len(topology.slots) * int(state.world["size_max"][0])
    set_all_paces(state, routes)


def set_all_paces(state: Any, routes: Any) -> None:
    """As profiled."""
    row = 0
    for route in routes:
        rest_us = widest_us = 0
        for number in range(len(route.stages) - 1, -1, -1):
            stage, at = route.stages[number], row + number
            speed = state.stages["bytes_per_us"][at]
            sent_us = round(stage.input_bytes * route.batch_size / speed) if speed else 0
            us = stage.p50_us[-1]
            rest_us, widest_us = rest_us + us, max(widest_us, us)
            state.paces[at] = state.paces["kind"][at], us, sent_us, rest_us, widest_us
            rest_us, widest_us = rest_us + sent_us, max(widest_us, sent_us)
        row += len(route.stages)


@kernel
def on_level_changed(s: State, stage: int, _place: int, _now_us: int) -> None:
    """Batches of the stage take longer or shorter: so does the rest of each request."""
    route = s.stages[stage].route
    first, size = s.routes[route].first_stage, s.routes[route].batch_size
    rest_us = widest_us = 0
    for number in range(s.routes[route].stages - 1, -1, -1):
        mine = s.paces[first + number]
        mine.us = of_stage_us(s, first + number, size)
        rest_us, widest_us = rest_us + mine.us, max(widest_us, mine.us)
        mine.rest_us, mine.widest_us = rest_us, widest_us
        rest_us, widest_us = rest_us + mine.sent_us, max(widest_us, mine.sent_us)


# -- how long the rest lasts ----------------------------------------------------------------------


@hot
def left(s: State, row: int) -> int:
    """Items that are not on their way."""
    mine = s.items_of[row]
    return mine.items - mine.sent + mine.returned


@kernel
def lasts_us(s: State, row: int, route: int) -> int:
    """What is left of the request, on idle places of that route that lie as near to each other as
    any do."""
    mine = s.routes[route]
    batches = (left(s, row) + mine.batch_size - 1) // mine.batch_size
    pace = s.paces[mine.first_stage]
    return pace.rest_us + (batches - 1) * pace.widest_us + slack_us(s, route, mine.batch_size)


@kernel
def fastest_of(s: State, row: int) -> int:
    """The route on which what is left of the request lasts least; of several the shallowest."""
    model = s.models[s.items_of[row].model]
    best = model.first_route
    for route in range(model.first_route + 1, model.end_route):
        if lasts_us(s, row, route) < lasts_us(s, row, best):
            best = route
    return best


@kernel
def shallowest_within(s: State, row: int, within_us: int) -> int:
    """The route of fewest slots on which what is left of the request lasts no longer; -1: none."""
    model = s.models[s.items_of[row].model]
    for route in range(model.first_route, model.end_route):
        if lasts_us(s, row, route) <= within_us:
            return route
    return -1


@kernel
def ends_at(s: State, row: int, now_us: int) -> int:
    """When the request ends on the places that it has."""
    mine = s.items_of[row]
    if left(s, row) == 0:
        return mine.last_end_at
    first = row * s.world[0].stages_max
    return ends_on(s, row, mine.route, s.held, first, max(now_us, mine.ready_at), now_us)


@kernel
def ends_on(
    s: State, row: int, route: int, slots: Any, first: int, begins_at: int, now_us: int
) -> int:
    """When what is left of the request ends on these slots.

    Args:
        slots: from `first` on, one for each stage; -1: one that will be idle.
        begins_at: the first stage, at the earliest.
    """
    depth, end_at = s.routes[route], s.items_of[row].last_end_at
    later = (left(s, row) + depth.batch_size - 1) // depth.batch_size - 1
    rest_us = widest_us = 0
    for stage in range(depth.stages - 1, -1, -1):
        table, slot = depth.first_stage + stage, slots[first + stage]
        pace = s.paces[table]
        rest_us, widest_us = rest_us + pace.us, max(widest_us, pace.us)
        from_us = now_us if stage else begins_at
        if slot >= 0:
            from_us = max(from_us, s.slots[slot].free_at)
        end_at = max(end_at, from_us + rest_us + later * widest_us)
        if stage:
            sent_us, before = pace.sent_us, slots[first + stage - 1]
            if slot >= 0 and before >= 0:
                size_bytes = depth.batch_size * s.stages[table].input_bytes
                sent_us = transfer_us(s, before, slot, size_bytes)
            rest_us, widest_us = rest_us + sent_us, max(widest_us, sent_us)
    return end_at + slack_us(s, route, depth.batch_size)
