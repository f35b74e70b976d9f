"""The soonest start over one link with transfers of any layers, and its proof.

A choice is known by L, X and Y (`exact`). Few of them are close to the soonest start: it has few
transfers, and most are long, since none holds execution up that is far behind the link. So

    1  `latest` says for a limit T, and every L, how late execution may be free to end by T: for
       the last layers, where transfers are mostly short, exactly;
    2  a walk from the first layer keeps what is that soon, of what no other choice dominates; if
       nothing is left, no start ends by T.

T begins a little above what the layers take if all travel together, and is ever further above it
until a walk with few labels per layer finds a start. Then another looks half way back to the T
before for a sooner one; and a last walk, with all labels, for what is sooner still.
"""

from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from headrace.compilation.loops import compiled
from headrace.planning.provisioning.by_layer import LARGEST_US, Part
from headrace.planning.provisioning.latest import Latest, latest
from headrace.planning.provisioning.limits import Rows, ends_by_layer
from headrace.planning.provisioning.rough import Rough
from headrace.planning.provisioning.stairs import put
from headrace.starts import HOST, PRIMARY, Chain, Choice

WIDTH = 200
"""Most labels of a layer, where a start to beat is looked for."""

CLOSE = 4_096
"""The first T is above the lower limit by such a part; the next ones by twice as much each."""

NEAR = 8
"""The last walk begins when a start is known that takes longer than where none was found by such a
part of what it takes longer than the lower limit."""

FIRST_NUMBERS = 1 << 23
"""For the arrays of `latest`: what none touches costs nothing."""

_FROM_HOST, _NEW, _JOINED = 0, 1, 2
"""What was done with a layer."""

_NO_TRANSFER = 1 << 30
"""The Y of a label before anything is loaded."""

_NONE, _NO_ROOM = -1, -2


def prove(chain: Chain, rough: Rough, labels: int, numbers: int) -> Rough:
    """The soonest start, or the best found and what none is below.

    Args:
        rough: a start to beat, and a limit.
        labels: most of the walk that is to be a proof, some 60 nanoseconds each.
        numbers: most of the arrays that say how late execution may be free.
    """
    part = Part.of(chain)
    if rough.total_us == rough.bound_us or not part.is_short or rough.total_us >= LARGEST_US:
        return rough
    return _Search(chain, part, rough, labels, numbers).run()


