"""The walk over sets of parts for given layouts: do they carry a multiple z of every rate?

The devices' layouts are given, so there are so many slots of each sort. By the prices of the linear
program a slot has a rent, and a part in it wastes the rent less what it carries of what is *still
missing*. What all slots are worth less the worth of all rates is the budget; every part that is
chosen takes its waste from it, and below 0 nothing can be done any more. At each step

1. the model with the fewest parts within the budget is taken: some slot must serve it;
2. each such part is tried, least waste first. What was tried is then forbidden below its later
   siblings: a plan with it was among those that its own branch looked at.

So every set of parts is named once, and a walk without success is a proof up to rounding (1e-9 of
the rates). It ends after `steps_max` steps without either.
"""

from typing import NamedTuple

import numpy as np

from headrace.compilation.loops import compiled
from headrace.planning.shares.workload import Floats, Ints

NONE, SOME, GAVE_UP = 0, 1, 2

MISSING = 1e-9
"""Multiples of a rate below which nothing is missing. For rounding, a plan may waste as much beyond
its budget."""


class Slots(NamedTuple):
    """S sorts of slots, E entries: parts in the slots that may hold them."""

    first: Ints
    """Shape (S, M + 1): into `entries`, of the parts of each sort that serve each model."""
    entries: Ints
    """Which entry; of one sort and model the least waste first."""
    entry_waste: Floats
    """Of `entries`."""
    part: Ints
    """Shape (E,): row of `carried`."""
    carried: Floats
    """Shape (Q, M): multiples of each rate that a part carries."""
    rent: Floats
    """Shape (S,)."""


@compiled
def _scarcest(
    first: Ints, entry_waste: Floats, left: Ints, missing: Floats, depth: int, budget: float
) -> tuple[int, int]:
    """Of the models of which something is missing, that with the fewest parts within the budget in
    slots that are left: (model, parts). (-1, 0): nothing is missing."""
    pick, fewest = -1, 0
    for m in range(missing.shape[1]):
        if missing[depth, m] <= MISSING:
            continue
        options = 0
        for s in range(len(left)):
            if left[s]:
                low, high = first[s, m], first[s, m + 1]
                while low < high:
                    middle = (low + high) // 2
                    if entry_waste[middle] <= budget:
                        low = middle + 1
                    else:
                        high = middle
                options += low - first[s, m]
        if pick < 0 or options < fewest:
            pick, fewest = m, options
    return pick, fewest


@compiled
def walk(
    slots: Slots,
    price: Floats,
    count: Ints,
    wanted: Floats,
    steps_max: int,
    chosen_slot: Ints,
    chosen_part: Ints,
) -> int:
    """Fill `count` slots of each sort so that `wanted` is carried.

    Args:
        price: shape (M,), of a multiple of each target.
        wanted: shape (M,): multiples of each target.
        chosen_slot: written: sort of each slot that is used, -1 after the last; at least as long as
            there are slots.
        chosen_part: written: row of `carried`.

    Returns:
        NONE, SOME or GAVE_UP, and 4 times the steps.
    """
    first, entries, entry_waste, part, carried, rent = slots
    sorts, models = len(count), len(price)
    depth_max = count.sum()
    left = count.copy()
    missing = np.zeros((depth_max + 1, models))
    budget = np.zeros(depth_max + 1)
    model = np.zeros(depth_max + 1, np.int64)
    sort = np.zeros(depth_max + 1, np.int64)
    at = np.zeros(depth_max + 1, np.int64)
    forbidden = np.zeros(len(part), np.bool_)
    tried = np.zeros((depth_max + 1, len(part)), np.int64)
    tried_count = np.zeros(depth_max + 1, np.int64)
    budget[0] = MISSING
    for s in range(sorts):
        budget[0] += count[s] * rent[s]
    for m in range(models):
        missing[0, m] = wanted[m]
        budget[0] -= price[m] * wanted[m]
    steps, depth, entering, leaving = 0, 0, True, False
    while depth >= 0:
        if leaving:
            leaving = False
            left[sort[depth]] += 1
            forbidden[tried[depth, tried_count[depth] - 1]] = True
            at[depth] += 1
        if entering:
            entering = False
            pick, fewest = _scarcest(first, entry_waste, left, missing, depth, budget[depth])
            if pick < 0:
                chosen_slot[depth] = -1
                return SOME + 4 * steps
            if depth == depth_max or fewest == 0 or budget[depth] < 0:
                depth -= 1
                leaving = depth >= 0
                continue
            model[depth], sort[depth], at[depth], tried_count[depth] = pick, 0, first[0, pick], 0
        s, m = sort[depth], model[depth]
        if not left[s] or at[depth] >= first[s, m + 1] or entry_waste[at[depth]] > budget[depth]:
            if s + 1 < sorts:
                sort[depth] += 1
                at[depth] = first[s + 1, m]
                continue
            for k in range(tried_count[depth]):
                forbidden[tried[depth, k]] = False
            depth -= 1
            leaving = depth >= 0
            continue
        entry = entries[at[depth]]
        if forbidden[entry]:
            at[depth] += 1
            continue
        steps += 1
        q = part[entry]
        waste = rent[s]
        for k in range(models):
            waste -= price[k] * min(carried[q, k], missing[depth, k])
        if waste > budget[depth]:
            at[depth] += 1
            continue
        if steps > steps_max:
            return GAVE_UP + 4 * steps
        # Forbidden only from the next sibling on: another slot may hold an equal part.
        chosen_slot[depth], chosen_part[depth] = s, q
        for k in range(models):
            missing[depth + 1, k] = max(0.0, missing[depth, k] - carried[q, k])
        budget[depth + 1] = budget[depth] - waste
        left[s] -= 1
        tried[depth, tried_count[depth]] = entry
        tried_count[depth] += 1
        depth += 1
        entering = True
    return NONE + 4 * steps


@compiled
def walks(
    slots: Slots,
    price: Floats,
    counts: Ints,
    wanted: Floats,
    steps_max: int,
    chosen_slot: Ints,
    chosen_part: Ints,
) -> tuple[int, int]:
    """`walk` with each row of `counts`, shape (W, S), until one has another answer than NONE.

    Args:
        chosen_slot, chosen_part: long enough for every row.
        steps_max: of all of them together.

    Returns:
        The row, -1 if there is none; and as `walk` does.
    """
    steps = 0
    for way in range(len(counts)):
        if steps > steps_max:
            return way, GAVE_UP + 4 * steps
        left = steps_max - steps
        code = walk(slots, price, counts[way], wanted, left, chosen_slot, chosen_part)
        steps += code // 4
        if code % 4 != NONE:
            return way, code % 4 + 4 * steps
    return -1, NONE + 4 * steps
