"""What the exact search counts: columns of a demand, and the stock of devices they draw on.

A column is a feasible pipeline (`candidates.Pipelines`) reduced to what counting needs: per stage
the pool its slots belong to, the size of one slot and its throughput. Sizes are integers in
`units`, the common denominator of all shares (twelfths of a device for shares 1 to 1/4), so sums
of thirds and quarters are exact.

Pools are where the accounting rules differ. Slots of one pool of one demand are added up and
rounded up to whole increments, which is what vectors of devices count:

units       one pool per device type, an increment is a unit: nothing is rounded (tables)
devices     one pool per device type, an increment is a device: no two demands share one (walks)

Other pools, such as one per stage position and device type, and limits on the number of pipelines
by group (`PoolStock.room`) make other rules; the walks know no difference.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import lcm

import numpy as np

from headrace.compilation.loops import compiled, worth_compiling
from headrace.planning.common.candidates import Floats, Ints, Pipelines, Rows, SlotKind

_ROUNDING = 1e-12
"""Relative; two ways of computing the same units per request differ by less."""

STEPS_PER_COLUMN = 10
"""A column is compared with few others, as a rule."""

PLAIN_PAIRS = 30_000
"""Of columns, that plain Python compares: a tenth of a second."""

COMPARED_MAX = 20_000_000
"""Pairs of columns: half a second. Of more, columns are kept that others cover."""


@dataclass(frozen=True, slots=True)
class PoolStock:
    """What there is. K device types, Q pools."""

    pool_type: Ints
    """Shape (Q,): device type of each pool."""
    increment: int
    """Units that the use of a pool is rounded up to."""
    increments: Ints
    """Shape (K,): of each device type there are."""
    room: Ints
    """Shape (groups,): how many pipelines of one demand each group allows (`Columns.groups`)."""

    @property
    def units(self) -> Ints:
        """Shape (K,)."""
        units: Ints = self.increments * self.increment
        return units


@dataclass(frozen=True, slots=True)
class Columns(Rows):
    """Of one demand. C columns, P stages at most."""

    pools: Ints
    """Shape (C, P); -1 after the last stage."""
    units: Ints
    """Shape (C, P): size of one slot; 0 after the last stage."""
    rates_rps: Floats
    """Shape (C, P): of one slot; infinite after the last stage."""
    groups: Ints
    """Shape (C, G): groups of pipelines that the column belongs to; -1 for none."""
    source: Ints
    """Shape (C,): row of the demand's `Pipelines`."""

    @property
    def units_per_rps(self) -> Floats:
        """Shape (C, P): units that one request per second costs, were slots divisible."""
        per_rps: Floats = self.units / self.rates_rps
        return per_rps


def units_per_device(kinds: Sequence[SlotKind]) -> int:
    """The common denominator of all shares.

    >>> from fractions import Fraction
    >>> units_per_device([SlotKind("a", Fraction(1, 3)), SlotKind("b", Fraction(1, 4))])
    12
    """
    return lcm(*(kind.share.denominator for kind in kinds))


def slot_units(kinds: Sequence[SlotKind]) -> Ints:
    """Shape (kinds,): size of a slot of each kind."""
    per_device = units_per_device(kinds)
    return np.array([int(kind.share * per_device) for kind in kinds], dtype=np.int64)


def slot_types(kinds: Sequence[SlotKind], devices: Sequence[str]) -> Ints:
    """Shape (kinds,): index into `devices` of each kind."""
    return np.array([devices.index(kind.device) for kind in kinds], dtype=np.int64)


def make_columns(
    pipelines: Pipelines,
    pools: Ints,
    units: Ints,
    groups: Ints,
    compared_max: int = COMPARED_MAX,
) -> Columns:
    """Columns of every pipeline that no other makes needless.

    Args:
        pools: shape (C, P): of every stage; -1 after the last.
        units: shape (kinds,): size of one slot of each kind.
        groups: shape (C, G).
        compared_max: pairs of them; beyond, the rest is kept.
    """
    used = pipelines.kinds >= 0
    columns = Columns(
        pools=pools,
        units=np.where(used, units[pipelines.kinds], 0),
        rates_rps=pipelines.rates_rps,
        groups=groups,
        source=np.arange(len(pipelines)),
    )
    return columns.take(undominated_columns(columns, columns.units, compared_max))


def prefix_codes(pools: Ints) -> Ints:
    """Shape (C, P): codes, from 0, of the first 1, 2, ... pools; after the last, of all."""
    base = int(pools.max()) + 2
    powers = base ** np.arange(pools.shape[1], dtype=np.int64)
    codes = np.cumsum((pools + 1) * powers, axis=1)
    _, compact = np.unique(codes, return_inverse=True)
    return compact.reshape(codes.shape).astype(np.int64)


def undominated_columns(columns: Columns, units: Ints, compared_max: int = COMPARED_MAX) -> Ints:
    """Rows of columns that are enough for an optimal plan of slots of `units`, shape (C, P).

    A column covers another if its pools are the first pools of the other (a shorter pipeline on
    the same pools) and, stage by stage, its slot divides the other's into whole parts that cost
    no more units per request. Cutting every slot of the other into such parts then gives a plan
    of the same use and no less throughput. To compare units per request alone would lose plans:
    shares that cost more can fill a device better.
    """
    if not len(columns):
        return np.empty(0, np.int64)
    compact = prefix_codes(columns.pools)
    per_rps = columns.units_per_rps
    depth = (columns.pools >= 0).sum(axis=1)
    # A cover is shorter, or equally long and cheaper in all, or equal and finer.
    order = np.lexsort((units.sum(axis=1), per_rps.sum(axis=1), depth))
    given = order, compact, units, per_rps, depth, int(compact.max()) + 1
    sieve = worth_compiling(_sieve, STEPS_PER_COLUMN * len(order))
    kept, ended = sieve(*given, min(PLAIN_PAIRS, compared_max))
    if not ended:
        kept, _ = _sieve(*given, compared_max)
    return np.sort(order[kept])


@compiled
def _sieve(
    order: Ints,
    codes: Ints,
    units: Ints,
    per_rps: Floats,
    depth: Ints,
    code_count: int,
    compared_max: int,
) -> tuple[np.ndarray, bool]:
    """Positions in `order` of the columns that none before them covers, after so many comparisons
    of all that follow; and whether there were no more."""
    newest = np.full(code_count, -1, np.int64)  # of each code, the column kept last
    before = np.full(len(order), -1, np.int64)  # the one kept before it
    kept = np.ones(len(order), np.bool_)
    compared = 0
    for position in range(len(order)):
        if compared >= compared_max:
            return kept, False
        column = order[position]
        covered = False
        for length in range(depth[column]):
            other = newest[codes[column, length]]
            while other >= 0 and not covered:
                covered = depth[other] == length + 1 and _covers(
                    other, column, length + 1, units, per_rps
                )
                other = before[other]
                compared += 1
            if covered:
                break
        if covered:
            kept[position] = False
        else:
            code = codes[column, depth[column] - 1]
            before[column] = newest[code]
            newest[code] = column
    return kept, True


@compiled
def _covers(cover: int, column: int, length: int, units: Ints, per_rps: Floats) -> bool:
    for stage in range(length):
        if units[column, stage] % units[cover, stage] != 0:
            return False
        if per_rps[cover, stage] > per_rps[column, stage] * (1 + _ROUNDING):
            return False
    return True
