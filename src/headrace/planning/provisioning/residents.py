"""How often a model is found absent, of more models than memory.

Where all models have room at once, none is: the dispatcher brings each to where there is room, and
none has to leave. A model that is asked for more than a slot has time for has to be on several: it
counts as so many copies, no two on one slot, each with an even part of its requests. Room is only
said where it is found that they have it, and the dispatcher, which takes models in the order in
which they are asked for, finds how as well. Of few copies that is every way to place them. Of many,
each goes to the first slot with room for it, the smallest first, which is the hardest order; or the
largest first, and a second one of the largest has room, too.

Elsewhere requests of model i come at random, r_i of them in a unit of time; memory holds C bytes,
and the model that was unused for longest leaves. Then there is a time T after which an unused model
is gone, nearly the same for all (Che, Tung and Wang, "Hierarchical Web Caching Systems", 2002):

    sum over i of bytes_i (1 - exp(-r_i T)) = C            absent_i = exp(-r_i T)

The part does not change when all rates do by one factor.

A slot of M bytes does not hold M: what is left over is too small for one more. Of models of one
size it holds floor(M / bytes) of them; of several sizes, the mean of that, by rates or over models,
whichever is less: one that most requests are for fills no more than its one place. And as not all
models are there, at least the smallest is not:

    C = min(slots x mean of floor(M / bytes_i) bytes_i, sum of bytes_i - min of bytes_i)

That a model with time left on its slots is brought to a further one, because requests come together
or because others on these slots take the time, is not counted.
"""

from collections.abc import Sequence
from itertools import combinations

import numpy as np
import numpy.typing as npt

HALVINGS = 200

EVERY_WAY_MAX = 10
"""So many copies are placed in every way."""

Copies = tuple[int, int]
"""Of one model: (bytes of each, how many)."""


def absent_on_slots(
    rates: Sequence[float],
    sizes_bytes: Sequence[int],
    copies: Sequence[int],
    slots: int,
    slot_bytes: int,
) -> npt.NDArray[np.float64]:
    """Shape (models,): the part of each one's requests that find it absent on all slots.

    Args:
        rates: above 0, in any unit.
        copies: of each model, the slots that it has to be on at once.
        slot_bytes: of each slot, for models.

    >>> absent_on_slots([1.0, 1.0], [6, 4], [1, 1], 1, 10).tolist()
    [0.0, 0.0]
    >>> absent_on_slots([1.0, 1.0], [6, 6], [1, 1], 1, 10).round(6).tolist()
    [0.5, 0.5]
    """
    if all_have_room(list(zip(sizes_bytes, copies, strict=True)), slots, slot_bytes):
        return np.zeros(len(rates))
    counts = np.asarray(copies)
    of_each = np.repeat(np.asarray(rates) / counts, counts).tolist()
    sizes = np.repeat(np.asarray(sizes_bytes), counts).tolist()
    absent = absent_shares(of_each, sizes, usable_bytes(of_each, sizes, slots, slot_bytes))
    of_first: npt.NDArray[np.float64] = absent[np.cumsum(counts) - counts]
    return of_first


def all_have_room(models: Sequence[Copies], slots: int, slot_bytes: int) -> bool:
    """Whether all are there at once, as far as is found.

    >>> all_have_room([(6, 2), (4, 2)], 2, 10), all_have_room([(5, 1), (6, 2)], 2, 10)
    (True, False)
    """
    falling = sorted((each for each in models if each[0]), reverse=True)
    if sum(size * copies for size, copies in falling) > slots * slot_bytes:
        return False
    count = sum(copies for _, copies in falling)
    if count <= EVERY_WAY_MAX:
        return _some_way(falling, [slot_bytes] * min(slots, count))
    spare = [(falling[0][0], 1), *falling]
    return any(_first_fit(order, slots, slot_bytes) for order in (falling[::-1], spare))


def _first_fit(models: Sequence[Copies], slots: int, slot_bytes: int) -> bool:
    """Slots with as much left that follow one another are a run: of millions, there are few."""
    runs = [(slot_bytes, min(slots, sum(copies for _, copies in models)))]
    for size, copies in models:
        after = []
        for free, count in runs:
            taken = min(copies, count) if size <= free else 0
            copies -= taken
            after += [(free - size, taken)] if taken else []
            after += [(free, count - taken)] if taken < count else []
        if copies:
            return False
        runs = after
    return True


def _some_way(models: Sequence[Copies], free: Sequence[int]) -> bool:
    """Each on the fullest slots first; those with as much left are one choice.

    Args:
        free: of each slot, rising.
    """
    if not models:
        return True
    (size, copies), *others = models
    tried = set()
    for chosen in combinations(range(len(free)), copies):
        there = tuple(free[slot] for slot in chosen)
        if there in tried or there[0] < size:
            continue
        tried.add(there)
        left = sorted(each - size * (slot in chosen) for slot, each in enumerate(free))
        if _some_way(others, left):
            return True
    return False


def usable_bytes(
    rates: Sequence[float], sizes_bytes: Sequence[int], slots: int, slot_bytes: int
) -> float:
    """What of the slots' memory models take in the mean, of which not all are there.

    >>> usable_bytes([1.0, 1.0, 1.0], [4, 4, 4], 1, 10), usable_bytes([1.0, 3.0], [4, 5], 1, 11)
    (8.0, 5.0)
    """
    whole = [slot_bytes // size * size if size else slot_bytes for size in sizes_bytes]
    by_rates = sum(rate * taken for rate, taken in zip(rates, whole, strict=True)) / sum(rates)
    mean = min(by_rates, sum(whole) / len(whole))
    return min(slots * mean, float(sum(sizes_bytes) - min(filter(None, sizes_bytes))))


def absent_shares(
    rates: Sequence[float], sizes_bytes: Sequence[int], memory_bytes: float
) -> npt.NDArray[np.float64]:
    """Shape (models,): the part of each one's requests that find it absent.

    Args:
        rates: above 0, in any unit.
        memory_bytes: less than all of them take.

    >>> absent_shares([1.0, 1.0], [10, 10], 10).round(6).tolist()
    [0.5, 0.5]
    """
    rate = np.asarray(rates, np.float64)
    size = np.asarray(sizes_bytes, np.float64)
    low, high = 0.0, 1.0 / rate.min()
    while (size * -np.expm1(-rate * high)).sum() < memory_bytes:
        high *= 2
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        if (size * -np.expm1(-rate * middle)).sum() < memory_bytes:
            low = middle
        else:
            high = middle
    absent: npt.NDArray[np.float64] = np.exp(-rate * high)
    return absent
