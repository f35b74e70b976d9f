"""The soonest start there is: load or host for each layer, transfers, and where the helper begins.

Over the choices of `headrace.starts` with layers up to a split from the primary link, those behind
it over the helper (no split: one device), and any consecutive loaded layers of a link together.

One device. Walk the layers from the first. After some of them, a choice is known by three values:

    L  when the primary link is free
    X  when execution is free, were the last transfer complete
    Y  when it would be, did only that transfer hold it up: L + what runs from its first layer on

and the next layer, of load l, saving p, inside c, host h, leads to

    host           (L,         X + h,                 Y + h)
    its own copy   (L + l,     max(X + c, Y'),        Y' = L + l + c)
    joined         (L + l - p, max(X + c, Y'),        Y' = Y + l - p + c)

(joined: all that runs since the transfer's first layer waits for l - p more.) *Dominance.* Each
right side grows with L, X and Y, and the start ends at X; so of two choices of the same layers the
one that is at most as large in all three is never worse, whatever follows. Also, a choice that is
ahead in L by the largest saving to come, and not behind in X, needs no smaller Y: wherever the
other joins, it makes a copy of its own and stays ahead. *Bounds.* Whatever the layers to come do,
the start lasts at least as long as execution from X on, and, for every layer m of them, as the
copies up to m from L on with the execution of m and behind. Any mean of these is a lower limit too;
in it the copy of layer j counts with the weight w_j of the terms m >= j, which falls along the
layers, and its execution with v = 1 - w_{j+1}. So each layer can be set to its own least,
min(w_j (l - p) + v c, v h), and the best falling sequence of a grid is found from the last layer on
(`Weights`). What cannot end below the best start known is left out. What is kept at the last layer
is the least of all: that is the proof.

Two devices. With the split behind layer p, layers up to p matter only by when they end: A_p, the
least X of the walk after p. From p on, nothing is on the helper's link or the forwarding one at
time 0, so walk back from the last layer (`backward`) with D, what runs from here, and T, from when
the helper's link is free to the end. The start lasts max(A_p + D, T); the least over p and labels
is the answer. In the limits, copies of both links count with w and execution with 1 - 2 w.

Both walks run with few labels per layer first, for a start to beat, then with more, until none is
left out. Where widths or room do not suffice, the best start found is the answer, and `proven`
is False.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from headrace.planning.provisioning import backward as helper_walk
from headrace.planning.provisioning import labels as primary_walk
from headrace.planning.provisioning.limits import Weights
from headrace.starts import HELPER, HOST, PRIMARY, Chain, Choice

WIDTHS = (16, 256, 1_024, 16_384)
"""Labels per layer of one search after the other; one that leaves none out is the proof."""

HELPER_WIDTHS = (16, 256, 8_192)
"""The same with a helper."""

ROOM = 4_000_000
"""Most labels of one walk: some hundred megabytes."""

HELPER_ROOM = 400_000
"""The same over the helper's layers, whose labels are compared pair by pair: some seconds."""

_FIRST_ROOM = 1 << 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """The best choice, and whether there is provably none that ends sooner."""

    choice: Choice
    total_us: int
    proven: bool


def soonest_start(chain: Chain, *, grouped: bool, helper: bool, below: int | None = None) -> Found:
    """The choice with which the start ends soonest.

    Args:
        grouped: transfers may be of several layers; otherwise each loaded layer is one.
        helper: layers behind a split may come over a second device.
        below: some start's time; it only makes the search faster.
    """
    search = _Search(chain, grouped, helper)
    best: Found | None = None
    limit = int(chain.host_us.sum()) + 1 if below is None else below + 1
    for width in HELPER_WIDTHS if helper else WIDTHS:
        found, cut = search.run(best.total_us if best else limit, width)
        best = found or best
        if not cut:
            break
    if best is None:
        raise AssertionError("a start from host memory alone is always a choice")
    return Found(choice=best.choice, total_us=best.total_us, proven=not cut)


