"""The walk over sets of patterns of one demand that carry a target within a budget of waste.

Sets are named once, in increasing order of columns, which are sorted by waste per request: at
every step a pattern is added, and where one of a later column carries all that is left, the set is
*closed*. What is left wastes at least the rate of the next column, so most branches end at once.
A pattern that closes carries little more than is left, for it wastes the price of that: those to
be tried lie next to each other in the order of what they carry.

A set's outcome is the vector of granules of each device type that it takes. Only vectors that no
other one found covers matter, and only within the budget; two tables over all vectors keep that:

open[v]     v is within the budget and covered by nothing found
alive[v]    some open vector is at least v: what already takes v may still come to something

They are brought up to date some steps after an outcome was found: until then they hold too much.

The walk keeps its state in arrays and returns after a number of steps, so that the caller can
look at the clock and go on.
"""

from typing import NamedTuple

import numpy as np

from headrace.compilation.loops import compiled
from headrace.planning.common.candidates import Floats, Ints
from headrace.planning.exact.patterns import EPSILON

ENDED, PAUSED, FULL = 0, 1, 2
"""Nothing is left; steps ran out; more pipelines in one set, or more outcomes, than there is
room for: what was found holds, what was not found proves nothing."""

ALL, LEANEST, FIRST = 0, 1, 2
"""What is wanted: all outcomes that matter, only ever leaner ones, or any one."""

DEPTH, COUNT, DUE = 0, 1, 2
"""Places in `Trail.cursor`."""

CELLS_PER_STEP = 64
"""Of the tables, brought up to date in about the time of one step."""


class Ground(NamedTuple):
    """What does not change. M patterns, P stages, Q pools, K device types."""

    column: Ints
    """Shape (M,): of the pattern."""
    pools: Ints
    """Shape (M, P): -1 after the last stage."""
    slots: Ints
    """Shape (M, P)."""
    units: Ints
    """Shape (M, P): of all slots of a stage."""
    groups: Ints
    """Shape (M, G): groups of pipelines that it belongs to; -1 for none."""
    carried_rps: Floats
    """Shape (M,)."""
    waste: Floats
    """Shape (M,)."""
    waste_rate: Floats
    """Shape (M,): of the pattern's column: the least per request of its patterns. Non-decreasing;
    within a column, least waste first."""
    next_first: Ints
    """Shape (M,): the first pattern of the next column."""
    next_rate: Floats
    """Shape (M,): of the next column; infinite after the last."""
    by_carried: Ints
    """Shape (M,): patterns in increasing order of `carried_rps`."""
    sorted_rps: Floats
    """Shape (M,): what these carry."""
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
    """Depth, number of outcomes, steps until the tables are brought up to date (0: they are)."""
    budget: Floats
    """Shape (1,)."""
    first: Ints
    """Shape (L,): of the patterns that may be added at each depth."""
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
    trail.cursor[DUE] = 0
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
def _draw(ground: Ground, trail: Trail, depth: int, pattern: int) -> int:
    """Write what `pattern` on top of `depth` takes; return its cell, -1 if too much."""
    trail.used[depth + 1] = trail.used[depth]
    trail.need[depth + 1] = trail.need[depth]
    for stage in range(ground.pools.shape[1]):
        pool = ground.pools[pattern, stage]
        if pool >= 0:
            before = trail.used[depth + 1, pool]
            after = before + ground.units[pattern, stage]
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
def _has_room(ground: Ground, trail: Trail, pattern: int) -> bool:
    for place in range(ground.groups.shape[1]):
        group = ground.groups[pattern, place]
        if group >= 0 and trail.group_use[group] >= ground.room[group]:
            return False
    return True


@compiled
def _count_in_groups(ground: Ground, trail: Trail, pattern: int, change: int) -> None:
    for place in range(ground.groups.shape[1]):
        if ground.groups[pattern, place] >= 0:
            trail.group_use[ground.groups[pattern, place]] += change


@compiled
def _is_covered(trail: Trail, depth: int) -> bool:
    """Whether an outcome found takes no more of anything than `depth` does."""
    for at in range(trail.cursor[COUNT]):
        covers = True
        for kind in range(trail.found.shape[1]):
            covers = covers and trail.found[at, kind] <= trail.need[depth, kind]
        if covers:
            return True
    return False


