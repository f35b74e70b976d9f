"""Sets of labels that no other label dominates: the two walks of the exact search, compiled.

`forward` walks the layers of the primary link from the first one, `backward` those of the helper
from the last one; `exact` says what labels mean and why leaving dominated ones out is safe. Both
stop to keep labels that cannot lead below `limit`, and keep at most `width` per layer.

Labels of one layer stand one behind the other in the arrays of all, in ascending order of their
first value, with the label before and what was done with the layer.
"""

from typing import Any

import numpy as np

from headrace.compilation.loops import compiled

NEVER = 1 << 40

FROM_HOST, NEW_TRANSFER, JOINED, NEW_OPEN, JOINED_OPEN = 0, 1, 2, 3, 4
"""What was done with a layer. Backward, the layer that is first of its transfer ends it: NEW_OPEN
and JOINED_OPEN leave it open for layers before."""


@compiled
def forward(
    load: Any,
    saved: Any,
    inside: Any,
    host: Any,
    bounds: Any,
    alphas: Any,
    betas: Any,
    grouped: bool,
    limit: int,
    width: int,
    room: int,
) -> Any:
    """Labels (L, X, Y) after each layer on the primary link.

    Args:
        bounds: shape (n + 1, weights); `exact.Weights.suffix`.
        limit: labels that cannot end below it are dropped.
        width: most labels kept per layer.
        room: most labels in all.

    Returns:
        (values, parent, action, first, cut, above): arrays over labels, the first label of each
        layer with one entry more than layers + 1, whether labels were left out: 1 by `width`, 2 by
        `room`, 0 none; and the least bound of a label that was dropped for it.
    """
    n = len(load)
    values = np.empty((room, 3), np.int64)
    parent = np.empty(room, np.int32)
    action = np.empty(room, np.int8)
    first = np.zeros(n + 2, np.int64)
    values[0, 0], values[0, 1], values[0, 2] = 0, 0, NEVER
    parent[0], action[0], first[1] = -1, FROM_HOST, 1
    cut, above = 0, np.inf
    weights = len(alphas)
    stairs = np.empty((room, 2), np.int64)
    most_saved = np.zeros(n + 1, np.int64)
    for i in range(n - 1, -1, -1):
        most_saved[i] = max(most_saved[i + 1], saved[i])
    for i in range(n):
        low, high = first[i], first[i + 1]
        at = np.array([low, low, low])
        count = high
        steps = 0
        late, least_late = high, NEVER
        w = 0
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
                y = 0
            # Labels that are ahead by more than a transfer of its own can cost need no Y.
            while late < count and values[late, 0] + most_saved[i + 1] <= best:
                least_late = min(least_late, values[late, 1])
                late += 1
            if least_late <= x:
                continue
            # Stairs: of kept labels, the pairs (X, Y) that no other kept one is below; X ascends.
            a, b = 0, steps
            while a < b:
                middle = (a + b) >> 1
                if stairs[middle, 0] <= x:
                    a = middle + 1
                else:
                    b = middle
            if a > 0 and stairs[a - 1, 1] <= y:
                continue
            # The best weight for this label is near the one for the last.
            bound = alphas[w] * x + betas[w] * best + bounds[i + 1, w]
            for way in (1, -1):
                while 0 <= w + way < weights:
                    k = w + way
                    other = alphas[k] * x + betas[k] * best + bounds[i + 1, k]
                    if other <= bound:
                        break
                    bound, w = other, k
            if bound > limit - 1 + 1e-6:
                above = min(above, bound)
                continue
            begin = a
            if a > 0 and stairs[a - 1, 0] == x:
                begin = a - 1
            end = begin
            while end < steps and stairs[end, 1] >= y:
                end += 1
            shift = 1 - (end - begin)
            if shift > 0:
                for k in range(steps - 1, end - 1, -1):
                    stairs[k + shift, 0], stairs[k + shift, 1] = stairs[k, 0], stairs[k, 1]
            elif shift < 0:
                for k in range(end, steps):
                    stairs[k + shift, 0], stairs[k + shift, 1] = stairs[k, 0], stairs[k, 1]
            steps += shift
            stairs[begin, 0], stairs[begin, 1] = x, y
            if count >= room:
                cut = 2
                break
            values[count, 0], values[count, 1], values[count, 2] = best, x, y
            parent[count], action[count] = label, kind
            count += 1
        if count - high > width:
            cut = max(cut, 1)
            count = _narrowed(
                values, parent, action, high, count, width, bounds[i + 1], alphas, betas
            )
        first[i + 2] = count
    return values, parent, action, first, cut, above


@compiled
def _narrowed(
    values: Any,
    parent: Any,
    action: Any,
    low: int,
    high: int,
    width: int,
    bounds: Any,
    alphas: Any,
    betas: Any,
) -> int:
    """Keep the `width` labels with the least bounds, in their order."""
    scores = np.empty(high - low, np.float64)
    w = 0
    for k in range(low, high):
        score = alphas[w] * values[k, 1] + betas[w] * values[k, 0] + bounds[w]
        for way in (1, -1):
            while 0 <= w + way < len(alphas):
                v = w + way
                other = alphas[v] * values[k, 1] + betas[v] * values[k, 0] + bounds[v]
                if other <= score:
                    break
                score, w = other, v
        scores[k - low] = score
    worst = np.sort(scores)[width - 1]
    count = low
    for k in range(low, high):
        if scores[k - low] <= worst and count - low < width:
            values[count] = values[k]
            parent[count], action[count] = parent[k], action[k]
            count += 1
    return count
