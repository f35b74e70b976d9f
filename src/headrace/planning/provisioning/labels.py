"""Sets of labels that no other label dominates: the walks over the layers of each link, compiled.

`primary` walks the layers of the primary link from the first one, `helper` those of the helper from
a split on; `exact` says what labels mean and why leaving dominated ones out is safe. Both stop to
keep labels that cannot lead below `limit`, and keep at most `width` per layer, those with the least
bounds.

Labels of one layer stand one behind the other in the arrays of all, in ascending order of their
first value, with the label before and what was done with the layer. These arrays are a `Space` that
one walk leaves to the next: writing to new memory took a tenth to a quarter of a search.
"""

from typing import Any, NamedTuple

import numpy as np

from headrace.compilation.loops import compiled
from headrace.planning.provisioning.limits import Limits, Rows
from headrace.planning.provisioning.stairs import put

NEVER = 1 << 40

FROM_HOST, NEW_TRANSFER, JOINED = 0, 1, 2
"""What was done with a layer."""


class Space(NamedTuple):
    """Of labels; what a walk has written is lost with the next one."""

    values: Any
    """Shape (labels, columns)."""
    bounds: Any
    parent: Any
    near: Any
    """Weights of the best bound."""
    action: Any

    @classmethod
    def of(cls, labels: int, columns: int) -> "Space":
        """One piece of memory, so that its pages may be large ones."""
        kinds = ((columns, np.int64), (1, np.float64), (1, np.int32), (2, np.int16), (1, np.int8))
        sizes = [labels * count * np.dtype(kind).itemsize for count, kind in kinds]
        memory, end, arrays = np.empty(sum(sizes), np.uint8), 0, []
        for (count, kind), size in zip(kinds, sizes, strict=True):
            array = memory[end : end + size].view(kind)
            arrays.append(array if count == 1 else array.reshape(labels, count))
            end += size
        return cls(*arrays)

    @property
    def labels(self) -> int:
        return len(self.values)


@compiled
def primary(
    rows: Rows, limits: Limits, grouped: bool, limit: int, space: Space, width: int, room: int
) -> Any:
    """Labels (L, X, Y) after each layer on the primary link.

    Args:
        limit: labels that cannot end below it are dropped.
        space: for `room` labels of three values.
        width: most labels kept per layer.
        room: most labels in all.

    Returns:
        (first, cut, above): the first label of each layer with one entry more than layers + 1,
        whether labels were left out: 1 by `width`, 2 by `room`, 0 none; and the least bound of a
        label that was dropped for it.
    """
    load, saved, inside, host, _, _ = rows
    grid, spare, table = limits
    n = len(load)
    values, bounds, parent, near, action = space
    first = np.zeros(n + 2, np.int64)
    values[0, 0], values[0, 1], values[0, 2] = 0, 0, NEVER
    parent[0], action[0], first[1] = -1, FROM_HOST, 1
    near[0, 0] = near[0, 1] = len(grid) // 2
    cut, above = 0, np.inf
    stairs = np.empty((64, 2), np.int64)
    most_saved = np.zeros(n + 1, np.int64)
    for i in range(n - 1, -1, -1):
        most_saved[i] = max(most_saved[i + 1], saved[i])
    for i in range(n):
        low, high = first[i], first[i + 1]
        at = np.array([low, low, low])
        count = high
        head, tail = 0, 0
        if len(stairs) <= 3 * (high - low):
            stairs = np.empty((6 * (high - low), 2), np.int64)
        late, least_late = high, NEVER
        while True:
            # The next label by L of three ascending sequences.
            best, kind = NEVER << 1, -1
            if at[0] < high:
                best, kind = values[at[0], 0], FROM_HOST
            if load[i] > 0:
                if grouped and at[2] < high:
                    l_joined = values[at[2], 0] + load[i] - saved[i]
                    if l_joined < best:
                        best, kind = l_joined, JOINED
                if at[1] < high and values[at[1], 0] + load[i] < best:
                    best, kind = values[at[1], 0] + load[i], NEW_TRANSFER
            if kind == -1:
                break
            label = at[kind]
            at[kind] += 1
            if kind == FROM_HOST:
                x = values[label, 1] + host[i]
                y = min(NEVER, values[label, 2] + host[i])
            elif kind == NEW_TRANSFER:
                y = best + inside[i]
                x = max(values[label, 1] + inside[i], y)
            else:
                if values[label, 2] >= NEVER:
                    continue
                y = values[label, 2] + load[i] - saved[i] + inside[i]
                x = max(values[label, 1] + inside[i], y)
            if not grouped:
                y = NEVER
            # Labels that are ahead by more than a transfer of its own can cost need no Y.
            while late < count and values[late, 0] + most_saved[i + 1] <= best:
                least_late = min(least_late, values[late, 1])
                late += 1
            if least_late <= x:
                continue
            while head < tail and stairs[head, 0] >= least_late:
                head += 1
            bound, w, u = _bound(
                x, y, best, grid, spare, table[i + 1], near[label, 0], near[label, 1]
            )
            if bound > limit - 1 + 1e-6:
                above = min(above, bound)
                continue
            tail, is_new = put(stairs, head, tail, x, y)
            if not is_new:
                continue
            if count >= room:
                cut = 2
                break
            values[count, 0], values[count, 1], values[count, 2] = best, x, y
            parent[count], action[count] = label, kind
            near[count, 0], near[count, 1], bounds[count] = w, u, bound
            count += 1
        if count - high > width:
            cut = max(cut, 1)
            count = _narrowed(values, parent, action, near, bounds, high, count, width)
        first[i + 2] = count
    return first, cut, above


