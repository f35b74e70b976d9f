"""How the stock is divided between demands: value functions of all demands, joined.

For a target z every demand needs, with n units of the first device type, at least s[n] of the
second: a staircase, non-increasing in n, read off its value function. Over demands they add up as
a (min, +) convolution: with n units of the first type, the first d demands together need

    S_d[n] = min over m of S_(d-1)[m] + s_d[n - m]

of the second. z can be reached exactly when S[n] is within the stock for some n within the stock.
Only the m at which S_(d-1) steps down are looked at. Cost: O(n x steps) per demand.
"""

from collections.abc import Sequence

import numpy as np

from headrace.planning.common.candidates import Floats, Ints

TOO_MANY_UNITS = 1 << 40
"""More than any stock has: the target is not reached. Sums of some thousand fit an int64."""


def staircase(best: Floats, target_rps: float) -> Ints:
    """Shape (N0 + 1,): least units of the second type with which `best` reaches the target."""
    steps = (best < target_rps * (1 - 1e-12)).sum(axis=1)
    stairs: Ints = np.where(steps < best.shape[1], steps, TOO_MANY_UNITS)
    return stairs


def joined(stairs: Sequence[Ints]) -> list[Ints]:
    """Of the first 1, 2, ... demands together."""
    sums = [stairs[0]]
    for more in stairs[1:]:
        sums.append(_join(sums[-1], more))
    return sums


def split(sums: Sequence[Ints], stairs: Sequence[Ints], row: int) -> list[int]:
    """Units of the first type for each demand, such that together they make `sums[-1][row]`."""
    rows = []
    for before, mine, total in zip(
        reversed(sums[:-1]), reversed(stairs[1:]), reversed(sums[1:]), strict=True
    ):
        first = np.arange(row + 1)
        share = int(first[before[first] + mine[row - first] == total[row]][0])
        rows.append(row - share)
        row = share
    return [row, *reversed(rows)]


def _join(one: Ints, other: Ints) -> Ints:
    size = len(one)
    total = np.full(size, TOO_MANY_UNITS)
    lower = np.append(True, one[1:] < one[:-1]) & (one < TOO_MANY_UNITS)
    for first in np.flatnonzero(lower):
        both = one[first] + other[: size - first]
        np.minimum(total[first:], both, out=total[first:])
    least: Ints = np.minimum.accumulate(total)
    return least
