"""The soonest start by layer over one link, with its proof: all ends of the link's time at once.

By layer a choice is known by L, when the link is free, and X, when execution is. Times are whole
microseconds, so the least X for each L stands in an array, and a layer of load l, inside c, host h,
on the device q after its copy, makes of it

    X'[L] = min(X[L] + h, max(X[L - l], L + q) + c)

for all L side by side: four numbers in a nanosecond, where a set of labels takes twenty for one.
Whoever looks for starts below a limit needs only those L whose bound (`limits.by_layer`) is below
it: an array is cut at both ends, and what is between is carried along, whatever its bound.

A walk with short arrays, cut around the least bound, finds a start; one with longer arrays, of what
ends before it, a sooner one. The last, with all that ends before that, finds the soonest of all, or
that there is none. Only the times of one layer are kept; of the others a byte for each place,
whether the layer was loaded, since memory written for the first time takes longer than the sums.

No method is known that is fast for all chains: with c = 0 and h = l for all layers but a last one,
which is long to run from the host and loads and runs in no time, the start takes the larger of what
is loaded and what is not, so that the best one says whether the loads can be halved (PARTITION).
The problem is NP-hard; arrays are at most as long as all loads together are in microseconds.
"""

import math
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from headrace.compilation.loops import compiled
from headrace.planning.provisioning.limits import ROUNDING, by_layer, least_of, no_split
from headrace.starts import Chain

Ints = npt.NDArray[np.int64]

WIDTHS = (1_500, 6_000)
"""Most places of the arrays of walks that look for a start to beat, one after the other."""

LARGEST_US = 1 << 30
"""No time is kept that is as long: eighteen minutes."""

FIRST_BYTES = 1 << 25
"""For what was loaded. Most walks need no more, and what none touches costs nothing."""

