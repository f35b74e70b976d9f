"""Which of the possible cuts to keep, so that N blocks take about equally long.

Source:
    PPipe, section 5.2. The paper groups layers greedily until a group is closest to 1/N of the
    whole. We solve the same problem exactly by dynamic programming: greedy leaves the error of
    all groups to the last one.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

BYTES_WEIGHT = 0.02
"""How much small cuts count beside equal blocks. At 0.02, the most bytes of any cut are worth
avoiding if that makes its two blocks at most 10 % of a block longer and shorter."""


def equal_blocks(
    times: Sequence[float], block_count: int, cut_bytes: Sequence[int] | None = None
) -> tuple[int, ...]:
    """Group consecutive segments into blocks of about equal time.

    Minimises the sum of the squared block times, which is smallest when they are equal, plus a
    small price on the bytes that cross the cuts.

    Args:
        times: run time of each segment, any unit; shape (S,).
        block_count: blocks to make; S where that is fewer.
        cut_bytes: bytes per item that cross behind each segment; shape (S,); None: not counted.

    Returns:
        Per block, the index behind its last segment; strictly increasing, the last is S.

    >>> equal_blocks([1, 1, 2, 3, 1], 3)
    (2, 3, 5)
    """
    count = min(block_count, len(times))
    assert count >= 1
    ends_at = np.concatenate([[0.0], np.cumsum(np.asarray(times, np.float64))])
    prices = _prices(cut_bytes, ends_at[-1] / count)
    # best[j]: least cost of the first j segments in as many blocks as the round says.
    best = ends_at**2
    choices: list[NDArray[np.int64]] = []
    for blocks in range(2, count + 1):
        cost = np.full(len(ends_at), np.inf)
        choice = np.zeros(len(ends_at), np.int64)
        for end in range(blocks, len(ends_at)):
            starts = slice(blocks - 1, end)
            totals = best[starts] + (ends_at[end] - ends_at[starts]) ** 2
            if prices is not None:
                totals = totals + prices[starts]
            least = int(np.argmin(totals))
            cost[end] = totals[least]
            choice[end] = least + blocks - 1
        best = cost
        choices.append(choice)
    ends = [len(times)]
    for choice in reversed(choices):
        ends.append(int(choice[ends[-1]]))
    return tuple(reversed(ends))


def _prices(cut_bytes: Sequence[int] | None, block_time: float) -> NDArray[np.float64] | None:
    """Per place before segment j, what cutting there costs, in squared time."""
    if cut_bytes is None or max(cut_bytes) == 0:
        return None
    relative = np.asarray(cut_bytes, np.float64) / max(cut_bytes)
    return np.concatenate([[0.0], BYTES_WEIGHT * block_time**2 * relative])
