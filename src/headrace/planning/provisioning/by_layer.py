"""The soonest start by layer over one link, with its proof: all ends of the link's time at once.

By layer a choice is known by L, when the link is free, and X, when execution is. Times are whole
microseconds, so the least X for each L stands in an array, and a layer of load l, inside c, host h,
on the device q after its copy, makes of it

    X'[L] = min(X[L] + h, max(X[L - l], L + q) + c)

for all L side by side: four numbers in a nanosecond, where a set of labels takes twenty for one.
Whoever looks for starts below a limit needs only those L whose bound (`limits.by_layer`) is below
it: an array is cut at both ends, and what is between is carried along, whatever its bound.

A first walk with short arrays, cut around the least bound, finds a start; a second, with all that
is below it, finds the soonest of all, or that there is none.

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

NARROW = 1_500
"""Length of arrays of the first walk."""

LARGEST_US = 1 << 30
"""No time is kept that is as long: eighteen minutes."""

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
        room: most numbers of the second walk, about half a nanosecond each.
    """
    table = by_layer(part, FINE)
    least = math.ceil(float(table[0].max()) - ROUNDING)
    total, loaded = _walked(part, 0, table, LARGEST_US - 1, NARROW)
    if total > least:
        better = walk(part, 0, table, total - 1, LARGEST_US, room, False)[0]
        if better == _NO_ROOM:
            return Proof(total_us=total, bound_us=least, loaded=loaded)
        if better != _NONE:
            # Again, with what leads to it alone, and with all arrays kept.
            total, loaded = _walked(part, 0, table, int(better), LARGEST_US)
    return Proof(total_us=total, bound_us=total, loaded=loaded)


def found(part: Part, ready_us: int, width: int, weights: int) -> tuple[int, npt.NDArray[np.bool_]]:
    """(when a good start ends, what it loads), with arrays of so many places.

    Args:
        ready_us: execution is not free before.
    """
    return _walked(part, ready_us, by_layer(part, weights), LARGEST_US - 1, width)


def _walked(
    part: Part, ready_us: int, table: Any, limit: int, width: int
) -> tuple[int, npt.NDArray[np.bool_]]:
    total, values, first, low = walk(part, ready_us, table, limit, width, 1 << 62, True)
    if total < 0:
        raise AssertionError("a walk that looks for a start that is there finds it")
    load, host = part.load_us, part.host_us
    loaded = np.zeros(len(load), np.bool_)

    def kept_at(layer: int, at: int) -> int:
        if not low[layer] <= at < low[layer] + first[layer + 1] - first[layer]:
            return LARGEST_US
        return int(values[first[layer] + at - low[layer]])

    n = len(load)
    ends = values[first[n] : first[n + 1]]
    at = int(low[n] + ends.argmin())
    for i in range(n - 1, -1, -1):
        now = kept_at(i + 1, at)
        if kept_at(i, at) + int(host[i]) != now:
            loaded[i] = True
            at -= int(load[i])
    return total, loaded


_NONE, _NO_ROOM = -1, -2


@compiled
def walk(part: Part, ready: int, table: Any, limit: int, width: int, room: int, kept: bool) -> Any:
    """The least start up to `limit`, of arrays with at most `width` places; or _NONE or _NO_ROOM.

    Args:
        table: `limits.by_layer`.
        room: most numbers in all.
        kept: every array is returned, for `room` of them.

    Returns:
        (total, values, first, low): arrays one behind the other, where each begins, with one entry
        more than layers + 1, and the L of each one's first place; of no use if not `kept`.
    """
    load, can_load, later, inside, host = part
    n = len(load)
    # A walk that keeps nothing has two arrays that take turns.
    size = 1 << 16
    values = np.empty(2 * size, np.int32)
    first, low = np.zeros(n + 2, np.int64), np.zeros(n + 1, np.int64)
    largest = np.int32(1 << 30)
    values[0] = ready
    begin, count, base, spent = 0, 1, 0, 0
    left, right = 0, table.shape[1] // 2
    first[1] = 1
    for i in range(n):
        length = load[i]
        target = begin + count if kept else (size if begin == 0 else 0)
        need = count + length
        spent += need
        if spent > room:
            return _NO_ROOM, values, first, low
        if (kept and target + need > len(values)) or (not kept and need > size):
            old = values
            if kept:
                values = np.empty(2 * (target + need), np.int32)
                values[:target] = old[:target]
            else:
                fresh = 2 * need
                values = np.empty(2 * fresh, np.int32)
                values[:count] = old[begin : begin + count]
                begin, target, size = 0, fresh, fresh
        before = values[begin : begin + count]
        after = values[target : target + need]
        _extended(
            before,
            after,
            length,
            can_load[i],
            np.int32(inside[i]),
            np.int32(host[i]),
            np.int32(base + later[i]),
            largest,
        )
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
            return _NONE, values, first, low
        if end - start > width:
            near = _least_at(after, start, end, base, table[i + 1], left)
            start = max(start, near - width // 2)
            end = min(end, start + width)
        if start > 0:
            for k in range(end - start):
                after[k] = after[start + k]
        begin, count, base = target, end - start, base + start
        first[i + 2], low[i + 1] = begin + count, base
    best = largest
    for k in range(begin, begin + count):
        best = min(best, values[k])
    return np.int64(best), values, first, low


@compiled
def _extended(
    before: Any,
    after: Any,
    length: int,
    can_load: bool,
    inside: Any,
    host: Any,
    base: Any,
    largest: Any,
) -> None:
    """One more layer."""
    count = len(before)
    middle = min(length, count)
    for k in range(middle):
        after[k] = min(before[k] + host, largest)
    if not can_load:
        for k in range(count):
            after[k] = min(before[k] + host, largest)
        return
    for k in range(count, length):
        after[k] = largest
    stay, moved, out = before[middle:], before[: count - middle], after[middle:count]
    at = np.int32(base + middle)
    for k in range(count - middle):
        out[k] = min(min(stay[k] + host, largest), max(moved[k], at + np.int32(k)) + inside)
    first = count if length <= count else length
    moved, out = before[first - length :], after[first : count + length]
    at = np.int32(base + first)
    for k in range(len(out)):
        out[k] = min(max(moved[k], at + np.int32(k)) + inside, largest)


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
