"""Batches of consecutive requests for machines in order (Harpagon, section III.B), and its rivals.

A machine is a slot of the first stage of a route. A request is given to a machine as soon as it
arrives, and runs with whatever that machine has collected. Who is given it is the `rule`:

    CONSECUTIVE  (batch-aware) machines are *due* when they end what they run; the requests that
                 come in the last `collect_us` before are collected for it. Of all machines that
                 collect, the one that is due first is served first. What none of them needs goes
                 to the machine with only part of a load, last in the order of throughput / price
    IN_TURN      (round-robin) one by one to the machines in turn, as often as their rates say
    BY_RATE      (machine-rate) to configurations as often as their rates say; within one, batch
                 after batch

Under uniform arrivals these collect at w, at a machine's own rate and at that of its configuration
(`domain.plan.Reading`), so that Theorem 1 bounds the wait by b / w. Real arrivals are not uniform:
a batch that is not full goes when a deadline needs it, and on a machine with part of a load when
its collection is over; a request that its machine could not answer in time is given to whoever
can; and one that nobody can is dropped. Load that is planned for and never sent is only room.

What machines have been given is recounted at every decision, since requests may have been cancelled
and slots lost: O(requests that wait + slots), beside O(slots) per request that is new.
"""

from collections.abc import Mapping
from typing import Any

from headrace.compilation.loops import hot, kernel
from headrace.dispatch.kernel import reactive
from headrace.dispatch.kernel.contract import SLOT_RECOVERY_US, Decision, drop, send, wait
from headrace.dispatch.kernel.drift import predicted_us
from headrace.dispatch.kernel.journal import DEADLINE, NO_SLOT
from headrace.dispatch.kernel.layout import NEVER_US, SHIFT, State, merged
from headrace.dispatch.kernel.queues import at, swap, to_front
from headrace.dispatch.kernel.reactive import path_us, take_slot
from headrace.dispatch.topology import ModelRoutes, Route, Topology

CONSECUTIVE, IN_TURN, BY_RATE = range(3)
"""Who is given a request: the parameter `rule`."""

NOBODY = -1

FILLED_LEAST = 3
"""Quarters of a batch. A request whose deadline leaves no time to fill so much of its batch is not
worth the places that stay empty: where every machine is busy, more requests would be lost than one.
Of 29 plans of one app at their planned rate under Poisson arrivals, the worst answers 91 % in time;
73 % without this, and 89 % if it asks for whole batches."""


TABLES = reactive.TABLES
FIELDS = merged(
    reactive.FIELDS,
    {
        "world": {"rule": CONSECUTIVE},
        "models": {"turn_at": 0, "end_machines": 0},
        "routes": {
            "collect_us": 0,
            "patience_us": 0,
            "longest_us": 0,
            "is_part": 0,
            "gap": 0,
            "turn_at": 0,
            "turn": 0,
        },
        "slots": {
            "route": 0,
            "due_at": -1,
            "given": 0,
            "seen": 0,
            "place": 0,
            "first_at": 0,
            "tightest_at": 0,
        },
        "requests": {"slot": NOBODY},
    },
)
"""Of models: machines are those of the routes before `end_machines`, which are all of them here.
Of routes: a batch that is not full goes when its first request has waited for `patience_us`;
`longest_us` is what one takes at most, of any size; `gap` and `turn_at` are nanoseconds of load. Of
slots: `given` requests are to run next, of which the first came at `first_at` and the most urgent
must end at `tightest_at`. Of requests: the slot that is to run it."""


def lay_out(state: Any, topology: Topology, parameters: Mapping[str, int]) -> None:
    """Parameters: `rule`."""
    state.world["rule"] = parameters["rule"]
    state.models["end_machines"] = state.models["end_route"]
    routes = [(model, route) for model in topology.models for route in model.routes]
    state.routes["collect_us"] = [route.collect_us for _, route in routes]
    state.routes["patience_us"] = [_patience_us(model, route) for model, route in routes]
    state.routes["longest_us"] = [route.longest_us for _, route in routes]
    state.routes["is_part"] = [route.is_part for _, route in routes]
    state.routes["gap"] = [max(1, round(1e9 / route.rate_rps)) for _, route in routes]


def _patience_us(model: ModelRoutes, route: Route) -> int:
    """How long a machine with part of a load lets its first request wait for a full batch.

    What it collects comes at its rate, save for the time in which others take all that comes.
    """
    if not route.is_part:
        return NEVER_US
    first = model.routes[0]
    return route.collect_us + (first.collect_us if first is not route else 0)


