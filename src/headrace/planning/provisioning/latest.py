"""How late execution may be free after each layer, for a start over one link to end in time.

For a limit T, and every L, when the link is free: the largest X, when execution is, with which the
layers to come may end by T; nothing that ends by T is above it.

*The last layers exactly*, as many as `WIDTH` allows. What is done with the layers from i on is
known by the latest L and the latest X of those before them, and by K, what the layers of the open
transfer take to copy, the one whose first layer is yet to come (-1: none is). Layer i, of load l,
saving p, inside c, host h, k = l - p, makes of it

    host     (L,                X - h,       K)
    joined   (min(L - k, X' - K'),  X' = X - c,  K' = max(K, 0) + k)
    first    (min(L - l, X' - max(K, 0) - l),  X' = X - c,  -1)

since a transfer is complete when its first layer begins, at the latest. Whatever comes before, a
larger L, a larger X and a smaller K are never worse. What no choice of the layers before reaches is
left out, by `limits.ends_by_layer`; an open transfer owes the saving of its first layer.

*The others* as if every loaded layer travelled with the one before it, which ends sooner:

    X_i[L] = max(X_{i+1}[L] - h, X_{i+1}[L + k] - c  where that is at least L + k)

for all L side by side. It falls with L; an array is kept from where it does, to where no choice
comes as soon.
"""

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from headrace.compilation.loops import compiled
from headrace.planning.provisioning.by_layer import LARGEST_US, Part, best_bound
from headrace.planning.provisioning.limits import ROUNDING, Rows
from headrace.planning.provisioning.stairs import put

Ints = npt.NDArray[np.int64]

WIDTH = 400
"""Most choices of a layer, of those that are told exactly; at least 1."""


class Latest(NamedTuple):
    """The arrays of all layers, one behind the other; microseconds."""

    values: npt.NDArray[np.int32]
    """After i layers, where the link is free at L: `values[first[i] + L]`."""
    first: Ints
    low: Ints
    """The least L of each array, with one array more than layers."""
    high: Ints
    """The L behind its last: so late, nothing ends in time."""
    below: Ints
    """The value of every L that is less than `low`."""

    @classmethod
    def of(cls, memory: npt.NDArray[np.int32], layers: int) -> "Latest":
        """Not computed yet."""
        return cls(memory, *(np.zeros(layers + 1, np.int64) for _ in range(4)))


def latest(
    part: Part, rows: Rows, ends: Any, limit: int, memory: npt.NDArray[np.int32], room: int
) -> tuple[Latest | None, bool, npt.NDArray[np.int32]]:
    """(how late; whether a start may end by the limit; memory for the next one).

    Args:
        part: the layers, as if each travelled with the one before it.
        ends: `limits.ends_by_layer` of it.
        limit: T, less than `LARGEST_US`.
        memory: for the arrays; what it holds is of no use, and where it does not suffice, other is.
        room: most numbers of arrays; where they do not suffice, it is not told how late.
    """
    found = Latest.of(memory, len(part.load_us))
    begin, spent, memory = _exactly(rows, ends, limit, WIDTH, found)
    if begin < 0:
        return None, False, memory
    found = found._replace(values=memory)
    state, memory = _relaxed(part, ends, found, begin, spent, room)
    if state != _DONE:
        return None, state == _NO_ROOM, memory
    return found._replace(values=memory), True, memory


_DONE, _NONE, _NO_ROOM = 0, -1, -2
_UNREACHED = -LARGEST_US


@compiled
def _exactly(rows: Rows, ends: Any, limit: int, width: int, found: Latest) -> Any:
    """(the first layer whose array is there, -1 where nothing ends in time; numbers of all arrays;
    their memory)."""
    load, saved, inside, host, _, _ = rows
    memory, first, low, high, below = found
    n = len(load)
    owed = np.full(n + 1, LARGEST_US)
    for i in range(n):
        owed[i + 1] = owed[i] if load[i] == 0 else min(owed[i], saved[i])
    # Labels (L, X, K, weight of the best bound), by falling L.
    size = 3 * width + 1
    labels, made = np.empty((size, 4), np.int64), np.empty((size, 4), np.int64)
    keys, stairs = np.empty(size, np.int64), np.empty((size + 1, 2), np.int64)
    labels[0, 0], labels[0, 1], labels[0, 2] = limit, limit, -1
    labels[0, 3] = ends.shape[1] // 2
    count, spent = 1, 0
    low[n], high[n], below[n] = limit + 1, limit + 1, limit
    for i in range(n - 1, -1, -1):
        length, joined = load[i], load[i] - saved[i]
        many = 0
        for label in range(count):
            copied, weight = labels[label, 2], labels[label, 3]
            already = max(copied, 0)
            for kind in range(3 if length > 0 else 1):
                if kind == 0:
                    link, end, open_now = labels[label, 0], labels[label, 1] - host[i], copied
                elif kind == 1:
                    end, open_now = labels[label, 1] - inside[i], already + joined
                    link = min(labels[label, 0] - joined, end - open_now)
                else:
                    end, open_now = labels[label, 1] - inside[i], -1
                    link = min(labels[label, 0] - length, end - already - length)
                spare = link - owed[i] if open_now >= 0 else link
                if spare < 0:
                    continue
                excess, near = best_bound(-end, -spare, ends[i], weight)
                if excess > ROUNDING:
                    continue
                made[many, 0], made[many, 1], made[many, 2] = link, end, open_now
                made[many, 3] = near
                keys[many] = ((limit - link) << 32) + limit - end
                many += 1
        count, tail = 0, 0
        for k in np.argsort(keys[:many]):
            tail, is_new = put(stairs, 0, tail, -made[k, 1], made[k, 2])
            if not is_new:
                continue
            if count and labels[count - 1, 0] == made[k, 0] and labels[count - 1, 1] == made[k, 1]:
                count -= 1
            labels[count] = made[k]
            count += 1
        if count == 0:
            return -1, spent, memory
        if count > width:
            return i + 1, spent, memory
        # The array: the largest X of labels with at least this L.
        best = 0
        for label in range(count):
            if labels[label, 1] > labels[best, 1]:
                best = label
        low[i], high[i], below[i] = labels[best, 0] + 1, labels[0, 0] + 1, labels[best, 1]
        first[i] = spent - low[i]
        spent += high[i] - low[i]
        memory = _grown(memory, first[i] + low[i], spent)
        end = labels[0, 1]
        for label in range(1, best + 1):
            memory[first[i] + labels[label, 0] + 1 : first[i] + labels[label - 1, 0] + 1] = end
            end = max(end, labels[label, 1])
    return 0, spent, memory