class _Search:
    def __init__(self, chain: Chain, part: Part, rough: Rough, labels: int, numbers: int) -> None:
        self._part, self._rows, self._ends = part, Rows.of(chain), ends_by_layer(part)
        self._best, self._labels, self._numbers = rough, labels, numbers
        self._memory = np.empty(FIRST_NUMBERS, np.int32)
        self._came = np.empty(max(labels, (WIDTH + 4) * (chain.count + 4)), np.int32)

    def run(self) -> Rough:
        rough_us, least_us = self._best.total_us, self._best.bound_us
        # Up to `before_us` no start was found.
        before_us, step = least_us, least_us // CLOSE + 1
        while self._best.total_us == rough_us and before_us < rough_us - 1:
            limit_us = min(least_us + step, rough_us - 1)
            if not self._try(limit_us, WIDTH, len(self._came)):
                return self._best
            if self._best.total_us == rough_us:
                before_us = limit_us
            step *= 2
        while self._is_far_above(before_us, least_us):
            known_us = self._best.total_us
            limit_us = (before_us + known_us) // 2
            if not self._try(limit_us, WIDTH, len(self._came)):
                return self._best
            if self._best.total_us == known_us:
                before_us = limit_us
        if self._best.bound_us < self._best.total_us:
            self._try(self._best.total_us - 1, len(self._came), self._labels)
        return self._best

    def _is_far_above(self, before_us: int, least_us: int) -> bool:
        """Whether it seems worth while to look for a start below the best one known."""
        total_us, bound_us = self._best.total_us, self._best.bound_us
        far = max(1, (total_us - least_us) // NEAR)
        return bound_us < total_us and total_us - max(before_us, bound_us) > far

    def _try(self, limit_us: int, width: int, labels: int) -> bool:
        """Look for a start that ends by the limit; whether there was room to."""
        late, may_end, self._memory = latest(
            self._part, self._rows, self._ends, limit_us, self._memory, self._numbers
        )
        if late is None and may_end:
            return False
        total, cut = _NONE, False
        if late is not None:
            total, at, begins, cut = _walk(self._rows, late, self._came, width, labels)
        if total == _NO_ROOM:
            return False
        if total != _NONE:
            choice = _choice(self._came, begins, at)
            self._best = replace(self._best, choice=choice, total_us=int(total))
        if not cut:
            bound_us = limit_us + 1 if total == _NONE else int(total)
            self._best = replace(self._best, bound_us=bound_us)
        return True


def _choice(came: npt.NDArray[np.int32], begins: npt.NDArray[np.int64], at: int) -> Choice:
    """What was done on the way to a label of the last layer."""
    kinds = np.empty(len(begins), np.int64)
    for i in range(len(begins) - 1, -1, -1):
        at, kinds[i] = divmod(int(came[begins[i] + at]), 4)
    source = np.where(kinds == _FROM_HOST, HOST, PRIMARY)
    return Choice(source=tuple(source.tolist()), joined=tuple((kinds == _JOINED).tolist()))


@compiled
def _walk(rows: Rows, late: Latest, came: Any, width: int, room: int) -> Any:
    """The least X after all layers, of what ends in time.

    Args:
        came: for what each label is made of: four times the place of the label before, among those
            of its layer, and what was done.
        width: most labels that a layer keeps, those that are soonest for their L and others.
        room: most labels in all.

    Returns:
        (X, its label, the first label of each layer, whether `width` left labels out).
    """
    load, saved, inside, host, _, _ = rows
    values, first, low, high, below = late
    n = len(load)
    most_saved = np.zeros(n + 1, np.int64)
    for i in range(n - 1, -1, -1):
        most_saved[i] = max(most_saved[i + 1], saved[i])
    begins, spent, cut = np.zeros(n, np.int64), 0, False
    size = 1 << 12
    labels, made = np.empty((size, 3), np.int32), np.empty((size, 3), np.int32)
    stairs, spare = np.empty((size, 2), np.int64), np.empty(size, np.int32)
    labels[0, 0], labels[0, 1], labels[0, 2] = 0, 0, _NO_TRANSFER
    count = 1
    for i in range(n):
        if 3 * count >= size:
            size = 6 * count
            stairs, spare = np.empty((size, 2), np.int64), np.empty(size, np.int32)
        if len(made) < size:
            made = np.empty((size, 3), np.int32)
        begins[i] = spent
        many = _extended(
            labels[:count],
            made,
            came[spent:room],
            spare,
            stairs,
            (np.int32(min(load[i], _NO_TRANSFER - 1)), np.int32(load[i] - saved[i])),
            (np.int32(inside[i]), np.int32(min(host[i], _NO_TRANSFER - 1))),
            values[first[i + 1] + low[i + 1] : first[i + 1] + high[i + 1]],
            low[i + 1],
            below[i + 1],
            most_saved[i + 1],
        )
        if many < 0:
            return _NO_ROOM, 0, begins, cut
        if many > width:
            many, cut = _narrowed(made, came[spent:], spare, many, width), True
        if many == 0:
            return _NONE, 0, begins, cut
        spent += many
        labels, made, count = made, labels, many
    best = 0
    for label in range(count):
        if labels[label, 1] < labels[best, 1]:
            best = label
    return np.int64(labels[best, 1]), best, begins, cut


@compiled
def _extended(
    labels: Any,
    made: Any,
    came: Any,
    spare: Any,
    stairs: Any,
    copy: Any,
    run: Any,
    late: Any,
    low: int,
    below: int,
    most_saved: int,
) -> int:
    """Labels with one more layer: how many, or `_NO_ROOM`.

    Labels stand by L, and of the same L by rising X and falling Y.

    Args:
        came, spare: written to, where labels came from and how much later they might be.
        copy: what the layer takes to copy, alone and joined.
        run: what it takes to run, in device memory and from the host.
        late, low, below: the layer's part of `Latest`.
        most_saved: by a layer to come.
    """
    alone, joined = copy
    inside, hosted = run
    count, high = len(labels), low + len(late)
    at_host, at_new, at_joined = 0, 0 if alone > 0 else count, 0 if alone > 0 else count
    many, head, tail = 0, 0, 0
    passed = 0
    least_x: Any = np.int64(_NO_TRANSFER)
    opened_x, x_new, x_joined = least_x, least_x, least_x
    while True:
        # The next by (L, X) of three sequences.
        key: Any = np.int64(_NO_TRANSFER) << 32
        kind = -1
        if at_host < count:
            key = (np.int64(labels[at_host, 0]) << 32) + labels[at_host, 1] + hosted
            kind = _FROM_HOST
        while at_joined < count:
            y = np.int64(labels[at_joined, 2]) + joined + inside
            x_joined = max(np.int64(labels[at_joined, 1]) + inside, y)
            if labels[at_joined, 2] >= _NO_TRANSFER or _is_next_as_soon(
                labels, at_joined, joined, inside, x_joined
            ):
                at_joined += 1
                continue
            other = (np.int64(labels[at_joined, 0] + joined) << 32) + x_joined
            if other < key:
                key, kind = other, _JOINED
            break
        while at_new < count:
            if labels[at_new, 1] >= opened_x:
                # A label that is free as soon, on a link that is, begins the same transfer.
                at_new += 1
                continue
            link = np.int64(labels[at_new, 0]) + alone
            x_new = max(np.int64(labels[at_new, 1]), link) + inside
            other = (link << 32) + x_new
            if other < key:
                key, kind = other, _NEW
            break
        if kind < 0:
            return many
        link, x = key >> 32, key & ((np.int64(1) << 32) - 1)
        if kind == _FROM_HOST:
            label = at_host
            at_host += 1
            y = min(np.int64(_NO_TRANSFER), np.int64(labels[label, 2]) + hosted)
        elif kind == _NEW:
            label = at_new
            at_new += 1
            opened_x = np.int64(labels[label, 1])
            y = link + inside
        else:
            label = at_joined
            at_joined += 1
            y = np.int64(labels[label, 2]) + joined + inside
        if link >= high:
            return many
        room = (np.int64(late[link - low]) if link >= low else below) - x
        if room < 0:
            continue
        # Labels that are ahead by more than a transfer of its own can cost need no Y.
        while passed < many and made[passed, 0] + most_saved <= link:
            least_x = min(least_x, np.int64(made[passed, 1]))
            passed += 1
        if x >= least_x:
            continue
        while head < tail and stairs[head, 0] >= least_x:
            head += 1
        tail, is_new = put(stairs, head, tail, x, y)
        if not is_new:
            continue
        if many > 0 and made[many - 1, 0] == link and made[many - 1, 1] == x:
            many -= 1
        if many >= len(came):
            return _NO_ROOM
        made[many, 0], made[many, 1], made[many, 2] = link, x, y
        came[many], spare[many] = (label << 2) | kind, room
        many += 1


@compiled
def _is_next_as_soon(labels: Any, label: int, joined: int, inside: int, x: int) -> Any:
    """Whether the next label, of less Y, is of the same L and no later, once the layer joins."""
    other = label + 1
    if other >= len(labels) or labels[other, 0] != labels[label, 0]:
        return False
    return max(labels[other, 1] + inside, labels[other, 2] + joined + inside) <= x


@compiled
def _narrowed(made: Any, came: Any, spare: Any, many: int, width: int) -> int:
    """Keep at most `width` labels: half of them those that might be latest, and of as many groups
    of neighbours the best each. Those of the most room alone would be much like each other."""
    half = max(1, width // 2)
    worst = np.sort(spare[:many])[many - half]
    keep = np.zeros(many, np.bool_)
    left = half
    for k in range(many):
        if left > 0 and spare[k] >= worst:
            keep[k] = True
            left -= 1
    for group in range(half):
        begin, end = many * group // half, many * (group + 1) // half
        best = begin
        for k in range(begin + 1, end):
            if spare[k] > spare[best]:
                best = k
        keep[best] = True
    count = 0
    for k in range(many):
        if keep[k]:
            made[count], came[count] = made[k], came[k]
            count += 1
    return count
