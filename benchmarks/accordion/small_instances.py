"""Small random instances of malleable requests, and how policies do on them.

As the study's streams, smaller: two networks of 3 to 6 blocks, 4 places, up to 6 requests with one
SLO and log-normal numbers of items, or of 1 to 5 items each. Requests that no depth could answer in
time alone are left out. All times are whole ticks. One priority, since the optimum counts every
request alike: the lower of the study's two, so that predictors may drop.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations, pairwise

import numpy as np
from benchmarks.accordion.streams import SIGMA

from headrace.dispatch.policies import Policy
from headrace.dispatch.topology import ModelRoutes, Route, StageTable, Topology
from headrace.simulation.compiled import Offered, of_items, run

PLACES = 4
TICK_US = 1_000
LOADS = (0.7, 1.0, 1.5)
"""One-place time of all requests / (places x span of arrivals)."""
SLOS = (0.35, 0.5, 0.75)
"""Parts of the longest one-place time among an instance's requests, as in the study; 4 places make
a request at most 4 times as fast, so that its strict SLO has no place here."""
MEAN_ITEMS = 12.0
LOW = 1

Depth = tuple[int, ...]
"""Ticks of each of its stages."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """Instants in ticks."""

    model: int
    items: int
    arrived_at: int
    deadline_at: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Instance:
    """Requests in the order of arrival, and what they are of."""

    models: tuple[tuple[Depth, ...], ...]
    """Per network its depths, the shallowest first."""
    requests: tuple[Request, ...]

    def topology(self) -> Topology:
        return Topology(
            models=tuple(
                ModelRoutes(
                    name=f"m{number}",
                    slo_us=1_000_000,
                    routes=tuple(_route(depth) for depth in depths),
                    max_items=1_000,
                )
                for number, depths in enumerate(self.models)
            ),
            slots=tuple(f"s{i}" for i in range(PLACES)),
            slot_node=(0,) * PLACES,
            nodes=("n0",),
            node_bytes_per_us=(None,),
        )


def _route(depth: Depth) -> Route:
    times_us = [TICK_US * ticks for ticks in depth]
    stages = tuple(
        StageTable(i, i + 1, tuple(range(PLACES)), (us,), (us,), 0) for i, us in enumerate(times_us)
    )
    return Route(f"depth{len(depth)}", 1, stages, (0,))


def best_cut(blocks: Sequence[int], depth: int) -> Depth:
    """Of least pace; ticks of its stages."""
    sums = [0, *np.cumsum(blocks).tolist()]
    cuts = (
        tuple(sums[b] - sums[a] for a, b in pairwise((0, *inner, len(blocks))))
        for inner in combinations(range(1, len(blocks)), depth - 1)
    )
    return min(cuts, key=lambda cut: (max(cut), cut))


def small_instance(seed: int, few_items: bool = False) -> Instance:
    """Equal arguments, equal instance."""
    rng = np.random.default_rng([14, seed, few_items])
    models = []
    for _ in range(2):
        blocks = rng.integers(1, 4, rng.integers(3, 7)).tolist()
        models.append(tuple(best_cut(blocks, d) for d in range(1, min(PLACES, len(blocks)) + 1)))
    count = int(rng.integers(4, 7))
    of = rng.integers(2, size=count).tolist()
    if few_items:
        items = rng.integers(1, 6, size=count).tolist()
    else:
        centre = np.log(MEAN_ITEMS) - SIGMA**2 / 2
        items = np.maximum(1, np.rint(rng.lognormal(centre, SIGMA, count))).astype(int).tolist()
    work = [models[m][0][0] * n for m, n in zip(of, items, strict=True)]
    span = sum(work) / PLACES / LOADS[seed % len(LOADS)]
    arrived = np.sort(rng.uniform(0, span, count)).astype(int).tolist()
    slo = round(max(work) * SLOS[seed // len(LOADS) % len(SLOS)])
    return Instance(
        models=tuple(models),
        requests=tuple(
            Request(model=m, items=n, arrived_at=at, deadline_at=at + slo)
            for m, n, at in zip(of, items, arrived, strict=True)
            if min(sum(depth) + (n - 1) * max(depth) for depth in models[m]) <= slo
        ),
    )


def in_time(
    instance: Instance,
    policy: Policy,
    chosen: Sequence[int] | None = None,
    priorities: Sequence[int] | None = None,
) -> list[bool]:
    """Whether each of the chosen requests is answered in time where only they arrive.

    Args:
        chosen: indices of requests; None: all.
        priorities: of the chosen; None: all have the same.
    """
    requests = [instance.requests[i] for i in (chosen or range(len(instance.requests)))]

    def column(name: str) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
        return np.array([getattr(each, name) for each in requests], dtype=np.int64)

    items = column("items")
    offered = Offered(
        arrived_at_us=TICK_US * column("arrived_at"),
        model=column("model"),
        deadline_at_us=TICK_US * column("deadline_at"),
        priority=np.array(priorities or [LOW] * len(requests), dtype=np.int64),
    )
    found = run(instance.topology(), policy, of_items(offered, items))
    first = np.cumsum(items) - items
    whole = np.minimum.reduceat(found.ended_at_us, first) >= 0
    last = np.maximum.reduceat(found.ended_at_us, first)
    return list((whole & (last <= offered.deadline_at_us)).tolist())
