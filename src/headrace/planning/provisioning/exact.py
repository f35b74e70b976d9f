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
other joins, it makes a copy of its own and stays ahead. *Bounds.* `limits` says what the layers to
come add at least; what cannot end below the best start known is left out. What is kept at the last
layer is the least of all: that is the proof.

Two devices. With the split before layer p, layers before it matter only by when they end: A_p, the
least X of the walk after them. From there a second walk begins, with nothing on the helper's link
or the forwarding one at time 0, and execution free at A_p. Its labels know when both are free, what
the open transfer takes to forward (v), and what runs from its first layer on (e). All that follows
grows with when the helper's link is free, and with when the open transfer would be forwarded, and
what runs from its first layer on would have run, after its copy or after the forwarding before it;
so these five and X are compared.

By layer on one device, X for each L is all there is, and `by_layer` proves with arrays; on two
devices `by_split` mostly does; grouped on one device, `by_transfer` with arrays and labels of what
they leave. Otherwise a `rough` start from their arrays and walks with few
labels per layer come first, for a start to beat. Then walks look
for starts close to the lower limit, ever further above it, with all labels: where there is none,
the limit is higher by as much, and the first that is found is the soonest of all. Where the room
does not suffice, the best start found is the answer, and `bound_us` is what was proven till then.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from headrace.planning.provisioning import by_transfer
from headrace.planning.provisioning import labels as walks
from headrace.planning.provisioning.by_layer import Part, prove
from headrace.planning.provisioning.labels import Space
from headrace.planning.provisioning.limits import ROUNDING, Rows, of_one_device, of_two_devices
from headrace.planning.provisioning.rough import over_one, over_two
from headrace.starts import HELPER, HOST, PRIMARY, Chain, Choice

WIDTHS = (32, 96)
"""Labels per layer of searches for a start to beat: before proofs, and where proofs fail."""

CLOSE = 4_096
"""The first search looks for a start that takes longer than the lower limit by such a part; then by
twice as much, and so on. Among all that ends below a far limit, few labels are soon lost."""

SPLITS = 3
"""Places of the helper's first layer that such a search tries, those with the least bounds."""

ROOM = 200_000
"""Most labels of all walks that are to be proofs: some tens of milliseconds."""

ARRAYS_PER_LABEL = 200
"""By layer, so many numbers of arrays may be made for each label: they take as long."""

SMALL_PER_LABEL = 40
"""Grouped, over one link, so many labels of `by_transfer` may be made for each: half a second."""

HELPED = 8
"""A label of the helper, which is compared with all others of its layer, counts as so many."""

_STEPS = 16
"""The first proof looks so small a part of the way from the lower limit to the start found."""

Walk = Callable[..., Any]

