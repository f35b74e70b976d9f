"""Which requests may run in one batch: after failures, fewer and fewer, so that one bad input is
found and the others are answered.

An executor that refuses a batch does not say which request is to blame, and a worker that dies says
nothing at all. Each request has a number `apart`, 0 at first, and a batch holds requests of one
number only, since a policy is shown no more of its queue than the first run of equal numbers.

A batch of n > 1 that an executor could not compute is queued again as two halves with new numbers.
With one bad request in it, that takes 2 log2 n batches more, of n/2, n/2, ..., 1, 1; running all n
alone takes n of them. No number is given twice, and every failure halves a group, so it ends. Time
is found where a policy finds it: a half that cannot make its deadline is dropped for that.

A request that was running on three workers when they were lost is dropped, and after two it runs
alone: an input that kills its worker takes no more than these, and nobody else down with it the
last time.
"""

from headrace.compilation.loops import hot, kernel
from headrace.dispatch.kernel import queues
from headrace.dispatch.kernel.layout import State

LOSSES_ALONE, LOSSES_MAX = 2, 3
"""Of workers that ran a request: from so many on it runs alone, and with so many it is dropped."""


@hot
def set_apart(s: State, request: int, number: int) -> None:
    """Let it run with requests of this number only; 0: with most."""
    mine, world = s.requests[request], s.world[0]
    world.apart += int(number != 0) - int(mine.apart != 0)
    mine.apart = number


@kernel
def together(s: State, model: int) -> int:
    """How many requests at the front of the queue, which is not empty, may run in one batch."""
    number = s.requests[queues.at(s, model, 0)].apart
    count = 1
    while count < s.models[model].queued and s.requests[queues.at(s, model, count)].apart == number:
        count += 1
    return count


@kernel
def queue_halves(s: State, row: int) -> None:
    """Queue the members of a batch again, to run as two batches."""
    batch = s.batches[row]
    first = row * s.world[0].size_max
    half = (batch.size + 1) // 2
    for i in range(batch.size):
        request = s.members[first + i]
        # Numbers of batches begin at 0, and those of requests that arrive apart are negative.
        set_apart(s, request, 2 * batch.id + (1 if i < half else 2))
        s.policy.on_arrived(s, request)
        s.policy.put_back(s, batch.model, request)


@kernel
def queue_all(s: State, row: int) -> None:
    """Queue the members of a batch again, which is not to blame for anything."""
    first = row * s.world[0].size_max
    for i in range(s.batches[row].size):
        request = s.members[first + i]
        s.policy.on_arrived(s, request)
        s.policy.put_back(s, s.batches[row].model, request)


@kernel
def queue_survivors(s: State, row: int) -> int:
    """Queue the members of a batch again, whose worker is lost, except those whose last attempt
    that was. Returns how many those are; they are the first members now."""
    batch = s.batches[row]
    first = row * s.world[0].size_max
    given_up = 0
    for i in range(batch.size):
        request = s.members[first + i]
        mine = s.requests[request]
        if mine.losses >= LOSSES_MAX:
            s.members[first + given_up] = request
            given_up += 1
            continue
        if mine.losses >= LOSSES_ALONE:
            set_apart(s, request, -(mine.id + 1))
        s.policy.put_back(s, batch.model, request)
    return given_up


@kernel
def count_loss(s: State, row: int) -> int:
    """The worker that ran the batch is lost; returns the most losses of any member."""
    first = row * s.world[0].size_max
    most = 0
    for i in range(s.batches[row].size):
        mine = s.requests[s.members[first + i]]
        mine.losses += 1
        most = max(most, mine.losses)
    return most
