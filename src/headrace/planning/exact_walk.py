"""The walk over sets of patterns of one demand that carry a target within a budget of waste.

Sets are named once, in increasing order of columns, which are sorted by waste per request: at
every step a column either *closes* the set (it carries all that is left) or gives one of its
patterns. What is left wastes at least the rate of the next column, so most branches end at once.

A set's outcome is the vector of granules of each device type that it takes. Only vectors that no
other one found covers matter, and only within the budget; two tables over all vectors keep that:

open[v]     v is within the budget and covered by nothing found
alive[v]    some open vector is at least v: what already takes v may still come to something

The walk keeps its state in arrays and returns after a number of steps, so that the caller can
look at the clock and go on.
"""

from typing import NamedTuple

import numpy as np

from headrace.planning.candidates import Floats, Ints
from headrace.planning.compiled import compiled
from headrace.planning.exact_patterns import EPSILON

ENDED, PAUSED, FULL = 0, 1, 2
"""Nothing is left; steps ran out; more pipelines in one set, or more outcomes, than there is
room for: what was found holds, what was not found proves nothing."""

ALL, LEANEST, FIRST = 0, 1, 2
"""What is wanted: all outcomes that matter, only ever leaner ones, or any one."""

DEPTH, COUNT = 0, 1
"""Places in `Trail.cursor`."""


class Ground(NamedTuple):
    """What does not change. C columns, M patterns, P stages, Q pools, K device types."""

    pools: Ints
    """Shape (C, P)."""
    units: Ints
    """Shape (C, P)."""
    rates_rps: Floats
    """Shape (C, P)."""
    groups: Ints
    """Shape (C, G)."""
    stage_prices: Floats
    """Shape (C, P): of one slot."""
    waste_rate: Floats
    """Shape (C,): per request, of divisible slots; non-decreasing."""
    first: Ints
    """Shape (C + 1,): where the patterns of each column begin."""
    slots: Ints
    """Shape (M, P)."""
    carried_rps: Floats
    """Shape (M,)."""
    pattern_waste: Floats
    """Shape (M,): non-decreasing within a column."""
    pool_type: Ints
    """Shape (Q,)."""
    granule: int
    most: Ints
    """Shape (K,): granules of each type that the demand may take."""
    strides: Ints
    """Shape (K,): of the tables over vectors."""
    room: Ints
    """Shape (groups,): pipelines that each group allows."""
    request_price: float


class Trail(NamedTuple):
    """Where the walk stands and what it found. L pipelines at most, F outcomes at most."""

    cursor: Ints
    """Depth and number of outcomes."""
    budget: Floats
    """Shape (1,)."""
    column: Ints
    """Shape (L,): tried now, at each depth."""
    pattern: Ints
    """Shape (L,): tried next; -1 before closing was tried."""
    rest_rps: Floats
    """Shape (L,): still to be carried."""
    waste: Floats
    """Shape (L,): of the patterns taken so far."""
    used: Ints
    """Shape (L + 1, Q): units taken of each pool."""
    need: Ints
    """Shape (L + 1, K): granules of each type that makes."""
    group_use: Ints
    """Shape (groups,)."""
    cell_waste: Floats
    """Shape (cells,): waste of every vector of granules."""
    covered: np.ndarray
    """Shape (cells,): by an outcome found."""
    open: np.ndarray
    """Shape (cells,)."""
    alive: np.ndarray
    """Shape (cells,)."""
    found: Ints
    """Shape (F, K): outcomes."""
    found_columns: Ints
    """Shape (F, L): -1 after the last."""
    found_slots: Ints
    """Shape (F, L, P)."""


@compiled
def refresh(ground: Ground, trail: Trail, least_waste: float) -> None:
    """Bring `open` and `alive` up to date after a new outcome or budget."""
    cells = len(trail.covered)
    for axis in range(len(ground.most)):
        stride = ground.strides[axis]
        block = stride * (ground.most[axis] + 1)
        for start in range(0, cells, block):
            for cell in range(start + stride, start + block):
                trail.covered[cell] |= trail.covered[cell - stride]
    for cell in range(cells):
        within = least_waste <= trail.cell_waste[cell] <= trail.budget[0]
        trail.open[cell] = within and not trail.covered[cell]
        trail.alive[cell] = trail.open[cell]
    for axis in range(len(ground.most)):
        stride = ground.strides[axis]
        block = stride * (ground.most[axis] + 1)
        for start in range(0, cells, block):
            for cell in range(start + block - stride - 1, start - 1, -1):
                trail.alive[cell] |= trail.alive[cell + stride]