_CHUNK = 256
"""Places of an array whose bounds are looked at to find the least, about."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Proof:
    """What the walks have shown."""

    total_us: int
    """Of the start found."""
    bound_us: int
    """No start is sooner."""
    loaded: npt.NDArray[np.bool_]
    """Of each layer, in the start found."""


class Part(NamedTuple):
    """Layers of one link; microseconds, shape (n,) each."""

    load_us: Ints
    can_load: npt.NDArray[np.bool_]
    later_us: Ints
    """How long after its copy a layer is on the device."""
    inside_us: Ints
    host_us: Ints
    """Less than `LARGEST_US`."""

    @classmethod
    def of(cls, chain: Chain, *, helped: bool = False) -> "Part":
        """A chain over the primary link or, `helped`, the helper's, as if every loaded layer
        travelled with the one before it."""
        later = chain.forward_us + chain.forward_copy_us * chain.weighted
        return cls(
            chain.load_us - chain.saved_us,
            chain.weighted,
            later if helped else np.zeros_like(later),
            chain.inside_us,
            np.minimum(chain.host_us, LARGEST_US - 1),
        )

    def cut(self, first: int, end: int | None) -> "Part":
        """Some of its layers."""
        load, can_load, later, inside, host = self
        rows = slice(first, end)
        return Part(load[rows], can_load[rows], later[rows], inside[rows], host[rows])

    @property
    def is_short(self) -> bool:
        """Whether arrays can tell its times."""
        return int((self.load_us + self.later_us + self.inside_us).sum()) < LARGEST_US


def prove(
    part: Part,
    room: int,
    *,
    table: Any = None,
    ready_us: int = 0,
    free_us: int = 0,
    memory: npt.NDArray[np.uint8] | None = None,
) -> Proof:
    """The least start by layer, or, where `room` is too small, the best found.

    Args:
        room: most numbers of a walk that is not the first, about a nanosecond each.
        table: `limits.by_layer`, where it is known.
        ready_us: execution is not free before.
        free_us: the link is not, at most `ready_us`.
        memory: as of `walked`.
    """
    table = by_layer(part, no_split(len(part.load_us))) if table is None else table
    least = math.ceil(least_of(table[0], ready_us, free_us) - ROUNDING)
    walk_from = partial(walked, part, table, ready_us=ready_us, free_us=free_us)
    memory = np.empty(FIRST_BYTES, np.uint8) if memory is None else memory
    result = walk_from(memory, width=WIDTHS[0])
    if result.total_us < 0:
        raise AssertionError("a walk without a limit finds a start")
    total, loaded = result.total_us, result.loaded(part)
    for width in (*WIDTHS[1:], LARGEST_US):
        if total == least or not result.narrowed:
            break
        result = walk_from(result.taken, limit=total - 1, width=width, room=room)
        if result.total_us == NO_ROOM:
            return Proof(total_us=total, bound_us=least, loaded=loaded)
        if result.total_us != NONE:
            total, loaded = result.total_us, result.loaded(part)
    return Proof(total_us=total, bound_us=total, loaded=loaded)


class Walked(NamedTuple):
    """What `walk` returns."""

    total_us: int
    """`NONE`: no start takes less than the limit, of those that the widths left; `NO_ROOM`."""
    at_us: int
    """The L of the last array at which the total stands."""
    narrowed: bool
    """Some array was cut to the width, so that a better start may exist."""
    taken: npt.NDArray[np.uint8]
    """Whether layer i was loaded on the way to L, a byte each: `taken[first[i] + L]`."""
    first: Ints
    spent: int
    """Numbers of its arrays."""

    def loaded(
        self, part: Part, layers: int | None = None, at_us: int | None = None
    ) -> npt.NDArray[np.bool_]:
        """What is loaded on the way to an L after so many layers; to the total, if left out."""
        count = len(part.load_us) if layers is None else layers
        loaded, at = np.zeros(count, np.bool_), self.at_us if at_us is None else at_us
        for i in range(count - 1, -1, -1):
            if self.taken[self.first[i] + at]:
                loaded[i] = True
                at -= int(part.load_us[i])
        return loaded


NONE, NO_ROOM = -1, -2
UNENDED = np.empty((0, 2), np.int64)


def walked(
    part: Part,
    table: Any,
    memory: npt.NDArray[np.uint8],
    *,
    ready_us: int = 0,
    free_us: int = 0,
    limit: float = LARGEST_US - 1,
    width: int = LARGEST_US,
    room: int = 1 << 62,
    ends: Ints = UNENDED,
) -> Walked:
    """The least start up to `limit`, of arrays with at most `width` places.

    Args:
        table: `limits.by_layer`.
        memory: for `Walked.taken`, what it holds is of no use; where it does not suffice, other.
        ready_us: execution is not free before.
        free_us: the link is not, at most `ready_us`.
        room: most numbers in all.
        ends: shape (n + 1, 2), written to: the least X after each number of layers, of what the
            limit leaves, and its L; `LARGEST_US` where it leaves nothing.
    """
    return Walked(*walk(part, ready_us, free_us, table, limit, width, room, memory, ends))


@compiled
def walk(
    part: Part,
    ready: int,
    free: int,
    table: Any,
    limit: float,
    width: int,
    room: int,
    taken: Any,
    ends: Any,
) -> Any:
    """`walked`, compiled."""
    load, can_load, later, inside, host = part
    n = len(load)
    # Two arrays of times that take turns.
    size = 1 << 14
    values = np.empty(2 * size, np.int32)
    first, narrowed = np.zeros(n, np.int64), False
    largest = np.int32(1 << 30)
    values[0] = ready
    begin, count, base, spent = 0, 1, free, 0
    ends[:] = largest
    if len(ends):
        ends[0, 0], ends[0, 1] = ready, free
    left, right = 0, table.shape[1] // 2
    for i in range(n):
        length = load[i]
        need = count + length
        if spent + need > room:
            return NO_ROOM, 0, narrowed, taken, first, spent
        if need > size:
            old, size = values, 2 * need
            values = np.empty(2 * size, np.int32)
            values[:count] = old[begin : begin + count]
            begin = 0
        if spent + need > len(taken):
            kept = taken
            taken = np.empty(2 * (spent + need), np.uint8)
            taken[:spent] = kept[:spent]
        target = size if begin < size else 0
        after = values[target : target + need]
        _extended(
            values[begin : begin + count],
            after,
            taken[spent : spent + need],
            length,
            can_load[i],
            np.int32(inside[i]),
            np.int32(host[i]),
            np.int32(base + later[i]),
            largest,
        )
        first[i] = spent - base
        spent += need
        # Cut both ends.
        end, start = need, 0
        while end > 0:
            bound, right = best_bound(after[end - 1], base + end - 1, table[i + 1], right)
            if bound <= limit + 1e-6:
                break
            end -= 1
        while start < end:
            bound, left = best_bound(after[start], base + start, table[i + 1], left)
            if bound <= limit + 1e-6:
                break
            start += 1
        if start == end:
            return NONE, 0, narrowed, taken, first, spent
        if end - start > width:
            narrowed = True
            near = _least_at(after, start, end, base, table[i + 1], left)
            start = max(start, near - width // 2)
            end = min(end, start + width)
        begin, count, base = target + start, end - start, base + start
        if len(ends):
            ends[i + 1, 0], ends[i + 1, 1] = _least(values[begin : begin + count], base)
    best, at = _least(values[begin : begin + count], base)
    return np.int64(best), at, narrowed, taken, first, spent


@compiled
def _least(values: Any, base: int) -> Any:
    """(the least, its place)."""
    least = values[0]
    for value in values:
        least = min(least, value)
    at = 0
    while values[at] != least:
        at += 1
    return np.int64(least), base + at


@compiled
def _extended(
    before: Any,
    after: Any,
    taken: Any,
    length: int,
    can_load: bool,
    inside: Any,
    host: Any,
    base: Any,
    largest: Any,
) -> None:
    """One more layer: of L with both, of those before any that loads it, of those behind.

    Every sum is said to have 32 bits: numba makes 64 of them, and half as many fit side by side.
    """
    count = len(before)
    middle = min(length, count) if can_load else count
    for k in range(middle):
        after[k] = min(np.int32(before[k] + host), largest)
    taken[:middle] = 0
    if not can_load:
        after[count:] = largest
        return
    for k in range(count, length):
        after[k] = largest
    taken[count:length] = 0
    stay, moved, out = before[middle:], before[: count - middle], after[middle:count]
    loads = taken[middle:count]
    at = np.int32(base + middle)
    for k in range(count - middle):
        hosted = min(np.int32(stay[k] + host), largest)
        loaded = np.int32(max(moved[k], np.int32(at + k)) + inside)
        out[k] = min(hosted, loaded)
        loads[k] = loaded < hosted
    first = count if length <= count else length
    moved, out = before[first - length :], after[first : count + length]
    at = np.int32(base + first)
    for k in range(len(out)):
        out[k] = min(np.int32(max(moved[k], np.int32(at + k)) + inside), largest)
    taken[first : count + length] = 1


@compiled
def best_bound(done: int, link: int, table: Any, w: int) -> Any:
    """The best weight's bound, from that of the last place on; and that weight."""
    steps = len(table) - 1
    bound = (1 - w / steps) * done + w / steps * link + table[w]
    for way in (1, -1):
        while 0 <= w + way <= steps:
            k = w + way
            other = (1 - k / steps) * done + k / steps * link + table[k]
            if other <= bound:
                break
            bound, w = other, k
    return bound, w


@compiled
def _least_at(after: Any, start: int, end: int, base: int, table: Any, w: int) -> int:
    """Where the least bound is, about."""
    least, near = np.inf, start
    for k in range(start, end, max(1, (end - start) // _CHUNK)):
        bound, w = best_bound(after[k], base + k, table, w)
        if bound < least:
            least, near = bound, k
    return near
