"""The walk of the exact search over the helper's layers, from the last one to the first, compiled.

Labels have seven values. v is what the layers of an open transfer take to forward, s what they take
to copy less what all of them save; f is `forward_copy_us`. Of the layers from i on, the helper's:

    0  D  execution that is left, were nothing waited for
    1  T  from when the helper's link is free to the end; -1: the transfer in front is open
    2  V  from when the forwarding link is free to the end; of an open one d = s + max(v + V, v + D)

and of labels with an open transfer

    3  b = v + D           4  A = max(v + V, b)
    5  e = s + v + D       6  C = max(s + T, f + d)

An open transfer has more layers in front; its first one, with saving p, ends it:

    V' = f + A        T' = p + C

with A and C as of that layer: execution from it on is all that waits for the transfer. Each value
only grows with more layers, by amounts that do not depend on the label, b by more than v + V and e
by more than s + v + V; so a label that is at most as large in all is never worse.
"""

from typing import Any

import numpy as np

from headrace.compilation.loops import compiled

FROM_HOST, NEW_TRANSFER, JOINED, NEW_OPEN, JOINED_OPEN = 0, 1, 2, 3, 4


@compiled
def backward(
    load: Any,
    saved: Any,
    inside: Any,
    host: Any,
    forwarded: Any,
    overhead: int,
    rest: Any,
    bounds: Any,
    alphas: Any,
    betas: Any,
    grouped: bool,
    limit: int,
    width: int,
    room: int,
) -> Any:
    """Labels of the layers from each one on, all loaded ones over the helper.

    Args:
        rest: shape (n + 1,): the soonest that layers before i can have ended.
        bounds: shape (n + 1, weights); `exact.Weights.prefix`.
        grouped, limit, width, room: as in `labels.forward`.

    Returns:
        (values, parent, action, first, cut): as `labels.forward`, layer i's labels from
        first[n - i] to first[n - i + 1]; open ones have T = -1.
    """
    n = len(load)
    values = np.zeros((room, 7), np.int64)
    parent = np.empty(room, np.int32)
    action = np.empty(room, np.int8)
    first = np.zeros(n + 2, np.int64)
    parent[0], action[0], first[1] = -1, FROM_HOST, 1
    cut = 0
    made = np.zeros((1, 7), np.int64)
    origin = np.zeros((1, 2), np.int64)
    for step in range(1, n + 1):
        i = n - step
        low, high = first[step - 1], first[step]
        most = 3 * (high - low)
        if len(made) < most:
            made = np.empty((2 * most, 7), np.int64)
            origin = np.empty((2 * most, 2), np.int64)
        count, w = 0, 0
        for label in range(low, high):
            is_open = values[label, 1] < 0
            for kind in range(5):
                if kind != FROM_HOST and load[i] == 0:
                    continue
                if kind in (NEW_TRANSFER, NEW_OPEN) and is_open:
                    continue
                if kind in (JOINED, JOINED_OPEN) and not is_open:
                    continue
                if kind in (NEW_OPEN, JOINED_OPEN) and not grouped:
                    continue
                row = made[count]
                _extend(
                    row,
                    values[label],
                    kind,
                    load[i],
                    saved[i],
                    inside[i],
                    host[i],
                    forwarded[i],
                    overhead,
                )
                reach = row[1] if row[1] >= 0 else row[6]
                if row[0] + rest[i] >= limit or reach >= limit:
                    continue
                # The best weight for this label is near the one for the last.
                bound = alphas[w] * row[0] + betas[w] * reach + bounds[i, w]
                for way in (1, -1):
                    while 0 <= w + way < len(alphas):
                        k = w + way
                        other = alphas[k] * row[0] + betas[k] * reach + bounds[i, k]
                        if other <= bound:
                            break
                        bound, w = other, k
                if bound > limit - 1 + 1e-6:
                    continue
                origin[count, 0], origin[count, 1] = label, kind
                count += 1
        end = _kept(made, origin, count, values, parent, action, high, room)
        if end < 0:
            cut = 2
            end = room
        if end - high > width:
            cut = max(cut, 1)
            end = _narrowed(
                values, parent, action, high, end, width, rest[i], bounds[i], alphas, betas
            )
        first[step + 1] = end
    return values, parent, action, first, cut


