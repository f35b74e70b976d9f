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
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from headrace.compilation.loops import compiled
from headrace.planning.provisioning.limits import FINE, ROUNDING, by_layer
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
    def of(
        cls, chain: Chain, first: int = 0, end: int | None = None, *, helped: bool = False
    ) -> "Part":
        """Layers of a chain over the primary link or, `helped`, the helper's, as if every loaded
        one travelled with the one before it."""
        rows = slice(first, end)
        later = chain.forward_us[rows] + chain.forward_copy_us * chain.weighted[rows]
        return cls(
            chain.load_us[rows] - chain.saved_us[rows],
            chain.weighted[rows],
            later if helped else np.zeros_like(later),
            chain.inside_us[rows],
            np.minimum(chain.host_us[rows], LARGEST_US - 1),
        )

    @property
    def is_short(self) -> bool:
        """Whether arrays can tell its times."""
        return int((self.load_us + self.later_us + self.inside_us).sum()) < LARGEST_US


def prove(part: Part, room: int) -> Proof:
    """The least start by layer, or, where `room` is too small, the best found.

    Args:
        room: most numbers of a walk that is not the first, about a nanosecond each.
    """
    table = by_layer(part, FINE)
    least = math.ceil(float(table[0].max()) - ROUNDING)
    result = _found(part, 0, table, WIDTHS[0])
    total, loaded = _read(part, result)
    for width in (*WIDTHS[1:], LARGEST_US):
        if total == least or not result.narrowed:
            return Proof(total_us=total, bound_us=total, loaded=loaded)
        result = Walked(*walk(part, 0, table, total - 1, width, room, result.taken))
        if result.total_us == _NO_ROOM:
            return Proof(total_us=total, bound_us=least, loaded=loaded)
        if result.total_us != _NONE:
            total, loaded = _read(part, result)
    return Proof(total_us=total, bound_us=total, loaded=loaded)


def found(part: Part, ready_us: int, width: int, weights: int) -> tuple[int, npt.NDArray[np.bool_]]:
    """(when a good start ends, what it loads), with arrays of so many places.

    Args:
        ready_us: execution is not free before.
    """
    return _read(part, _found(part, ready_us, by_layer(part, weights), width))


class Walked(NamedTuple):
    """What `walk` returns."""

    total_us: int
    """_NONE: no start takes less than the limit, of those that the widths left; _NO_ROOM."""
    at_us: int
    """The L of the last array at which the total stands."""
    narrowed: bool
    """Some array was cut to the width, so that a better start may exist."""
    taken: npt.NDArray[np.uint8]
    """Whether layer i was loaded on the way to L, a byte each: `taken[first[i] + L]`."""
    first: Ints


def _found(part: Part, ready_us: int, table: Any, width: int) -> Walked:
    taken = np.empty(FIRST_BYTES, np.uint8)
    result = Walked(*walk(part, ready_us, table, LARGEST_US - 1, width, 1 << 62, taken))
    if result.total_us < 0:
        raise AssertionError("a walk without a limit finds a start")
    return result


def _read(part: Part, result: Walked) -> tuple[int, npt.NDArray[np.bool_]]:
    """(total, what was loaded), from the last layer back."""
    loaded, at = np.zeros(len(part.load_us), np.bool_), result.at_us
    for i in range(len(loaded) - 1, -1, -1):
        if result.taken[result.first[i] + at]:
            loaded[i] = True
            at -= int(part.load_us[i])
    return int(result.total_us), loaded


_NONE, _NO_ROOM = -1, -2


@compiled
def walk(part: Part, ready: int, table: Any, limit: int, width: int, room: int, taken: Any) -> Any:
    """The least start up to `limit`, of arrays with at most `width` places: `Walked`.

    Args:
        table: `limits.by_layer`.
        room: most numbers in all.
        taken: bytes to write to, what they hold is of no use; where they do not suffice, others.
    """
    load, can_load, later, inside, host = part
    n = len(load)
    # Two arrays of times that take turns.
    size = 1 << 14
    values = np.empty(2 * size, np.int32)
    first, narrowed = np.zeros(n, np.int64), False
    largest = np.int32(1 << 30)
    values[0] = ready
    begin, count, base, spent = 0, 1, 0, 0
    left, right = 0, table.shape[1] // 2
    for i in range(n):
        length = load[i]
        need = count + length
        if spent + need > room:
            return _NO_ROOM, 0, narrowed, taken, first
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
            bound, right = _bound(after[end - 1], base + end - 1, table[i + 1], right)
            if bound <= limit + 1e-6:
                break
            end -= 1
        while start < end:
            bound, left = _bound(after[start], base + start, table[i + 1], left)
            if bound <= limit + 1e-6:
                break
            start += 1
        if start == end:
            return _NONE, 0, narrowed, taken, first
        if end - start > width:
            narrowed = True
            near = _least_at(after, start, end, base, table[i + 1], left)
            start = max(start, near - width // 2)
            end = min(end, start + width)
        begin, count, base = target + start, end - start, base + start
    best, at = largest, 0
    for k in range(count):
        if values[begin + k] < best:
            best, at = values[begin + k], base + k
    return np.int64(best), at, narrowed, taken, first


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
def _bound(done: int, link: int, table: Any, w: int) -> Any:
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
        bound, w = _bound(after[k], base + k, table, w)
        if bound < least:
            least, near = bound, k
    return near