@compiled
def helper(
    rows: Rows,
    limits: Limits,
    grouped: bool,
    split: int,
    ready: int,
    limit: int,
    space: Space,
    width: int,
    room: int,
) -> Any:
    """Labels after each layer from `split` on, all loaded ones over the helper.

    A label is (M, F, v, e, X): when the helper's link is free, when forwarding of the transfers
    before the open one is, what the open one takes to forward and what runs from its first layer
    on, and when execution is free, were it there; by layer a transfer is never open, and v = -1.

    Args:
        limits: of the helper.
        ready: when execution of the layers before the split ends.
        limit, width, room: as of `primary`.
        space: for `room` labels of five values.

    Returns:
        (first, cut, above): as `primary`, layer i's labels from first[i - split + 1] to
        first[i - split + 2]. The last layer's have X as their transfers leave it.
    """
    load, saved, inside, host, forwarded, overhead = rows
    grid, spare, table = limits
    n = len(load)
    values, bounds, parent, near, action = space
    first = np.zeros(n - split + 2, np.int64)
    values[0] = 0
    values[0, 2], values[0, 4] = -1, ready
    parent[0], action[0], first[1] = -1, FROM_HOST, 1
    near[0, 0] = near[0, 1] = len(grid) // 2
    cut, above = 0, np.inf
    made = np.zeros((64, 5), np.int64)
    keys = np.zeros((64, 6), np.int64)
    origin = np.zeros((64, 4), np.int64)
    scores = np.zeros(64, np.float64)
    kept = np.zeros((64, 6), np.int64)
    for i in range(split, n):
        layer = (load[i], saved[i], inside[i], host[i], forwarded[i])
        low, high = first[i - split], first[i - split + 1]
        most = 3 * (high - low)
        if len(made) < most:
            made, keys = np.zeros((2 * most, 5), np.int64), np.zeros((2 * most, 6), np.int64)
            origin, scores = np.zeros((2 * most, 4), np.int64), np.zeros(2 * most, np.float64)
            kept = np.zeros((2 * most, 6), np.int64)
        made_count = 0
        for label in range(low, high):
            for kind in range(3):
                if kind != FROM_HOST and load[i] == 0:
                    continue
                if kind == JOINED and (not grouped or values[label, 2] < 0):
                    continue
                row = made[made_count]
                _extend(row, values[label], kind, layer, overhead, grouped)
                x, y = row[4], NEVER
                if row[2] >= 0:
                    x = max(x, max(row[0], row[1]) + overhead + row[2] + row[3])
                    y = row[0] + overhead + row[2] + row[3]
                bound, w, u = _bound(
                    x, y, row[0], grid, spare, table[i + 1], near[label, 0], near[label, 1]
                )
                if bound > limit - 1 + 1e-6:
                    above = min(above, bound)
                    continue
                if i == n - 1:
                    row[4] = x
                _write_key(keys[made_count], row)
                origin[made_count, 0], origin[made_count, 1] = label, kind
                origin[made_count, 2], origin[made_count, 3] = w, u
                scores[made_count] = bound
                made_count += 1
        count = high
        for k in np.argsort(keys[:made_count, 0], kind="mergesort"):
            if _is_dominated(keys[k], kept, count - high):
                continue
            if count >= room:
                cut = 2
                break
            kept[count - high] = keys[k]
            values[count] = made[k]
            parent[count], action[count] = origin[k, 0], origin[k, 1]
            near[count, 0], near[count, 1], bounds[count] = origin[k, 2], origin[k, 3], scores[k]
            count += 1
        if count - high > width:
            cut = max(cut, 1)
            count = _narrowed(values, parent, action, near, bounds, high, count, width)
        first[i - split + 2] = count
    return first, cut, above


