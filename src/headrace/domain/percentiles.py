"""The percentile that all of us mean: of latencies, of what a profile measures, of reports."""

from collections.abc import Sequence


def percentile(ordered: Sequence[int], per_mille: int) -> int:
    """Nearest-rank percentile of a non-empty sequence in rising order, in exact arithmetic.

    >>> percentile([10, 20, 30, 40], 500), percentile([10, 20, 30, 40], 501)
    (20, 30)
    """
    rank = -(-len(ordered) * per_mille // 1000)
    return ordered[max(rank, 1) - 1]
