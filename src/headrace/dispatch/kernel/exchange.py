"""A place in a batch for a more important request (decision 0027).

A batch is as urgent as its most important request, so one important member keeps a batch of others
from being displaced (`displacement`). Where the first request of a queue, r, would be dropped for
its deadline, it takes the place of a member that is less important: of a batch of its model that
has not begun, and that ends in time for r. Of all such members it is the least urgent one's. The
batch keeps its size and its path; whoever had the place goes back to the queue.

Batches of one request are asked last: `displacement` may find r a path that ends sooner, but may
also find none, where that would cross what is as important.

Each exchange makes the members of batches more important, so it ends.

Cost: where no batch that has not begun has a member less important than r, a comparison
(`least_important`, a bound). Otherwise a pass over the members of the model's batches.
"""

from headrace.compilation.loops import kernel
from headrace.dispatch.kernel import displacement, queues
from headrace.dispatch.kernel.displacement import copy_hop, in_time, not_begun, note_bounds
from headrace.dispatch.kernel.flow import leave_ready
from headrace.dispatch.kernel.journal import ENDED, note
from headrace.dispatch.kernel.layout import State
from headrace.dispatch.kernel.probing import release_from
from headrace.dispatch.kernel.reservation_tables import SLOT
from headrace.dispatch.kernel.rows import remove_batch

FIELDS = {"world": {"giving": -1, "given": 0}}
"""`giving`: the batch whose member number `given` makes room for the request that is sent; -1: none
does."""


@kernel
def make_room(s: State, model: int, now_us: int) -> tuple[int, int]:
    """For the first request of a queue, which would be late.

    Returns:
        (route, size) of the batch to send now; its path lies in the route's rows of `path`.
        (-1, 0): nobody has to give way, or it would not help.
    """
    route, size = _take_place(s, model, 2)
    if not size:
        route, size = displacement.make_room(s, model, now_us)
    if not size:
        route, size = _take_place(s, model, 1)
    return route, size


@kernel
def note_new(s: State, batch: int) -> None:
    """A batch is sent, and has its path."""
    if s.world[0].giving >= 0:
        _join(s, batch)
    displacement.note_urgency(s, batch)


@kernel
def _take_place(s: State, model: int, least_size: int) -> tuple[int, int]:
    """A place in a batch of `least_size` or more: the request is sent alone, and `_join` makes it
    part of that batch."""
    world, first = s.world[0], s.requests[queues.at(s, model, 0)]
    if s.models[model].least_important <= first.priority:
        return -1, 0
    given = _find(s, model, least_size)
    if given < 0:
        return -1, 0
    batch = world.giving
    mine = s.batches[batch]
    for stage in range(mine.hops):
        hop = s.hops[batch * world.stages_max + stage]
        copy_hop(hop, s.path[mine.route * world.stages_max + stage])
    world.given = given
    release_from(s, batch, 0)
    leave_ready(s, batch, s.hops[batch * world.stages_max].slot)
    return mine.route, 1


@kernel
def _find(s: State, model: int, least_size: int) -> int:
    """Which member of the batch `giving` gives its place; -1: none. The bound is found afresh."""
    world, first = s.world[0], queues.at(s, model, 0)
    priority = s.requests[first].priority
    s.models[model].least_important = -(1 << 62)
    given, given_by, leaves = -1, -1, -1
    batch = world.first_batch
    while batch >= 0:
        mine = s.batches[batch]
        if mine.model == model and not_begun(s, batch):
            note_bounds(s, batch)
            less = mine.least_important > priority and mine.size >= least_size
            if less and _may_join(s, batch, first):
                for i in range(mine.size):
                    member = s.members[batch * world.size_max + i]
                    if s.requests[member].priority > priority and (
                        leaves < 0 or queues.more_urgent(s, leaves, member)
                    ):
                        given, given_by, leaves = i, batch, member
        batch = mine.after
    world.giving = given_by
    return given


@kernel
def _may_join(s: State, batch: int, request: int) -> bool:
    """It would be in time there, by a path that is reserved, and may run with the others
    (`splitting`)."""
    mine, world = s.batches[batch], s.world[0]
    if s.requests[s.members[batch * world.size_max]].apart != s.requests[request].apart:
        return False
    first = batch * world.stages_max
    for hop in range(first, first + mine.hops):
        if s.reserved[3 * hop + SLOT].line < 0:
            return False  # a pool on its way was lost
    last = s.hops[first + mine.hops - 1]
    end_at = last.start_at + last.latency_us
    return in_time(s, mine.route, mine.size, end_at, s.requests[request].deadline_at)


@kernel
def _join(s: State, batch: int) -> None:
    """The request that was sent alone is a member of the batch that gives it a place, and that
    batch is no more."""
    world = s.world[0]
    giving, world.giving = world.giving, -1
    mine, old = s.batches[batch], s.batches[giving]
    first, from_first = batch * world.size_max, giving * world.size_max
    leaves = s.members[from_first + world.given]
    s.members[from_first + world.given] = s.members[first]
    mine.size, mine.held_up = old.size, old.held_up
    for i in range(mine.size):
        member = s.members[first + i] = s.members[from_first + i]
        deadline_at = s.requests[member].deadline_at
        mine.deadline_at = deadline_at if i == 0 else min(mine.deadline_at, deadline_at)
        mine.last_deadline_at = max(mine.last_deadline_at, deadline_at)
    queues.insert(s, mine.model, leaves)
    note(s, ENDED, world.now_us, old.id, 0, 0)
    remove_batch(s, giving)