@compiled
def _write_key(key: Any, row: Any) -> None:
    """Six sums of a label: it dominates another where none of them is larger."""
    sent, run = max(row[2], 0), row[3]
    key[0], key[1], key[2] = row[0], row[1] + sent, row[0] + sent
    key[3], key[4], key[5] = key[1] + run, key[2] + run, row[4]
    if row[2] < 0:
        key[3] = key[4] = 0


@compiled
def _is_dominated(key: Any, kept: Any, count: int) -> bool:
    """By one of so many kept."""
    for other in range(count):
        dominated = True
        for c in range(6):
            if kept[other, c] > key[c]:
                dominated = False
                break
        if dominated:
            return True
    return False


@compiled
def _extend(row: Any, old: Any, kind: int, layer: Any, overhead: int, grouped: bool) -> None:
    """Write to `row` the helper's label with one more layer."""
    load, saved, inside, host, forwarded = layer
    row[:] = old
    is_open = old[2] >= 0
    if kind == FROM_HOST:
        row[4] += host
        if is_open:
            row[3] += host
        return
    if kind == JOINED:
        row[0] += load - saved
        row[2] += forwarded
        row[3] += inside
        row[4] += inside
        return
    if is_open:
        row[1] = max(old[0], old[1]) + overhead + old[2]
        row[4] = max(old[4], row[1] + old[3])
    row[0] += load
    if grouped:
        row[2], row[3] = forwarded, inside
        row[4] += inside
    else:
        row[1] = max(row[0], row[1]) + overhead + forwarded
        row[4] = max(row[4], row[1]) + inside


@compiled
def _bound(x: int, y: int, link: int, grid: Any, spare: float, table: Any, w: int, u: int) -> Any:
    """The bound of the best pair of weights near those of the label before; and that pair.

    Without an open transfer (y: NEVER) the two are one.
    """
    m = len(grid)
    ran = y - link if y < NEVER else 0
    if y >= NEVER:
        u = w
    bound = (1 - grid[u] - spare) * x + grid[u] * link + (grid[u] - grid[w]) * ran + table[w, u]
    improved = True
    while improved:
        improved = False
        for way in range(6):
            dw, du = 1, 1
            if way < 4:
                if y >= NEVER:
                    continue
                dw, du = (1, 0) if way < 2 else (0, 1)
            if way & 1:
                dw, du = -dw, -du
            while 0 <= w + dw <= u + du < m:
                a, b = w + dw, u + du
                other = (
                    (1 - grid[b] - spare) * x
                    + grid[b] * link
                    + (grid[b] - grid[a]) * ran
                    + table[a, b]
                )
                if other <= bound:
                    break
                bound, w, u, improved = other, a, b, True
    return bound, w, u


@compiled
def _narrowed(
    values: Any,
    parent: Any,
    action: Any,
    near: Any,
    bounds: Any,
    low: int,
    high: int,
    width: int,
) -> int:
    """Keep about `width` labels, in their order: half of them those with the least bounds, half the
    best of as many neighbours each, and both ends.

    Where many are as good by their bounds, the least of all alone would be much like each other.
    """
    half = max(1, width // 2)
    worst = np.sort(bounds[low:high])[half - 1]
    keep = np.zeros(high - low, np.bool_)
    keep[0] = keep[high - low - 1] = True
    left = half
    for k in range(high - low):
        if left > 0 and bounds[low + k] <= worst:
            keep[k] = True
            left -= 1
    for part in range(half):
        begin, end = (high - low) * part // half, (high - low) * (part + 1) // half
        k = begin
        for other in range(begin + 1, end):
            if bounds[low + other] < bounds[low + k]:
                k = other
        keep[k] = True
    count = low
    for k in range(low, high):
        if keep[k - low]:
            values[count], bounds[count] = values[k], bounds[k]
            parent[count], action[count], near[count] = parent[k], action[k], near[k]
            count += 1
    return count