@hot
def on_arrived(s: State, request: int) -> None:
    s.requests[request].slot = NOBODY


# Slots are accounted for, and later stages chosen, as by the reactive policy.
on_dispatched = reactive.on_dispatched
next_hop, reroute, forget = reactive.next_hop, reactive.reroute, reactive.forget
transfer_at, start_at = reactive.transfer_at, reactive.start_at
on_transferred, on_started, on_ended = (
    reactive.on_transferred,
    reactive.on_started,
    reactive.on_ended,
)
on_slot_lost, on_slot_gained = reactive.on_slot_lost, reactive.on_slot_gained
on_level_changed = reactive.on_level_changed
open_request, give_up_request = reactive.open_request, reactive.give_up_request
serve, put_back, on_answered = reactive.serve, reactive.put_back, reactive.on_answered
on_loaded, on_load_failed, on_admitted = (
    reactive.on_loaded,
    reactive.on_load_failed,
    reactive.on_admitted,
)


@kernel
def decide(s: State, model: int, now_us: int) -> Decision:
    """The model's queue is not empty."""
    if not count_given(s, model, now_us):
        return drop(NO_SLOT, SLOT_RECOVERY_US)
    for place in range(s.models[model].queued):
        request = s.requests[at(s, model, place)]
        if request.slot != NOBODY:
            mine = s.slots[request.slot]
            if ends_at(s, request.slot, mine.seen, mine.given, now_us) <= request.deadline_at:
                mine.seen += 1
                continue
            mine.given -= 1
        slot = _give(s, model, request.deadline_at, now_us)
        request.slot = slot
        if slot == NOBODY:
            to_front(s, model, place)
            late_us = least_us(s, model, now_us) + now_us - request.deadline_at
            return drop(DEADLINE, max(1, late_us))
        s.slots[slot].seen += 1
        note_given(s, slot, request.arrived_at, request.deadline_at)
    return start_or_wait(s, model, now_us)


# -- what machines have been given ----------------------------------------------------------------


@kernel
def count_given(s: State, model: int, now_us: int) -> bool:
    """Recount, since requests may have been cancelled and slots lost; False: no slot is left."""
    left = False
    for route in range(s.models[model].first_route, s.models[model].end_machines):
        stage = s.stages[s.routes[route].first_stage]
        for i in range(stage.first_pool, stage.end_pool):
            slot = s.slots[s.pools[i]]
            slot.given, slot.seen, slot.route, slot.place = 0, 0, route, i
            slot.tightest_at = slot.first_at = NEVER_US
            left |= slot.alive == 1
            if slot.due_at < 0:
                # Machines of one configuration are due in turn, not all at once.
                turn = i - stage.first_pool
                wait_us = turn * full_us(s, route, i) // (stage.end_pool - stage.first_pool)
                slot.due_at = now_us + s.routes[route].collect_us + wait_us
    for place in range(s.models[model].queued):
        request = s.requests[at(s, model, place)]
        if request.slot != NOBODY and not s.slots[request.slot].alive:
            request.slot = NOBODY
        if request.slot != NOBODY:
            note_given(s, request.slot, request.arrived_at, request.deadline_at)
    return left


@hot
def note_given(s: State, slot: int, arrived_at: int, deadline_at: int) -> None:
    mine = s.slots[slot]
    mine.given += 1
    mine.first_at = min(mine.first_at, arrived_at)
    mine.tightest_at = min(mine.tightest_at, deadline_at)


@hot
def ends_at(s: State, slot: int, place: int, given: int, now_us: int) -> int:
    """When the request at that place of what the slot is given ends, were all to run at once."""
    mine = s.slots[slot]
    route = s.routes[mine.route]
    batches = place // route.batch_size
    size = min(route.batch_size, given - batches * route.batch_size)
    start_at = max(now_us, mine.free_at) + batches * full_us(s, mine.route, mine.place)
    return start_at + path_us(s, mine.route, mine.place, size)


@hot
def full_us(s: State, route: int, place: int) -> int:
    """How long a full batch holds the machine at that place of `pools`."""
    mine = s.routes[route]
    return predicted_us(s, mine.first_stage, place, mine.batch_size)