@compiled
def _grown(memory: Any, kept: int, need: int) -> Any:
    """Memory for so many numbers, with the first of them."""
    if need <= len(memory):
        return memory
    larger = np.empty(2 * need, np.int32)
    larger[:kept] = memory[:kept]
    return larger


@compiled
def _relaxed(part: Part, ends: Any, found: Latest, begin: int, spent: int, room: int) -> Any:
    """Arrays of the layers before `begin`: (whether they are there, their memory)."""
    load, can_load, _, inside, host = part
    memory, first, low, high, below = found
    left = right = ends.shape[1] // 2
    for i in range(begin - 1, -1, -1):
        length = load[i] if can_load[i] else 0
        base = max(0, low[i + 1] - length)
        need = high[i + 1] - base
        if spent + need > room:
            return _NO_ROOM, memory
        memory = _grown(memory, spent, spent + need)
        after = memory[first[i + 1] + low[i + 1] : first[i + 1] + high[i + 1]]
        here = memory[spent : spent + need]
        gain = inside[i] if can_load[i] and inside[i] < host[i] else host[i]
        top = max(below[i + 1] - gain, _UNREACHED)
        _before(
            after,
            here,
            low[i + 1] - base,
            length,
            can_load[i],
            np.int32(inside[i]),
            np.int32(host[i]),
            np.int32(base),
            below[i + 1],
        )
        # Cut both ends: what none reaches, and what is as if L were less.
        end, start, under = need, 0, _UNREACHED
        while end > 0:
            excess, right = best_bound(-here[end - 1], 1 - base - end, ends[i], right)
            if excess <= ROUNDING:
                break
            end -= 1
        if base > 0 and top > _UNREACHED:
            excess, left = best_bound(-top, 1 - base, ends[i], left)
            if excess <= ROUNDING:
                under = top
        while start < end and (here[start] == top or under == _UNREACHED):
            excess, left = best_bound(-here[start], -base - start, ends[i], left)
            if excess <= ROUNDING:
                if here[start] < top or top == _UNREACHED:
                    break
                under = top
            start += 1
        if start == end and under == _UNREACHED:
            return _NONE, memory
        first[i], below[i] = spent - base, under
        low[i], high[i] = base + start, base + end
        spent += end
    return _DONE, memory


@compiled
def _before(
    after: Any,
    here: Any,
    offset: int,
    length: int,
    can_load: bool,
    inside: Any,
    host: Any,
    base: Any,
    below: int,
) -> None:
    """The array before a layer: of the one after it, which begins `offset` places behind it.

    Every sum is said to have 32 bits, as in `by_layer`.

    Args:
        below: the value of all places before the first of `after`.
    """
    count, need = len(after), len(here)
    shift = length - offset if can_load else need
    never = np.int32(-(1 << 30))
    for k in range(offset):
        here[k] = max(never, below - host)
        if k + shift < count and after[k + shift] - inside >= base + length + k:
            here[k] = max(here[k], after[k + shift] - inside)
    middle = max(offset, min(need, count - shift))
    stay, out = after[: middle - offset], here[offset:middle]
    moved_on = after[offset + shift : middle + shift]
    at = np.int32(base + length + offset)
    for k in range(len(out)):
        loaded = np.int32(moved_on[k] - inside)
        in_time = loaded if loaded >= np.int32(at + k) else never
        out[k] = max(np.int32(stay[k] - host), in_time)
    stay, out = after[middle - offset :], here[middle:]
    for k in range(len(out)):
        out[k] = max(np.int32(stay[k] - host), never)
