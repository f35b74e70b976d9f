"""How many items the requests of a malleable plan have; simulator and load share the draw."""

import math
import zlib
from collections.abc import Sequence

import numpy as np

from headrace.dispatch.kernel.layout import Ints
from headrace.domain.errors import DocumentError
from headrace.domain.plan import Plan
from headrace.domain.problem import Items
from headrace.simulation.offered.arrivals import Arrival


def items_of(arrivals: Sequence[Arrival], plan: Plan, seed: int) -> Ints:
    """What each arrival states, or a draw from what the plan is for, at most what one may have.

    The same seed gives the n-th request of a model the same number, wherever it is drawn.

    Returns:
        Shape (arrivals,), at least 1.

    Raises:
        DocumentError: an arrival states more than a request of its model may have, or items that
            the plan's requests do not have.
    """
    found = np.array([arrival.items for arrival in arrivals], dtype=np.int64)
    most = {each.model: each.max_items or 1 for each in plan.deployments}
    for number in np.flatnonzero(found).tolist():
        arrival = arrivals[number]
        if arrival.items > most.get(arrival.model, arrival.items):
            raise DocumentError(
                f"arrival {number}: {arrival.items} items of model {arrival.model!r}, and the plan"
                f" allows {most[arrival.model]} in one request; send fewer at a time, or plan with"
                " more `--max-items`"
            )
    for demand in plan.demands:
        mine = [i for i, arrival in enumerate(arrivals) if arrival.model == demand.model]
        rng = np.random.default_rng([seed, zlib.crc32(demand.model.encode()), 2])
        drawn = np.minimum(_drawn(demand.items, len(mine), rng), most.get(demand.model, 1))
        found[mine] = np.where(found[mine] == 0, drawn, found[mine])
    return np.maximum(found, 1)


def check_single(arrivals: Sequence[Arrival]) -> None:
    """For plans whose requests are simulated as one item each.

    Raises:
        DocumentError: an arrival states more.
    """
    for number, arrival in enumerate(arrivals):
        if arrival.items > 1:
            raise DocumentError(
                f"arrival {number}: {arrival.items} items of model {arrival.model!r}; a simulation"
                " counts items of malleable plans only\n  try    a line for each item, at the same"
                " instant"
            )


def _drawn(items: Items, count: int, rng: np.random.Generator) -> Ints:
    if items.distribution == "fixed":
        return np.full(count, round(items.mean), dtype=np.int64)
    centre = math.log(items.mean) - items.sigma**2 / 2
    drawn = np.rint(rng.lognormal(centre, items.sigma, count)).astype(np.int64)
    return np.asarray(np.maximum(1, drawn), dtype=np.int64)
