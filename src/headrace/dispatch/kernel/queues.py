"""Requests that wait for a decision: a ring of rows per model, most urgent first.

The rings lie one behind the other in one half of `queues`. A ring that is full goes to the end,
twice as long. Where no room is left there, all rings move to the other half, each with room for
twice what it holds. A half has twice the room that this takes (`layout.half_of_queues`), so that
requests in proportion to models and rows come between two such moves: each costs O(1), whoever
waits.
"""

from headrace.compilation.loops import hot, kernel
from headrace.dispatch.kernel.layout import FIRST_IN_RING, State


@hot
def _index(s: State, model: int, place: int) -> int:
    """In `queues`; `place` is at most the length of the ring."""
    mine = s.models[model]
    turn = mine.queue_from + place
    return mine.queue_at + (turn if turn < mine.queue_room else turn - mine.queue_room)


@hot
def at(s: State, model: int, place: int) -> int:
    """The request at that place of the queue."""
    return s.queues[_index(s, model, place)]


@hot
def _put(s: State, model: int, place: int, request: int) -> None:
    s.queues[_index(s, model, place)] = request


@hot
def more_urgent(s: State, one: int, other: int) -> bool:
    """By priority, then deadline, then id."""
    a, b = s.requests[one], s.requests[other]
    if a.priority != b.priority:
        return a.priority < b.priority
    if a.deadline_at != b.deadline_at:
        return a.deadline_at < b.deadline_at
    return a.id < b.id


@kernel
def insert(s: State, model: int, request: int) -> int:
    """Put a request where it belongs; returns its place."""
    place = s.models[model].queued
    if place == s.models[model].queue_room:
        _lengthen(s, model)
    s.models[model].queued += 1
    while place > 0:
        before = at(s, model, place - 1)
        if not more_urgent(s, request, before):
            break
        _put(s, model, place, before)
        place -= 1
    _put(s, model, place, request)
    return place


@kernel
def _lengthen(s: State, model: int) -> None:
    """The ring is full."""
    world, half = s.world[0], len(s.queues) // 2
    room = 2 * s.models[model].queue_room + FIRST_IN_RING
    if world.queues_end + room <= world.queues_from + half:
        _move(s, model, room)
        return
    world.queues_from = world.queues_end = half - world.queues_from
    for each in range(len(s.models)):
        _move(s, each, 2 * s.models[each].queued + FIRST_IN_RING)


@hot
def _move(s: State, model: int, room: int) -> None:
    """To the end of all rings."""
    world, mine = s.world[0], s.models[model]
    for place in range(mine.queued):
        s.queues[world.queues_end + place] = at(s, model, place)
    mine.queue_at, mine.queue_room, mine.queue_from = world.queues_end, room, 0
    world.queues_end += room


@hot
def take_first(s: State, model: int) -> int:
    request = at(s, model, 0)
    queue = s.models[model]
    after = queue.queue_from + 1
    queue.queue_from = after if after < queue.queue_room else 0
    queue.queued -= 1
    return request


@hot
def remove(s: State, model: int, place: int) -> None:
    queue = s.models[model]
    for i in range(place, queue.queued - 1):
        _put(s, model, i, at(s, model, i + 1))
    queue.queued -= 1


@kernel
def to_front(s: State, model: int, place: int) -> None:
    """Move the request at that place before all others, out of order: it is about to leave."""
    request = at(s, model, place)
    for i in range(place, 0, -1):
        _put(s, model, i, at(s, model, i - 1))
    _put(s, model, 0, request)


@kernel
def rotate(s: State, model: int, place: int, count: int) -> None:
    """Move so many requests from that place on before all others, in the order they have;
    `rotate(s, model, count, place)` moves them back."""
    _reverse(s, model, 0, place)
    _reverse(s, model, place, place + count)
    _reverse(s, model, 0, place + count)


@hot
def _reverse(s: State, model: int, start: int, end: int) -> None:
    while start < end - 1:
        end -= 1
        swap(s, model, start, end)
        start += 1


@hot
def swap(s: State, model: int, one: int, other: int) -> None:
    request = at(s, model, one)
    _put(s, model, one, at(s, model, other))
    _put(s, model, other, request)


@kernel
def tightest(s: State, model: int, size: int) -> int:
    """The earliest deadline among the first `size` requests.

    The queue is in order of priority first, so the first request need not be the most urgent.
    """
    deadline_at = s.requests[at(s, model, 0)].deadline_at
    for place in range(1, min(size, s.models[model].queued)):
        deadline_at = min(deadline_at, s.requests[at(s, model, place)].deadline_at)
    return deadline_at
