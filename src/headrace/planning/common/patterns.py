"""Ways to cut one device into slots, so that what a plan counts really fits.

Adding shares up over all devices is not enough: three slots of 2/3 need three devices, not two.
With whole devices cut by pattern, a count of slots that the patterns cover can be placed.
"""

from collections.abc import Iterator, Sequence
from fractions import Fraction
from math import lcm

from headrace.domain.errors import DocumentError

PATTERNS_MAX = 5_000

TRIED_MAX = 20_000
"""Multisets examined, fullest or not, before giving up."""


class TooManyDevicePatternsError(DocumentError):
    """Sorts of slots that combine in more ways than are wanted."""


def maximal_patterns(
    shares: Sequence[Fraction],
    *,
    device: str,
    weights_bytes: Sequence[int] | None = None,
    memory_bytes: int | None = None,
    most: int = PATTERNS_MAX,
) -> tuple[tuple[int, ...], ...]:
    """All multisets of slots that fit in one device and into which no further slot fits.

    Smaller multisets need no name: a slot of a pattern may stay empty.

    Args:
        shares: of each sort of slot, in (0, 1].
        device: for the error message.
        weights_bytes: of each sort; counted only with `memory_bytes`.

    Returns:
        Per pattern, how many slots of each sort.

    Raises:
        TooManyDevicePatternsError: more than `most`, from very fine shares.

    >>> half, third = Fraction(1, 2), Fraction(1, 3)
    >>> maximal_patterns([Fraction(1), half, third], device="a")
    ((1, 0, 0), (0, 2, 0), (0, 1, 1), (0, 0, 3))
    """
    # In units of the common denominator, shares are integers and sums exact.
    unit = lcm(*(share.denominator for share in shares))
    sizes = [int(share * unit) for share in shares]
    room = memory_bytes if memory_bytes is not None and weights_bytes is not None else 0
    weights = list(weights_bytes or []) if room else [0] * len(sizes)
    patterns: list[tuple[int, ...]] = []
    for tried, (counts, free, free_bytes) in enumerate(_packed(sizes, weights, unit, room), 1):
        if not any(s <= free and w <= free_bytes for s, w in zip(sizes, weights, strict=True)):
            patterns.append(counts)
        if len(patterns) > most or tried > TRIED_MAX:
            raise TooManyDevicePatternsError(
                f"device type {device!r}: its {len(shares)} shares can be combined in too many"
                f" ways (more than {len(patterns) - 1}); offer fewer or coarser shares"
            )
    return tuple(patterns)


def _packed(
    sizes: Sequence[int], weights: Sequence[int], free: int, free_bytes: int
) -> Iterator[tuple[tuple[int, ...], int, int]]:
    """Multisets that fit, with the room they leave, the most of the first sort first."""
    most = free // sizes[0]
    if weights[0]:
        most = min(most, free_bytes // weights[0])
    # Of the last sort, less than the most leaves room for one more.
    least = 0 if len(sizes) > 1 else most
    for count in range(most, least - 1, -1):
        left = (free - count * sizes[0], free_bytes - count * weights[0])
        if len(sizes) == 1:
            yield (count,), *left
            continue
        for counts, *rest in _packed(sizes[1:], weights[1:], *left):
            yield (count, *counts), rest[0], rest[1]
