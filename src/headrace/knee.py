"""The knee of a curve of gain over cost: where more cost begins to buy little (gpu-lets, 4.3).

The paper takes the point of largest curvature of "affordable rate over share of a GPU". Of a curve
that is known at points only, the curvature at a point is that of the circle through it and its two
neighbours: four times the triangle's area over the product of its sides (Menger). Both axes are
scaled to [0, 1] first, since curvature depends on the units.
"""

from collections.abc import Sequence
from math import hypot


def knee(points: Sequence[tuple[float, float]]) -> int:
    """Index of the point where the curve bends down most; of the last where it bends nowhere.

    Args:
        points: (cost, gain), costs ascending. Of no cost there is no gain: (0, 0) is thought
            before them where it is not among them.

    >>> knee([(0.2, 50), (0.4, 90), (0.6, 100), (1.0, 105)])
    1
    >>> knee([(0.5, 50), (1.0, 100)])
    1
    """
    most_cost, most_gain = points[-1][0], max(gain for _, gain in points)
    if most_gain <= 0:
        return len(points) - 1
    scaled = [(cost / most_cost, gain / most_gain) for cost, gain in points]
    curve = scaled if scaled[0][0] == 0 else [(0.0, 0.0), *scaled]
    added = len(curve) - len(scaled)
    bends = [_bend(*curve[i - 1 : i + 2]) for i in range(1, len(curve) - 1)]
    sharpest = max(bends, default=0.0)
    if sharpest <= 1e-9:
        return len(points) - 1
    return bends.index(sharpest) + 1 - added


def _bend(
    before: tuple[float, float], here: tuple[float, float], after: tuple[float, float]
) -> float:
    """Curvature, positive where the curve turns down."""
    (x0, y0), (x1, y1), (x2, y2) = before, here, after
    turn = (x1 - x0) * (y2 - y0) - (x2 - x0) * (y1 - y0)
    sides = hypot(x1 - x0, y1 - y0) * hypot(x2 - x1, y2 - y1) * hypot(x2 - x0, y2 - y0)
    return -2 * turn / sides if sides else 0.0