@hot
def longest_us(s: State, route: int, place: int) -> int:
    """What a batch of any size takes there at most, spread included."""
    mine = s.routes[route]
    return (mine.longest_us * s.level[place] >> SHIFT) + mine.late_us


# -- who is given a request -----------------------------------------------------------------------


@kernel
def _give(s: State, model: int, deadline_at: int, now_us: int) -> int:
    """The machine that a request is given to; NOBODY: it could not be answered in time."""
    if s.world[0].rule == CONSECUTIVE:
        slot = collecting(s, model, deadline_at, now_us)
    else:
        slot = _next_in_turn(s, model, deadline_at, now_us)
    if slot == NOBODY:
        slot = first_to_start(s, model, deadline_at, now_us, 4)
    if slot == NOBODY:
        slot = first_to_start(s, model, deadline_at, now_us, FILLED_LEAST)
    return slot


@kernel
def collecting(s: State, model: int, deadline_at: int, now_us: int) -> int:
    """Of the machines that collect, the one that is due first; else one with part of a load.

    That one may take more than a batch: bringing the others' windows forward would tear apart the
    batches that they are about to collect. Batches of one cannot be torn: their machines take what
    would wait behind a batch, also before their windows.
    """
    best, part, early = NOBODY, NOBODY, NOBODY
    behind = False
    for route in range(s.models[model].first_route, s.models[model].end_machines):
        mine, stage = s.routes[route], s.stages[s.routes[route].first_stage]
        for i in range(stage.first_pool, stage.end_pool):
            slot = s.pools[i]
            if mine.is_part:
                behind = s.slots[slot].given >= mine.batch_size
                if _fits(s, slot, deadline_at, now_us, 4 if behind else 0):
                    part = slot
                continue
            if s.slots[slot].given >= mine.batch_size:
                continue
            if s.slots[slot].due_at - mine.collect_us <= now_us:
                if _due_before(s, slot, best) and _fits(s, slot, deadline_at, now_us, 0):
                    best = slot
            elif (
                mine.batch_size == 1
                and _due_before(s, slot, early)
                and _fits(s, slot, deadline_at, now_us, 0)
            ):
                early = slot
    if best != NOBODY:
        return best
    return early if behind and early != NOBODY else part


@hot
def _due_before(s: State, slot: int, other: int) -> bool:
    return other == NOBODY or s.slots[slot].due_at < s.slots[other].due_at