@compiled
def _keep(ground: Ground, trail: Trail, depth: int, cell: int, closing: int) -> None:
    """Write down the set that `closing` closes."""
    at = trail.cursor[COUNT]
    trail.found[at] = trail.need[depth + 1]
    trail.found_columns[at] = -1
    for step in range(depth + 1):
        pattern = trail.pattern[step] - 1 if step < depth else closing
        trail.found_columns[at, step] = ground.column[pattern]
        trail.found_slots[at, step] = ground.slots[pattern]
    trail.covered[cell] = True
    trail.cursor[COUNT] = at + 1
    if trail.cursor[DUE] == 0:
        trail.cursor[DUE] = 1 + len(trail.covered) // CELLS_PER_STEP


@compiled
def _close(ground: Ground, trail: Trail, depth: int, wants: int, tolerance: float) -> int:
    """Let every pattern in its turn carry all that is left.

    Returns:
        PAUSED; ENDED if that was all that is wanted; FULL.
    """
    rest, waste = trail.rest_rps[depth], trail.waste[depth]
    price = ground.request_price
    least = np.searchsorted(ground.sorted_rps, rest * (1.0 - EPSILON))
    for at in range(least, len(ground.by_carried)):
        pattern = ground.by_carried[at]
        beyond = price * (ground.carried_rps[pattern] - rest)
        if waste + beyond > trail.budget[0]:
            break
        if pattern < trail.first[depth]:
            continue
        if waste + ground.waste[pattern] + beyond > trail.budget[0]:
            continue
        if not _has_room(ground, trail, pattern):
            continue
        cell = _draw(ground, trail, depth, pattern)
        if cell < 0 or not trail.open[cell] or trail.cell_waste[cell] > trail.budget[0]:
            continue
        if _is_covered(trail, depth + 1):
            continue
        if trail.cursor[COUNT] == len(trail.found):
            return FULL
        _keep(ground, trail, depth, cell, pattern)
        if wants == FIRST:
            return ENDED
        if wants == LEANEST:
            trail.budget[0] = trail.cell_waste[cell] - tolerance
    return PAUSED


@compiled
def _next(ground: Ground, trail: Trail, depth: int) -> int:
    """The next pattern that may be added by what it carries and wastes; -1 if none is left."""
    rest, waste, budget = trail.rest_rps[depth], trail.waste[depth], trail.budget[0]
    # What carries everything is a way of closing.
    less = rest - EPSILON * trail.rest_rps[0]
    pattern = int(trail.pattern[depth])
    while pattern < len(ground.waste):
        if waste + rest * ground.waste_rate[pattern] > budget:
            return -1
        after = waste + ground.waste[pattern]
        if after > budget:
            pattern = int(ground.next_first[pattern])
            continue
        left = rest - ground.carried_rps[pattern]
        if (
            ground.carried_rps[pattern] < less
            and after + left * ground.next_rate[pattern] <= budget
        ):
            return pattern
        pattern += 1
    return -1


@compiled
def _add(ground: Ground, trail: Trail, depth: int, pattern: int) -> bool:
    """Add a pattern if that leaves something possible."""
    if not _has_room(ground, trail, pattern):
        return False
    cell = _draw(ground, trail, depth, pattern)
    if cell < 0 or not trail.alive[cell]:
        return False
    if depth + 1 < len(trail.first):
        trail.first[depth + 1], trail.pattern[depth + 1] = ground.next_first[pattern], -1
        trail.rest_rps[depth + 1] = trail.rest_rps[depth] - ground.carried_rps[pattern]
        trail.waste[depth + 1] = trail.waste[depth] + ground.waste[pattern]
        _count_in_groups(ground, trail, pattern, 1)
    return True


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
    for _ in range(steps):
        if trail.cursor[DUE] > 0:
            trail.cursor[DUE] -= 1
            if trail.cursor[DUE] == 0:
                refresh(ground, trail, least_waste)
        depth = trail.cursor[DEPTH]
        if trail.pattern[depth] < 0:
            status = _close(ground, trail, depth, wants, tolerance)
            if status != PAUSED:
                return status
            trail.pattern[depth] = trail.first[depth]
        pattern = -1
        if not deepest <= depth + 1 < len(trail.first):
            pattern = _next(ground, trail, depth)
        if pattern < 0:
            if depth == 0:
                return ENDED
            trail.cursor[DEPTH] = depth - 1
            _count_in_groups(ground, trail, trail.pattern[depth - 1] - 1, -1)
            continue
        trail.pattern[depth] = pattern + 1
        if _add(ground, trail, depth, pattern):
            if depth + 1 == len(trail.first):
                return FULL
            trail.cursor[DEPTH] = depth + 1
    return PAUSED
