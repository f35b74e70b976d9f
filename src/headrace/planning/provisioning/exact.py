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

By layer on one device, two values are enough, and `by_layer` proves from both ends. Otherwise both
walks run with few labels per layer first, for a start to beat. Then they look for starts close to
the lower limit, ever further above it, with all labels: where there is none, the limit is higher by
as much, and the first that is found is the soonest of all. Where widths or room do not suffice, the
best start found is the answer, and `bound_us` is what was proven till then.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from headrace.planning.provisioning import backward as helper_walk
from headrace.planning.provisioning import labels as primary_walk
from headrace.planning.provisioning.by_layer import Proof, prove
from headrace.planning.provisioning.limits import ROUNDING, Weights
from headrace.starts import HELPER, HOST, PRIMARY, Chain, Choice

WIDTHS = (16, 256, 1_024)
"""Labels per layer of searches for a start to beat, one after the other where proofs fail."""

PROOF_WIDTH, HELPER_PROOF_WIDTH = 1 << 20, 8_192
"""Labels per layer of a search that is to be a proof; with a helper, whose labels are compared pair
by pair."""

ROOM = 4_000_000
"""Most labels of one walk: some hundred megabytes."""

HELPER_ROOM = 400_000
"""The same over the helper's layers, whose labels are compared pair by pair: some seconds."""

_FIRST_ROOM = 1 << 16
_LEAST_ROOM = 4 * WIDTHS[0]
"""Labels per layer, with which the first search comes to its end."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """The best choice, and how much sooner another might be."""

    choice: Choice
    total_us: int
    bound_us: int
    """No start is sooner."""

    @property
    def proven(self) -> bool:
        return self.bound_us == self.total_us


def soonest_start(
    chain: Chain, *, grouped: bool, helper: bool, below: int | None = None, room: int | None = None
) -> Found:
    """The choice with which the start ends soonest, or the best found and a lower limit.

    Args:
        grouped: transfers may be of several layers; otherwise each loaded layer is one.
        helper: layers behind a split may come over a second device.
        below: some start's time; it only makes the search faster.
        room: most labels of one walk, which bounds its time: about 20 ns each by layer. At least so
            many are made as the first search needs.
    """
    search = _Search(chain, grouped, helper, room)
    ceiling = int(chain.host_us.sum()) if below is None else below
    if not grouped and not helper:
        proof = search.prove()
        if proof.loaded is not None:
            choice = Choice.one_by_one(np.where(proof.loaded, PRIMARY, HOST).tolist())
            return Found(choice=choice, total_us=proof.bound_us, bound_us=proof.bound_us)
    best = search.run(ceiling + 1, WIDTHS[0]).best
    widest = HELPER_PROOF_WIDTH if helper else PROOF_WIDTH
    least, step = search.least_us, 1
    while best is None or best.total_us > least:
        tried = min(least + step, ceiling if best is None else best.total_us - 1)
        walked = search.run(tried + 1, widest)
        best = walked.best or best
        if walked.cut:
            break
        least = max(tried + 1, walked.above_us) if walked.best is None else walked.best.total_us
        step *= 2
    else:
        return _found(best, least)
    for width in WIDTHS[1:]:
        best = search.run(best.total_us if best else ceiling + 1, width).best or best
    return _found(best, least)


def _found(best: "_Best | None", least: int) -> Found:
    if best is None:
        raise AssertionError("a start from host memory alone is always a choice")
    return Found(choice=best.choice, total_us=best.total_us, bound_us=least)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Best:
    choice: Choice
    total_us: int


@dataclass(frozen=True, slots=True, kw_only=True)
class _Walked:
    best: _Best | None
    """The best start below the limit."""
    cut: bool
    """Choices were left out, so that a better one may exist."""
    above_us: int = 0
    """Where there is none, and nothing was left out: no start is sooner."""


class _Search:
    def __init__(self, chain: Chain, grouped: bool, helper: bool, room: int | None) -> None:
        if not grouped:
            chain = replace(chain, saved_us=np.zeros_like(chain.saved_us))
        self._chain, self._grouped, self._helper = chain, grouped, helper
        self._weights = Weights.of(chain, 2 if helper else 1)
        self.least_us = self._weights.least_us
        least_room = _LEAST_ROOM * (chain.count + 2)
        self._room = max(room or ROOM, least_room)
        self._helper_room = max(min(room or HELPER_ROOM, HELPER_ROOM), least_room)
        least = np.where(chain.weighted, np.minimum(chain.inside_us, chain.host_us), chain.host_us)
        self._least = np.concatenate([[0], np.cumsum(least)])

    def prove(self) -> Proof:
        return prove(self._chain, self._weights, self._room)

    def run(self, limit: int, width: int) -> _Walked:
        """The best start below `limit`, with so many labels a layer."""
        chain, weights = self._chain, self._weights
        rows = (chain.load_us, chain.saved_us, chain.inside_us, chain.host_us)
        tail = (weights.running, weights.grid, self._grouped, limit, width)
        walk = _with_room(self._room, primary_walk.forward, *rows, weights.suffix, *tail)
        ends = self._least_ends(walk)
        best, total = None, limit
        if ends[-1] < limit:
            best, total = self._primary(walk, chain.count), int(ends[-1])
        if not self._helper:
            above = math.ceil(min(walk[5], limit * 2.0) - ROUNDING)
            return _Walked(best=self._best(best, total), cut=bool(walk[4]), above_us=above)
        rest = np.minimum.accumulate(ends - self._least) + self._least
        back = _with_room(
            self._helper_room,
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
        return _Walked(best=self._best(best, total), cut=bool(walk[4] or back[4]))

    def _least_ends(self, walk: Any) -> npt.NDArray[np.int64]:
        """A_p: the soonest that layers before p can end, for each p."""
        values, first = walk[0], walk[3]
        ends = [values[a:b, 1].min() if b > a else primary_walk.NEVER for a, b in pairwise(first)]
        return np.array(ends, np.int64)

    def _primary(self, walk: Any, count: int) -> list[tuple[int, bool]]:
        values, parent, action, first = walk[:4]
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

    def _best(self, best: list[tuple[int, bool]] | None, total: int) -> _Best | None:
        if best is None:
            return None
        sources, joins = zip(*best, strict=True)
        choice = Choice(source=tuple(sources), joined=tuple(map(bool, joins)))
        return _Best(choice=choice, total_us=total)


def _with_room(most: int, walk: Callable[..., Any], *arguments: Any) -> Any:
    """The walk's labels, with more and more room until it is enough."""
    layers = len(arguments[0])
    room = min(most, max(_FIRST_ROOM, 256 * (layers + 6)))
    while True:
        result = walk(*arguments, room)
        if result[4] < 2 or room >= most:
            return result
        room = min(most, room * 8)
