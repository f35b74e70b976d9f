"""Walks of the exact search by layer, one device, from both ends, and the proof that joins them.

By layer a choice is known by (L, X), as in `exact`: when the link is free, and when execution is.
The layers to come, seen from their end, are known by (D, T): what they execute, and what passes
from when the link is free to the end, so that the start lasts max(X + D, L + T). Both are one walk,

    loaded   P' = P + u            Q' = v + max(Q, P')
    host     P' = P + p            Q' = Q + q

forward with P, Q = L, X and u, v, p, q = l, c, 0, h; backward with P, Q = D, T and c, l, h, 0.

*Proof.* Whoever looks for starts up to a limit can drop labels whose bound (`limits`) is above it.
If none is left, no start is within the limit, nor below the least bound that was dropped; if some
are, the least of them is the least of all. A walk dies where starts lose against the lower limit by
their layers being whole: near its beginning, if they lose there. So walks start close to the lower
limit and look ever further, from the end where they die soon: one that comes to have many labels is
left for one from the other end, and of two such the one that had come further goes on with more.
The labels of a layer that have lost at most s grow with the root of s, so that to look too far
costs less than to look again.

No method is known that is fast for all chains: with c = 0 and h = l for all layers but a last one,
which is long to run from the host and loads and runs in no time, the start takes the larger of what
is loaded and what is not, so that the best one says whether the loads can be halved (PARTITION).
The problem is NP-hard; labels of a layer are at most as many as microseconds.
"""

import math
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from headrace.compilation.loops import compiled
from headrace.planning.provisioning.limits import ROUNDING, Weights
from headrace.starts import Chain

Floats = npt.NDArray[np.float64]

_FURTHER = (1.1, 1.5)
"""How much further a walk looks than the last one, if that was short, or long: the last walk looks
too far by this, and has most labels."""
_SHORT = 1 << 15
"""Labels of a walk: half a millisecond."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Proof:
    """What walks from both ends have shown."""

    bound_us: int
    """No start is sooner."""
    loaded: npt.NDArray[np.bool_] | None
    """Of each layer, in a start that takes `bound_us`; None: the room was too small for one."""


def prove(chain: Chain, weights: Weights, room: int) -> Proof:
    """The least start by layer on one device, or as high a lower limit as `room` allows.

    Args:
        weights: of the chain and one link.
        room: most labels of one walk.
    """
    n = chain.count
    zeros = np.zeros(n, np.int64)
    can_load = chain.weighted
    grid, running = weights.grid, weights.running
    rows = (chain.load_us, chain.inside_us, zeros, chain.host_us, can_load)
    back = (chain.inside_us, chain.load_us, chain.host_us, zeros, can_load)
    sides = (
        (*rows, weights.suffix, grid, running),
        (*(row[::-1].copy() for row in back), weights.prefix[::-1].copy(), running, grid),
    )
    lp = float(weights.suffix[0].max())
    least, slack, side, longest = math.ceil(lp - ROUNDING), 1.0, 0, 0
    while True:
        limit = max(least, math.floor(lp + slack))
        budget = min(room, max(_SHORT, longest // 8))
        while True:
            walked = _walked(sides[side], limit, budget)
            if not walked.cut:
                break
            other = _walked(sides[1 - side], limit, budget)
            if not other.cut or other.layers > walked.layers:
                walked, side = other, 1 - side
            if not walked.cut:
                break
            if budget >= room:
                return Proof(bound_us=least, loaded=None)
            budget = min(room, 8 * budget)
        if walked.count(n):
            total, choice = walked.least()
            return Proof(bound_us=total, loaded=choice[::-1] if side else choice)
        least = max(limit + 1, math.ceil(walked.above - ROUNDING))
        longest = max(longest, walked.size)
        slack = max(slack * _FURTHER[walked.size > _SHORT], least - lp)


class _Walk(NamedTuple):
    """What `walk` returns."""

    values: Any
    parent: Any
    loaded: Any
    first: Any
    cut: bool
    above: float

    @property
    def layers(self) -> int:
        """That were done."""
        return int(self.first.argmax())

    @property
    def size(self) -> int:
        return int(self.first[-1])

    def count(self, layers: int) -> int:
        return int(self.first[layers + 1] - self.first[layers])

    def least(self) -> tuple[int, npt.NDArray[np.bool_]]:
        """The soonest end of all layers, and which are loaded, in the walk's order."""
        n = len(self.first) - 2
        ends = self.values[self.first[n] : self.first[n + 1]].max(axis=1)
        label = int(self.first[n] + ends.argmin())
        loaded = np.zeros(n, np.bool_)
        for layer in range(n - 1, -1, -1):
            loaded[layer] = self.loaded[label]
            label = int(self.parent[label])
        return int(ends.min()), loaded


def _walked(side: tuple[Any, ...], limit: int, room: int) -> _Walk:
    arguments: list[Any] = [*side, limit, room]
    return _Walk(*walk(*arguments))


@compiled
def walk(
    p_loaded: Any,
    q_loaded: Any,
    p_host: Any,
    q_host: Any,
    can_load: Any,
    bounds: Any,
    p_weights: Any,
    q_weights: Any,
    limit: int,
    room: int,
) -> Any:
    """Labels (P, Q) after each layer that no other dominates, with bounds up to `limit`.

    Args:
        bounds: shape (n + 1, weights); lower limits of the layers that are left after each.
        room: most labels in all.

    Returns:
        (values, parent, loaded, first, cut, above): arrays over labels, P ascending within a layer;
        the first label of each layer, with one entry more than layers + 1; whether `room` was too
        small; and the least bound of a label that was dropped.
    """
    n, weights = len(p_loaded), len(p_weights)
    values = np.empty((room, 2), np.int64)
    parent = np.empty(room, np.int32)
    loaded = np.empty(room, np.bool_)
    first = np.zeros(n + 2, np.int64)
    values[0, 0], values[0, 1], parent[0], loaded[0], first[1] = 0, 0, -1, False, 1
    count, above, w = 1, np.inf, 0
    for i in range(n):
        low, high = first[i], first[i + 1]
        at_host, at_loaded = low, low if can_load[i] else high
        lowest = np.int64(1 << 62)
        if i == n - 1:
            w = 0  # the only weight that there is at the last end
        while at_host < high or at_loaded < high:
            from_host = at_loaded >= high
            if not from_host and at_host < high:
                from_host = values[at_host, 0] + p_host[i] <= values[at_loaded, 0] + p_loaded[i]
            if from_host:
                label = at_host
                at_host += 1
                p, q = values[label, 0] + p_host[i], values[label, 1] + q_host[i]
            else:
                label = at_loaded
                at_loaded += 1
                p = values[label, 0] + p_loaded[i]
                q = q_loaded[i] + max(values[label, 1], p)
            if q >= lowest:
                continue
            lowest = q
            # The best weight for this label is near the one for the last.
            bound = p_weights[w] * p + q_weights[w] * q + bounds[i + 1, w]
            for way in (1, -1):
                while 0 <= w + way < weights:
                    k = w + way
                    other = p_weights[k] * p + q_weights[k] * q + bounds[i + 1, k]
                    if other <= bound:
                        break
                    bound, w = other, k
            if bound > limit + 1e-6:
                above = min(above, bound)
                continue
            if count >= room:
                return values, parent, loaded, first, True, above
            values[count, 0], values[count, 1] = p, q
            parent[count], loaded[count] = label, not from_host
            count += 1
        first[i + 2] = count
    return values, parent, loaded, first, False, above