@kernel
def _fits(s: State, slot: int, deadline_at: int, now_us: int, filled: int) -> bool:
    """Whether one more request for the slot is in time, and makes none late.

    Args:
        filled: as if so many quarters of its batch were full, so that there is time to fill them.
    """
    mine = s.slots[slot]
    if not mine.alive:
        return False
    size_max = s.routes[mine.route].batch_size
    size = max(mine.given % size_max + 1, -(-size_max * filled // 4))
    given = mine.given - mine.given % size_max + size
    if mine.given < size_max:
        # Those of the batches before are not held up.
        deadline_at = min(deadline_at, mine.tightest_at)
    return ends_at(s, slot, mine.given, given, now_us) <= deadline_at


@kernel
def _next_in_turn(s: State, model: int, deadline_at: int, now_us: int) -> int:
    """The configuration whose turn it is by its rate, and its machine whose turn it is."""
    best = NOBODY
    for route in range(s.models[model].first_route, s.models[model].end_machines):
        if best == NOBODY or s.routes[route].turn_at < s.routes[best].turn_at:
            best = route
    mine, stage = s.routes[best], s.stages[s.routes[best].first_stage]
    # A configuration that had no slot for a while does not get all of it back at once.
    mine.turn_at = max(mine.turn_at, s.models[model].turn_at) + mine.gap
    s.models[model].turn_at = max(s.models[model].turn_at, mine.turn_at - mine.gap)
    slots = stage.end_pool - stage.first_pool
    turn = mine.turn % slots if s.world[0].rule == IN_TURN else mine.turn // mine.batch_size
    mine.turn = (mine.turn + 1) % (slots * mine.batch_size)
    slot = s.pools[stage.first_pool + turn]
    return slot if _fits(s, slot, deadline_at, now_us, 0) else NOBODY


@kernel
def first_to_start(s: State, model: int, deadline_at: int, now_us: int, filled: int) -> int:
    """Anyone who makes it: the machine that can start the request first.

    Args:
        filled: see `_fits`; an idle machine may be had for less.
    """
    best, best_at = NOBODY, NEVER_US
    for route in range(s.models[model].first_route, s.models[model].end_machines):
        mine, stage = s.routes[route], s.stages[s.routes[route].first_stage]
        for i in range(stage.first_pool, stage.end_pool):
            slot = s.slots[s.pools[i]]
            full = slot.given // mine.batch_size
            start_at = max(now_us, slot.free_at) + full * full_us(s, route, i)
            idle = slot.given == 0 and slot.free_at <= now_us and filled < 4
            if start_at < best_at and _fits(
                s, s.pools[i], deadline_at, now_us, 0 if idle else filled
            ):
                best, best_at = s.pools[i], start_at
    return best


@kernel
def least_us(s: State, model: int, now_us: int) -> int:
    """How long a request alone takes from now on, on the machine that ends it first."""
    shortest_us = NEVER_US
    for route in range(s.models[model].first_route, s.models[model].end_machines):
        stage = s.stages[s.routes[route].first_stage]
        for i in range(stage.first_pool, stage.end_pool):
            slot = s.slots[s.pools[i]]
            if slot.alive:
                wait_us = max(0, slot.free_at - now_us)
                shortest_us = min(shortest_us, wait_us + path_us(s, route, i, 1))
    return shortest_us


@kernel
def latest_start_at(s: State, model: int, deadline_at: int, now_us: int) -> int:
    """When a machine begins a request alone at the latest, of those that can in time; before now:
    none can."""
    latest_at = now_us - 1
    for route in range(s.models[model].first_route, s.models[model].end_machines):
        stage = s.stages[s.routes[route].first_stage]
        for i in range(stage.first_pool, stage.end_pool):
            slot = s.slots[s.pools[i]]
            begins_at = deadline_at - path_us(s, route, i, 1)
            if slot.alive and slot.free_at <= begins_at:
                latest_at = max(latest_at, begins_at)
    return latest_at


# -- when a machine starts ------------------------------------------------------------------------


@kernel
def start_or_wait(s: State, model: int, now_us: int) -> Decision:
    """Start a machine whose batch is full or must go; else wait for the first that must."""
    wait_until = NEVER_US
    for route in range(s.models[model].first_route, s.models[model].end_machines):
        mine, stage = s.routes[route], s.stages[s.routes[route].first_stage]
        for i in range(stage.first_pool, stage.end_pool):
            slot = s.slots[s.pools[i]]
            if not slot.alive or slot.given == 0:
                continue
            if slot.free_at > now_us:
                wait_until = min(wait_until, slot.free_at)
            elif slot.running >= 0 or slot.first_ready >= 0:
                wait_until = min(wait_until, now_us + SLOT_RECOVERY_US)  # its report comes first
            elif s.models[model].closed or _goes_at(s, route, s.pools[i], now_us) <= now_us:
                size = min(slot.given, mine.batch_size)
                gather(s, model, s.pools[i], size)
                take_slot(s, mine.first_stage, i, size, now_us, 0)
                slot.due_at = slot.free_at
                return send(route, size)
            else:
                wait_until = min(wait_until, _goes_at(s, route, s.pools[i], now_us))
    return wait(max(wait_until, now_us + 1), 0)


@kernel
def _goes_at(s: State, route: int, slot: int, now_us: int) -> int:
    """When an idle machine starts what it was given, if no more comes."""
    mine, own = s.routes[route], s.slots[slot]
    # By the longest that it may take: the batch may fill while we wait.
    at_us = own.tightest_at - longest_us(s, route, own.place)
    if s.world[0].rule != CONSECUTIVE:
        return now_us if own.given >= mine.batch_size else at_us
    if own.given < mine.batch_size:
        return min(at_us, own.first_at + mine.patience_us)
    if own.last_use == 0 and not mine.is_part and now_us >= own.due_at - mine.collect_us:
        # The first start is in its turn: machines that start at even distances leave requests to
        # the one behind them at even distances.
        return min(own.due_at, at_us)
    return now_us


@kernel
def gather(s: State, model: int, slot: int, size: int) -> None:
    """Bring the first `size` requests of the machine to the front of the queue, in their order."""
    found, place = 0, 0
    while found < size:
        if s.requests[at(s, model, place)].slot == slot:
            to_front(s, model, place)
            found += 1
        place += 1
    # They came to the front one by one, and so in reverse; `add_batch` takes them off the front.
    for i in range(size // 2):
        swap(s, model, i, size - 1 - i)
