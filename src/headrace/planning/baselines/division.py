"""Devices of up to two types divided between models, exactly: the largest min throughput / weight.

What a model carries of h devices of the first type and l of the second, T(h, l), falls with
neither. So for a target z every model needs, for each h, a fewest l:

    need_d(h)   = min { l : T_d(h, l) >= max(w_d z, rate_d) }
    need_1..d(h) = min over h' <= h of need_1..d-1(h - h') + need_d(h')

and z is met where need_1..D(h) <= l for the devices owned. T takes at most H x L values per model,
so the largest z that is met is one of these / w_d, found by halving among them. Cost: D H^2 per
target.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from headrace.planning.common.candidates import Floats, Ints
from headrace.planning.common.master import Wanted

CELLS_MAX = 10_000_000
"""Of all models' tables of throughputs."""

ROWS_MAX = 1_000
"""Of tables: with more devices of the first type, those of the second are the rows."""


@dataclass(frozen=True, slots=True)
class Replicas:
    """What one model gives: alone on a device of each type, and on one of both together."""

    alone_rps: tuple[float, ...]
    """Per device type; 0 where it cannot run."""
    pair_rps: float
    """0 where no pipeline of both is better than one on each."""

    def table(self, owned: Ints) -> Floats:
        """Shape (H + 1, L + 1): throughput of so many devices; L is 0 with one type."""
        first = np.arange(int(owned[0]) + 1)[:, None]
        second = np.arange(int(owned[1]) + 1 if len(owned) == 2 else 1)[None, :]
        pairs = np.minimum(first, second) if self.pair_rps else np.zeros_like(first + second)
        other_rps = self.alone_rps[1] if len(owned) == 2 else 0.0
        given: Floats = (
            pairs * self.pair_rps
            + (first - pairs) * self.alone_rps[0]
            + (second - pairs) * other_rps
        )
        return given


def divide_best(
    models: Sequence[Replicas], wanted: Sequence[Wanted], owned: Ints
) -> list[Ints] | None:
    """Devices of each type for every model, shape (D,) each, and none left that all could share.

    Returns:
        None where no division serves every model, or the tables are too large.
    """
    if len(models) * np.prod(owned + 1, dtype=np.float64) > CELLS_MAX:
        return None
    tables = [model.table(owned) for model in models]
    turned = owned[0] > ROWS_MAX
    if turned:
        tables = [table.T for table in tables]
    values = [table.ravel() / want.weight for table, want in zip(tables, wanted, strict=True)]
    targets = np.unique(np.concatenate(values))
    targets = targets[targets > 0]
    best, low, high = None, 0, len(targets)
    while low < high:
        middle = (low + high) // 2
        found = _meeting(tables, wanted, float(targets[middle]))
        if found is None:
            high = middle
        else:
            best, low = found, middle + 1
    if best is None:
        return None
    best = [(mine[::-1] if turned else mine)[: len(owned)] for mine in best]
    unused = owned - np.sum(best, axis=0)
    return [mine + unused // len(best) for mine in best]


def _meeting(
    tables: Sequence[Floats], wanted: Sequence[Wanted], target: float
) -> list[Ints] | None:
    """A division in which every model meets the target; None: there is none."""
    rows, columns = tables[0].shape
    sums, choices = np.zeros(rows), []
    for table, want in zip(tables, wanted, strict=True):
        # A hair below, since the target itself is a quotient.
        enough = table >= max(want.weight * target, want.least_rps) * (1 - 1e-12)
        need = np.where(enough.any(axis=1), enough.argmax(axis=1), np.inf)
        # Entry (h, h'): h' rows for this model, the rest for those before it.
        mine = np.arange(rows)
        rest = mine[:, None] - mine[None, :]
        both = np.where(rest >= 0, sums[np.maximum(rest, 0)] + need[None, :], np.inf)
        choices.append((both.argmin(axis=1), need))
        sums = both.min(axis=1)
    if not sums[-1] <= columns - 1:
        return None
    left, found = rows - 1, []
    for taken, need in reversed(choices):
        first = int(taken[left])
        found.append((first, int(need[first])))
        left -= first
    return [np.array(each, dtype=np.int64) for each in reversed(found)]
