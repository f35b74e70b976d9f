"""Rows of batches and requests: taken from lists of free ones, and given back."""

from headrace.compilation.loops import hot, kernel
from headrace.dispatch.kernel import queues
from headrace.dispatch.kernel.journal import DROPPED, ENDED, note
from headrace.dispatch.kernel.layout import State
from headrace.dispatch.kernel.splitting import set_apart


@hot
def add_request(s: State, request_id: int, arrived_at: int, deadline_at: int, priority: int) -> int:
    world = s.world[0]
    row = world.free_request
    request = s.requests[row]
    world.free_request = request.after
    world.requests += 1
    request.id, request.arrived_at = request_id, arrived_at
    request.deadline_at, request.priority = deadline_at, priority
    request.apart = request.losses = 0
    return row


@hot
def free_request(s: State, row: int) -> None:
    world = s.world[0]
    set_apart(s, row, 0)
    s.requests[row].after = world.free_request
    world.free_request = row
    world.requests -= 1


@kernel
def add_batch(s: State, model: int, route: int, size: int) -> int:
    """The first `size` requests of the queue are a batch now; it has no hops yet."""
    world = s.world[0]
    row = world.free_batch
    batch = s.batches[row]
    world.free_batch = batch.after
    batch.id, batch.model, batch.route, batch.size = world.next_batch, model, route, size
    batch.stage = batch.attempt = batch.hops = batch.held_up = batch.rerouted = 0
    world.next_batch += 1
    first = row * world.size_max
    for i in range(size):
        request = queues.take_first(s, model)
        s.members[first + i] = request
        deadline_at = s.requests[request].deadline_at
        if i == 0 or deadline_at < batch.deadline_at:
            batch.deadline_at = deadline_at
        if i == 0 or deadline_at > batch.last_deadline_at:
            batch.last_deadline_at = deadline_at
    batch.before, batch.after = world.last_batch, -1
    if world.last_batch >= 0:
        s.batches[world.last_batch].after = row
    else:
        world.first_batch = row
    world.last_batch = row
    world.batches += 1
    return row


@kernel
def remove_batch(s: State, row: int) -> None:
    """The batch is no more."""
    world, batch = s.world[0], s.batches[row]
    if batch.before >= 0:
        s.batches[batch.before].after = batch.after
    else:
        world.first_batch = batch.after
    if batch.after >= 0:
        s.batches[batch.after].before = batch.before
    else:
        world.last_batch = batch.before
    batch.id = -1
    batch.after = world.free_batch
    world.free_batch = row
    world.batches -= 1


@kernel
def drop_batch(s: State, row: int, reason: int, retry_after_us: int, now_us: int) -> None:
    """Drop all requests of a batch that is under way."""
    s.policy.forget(s, row)
    first = row * s.world[0].size_max
    for i in range(s.batches[row].size):
        request = s.members[first + i]
        note(s, DROPPED, now_us, s.requests[request].id, reason, retry_after_us)
        free_request(s, request)
    note(s, ENDED, now_us, s.batches[row].id, 0, 0)
    remove_batch(s, row)