@compiled
def _extend(
    row: Any,
    old: Any,
    kind: int,
    load: int,
    saved: int,
    inside: int,
    host: int,
    forwarded: int,
    overhead: int,
) -> None:
    """Write to `row` the label with one more layer in front."""
    was_open = old[1] < 0
    if kind == FROM_HOST:
        row[0] = old[0] + host
        row[1], row[2] = old[1], old[2]
        row[3] = row[4] = row[5] = row[6] = 0
        if was_open:
            row[3], row[5] = old[3] + host, old[5] + host
            row[4] = max(old[4], row[3])
            row[2] = max(old[2], row[5])
            row[6] = max(old[6], row[2] + overhead)
        return
    row[0] = old[0] + inside
    own = load - saved
    if was_open:
        row[3], row[5] = old[3] + forwarded + inside, old[5] + own + forwarded + inside
        row[4] = max(old[4] + forwarded, row[3])
        row[2] = max(old[2] + own + forwarded, row[5])
        row[6] = max(old[6] + own, row[2] + overhead)
    else:
        row[3], row[5] = forwarded + row[0], own + forwarded + row[0]
        row[4] = max(forwarded + old[2], row[3])
        row[2] = own + row[4]
        row[6] = max(own + old[1], row[2] + overhead)
    row[1] = -1
    if kind in (NEW_TRANSFER, JOINED):
        row[2] = overhead + row[4]
        row[1] = saved + row[6]
        row[3] = row[4] = row[5] = row[6] = 0


@compiled
def _kept(
    made: Any,
    origin: Any,
    count: int,
    values: Any,
    parent: Any,
    action: Any,
    low: int,
    room: int,
) -> int:
    """Write the labels that no other dominates from `low` on; their end, or -1 if room is short."""
    sums = np.zeros(count, np.int64)
    for k in range(count):
        for c in range(7):
            sums[k] += made[k, c]
    end = low
    for k in np.argsort(sums):
        dominated = False
        for kept in range(low, end):
            if (values[kept, 1] < 0) != (made[k, 1] < 0):
                continue
            dominated = True
            for c in range(7):
                if values[kept, c] > made[k, c]:
                    dominated = False
                    break
            if dominated:
                break
        if dominated:
            continue
        if end >= room:
            return -1
        values[end] = made[k]
        parent[end], action[end] = origin[k, 0], origin[k, 1]
        end += 1
    return end


@compiled
def _narrowed(
    values: Any,
    parent: Any,
    action: Any,
    low: int,
    high: int,
    width: int,
    rest: int,
    bounds: Any,
    alphas: Any,
    betas: Any,
) -> int:
    """Keep the `width` labels with the least bounds, in their order."""
    scores = np.empty(high - low, np.float64)
    w = 0
    for k in range(low, high):
        reach = values[k, 1] if values[k, 1] >= 0 else values[k, 6]
        score = float(max(values[k, 0] + rest, reach))
        bound = alphas[w] * values[k, 0] + betas[w] * reach + bounds[w]
        for way in (1, -1):
            while 0 <= w + way < len(alphas):
                v = w + way
                other = alphas[v] * values[k, 0] + betas[v] * reach + bounds[v]
                if other <= bound:
                    break
                bound, w = other, v
        scores[k - low] = max(score, bound)
    worst = np.sort(scores)[width - 1]
    count = low
    for k in range(low, high):
        if scores[k - low] <= worst and count - low < width:
            values[count] = values[k]
            parent[count], action[count] = parent[k], action[k]
            count += 1
    return count