class _Search:
    def __init__(self, chain: Chain, grouped: bool, helper: bool) -> None:
        if not grouped:
            chain = replace(chain, saved_us=np.zeros_like(chain.saved_us))
        self._chain, self._grouped, self._helper = chain, grouped, helper
        self._weights = Weights.of(chain, 2 if helper else 1)
        least = np.where(chain.weighted, np.minimum(chain.inside_us, chain.host_us), chain.host_us)
        self._least = np.concatenate([[0], np.cumsum(least)])

    def run(self, limit: int, width: int) -> tuple[Found | None, bool]:
        """The best start below `limit` with so many labels a layer; and whether any were left
        out, so that a better one may exist."""
        chain, weights = self._chain, self._weights
        rows = (chain.load_us, chain.saved_us, chain.inside_us, chain.host_us)
        tail = (weights.running, weights.grid, self._grouped, limit, width)
        walk = _with_room(primary_walk.forward, *rows, weights.suffix, *tail)
        ends = self._least_ends(walk)
        best, total = None, limit
        if ends[-1] < limit:
            best, total = self._primary(walk, chain.count), int(ends[-1])
        if not self._helper:
            return self._found(best, total, walk[4]), bool(walk[4])
        rest = np.minimum.accumulate(ends - self._least) + self._least
        back = _with_room(
            helper_walk.backward,
            *rows,
            chain.forward_us,
            chain.forward_copy_us,
            rest,
            weights.prefix,
            1 - weights.grid,
            weights.grid,
            self._grouped,
            limit,
            width,
        )
        for split in range(chain.count):
            first, end = back[3][chain.count - split : chain.count - split + 2]
            values = back[0][first:end]
            closed = np.flatnonzero(values[:, 1] >= 0)
            if not len(closed):
                continue
            totals = np.maximum(ends[split] + values[closed, 0], values[closed, 1])
            if totals.min() < total:
                total = int(totals.min())
                label = first + closed[int(totals.argmin())]
                best = self._primary(walk, split) + self._from_helper(back, split, label)
        cut = bool(walk[4] or back[4])
        return self._found(best, total, cut), cut

    def _least_ends(self, walk: Any) -> npt.NDArray[np.int64]:
        """A_p: the soonest that layers before p can end, for each p."""
        values, first = walk[0], walk[3]
        ends = [values[a:b, 1].min() if b > a else primary_walk.NEVER for a, b in pairwise(first)]
        return np.array(ends, np.int64)

    def _primary(self, walk: Any, count: int) -> list[tuple[int, bool]]:
        values, parent, action, first, _ = walk
        label = int(first[count] + values[first[count] : first[count + 1], 1].argmin())
        found = []
        while parent[label] >= 0:
            kind = action[label]
            found.append((HOST if kind == 0 else PRIMARY, kind == primary_walk.JOINED))
            label = int(parent[label])
        return found[::-1]

    def _from_helper(self, back: Any, split: int, label: int) -> list[tuple[int, bool]]:
        _, parent, action, _, _ = back
        found = []
        while parent[label] >= 0:
            kind = action[label]
            joined = kind in (helper_walk.NEW_OPEN, helper_walk.JOINED_OPEN)
            found.append((HOST if kind == helper_walk.FROM_HOST else HELPER, joined))
            label = int(parent[label])
        return found

    def _found(self, best: list[tuple[int, bool]] | None, total: int, cut: bool) -> Found | None:
        if best is None:
            return None
        sources, joins = zip(*best, strict=True)
        choice = Choice(source=tuple(sources), joined=tuple(map(bool, joins)))
        return Found(choice=choice, total_us=total, proven=not cut)


def _with_room(walk: Callable[..., Any], *arguments: Any) -> Any:
    """The walk's labels, with more and more room until it is enough."""
    layers = len(arguments[0])
    most = HELPER_ROOM if walk is helper_walk.backward else ROOM
    room = min(most, max(_FIRST_ROOM, 256 * (layers + 6)))
    while True:
        result = walk(*arguments, room)
        if result[4] < 2 or room >= most:
            return result
        room = min(most, room * 8)
