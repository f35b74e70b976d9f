"""Small random topologies of depths, requests of many items on them, and ways to run both alike."""

from collections.abc import Sequence
from functools import partial
from itertools import accumulate

import numpy as np

from headrace.dispatch.policies import MALLEABLE, Policy
from headrace.dispatch.topology import ModelRoutes, Route, Topology
from headrace.domain.events import AnyEvent
from headrace.domain.request import Request
from headrace.simulation.compiled import Offered, run
from headrace.simulation.driver import JitteredDurations, exact_durations
from helpers.four_ways import TICK_US, Trace, random_fault
from helpers.sim import Sim
from helpers.topologies import make_route, make_stage

Items = tuple[Request, ...]
"""One request: its items."""


def depth_route(
    times_us: Sequence[int],
    kinds: Sequence[Sequence[int]],
    *,
    batch_size: int = 1,
    item_bytes: int = 0,
) -> Route:
    """A depth whose stage i takes `times_us[i]` on any slot of `kinds[i]`; between stages go
    `item_bytes` for each item."""
    stages = [
        make_stage(
            slots,
            [us + us * b // 2 for b in range(batch_size)],
            input_bytes=item_bytes if number else 0,
        )
        for number, (us, slots) in enumerate(zip(times_us, kinds, strict=True))
    ]
    return make_route(*stages, name=f"depth{len(stages)}")


def depths_topology(
    *models: Sequence[Route], slots: int, slo_us: int = 1_000_000, slot_node: Sequence[int] = ()
) -> Topology:
    """One model per argument: its routes, the shallowest first."""
    placed = tuple(slot_node) or (0,) * slots
    nodes = max(placed) + 1
    return Topology(
        models=tuple(
            ModelRoutes(name=f"m{i}", slo_us=slo_us, routes=tuple(routes), max_items=1_000)
            for i, routes in enumerate(models)
        ),
        slots=tuple(f"s{i}" for i in range(slots)),
        slot_node=placed,
        nodes=tuple(f"n{i}" for i in range(nodes)),
        node_bytes_per_us=((5.0,) * nodes if nodes > 1 else (None,)),
    )


def equal_depths(
    block_us: int, blocks: int, slots: int, *, models: int = 1, depths: int = 0
) -> Topology:
    """Models of equal blocks, which slots of one kind share as evenly as can be."""
    routes = [
        depth_route(
            [block_us * (blocks * (i + 1) // d - blocks * i // d) for i in range(d)],
            [range(slots)] * d,
        )
        for d in range(1, (depths or blocks) + 1)
    ]
    return depths_topology(*[routes] * models, slots=slots)


def items_of(
    first_id: int, at_us: int, deadline_at_us: int, items: int, *, model: int = 0, priority: int = 0
) -> Items:
    return tuple(
        Request(
            id=first_id + i,
            model=model,
            arrived_at_us=at_us,
            deadline_at_us=deadline_at_us,
            priority=priority,
        )
        for i in range(items)
    )


def _random_models(rng: np.random.Generator, kinds: Sequence[range]) -> list[list[Route]]:
    models = []
    for _ in range(int(rng.integers(1, 4))):
        total_us = int(rng.integers(4_000, 40_000))
        batch_size = int(rng.choice([1, 1, 3]))
        item_bytes = int(rng.choice([0, 5_000, 20_000]))  # up to 4 ms of a link
        routes = []
        used = [0] * len(kinds)
        for depth in range(1, int(rng.integers(2, 6))):
            at = [int(rng.integers(len(kinds))) for _ in range(depth)]
            used = [at.count(kind) for kind in range(len(kinds))]
            if any(count > len(slots) for count, slots in zip(used, kinds, strict=True)):
                break
            parts = rng.dirichlet(np.full(depth, 8.0))
            times = [max(500, int(total_us * part)) for part in parts]
            slots = [kinds[kind] for kind in at]
            routes.append(depth_route(times, slots, batch_size=batch_size, item_bytes=item_bytes))
        models.append(routes)
    return models


def malleable_trace(seed: int, requests: int = 30) -> tuple[Trace, tuple[Items, ...]]:
    """Rules, kinds of slots, ties, lost slots and jitter in turn."""
    rng = np.random.default_rng(seed)
    name = list(MALLEABLE)[seed % len(MALLEABLE)] if seed % 2 else "malleable"
    sizes = rng.integers(2, 7, size=1 if rng.random() < 0.7 else 2).tolist()
    ends = list(accumulate(sizes))
    kinds = [range(end - size, end) for size, end in zip(sizes, ends, strict=True)]
    slots = sum(sizes)
    topology = depths_topology(
        *_random_models(rng, kinds),
        slots=slots,
        slot_node=rng.integers(0, 2, size=slots).tolist() if rng.random() < 0.3 else (),
    )
    jittered = bool(rng.random() < 0.4)
    offered = _random_items(topology, rng, requests, ticks=not jittered)
    end_us = offered[-1][0].arrived_at_us + 2
    changes = [
        change
        for _ in range(int(rng.integers(4)))
        for change in random_fault(topology, end_us, 200_000, rng)
    ]
    trace = Trace(
        topology=topology,
        policy=name,
        requests=tuple(item for items in offered for item in items),
        changes=tuple(sorted(changes, key=lambda change: change.at_us)),
        jitter_seed=seed if jittered else None,
    )
    return trace, offered


def _random_items(
    topology: Topology, rng: np.random.Generator, count: int, *, ticks: bool
) -> tuple[Items, ...]:
    """Poisson arrivals of log-normal numbers of items around what the slots can take."""
    mean_us = np.mean(
        [sum(s.p50_us[0] for s in model.routes[0].stages) for model in topology.models]
    )
    mean_items = float(rng.choice([1.0, 6.0]))
    load = float(rng.choice([0.5, 1.0, 2.0]))
    gap_us = mean_us * mean_items / len(topology.slots) / load
    offered: list[Items] = []
    at_us, number = 0, 0
    for _ in range(count):
        at_us += int(rng.exponential(gap_us))
        items = max(1, round(mean_items * rng.lognormal(-0.2, 0.6)))
        model = int(rng.integers(len(topology.models)))
        one_us = sum(s.p50_us[0] for s in topology.models[model].routes[0].stages)
        slo_us = int(one_us * items * rng.uniform(0.4, 3.0)) + 1
        instant = at_us // TICK_US * TICK_US if ticks else at_us
        priority = int(rng.choice([0, 1]))
        offered.append(
            items_of(number, instant, instant + slo_us, items, model=model, priority=priority)
        )
        number += items
    return tuple(offered)


def by_items_dispatcher(
    trace: Trace, offered: Sequence[Items], policy: Policy | None = None
) -> list[AnyEvent]:
    """The Dispatcher on SimClock and SimDriver."""
    exact = trace.jitter_seed is None
    sim = Sim(
        trace.topology,
        policy=policy or trace.policy,
        durations=exact_durations
        if exact
        else JitteredDurations(np.random.default_rng(trace.jitter_seed)),
    )
    for change in trace.changes:
        report = sim.dispatcher.on_slot_gained if change.gained else sim.dispatcher.on_slot_lost
        sim.clock.call_at(change.at_us, partial(report, change.slot))
    return sim.run_items(offered)


def by_items_loop(
    trace: Trace, offered: Sequence[Items], policy: Policy | None = None
) -> list[AnyEvent]:
    """The simulator's loop."""
    log: list[AnyEvent] = []
    seed = trace.jitter_seed
    run(
        trace.topology,
        policy or trace.policy,
        offered_items(offered),
        rng=None if seed is None else np.random.default_rng(seed),
        changes=trace.changes,
        log=log,
    )
    return log


ITEM_WAYS = {"dispatcher": by_items_dispatcher, "loop": by_items_loop}


def offered_items(offered: Sequence[Items]) -> Offered:
    flat = [item for items in offered for item in items]

    def column(name: str) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
        return np.array([getattr(item, name) for item in flat], dtype=np.int64)

    return Offered(
        arrived_at_us=column("arrived_at_us"),
        model=column("model"),
        deadline_at_us=column("deadline_at_us"),
        priority=column("priority"),
        items=np.repeat([len(items) for items in offered], [len(items) for items in offered]),
    )
