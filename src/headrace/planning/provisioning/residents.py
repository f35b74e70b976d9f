"""How often a model is found absent, of more models than memory.

Requests of model i come at random, r_i of them in a unit of time; memory holds C bytes, and the
model that was unused for longest leaves. Then there is a time T after which an unused model is
gone, nearly the same for all (Che, Tung and Wang, "Hierarchical Web Caching Systems", 2002):

    sum over i of bytes_i (1 - exp(-r_i T)) = C            absent_i = exp(-r_i T)

The part does not change when all rates do by one factor.

A slot of M bytes does not hold M: what is left over is too small for one more. Of models of one
size it holds floor(M / bytes) of them; of several sizes, the mean of that, by rates:

    C = slots x (sum over i of r_i floor(M / bytes_i) bytes_i) / (sum over i of r_i)
"""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

HALVINGS = 200


def usable_bytes(rates: Sequence[float], sizes_bytes: Sequence[int], slot_bytes: int) -> int:
    """What of one slot's memory models take in the mean, as long as not all of them are there.

    >>> usable_bytes([1.0, 1.0], [4, 4], 10), usable_bytes([1.0, 3.0], [4, 5], 11)
    (8, 10)
    """
    taken = sum(
        rate * (slot_bytes // size * size if size else slot_bytes)
        for rate, size in zip(rates, sizes_bytes, strict=True)
    )
    return round(taken / sum(rates))


def absent_shares(
    rates: Sequence[float], sizes_bytes: Sequence[int], memory_bytes: int
) -> npt.NDArray[np.float64]:
    """Shape (models,): the part of each one's requests that find it absent.

    Args:
        rates: above 0, in any unit.

    >>> absent_shares([1.0, 1.0], [10, 10], 20).tolist()
    [0.0, 0.0]
    >>> absent_shares([1.0, 1.0], [10, 10], 10).round(6).tolist()
    [0.5, 0.5]
    """
    rate = np.asarray(rates, np.float64)
    size = np.asarray(sizes_bytes, np.float64)
    if size.sum() <= memory_bytes:
        return np.zeros(len(rate))
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
