"""Whether what a request is answered hangs on what shares its batch, or on its place there.

Requests of strangers share a batch. Most models answer each as if it were alone. Not so one that
normalises over its batch, takes a softmax, a maximum or a running sum along it, or finds scales for
all of it at once (dynamic quantisation): there an answer depends on who else is asking.

Companions of like statistics show little, and the less the larger an input is: the mean of 150,000
numbers of noise is that of any noise. So some items keep their place, and the others are first as
given, then empty, then loud (`_silent`, `_loud`), then with large whole numbers (`large_numbers`).
Each time as many run, since kernels round otherwise for other sizes. Where items are independent,
the answers a and b are then the same bits; where not, one scale for all of an output would hide
much behind what a mask makes huge, so

    by companions = |a - b| / max(|a|, |b|)     of elements that differ; what 1 in 20 of them exceed

and beyond `COMPANIONS_TOLERATED`, which leaves room for sums in another order, items influence each
other. A model may also ask how many items there are. What shows that is rounded otherwise, too:

    by size       = max |together - alone| / max |alone|

and counts beyond `ROUNDING_TOLERATED`: of float networks that amplify rounding it is up to 6e-3.

And it may number its items, as a detector that tells of each box in which picture it is. So a batch
runs with its items half way round, and each item is compared with itself. There, too, kernels
round otherwise (ONNX Runtime's ReduceMean and Log by 1e-7, by where in memory an item begins), and
a quantised network makes whole steps of that. But these hit items by chance, and a number all:

    by place      = |a - b| of half of the items / max |a| of all items,     of each element of an
                    item that differs anywhere; what 1 in 20 of them exceed

Cost: one run of one item, six of two, and four of the largest batch; with large numbers eight and
five.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headrace.domain.tensors import TensorSpec
from headrace.profiling.items import Arrays, is_measured, random_items, tiled
from headrace.profiling.large_numbers import Run
from headrace.profiling.observe import relative_error
from headrace.profiling.quantisation import Quantisation

COMPANIONS_TOLERATED = 1e-3
ROUNDING_TOLERATED = 5e-2
"""Relative changes of an answer, by what is in its batch, and by how much is or by its place there,
where it is rounded otherwise: each request is run alone beyond either."""
LOUDER = 1000
LONGER = 20
"""Times, of texts."""
SEED = 0


@dataclass(frozen=True, slots=True)
class Influence:
    """Largest relative changes of what an item is answered; about 0 where items are independent."""

    by_companions: float
    by_size: float
    by_place: float

    def reason(self, quantised: Quantisation | None) -> str | None:
        """What the items of a batch do to each other; None: nothing."""
        if not self.by_companions <= COMPANIONS_TOLERATED:
            how = (
                ", since scales are found for all of it (dynamic quantisation)"
                if quantised == "quantised dynamically"
                else ""
            )
            return (
                "items of one batch influence each other's answers (relative change"
                f" {self.by_companions:.2g}){how}"
            )
        if not self.by_size <= ROUNDING_TOLERATED:
            return (
                "items of one batch influence each other's answers by how many they are (relative"
                f" change {self.by_size:.2g})"
            )
        if not self.by_place <= ROUNDING_TOLERATED:
            return (
                "items of one batch are answered by their place in it (relative change"
                f" {self.by_place:.2g})"
            )
        return None


def influence_between(
    run: Run,
    inputs: Sequence[TensorSpec],
    outputs: Sequence[TensorSpec],
    items: Arrays,
    max_batch: int,
    large: Mapping[str, int] = MappingProxyType({}),
) -> Influence:
    """Run batches of two and of `max_batch`, change every other item of them, and all places.

    Of two, the first and then the second, since one may influence only those behind it.

    Args:
        outputs: each with its `batch_axis` as `run` gives it.
        items: input name -> items, shape [n >= 1, ...]; one item alone is paired with a random one.
        large: of inputs of whole numbers, a large one that the model takes.
    """
    largest = max(2, max_batch)
    given = tiled(_two_at_least(inputs, items), largest)
    loud = _loud(given)
    others = [_silent(given), loud]
    if large:
        filled = {name: np.full_like(given[name], number) for name, number in large.items()}
        others.append({**loud, **filled})
    axes = {spec.name: spec.batch_axis for spec in outputs}
    alone = run(given, 1)
    by_companions = by_size = by_place = 0.0
    for size in dict.fromkeys([2, largest]):
        plain = run(given, size)
        if isinstance(plain, str):
            continue
        first = {name: plain[name].take([0], axis) for name, axis in axes.items()}
        for together, single, _ in _alike(first, alone, axes):
            by_size = max(by_size, relative_error(together, single))
        for begin in (1, 0) if size == 2 else (1,):
            replaced = np.arange(size) % 2 == begin
            kept = np.flatnonzero(~replaced)
            for other in others:
                mixed = run(_replaced(given, other, replaced), size)
                for a, b, axis in _alike(plain, mixed, axes):
                    by_companions = max(
                        by_companions, _change(a.take(kept, axis), b.take(kept, axis))
                    )
        half_way = size // 2
        turned = run(
            {name: np.roll(each[:size], half_way, 0) for name, each in given.items()}, size
        )
        for a, b, axis in _alike(plain, turned, axes):
            by_place = max(by_place, _change_by_place(a, np.roll(b, -half_way, axis), axis))
    return Influence(by_companions, by_size, by_place)


def influence_note(reason: str, name: str) -> str:
    """What to say of a model that is batched as its user asks, although its items influence each
    other.

    Args:
        reason: as `Influence.reason`.
        name: of an input.
    """
    return (
        f"{reason}, and are batched as --batch-axis says; --batch-axis {name}=none serves each"
        " request alone"
    )


def _alike(
    one: Arrays, other: Arrays | str, axes: Mapping[str, int]
) -> Iterator[tuple[NDArray[Any], NDArray[Any], int]]:
    """The outputs of two runs that are of one shape, and their batch axis; none where the other did
    not run: such items are not for this model."""
    if isinstance(other, str):
        return
    for name, axis in axes.items():
        if one[name].shape == other[name].shape:
            yield one[name], other[name], axis


def _change(a: NDArray[Any], b: NDArray[Any]) -> float:
    """How far two answers are apart, where they should be the same bits; 1 for other labels."""
    if a.dtype.kind in "iubO":
        return 0.0 if np.array_equal(a, b) else 1.0
    a, b = a.astype(np.float64), b.astype(np.float64)
    differ = (a != b) & ~(np.isnan(a) & np.isnan(b))
    a, b = a[differ], b[differ]
    if not a.size:
        return 0.0
    with np.errstate(invalid="ignore"):
        changes = np.abs(a - b) / np.maximum(np.abs(a), np.abs(b))
    changes[np.isnan(changes)] = math.inf
    return float(np.sort(changes)[math.ceil(0.95 * (a.size - 1))])


def _change_by_place(a: NDArray[Any], b: NDArray[Any], axis: int) -> float:
    """How far what items are answered is from what they are answered elsewhere in their batch."""
    if np.array_equal(a, b):
        return 0.0
    if a.dtype == object:
        a, b = np.zeros(a.shape), (a != b).astype(np.float64)
    a, b = np.moveaxis(a, axis, 0), np.moveaxis(b, axis, 0)
    differ = ((a != b) & ((a == a) | (b == b))).any(axis=0)
    a, b = a[:, differ].astype(np.float64), b[:, differ].astype(np.float64)
    if not a.size:
        return 0.0
    with np.errstate(invalid="ignore"):
        apart = np.where(a == b, 0.0, np.abs(a - b))
        largest = np.maximum(np.abs(a), np.abs(b)).max(axis=0)
        changes = np.sort(apart, axis=0)[(len(a) - 1) // 2] / largest
    changes[np.isnan(changes)] = math.inf
    return float(np.sort(changes)[math.ceil(0.95 * (changes.size - 1))])


def _replaced(items: Arrays, others: Arrays, which: NDArray[np.bool_]) -> Arrays:
    """The first items, some of them others."""
    replaced = {name: array[: len(which)].copy() for name, array in items.items()}
    for name, array in replaced.items():
        array[which] = others[name][: len(which)][which]
    return replaced


def _silent(items: Arrays) -> Arrays:
    """Nothing in them; of whole numbers the least that the items have at each place."""
    return {name: _emptied(array) for name, array in items.items()}


def _loud(items: Arrays) -> Arrays:
    """Far from the given ones in mean and in variance; another item's text, many times; of whole
    numbers the most that the items have at each place: whether others are legal nobody knows."""
    return {name: _louder(array) for name, array in items.items()}


def _emptied(array: NDArray[Any]) -> NDArray[Any]:
    if array.dtype == object:
        return np.full_like(array, "")
    return array * 0 if is_measured(array) else _throughout(array, np.minimum)


def _louder(array: NDArray[Any]) -> NDArray[Any]:
    if array.dtype == object:
        return (np.roll(array, 1, axis=0) + " ") * LONGER
    if not is_measured(array):
        return _throughout(array, np.maximum)
    if array.dtype.kind in "iu":
        return np.full_like(array, np.iinfo(array.dtype).max)
    with np.errstate(over="ignore"):
        return (LOUDER * (array.astype(np.float64) + 1)).astype(array.dtype)


def _throughout(array: NDArray[Any], extreme: np.ufunc) -> NDArray[Any]:
    """An extreme of all items in place of each."""
    return np.broadcast_to(extreme.reduce(array, axis=0), array.shape)


def _two_at_least(inputs: Sequence[TensorSpec], items: Arrays) -> Arrays:
    """One item gets a random one beside it, whose whole numbers and texts are the same in another
    order: some are legal in few values only."""
    if len(next(iter(items.values()))) > 1:
        return items
    other = random_items(inputs, 1, np.random.default_rng(SEED))
    return {
        name: np.concatenate([array, _turned(array) if array.dtype.kind in "iubO" else other[name]])
        for name, array in items.items()
    }


def _turned(array: NDArray[Any]) -> NDArray[Any]:
    return np.roll(array, 1, axis=-1) if array.ndim > 1 else array
