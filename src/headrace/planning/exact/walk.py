"""The walk over sets of patterns of one demand that carry a target X within a budget B of waste.

By the prices (`prices`), a set S that takes the vector v of increments wastes in all

    waste(v) = price x v - request price x X  >=  sum over S of waste[p],     all terms >= 0

and only sets with waste(v) <= B matter. They are named once each, depth first, in increasing order
of columns, which are sorted by `rate`: the least waste per request of their patterns. At depth d,
with `rest` still to be carried and `spent` wasted by the patterns taken so far:

add     pattern p of a later column, carrying less than `rest`, if
        spent + waste[p] + (rest - carried[p]) x rate[next column] <= B: what is left wastes at
        least that. Where even spent + rest x rate[column] > B, no later column will do: go back
close   a pattern p that carries all of `rest` ends the set. It wastes at least
        request price x (carried[p] - rest), so those to be tried lie next to each other in the
        order of what they carry: ten times fewer than column by column

Only vectors that no other one found covers matter. Two tables over all vectors keep that:

open[v]     v is within the budget and covered by nothing found
alive[v]    some open vector is at least v: what takes v already may still come to something

A step that leads to a vector that is not alive is not taken. The tables are brought up to date
some steps after a set was found, until then they hold too much, which loses nothing.

Cost: a step is O(pipeline stages); how many there are grows steeply with B, hence the care with
which `search` and `remainders` keep it small. The state lies in arrays, and `walk` returns after a
number of steps, so that the caller can look at the clock and go on.

Source: ours (decision 0010). PPipe's appendix A.2 leaves the choice of counts, its integer
variables of equations 16 to 27, to a solver.
"""

from typing import NamedTuple

import numpy as np

from headrace.compilation.loops import compiled
from headrace.planning.common.candidates import Floats, Ints
from headrace.planning.exact.patterns import EPSILON

ENDED, PAUSED, FULL = 0, 1, 2
"""Nothing is left; steps ran out; more pipelines in one set, or more sets, than there is
room for: what was found holds, what was not found proves nothing."""

ALL, LEANEST, FIRST = 0, 1, 2
"""What is wanted: all sets that matter, only ever leaner ones, or any one."""

DEPTH, COUNT, DUE = 0, 1, 2
"""Places in `WalkState.cursor`."""

CELLS_PER_STEP = 64
"""Of the tables, brought up to date in about the time of one step."""


class WalkTables(NamedTuple):
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
    increment: int
    most: Ints
    """Shape (K,): increments of each type that the demand may take."""
    strides: Ints
    """Shape (K,): of the tables over vectors."""
    room: Ints
    """Shape (groups,): pipelines that each group allows."""
    request_price: float


class WalkState(NamedTuple):
    """Where the walk stands and what it found. L pipelines at most, F sets at most."""

    cursor: Ints
    """Depth, number of sets, steps until the tables are brought up to date (0: they are)."""
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
    """Shape (L + 1, K): increments of each type that makes."""
    group_use: Ints
    """Shape (groups,)."""
    cell_waste: Floats
    """Shape (cells,): waste of every vector of increments."""
    covered: np.ndarray
    """Shape (cells,): by a set found."""
    open: np.ndarray
    """Shape (cells,)."""
    alive: np.ndarray
    """Shape (cells,)."""
    found: Ints
    """Shape (F, K): sets."""
    found_columns: Ints
    """Shape (F, L): -1 after the last."""
    found_slots: Ints
    """Shape (F, L, P)."""


@compiled
def refresh(tables: WalkTables, state: WalkState, least_waste: float) -> None:
    """Bring `open` and `alive` up to date after a new set or budget."""
    state.cursor[DUE] = 0
    cells = len(state.covered)
    for axis in range(len(tables.most)):
        stride = tables.strides[axis]
        block = stride * (tables.most[axis] + 1)
        for start in range(0, cells, block):
            for cell in range(start + stride, start + block):
                state.covered[cell] |= state.covered[cell - stride]
    for cell in range(cells):
        within = least_waste <= state.cell_waste[cell] <= state.budget[0]
        state.open[cell] = within and not state.covered[cell]
        state.alive[cell] = state.open[cell]
    for axis in range(len(tables.most)):
        stride = tables.strides[axis]
        block = stride * (tables.most[axis] + 1)
        for start in range(0, cells, block):
            for cell in range(start + block - stride - 1, start - 1, -1):
                state.alive[cell] |= state.alive[cell + stride]


