"""How the parts of a device share its memory, where that decides which parts stand side by side.

A part holds the weights of its tenants, so what it needs is one of few sums; a device's parts need
such sums that fit its memory together. Of these only those are worth naming in which no part could
have the next larger one. Whatever plan there is, its devices are cut so, or have less in them.
"""

from collections.abc import Iterator, Sequence
from fractions import Fraction

SUMS_MAX = 40
"""Different sums of weights, beyond which the ways to divide the memory are not named."""

WAYS_MAX = 400
"""Ways to divide the memory of one cut, beyond which they are not named."""

TRIED_MAX = 10_000
"""Ways to divide the memory of one cut that are looked at, named or not: tens of milliseconds."""


def sums_of_weights(weights_bytes: Sequence[int], tenants_max: int) -> list[int] | None:
    """What the weights of the tenants of one part can come to.

    Args:
        weights_bytes: of what a tenant may need, once (`Weights.different`); models that weigh as
            much stand for themselves. Whoever needs a part of what another needs is counted beside
            it, too: sums that no part comes to only name more ways.
        tenants_max: of one part.

    Returns:
        The different sums, bytes, ascending from 0 (no tenant); None: there are more than SUMS_MAX.

    >>> sums_of_weights([10, 5, 5], 2)
    [0, 5, 10, 15]
    """
    of_count = {(0, 0)}
    for weight in weights_bytes:
        of_count |= {(n + 1, held + weight) for n, held in of_count if n < tenants_max}
        sums = {held for _, held in of_count}
        if len(sums) > SUMS_MAX:
            return None
    return sorted({held for _, held in of_count})


def memory_cuts(
    split: tuple[Fraction, ...], memory_bytes: int, sums: Sequence[int]
) -> list[tuple[int, ...]] | None:
    """The ways to divide a device's memory between the parts of a cut.

    Args:
        split: the share of each part, equal ones side by side.
        memory_bytes: of the whole device.
        sums: what a part can need, bytes, ascending from 0 (`sums_of_weights`).

    Returns:
        Ways; of each what each part may hold, bytes, in the order of `split`; of equal parts the
        larger first. In none could a part have the next larger sum. None: there are more than
        WAYS_MAX, or more than TRIED_MAX to look at.

    >>> half = Fraction(1, 2)
    >>> memory_cuts((half, half), 25, [0, 5, 10, 15, 20])
    [(20, 5), (15, 10)]
    """
    found = []
    for tried, way in enumerate(_ways(split, memory_bytes, list(sums))):
        if tried == TRIED_MAX:
            return None
        left = memory_bytes - sum(way)
        if all(held == sums[-1] or sums[sums.index(held) + 1] - held > left for held in way):
            found.append(way)
            if len(found) > WAYS_MAX:
                return None
    return found


def _ways(
    split: tuple[Fraction, ...], left: int, sums: list[int], before: tuple[int, ...] = ()
) -> Iterator[tuple[int, ...]]:
    """What each part holds, the last as much as is left. Of equal parts, none holds more than the
    one before it."""
    at = len(before)
    if at == len(split):
        yield before
        return
    like_the_last = at > 0 and split[at] == split[at - 1]
    for held in reversed(sums):
        if held <= left and (not like_the_last or held <= before[-1]):
            yield from _ways(split, left - held, sums, (*before, held))
            if at == len(split) - 1:
                return
