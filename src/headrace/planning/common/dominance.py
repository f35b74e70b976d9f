"""Which feasible pipelines can be left out without losing the best plan.

Pipeline c makes c' needless when both use the same multiset of slot kinds and, stage matched to
stage of the same kind, no slot of c is slower.

Proof that this is safe for integer counts: take any plan that uses c' with counts n', and give
each stage of c the very slots of its match. Slots, devices and packing stay what they were, every
stage is at least as fast, so the slowest is. Where memory may be the limit, no stage of c may
weigh more than its match either. Link shares are part of a slot's rate, so links stay within
their bandwidth too.

What would *not* be safe is to compare the fractions of devices that a request costs: shares that
cost more in the linear relaxation can fill a device better (0.26 % on one published model).
"""

import numpy as np
import numpy.typing as npt

from headrace.planning.common.candidates import Floats, Pipelines


def undominated(pipelines: Pipelines, memory_limited: npt.NDArray[np.bool_]) -> Pipelines:
    """Keep enough pipelines for an optimal integer plan.

    Args:
        memory_limited: shape (K,): kinds on whose device the weights of several slots may
            exceed the memory.

    Returns:
        A subset, fewest stages first, then lowest latency first.
    """
    if not len(pipelines):
        return pipelines
    stage_count = (pipelines.kinds >= 0).sum(axis=1)
    ordered = pipelines.take(np.lexsort((pipelines.latency_us, stage_count)))
    kinds, merits = _by_kind(ordered, memory_limited)
    _, group = np.unique(kinds, axis=0, return_inverse=True)
    by_group = np.argsort(group.ravel(), kind="stable")
    edges = np.flatnonzero(np.diff(group.ravel()[by_group])) + 1
    fronts = [rows[_pareto(merits[rows])] for rows in np.split(by_group, edges)]
    return ordered.take(np.sort(np.concatenate(fronts)))


def _by_kind(
    pipelines: Pipelines, memory_limited: npt.NDArray[np.bool_]
) -> tuple[npt.NDArray[np.int64], Floats]:
    """Stages sorted by kind, then rate; and what makes them good, the larger the better.

    Sorted so, one pipeline covers another under some matching of like kinds exactly when it does
    so position by position.
    """
    by_rate = np.argsort(pipelines.rates_rps, axis=1, kind="stable")
    kinds = np.take_along_axis(pipelines.kinds, by_rate, axis=1)
    order = np.take_along_axis(by_rate, np.argsort(kinds, axis=1, kind="stable"), axis=1)
    kinds = np.take_along_axis(pipelines.kinds, order, axis=1)
    rates = np.take_along_axis(pipelines.rates_rps, order, axis=1)
    weights = np.take_along_axis(pipelines.weights_bytes, order, axis=1)
    counted = memory_limited[kinds] & (kinds >= 0)
    return kinds, np.concatenate([rates, np.where(counted, -weights, 0)], axis=1)


def _pareto(merits: Floats) -> npt.NDArray[np.intp]:
    """Indices of the rows that no other row matches or beats everywhere; of equals the first."""
    finite = np.where(np.isfinite(merits), merits, 0.0)
    # No row can be beaten by one with a smaller sum.
    candidates = np.argsort(-finite.sum(axis=1), kind="stable")
    front: list[int] = []
    while len(candidates):
        best = candidates[0]
        front.append(int(best))
        beaten = (merits[candidates] <= merits[best]).all(axis=1)
        candidates = candidates[~beaten]
    return np.array(sorted(front), dtype=np.intp)