@compiled
def _draw(tables: WalkTables, state: WalkState, depth: int, pattern: int) -> int:
    """Write what `pattern` on top of `depth` takes; return its cell, -1 if too much."""
    state.used[depth + 1] = state.used[depth]
    state.need[depth + 1] = state.need[depth]
    for stage in range(tables.pools.shape[1]):
        pool = tables.pools[pattern, stage]
        if pool >= 0:
            before = state.used[depth + 1, pool]
            after = before + tables.units[pattern, stage]
            more = -(-after // tables.increment) + (-before // tables.increment)
            state.used[depth + 1, pool] = after
            state.need[depth + 1, tables.pool_type[pool]] += more
    cell = 0
    for kind in range(len(tables.most)):
        if state.need[depth + 1, kind] > tables.most[kind]:
            return -1
        cell += state.need[depth + 1, kind] * tables.strides[kind]
    return cell


@compiled
def _has_room(tables: WalkTables, state: WalkState, pattern: int) -> bool:
    for place in range(tables.groups.shape[1]):
        group = tables.groups[pattern, place]
        if group >= 0 and state.group_use[group] >= tables.room[group]:
            return False
    return True


@compiled
def _count_in_groups(tables: WalkTables, state: WalkState, pattern: int, change: int) -> None:
    for place in range(tables.groups.shape[1]):
        if tables.groups[pattern, place] >= 0:
            state.group_use[tables.groups[pattern, place]] += change


@compiled
def _is_covered(state: WalkState, depth: int) -> bool:
    """Whether a set found takes no more of anything than `depth` does."""
    for at in range(state.cursor[COUNT]):
        covers = True
        for kind in range(state.found.shape[1]):
            covers = covers and state.found[at, kind] <= state.need[depth, kind]
        if covers:
            return True
    return False


@compiled
def _keep(tables: WalkTables, state: WalkState, depth: int, cell: int, closing: int) -> None:
    """Write down the set that `closing` closes."""
    at = state.cursor[COUNT]
    state.found[at] = state.need[depth + 1]
    state.found_columns[at] = -1
    for step in range(depth + 1):
        pattern = state.pattern[step] - 1 if step < depth else closing
        state.found_columns[at, step] = tables.column[pattern]
        state.found_slots[at, step] = tables.slots[pattern]
    state.covered[cell] = True
    state.cursor[COUNT] = at + 1
    if state.cursor[DUE] == 0:
        state.cursor[DUE] = 1 + len(state.covered) // CELLS_PER_STEP


@compiled
def _close(tables: WalkTables, state: WalkState, depth: int, wants: int, tolerance: float) -> int:
    """Let every pattern in its turn carry all that is left.

    Returns:
        PAUSED; ENDED if that was all that is wanted; FULL.
    """
    rest, waste = state.rest_rps[depth], state.waste[depth]
    price = tables.request_price
    least = np.searchsorted(tables.sorted_rps, rest * (1.0 - EPSILON))
    for at in range(least, len(tables.by_carried)):
        pattern = tables.by_carried[at]
        beyond = price * (tables.carried_rps[pattern] - rest)
        if waste + beyond > state.budget[0]:
            break
        if pattern < state.first[depth]:
            continue
        if waste + tables.waste[pattern] + beyond > state.budget[0]:
            continue
        if not _has_room(tables, state, pattern):
            continue
        cell = _draw(tables, state, depth, pattern)
        if cell < 0 or not state.open[cell] or state.cell_waste[cell] > state.budget[0]:
            continue
        if _is_covered(state, depth + 1):
            continue
        if state.cursor[COUNT] == len(state.found):
            return FULL
        _keep(tables, state, depth, cell, pattern)
        if wants == FIRST:
            return ENDED
        if wants == LEANEST:
            state.budget[0] = state.cell_waste[cell] - tolerance
    return PAUSED


@compiled
def _next(tables: WalkTables, state: WalkState, depth: int) -> int:
    """The next pattern that may be added by what it carries and wastes; -1 if none is left."""
    rest, waste, budget = state.rest_rps[depth], state.waste[depth], state.budget[0]
    # What carries everything is a way of closing.
    less = rest - EPSILON * state.rest_rps[0]
    pattern = int(state.pattern[depth])
    while pattern < len(tables.waste):
        if waste + rest * tables.waste_rate[pattern] > budget:
            return -1
        after = waste + tables.waste[pattern]
        if after > budget:
            pattern = int(tables.next_first[pattern])
            continue
        left = rest - tables.carried_rps[pattern]
        if (
            tables.carried_rps[pattern] < less
            and after + left * tables.next_rate[pattern] <= budget
        ):
            return pattern
        pattern += 1
    return -1


@compiled
def _add(tables: WalkTables, state: WalkState, depth: int, pattern: int) -> bool:
    """Add a pattern if that leaves something possible."""
    if not _has_room(tables, state, pattern):
        return False
    cell = _draw(tables, state, depth, pattern)
    if cell < 0 or not state.alive[cell]:
        return False
    if depth + 1 < len(state.first):
        state.first[depth + 1], state.pattern[depth + 1] = tables.next_first[pattern], -1
        state.rest_rps[depth + 1] = state.rest_rps[depth] - tables.carried_rps[pattern]
        state.waste[depth + 1] = state.waste[depth] + tables.waste[pattern]
        _count_in_groups(tables, state, pattern, 1)
    return True


@compiled
def walk(
    tables: WalkTables,
    state: WalkState,
    steps: int,
    least_waste: float,
    wants: int,
    tolerance: float,
    deepest: int,
) -> int:
    """Go on for at most `steps`.

    Args:
        least_waste: no set wastes less (proven before); prunes.
        wants: ALL, LEANEST or FIRST.
        tolerance: by how much a leaner set must be leaner.
        deepest: pipelines in one set; larger sets are left out.

    Returns:
        ENDED, PAUSED or FULL.
    """
    for _ in range(steps):
        if state.cursor[DUE] > 0:
            state.cursor[DUE] -= 1
            if state.cursor[DUE] == 0:
                refresh(tables, state, least_waste)
        depth = state.cursor[DEPTH]
        if state.pattern[depth] < 0:
            status = _close(tables, state, depth, wants, tolerance)
            if status != PAUSED:
                return status
            state.pattern[depth] = state.first[depth]
        pattern = -1
        if not deepest <= depth + 1 < len(state.first):
            pattern = _next(tables, state, depth)
        if pattern < 0:
            if depth == 0:
                return ENDED
            state.cursor[DEPTH] = depth - 1
            _count_in_groups(tables, state, state.pattern[depth - 1] - 1, -1)
            continue
        state.pattern[depth] = pattern + 1
        if _add(tables, state, depth, pattern):
            if depth + 1 == len(state.first):
                return FULL
            state.cursor[DEPTH] = depth + 1
    return PAUSED