_COLUMNS: Mapping[Walk, int] = {walks.primary: 3, walks.helper: 5}
"""Values of a label."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StartFound:
    """The best choice, and how much sooner another might be."""

    choice: Choice
    total_us: int
    bound_us: int
    """No start is sooner."""

    @property
    def proven(self) -> bool:
        return self.bound_us == self.total_us


def soonest_start(
    chain: Chain, *, grouped: bool, helper: bool, room: int | None = None
) -> StartFound:
    """The choice with which the start ends soonest, or the best found and a lower limit.

    Args:
        grouped: transfers may be of several layers; otherwise each loaded layer is one.
        helper: layers behind a split may come over a second device.
        room: most labels of the walks that are to prove, which bounds their time.
    """
    room = ROOM if room is None else room
    if not grouped:
        chain = replace(chain, saved_us=np.zeros_like(chain.saved_us))
    if not grouped and not helper and Part.of(chain).is_short:
        proof = prove(Part.of(chain), room * ARRAYS_PER_LABEL)
        choice = Choice.one_by_one(np.where(proof.loaded, PRIMARY, HOST).tolist())
        return StartFound(choice=choice, total_us=proof.total_us, bound_us=proof.bound_us)
    if helper:
        rough = over_two(chain, grouped=grouped, room=room * ARRAYS_PER_LABEL)
        room //= HELPED
    else:
        rough = over_one(chain, grouped=grouped, room=room * ARRAYS_PER_LABEL // 4)
        if grouped:
            rough = by_transfer.prove(chain, rough, room * SMALL_PER_LABEL, room * ARRAYS_PER_LABEL)
    if rough.total_us == rough.bound_us:
        return StartFound(choice=rough.choice, total_us=rough.total_us, bound_us=rough.bound_us)
    best = _Best(choice=rough.choice, total_us=rough.total_us)
    search = _Search(chain, grouped, helper)
    best = search.near(best, WIDTHS[0])
    least = max(search.least_us, rough.bound_us)
    step = max(1, (best.total_us - least) // _STEPS)
    while best.total_us > least:
        tried = min(least + step, best.total_us - 1)
        walked = search.run(tried + 1, None, room)
        room -= walked.labels
        best = walked.best or best
        if walked.cut:
            break
        least = best.total_us if walked.best else max(tried + 1, walked.above_us)
        step *= 2
    if best.total_us > least:
        best = search.run(best.total_us, WIDTHS[1]).best or best
    return StartFound(choice=best.choice, total_us=best.total_us, bound_us=least)


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
    above_us: int
    """Where there is none, and nothing was left out: no start is sooner."""
    labels: int


class _Labels:
    """What a walk has found, until the next one over the same link."""

    def __init__(self, space: Space, result: Any) -> None:
        self.values, self.parent, self.action = space.values, space.parent, space.action
        self.first, cut, self.above = result
        self.cut = bool(cut)

    @property
    def count(self) -> int:
        return int(self.first.max())

    def least(self, layers: int, column: int) -> int | None:
        """The label of the least value after so many layers; None: there is none."""
        begin, end = int(self.first[layers]), int(self.first[layers + 1])
        if end <= begin:
            return None
        return begin + int(self.values[begin:end, column].argmin())

    def choices(self, label: int, source: int) -> list[tuple[int, bool]]:
        found = []
        while self.parent[label] >= 0:
            kind = self.action[label]
            found.append((HOST if kind == walks.FROM_HOST else source, kind == walks.JOINED))
            label = int(self.parent[label])
        return found[::-1]


class _Search:
    def __init__(self, chain: Chain, grouped: bool, helper: bool) -> None:
        self._chain, self._grouped, self._has_helper = chain, grouped, helper
        self._spaces = {walk: Space.of(0, columns) for walk, columns in _COLUMNS.items()}
        if helper:
            self._limits, self._helped = of_two_devices(chain, grouped=grouped)
        else:
            self._limits = of_one_device(chain, grouped=grouped)
        self.least_us = self._limits.least_us

    def near(self, best: _Best, width: int) -> _Best:
        """A better start, with few labels, or the same: first among those close to the limit."""
        slack = self.least_us // CLOSE + 1
        while self.least_us + slack < best.total_us:
            found = self.run(self.least_us + slack, width).best
            if found is not None:
                return found
            slack *= 2
        return self.run(best.total_us, width).best or best

    def run(self, limit: int, width: int | None, room: int | None = None) -> _Walked:
        """The best start below `limit`, with so many labels a layer, or with all there are."""
        count, rows = self._chain.count, Rows.of(self._chain)
        asked = (rows, self._limits, self._grouped, limit)
        first = self._walked(walks.primary, asked, width, room)
        found, total, labels = None, limit, first.count
        above, cut = first.above, first.cut
        end = first.least(count, 1)
        if end is not None:
            # With weight spared for the helper's link, a bound may be below what has ended.
            above = min(above, float(first.values[end, 1]))
            if first.values[end, 1] < limit:
                total, found = int(first.values[end, 1]), first.choices(end, PRIMARY)
        if self._has_helper:
            ends = self._least_ends(first)
            bounds = self._at_splits(ends)
            order = np.argsort(bounds, kind="stable")
            for tried, split in enumerate(order.tolist()):
                if bounds[split] > total - 1 + ROUNDING:
                    above = min(above, bounds[split])
                    break
                if width is not None and tried == SPLITS:
                    cut = True
                    break
                left = None if room is None else room - labels
                behind_it = (rows, self._helped, self._grouped, split, int(ends[split]), total)
                behind = self._walked(walks.helper, behind_it, width, left)
                labels += behind.count
                above, cut = min(above, behind.above), cut or behind.cut
                end = behind.least(count - split, 4)
                if end is not None and behind.values[end, 4] < total:
                    total = int(behind.values[end, 4])
                    label = first.least(split, 1)
                    assert label is not None
                    found = first.choices(label, PRIMARY) + behind.choices(end, HELPER)
                if cut and width is None:
                    break
        above_us = math.ceil(min(above, limit * 2.0) - ROUNDING)
        return _Walked(best=_best(found, total), cut=cut, above_us=above_us, labels=labels)

    def _walked(
        self, walk: Walk, arguments: tuple[Any, ...], width: int | None, room: int | None
    ) -> _Labels:
        """The walk's labels: as many of each layer as `width` allows, or in such a room."""
        if width is not None:
            room = (3 * width + 4) * (self._chain.count + 2)
        assert room is not None
        room = max(1, room)
        if self._spaces[walk].labels < room:
            self._spaces[walk] = Space.of(max(room, ROOM), _COLUMNS[walk])
        space = self._spaces[walk]
        return _Labels(space, walk(*arguments, space, room if width is None else width, room))

    def _least_ends(self, walk: _Labels) -> npt.NDArray[np.int64]:
        """A_p: the soonest that layers before p can end, for each p."""
        values, first = walk.values, walk.first
        ends = [values[a:b, 1].min() if b > a else walks.NEVER for a, b in pairwise(first)]
        return np.array(ends, np.int64)

    def _at_splits(self, ends: npt.NDArray[np.int64]) -> npt.NDArray[np.float64]:
        """The bound of a start whose layers before a split end then, for each split."""
        helped = self._helped
        behind = np.diagonal(helped.table, axis1=1, axis2=2)
        bounds: npt.NDArray[np.float64] = ((1 - helped.grid) * ends[:, None] + behind).max(axis=1)
        return bounds[:-1]


def _best(found: list[tuple[int, bool]] | None, total: int) -> _Best | None:
    if found is None:
        return None
    sources, joins = zip(*found, strict=True)
    choice = Choice(source=tuple(sources), joined=tuple(map(bool, joins)))
    return _Best(choice=choice, total_us=total)