@compiled
def _draw(ground: Ground, trail: Trail, depth: int, column: int, slots: Ints) -> int:
    """Write what `slots` of `column` on top of `depth` take; return its cell, -1 if too much."""
    trail.used[depth + 1] = trail.used[depth]
    trail.need[depth + 1] = trail.need[depth]
    for stage in range(ground.pools.shape[1]):
        pool = ground.pools[column, stage]
        if pool >= 0:
            before = trail.used[depth + 1, pool]
            after = before + slots[stage] * ground.units[column, stage]
            more = -(-after // ground.granule) + (-before // ground.granule)
            trail.used[depth + 1, pool] = after
            trail.need[depth + 1, ground.pool_type[pool]] += more
    cell = 0
    for kind in range(len(ground.most)):
        if trail.need[depth + 1, kind] > ground.most[kind]:
            return -1
        cell += trail.need[depth + 1, kind] * ground.strides[kind]
    return cell


@compiled
def _has_room(ground: Ground, trail: Trail, column: int) -> bool:
    for place in range(ground.groups.shape[1]):
        group = ground.groups[column, place]
        if group >= 0 and trail.group_use[group] >= ground.room[group]:
            return False
    return True


@compiled
def _count_in_groups(ground: Ground, trail: Trail, column: int, change: int) -> None:
    for place in range(ground.groups.shape[1]):
        if ground.groups[column, place] >= 0:
            trail.group_use[ground.groups[column, place]] += change


@compiled
def _close(ground: Ground, trail: Trail, depth: int, column: int, slots: np.ndarray) -> int:
    """Let `column` carry all that is left; its open cell, or -1."""
    rest = trail.rest_rps[depth]
    waste = trail.waste[depth] - ground.request_price * rest
    for stage in range(ground.pools.shape[1]):
        slots[stage] = 0
        if ground.pools[column, stage] >= 0:
            exact = rest / ground.rates_rps[column, stage]
            slots[stage] = max(1, int(np.ceil(exact - EPSILON * max(1.0, exact))))
            waste += slots[stage] * ground.stage_prices[column, stage]
    if waste > trail.budget[0] or not _has_room(ground, trail, column):
        return -1
    cell = _draw(ground, trail, depth, column, slots)
    return cell if cell >= 0 and trail.open[cell] else -1


@compiled
def _keep(ground: Ground, trail: Trail, depth: int, cell: int, slots: Ints) -> None:
    """Write down the set that was just closed."""
    at = trail.cursor[COUNT]
    trail.found[at] = trail.need[depth + 1]
    trail.found_columns[at] = -1
    for step in range(depth):
        trail.found_columns[at, step] = trail.column[step]
        trail.found_slots[at, step] = ground.slots[trail.pattern[step] - 1]
    trail.found_columns[at, depth] = trail.column[depth]
    trail.found_slots[at, depth] = slots
    trail.covered[cell] = True
    trail.cursor[COUNT] = at + 1


@compiled
def walk(
    ground: Ground,
    trail: Trail,
    steps: int,
    least_waste: float,
    wants: int,
    tolerance: float,
    deepest: int,
) -> int:
    """Go on for at most `steps`.

    Args:
        least_waste: no outcome wastes less (proven before); prunes.
        wants: ALL, LEANEST or FIRST.
        tolerance: by how much a leaner outcome must be leaner.
        deepest: pipelines in one set; larger sets are left out.

    Returns:
        ENDED, PAUSED or FULL.
    """
    column_count = len(ground.waste_rate)
    slots = np.zeros(ground.pools.shape[1], np.int64)
    for _ in range(steps):
        depth = trail.cursor[DEPTH]
        column = trail.column[depth]
        least = trail.waste[depth]
        if column < column_count:
            least += trail.rest_rps[depth] * ground.waste_rate[column]
        if column == column_count or least > trail.budget[0]:
            if depth == 0:
                return ENDED
            trail.cursor[DEPTH] = depth - 1
            _count_in_groups(ground, trail, trail.column[depth - 1], -1)
            continue
        if trail.pattern[depth] < 0:
            trail.pattern[depth] = ground.first[column]
            cell = _close(ground, trail, depth, column, slots)
            if cell >= 0:
                if trail.cursor[COUNT] == len(trail.found):
                    return FULL
                _keep(ground, trail, depth, cell, slots)
                if wants == FIRST:
                    return ENDED
                if wants == LEANEST:
                    trail.budget[0] = trail.cell_waste[cell] - tolerance
                refresh(ground, trail, least_waste)
        if depth + 1 >= deepest:
            trail.column[depth], trail.pattern[depth] = column + 1, -1
        elif not _descend(ground, trail, depth, column):
            return FULL
    return PAUSED


@compiled
def _descend(ground: Ground, trail: Trail, depth: int, column: int) -> bool:
    """Take the next pattern of `column` that leaves something possible, or go to the next.

    False if there is no room for one more.
    """
    if column + 1 < len(ground.waste_rate) and _has_room(ground, trail, column):
        for pattern in range(trail.pattern[depth], ground.first[column + 1]):
            waste = trail.waste[depth] + ground.pattern_waste[pattern]
            if waste > trail.budget[0]:
                break
            rest = trail.rest_rps[depth] - ground.carried_rps[pattern]
            # What carries everything is a way of closing.
            if rest <= EPSILON * trail.rest_rps[0]:
                continue
            if waste + rest * ground.waste_rate[column + 1] > trail.budget[0]:
                continue
            cell = _draw(ground, trail, depth, column, ground.slots[pattern])
            if cell < 0 or not trail.alive[cell]:
                continue
            if depth + 1 == len(trail.column):
                return False
            trail.pattern[depth] = pattern + 1
            trail.column[depth + 1], trail.pattern[depth + 1] = column + 1, -1
            trail.rest_rps[depth + 1], trail.waste[depth + 1] = rest, waste
            trail.cursor[DEPTH] = depth + 1
            _count_in_groups(ground, trail, column, 1)
            return True
    trail.column[depth], trail.pattern[depth] = column + 1, -1
    return True
