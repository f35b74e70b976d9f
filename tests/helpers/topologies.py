"""Topologies made by hand or from a seed, without a planner, and checks on event logs."""

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise

import numpy as np

from headrace.dispatch.topology import ModelRoutes, Route, StageTable, Topology
from headrace.domain.events import (
    Answered,
    AnyEvent,
    Arrived,
    Dispatched,
    Dropped,
    Ran,
    Transferred,
)
from headrace.domain.request import Request


def make_stage(
    slots: Sequence[int],
    p50_us: Sequence[int],
    *,
    p99_us: Sequence[int] | None = None,
    input_bytes: int = 0,
) -> StageTable:
    return StageTable(
        first_block=0,
        end_block=1,
        slots=tuple(slots),
        p50_us=tuple(p50_us),
        p99_us=tuple(p99_us or p50_us),
        input_bytes=input_bytes,
    )


def make_route(*stages: StageTable, name: str = "p0") -> Route:
    size = len(stages[0].p50_us)
    slack = tuple(sum(s.p99_us[b] - s.p50_us[b] for s in stages) for b in range(size))
    return Route(name=name, batch_size=size, stages=stages, slack_us=slack)


def make_topology(
    *models: Sequence[Route],
    slo_us: int | Sequence[int] = 100_000,
    slot_node: Sequence[int] | None = None,
    bytes_per_us: float | None = None,
) -> Topology:
    """One model per argument, each a list of routes. All slots on one node unless stated."""
    slots = 1 + max(
        slot for routes in models for route in routes for s in route.stages for slot in s.slots
    )
    placed = tuple(slot_node) if slot_node is not None else (0,) * slots
    nodes = max(placed) + 1
    slos = [slo_us] * len(models) if isinstance(slo_us, int) else slo_us
    return Topology(
        models=tuple(
            ModelRoutes(name=f"m{i}", slo_us=slo, routes=tuple(routes))
            for i, (routes, slo) in enumerate(zip(models, slos, strict=True))
        ),
        slots=tuple(f"n{node}/s{i}" for i, node in enumerate(placed)),
        slot_node=placed,
        nodes=tuple(f"n{i}" for i in range(nodes)),
        node_bytes_per_us=(bytes_per_us,) * nodes,
    )


def random_topology(rng: np.random.Generator) -> Topology:
    """One or two models, one or two pipelines each, one to three stages, shared links."""
    slot_node: list[int] = []
    models: list[list[Route]] = []
    slos: list[int] = []
    for _ in range(rng.integers(1, 3)):
        routes = []
        for number in range(rng.integers(1, 3)):
            size = int(rng.integers(1, 5))
            stages = []
            for position in range(rng.integers(1, 4)):
                pool = range(len(slot_node), len(slot_node) + int(rng.integers(1, 4)))
                slot_node.extend(int(node) for node in rng.integers(0, 3, size=len(pool)))
                first = int(rng.integers(1_000, 9_000))
                p50 = [first + int(first * 0.6) * b for b in range(size)]
                stages.append(
                    make_stage(
                        list(pool),
                        p50,
                        p99_us=[int(us * 1.2) for us in p50],
                        input_bytes=int(rng.integers(0, 30_000)) if position else 0,
                    )
                )
            routes.append(make_route(*stages, name=f"p{number}"))
        models.append(routes)
        slowest = max(sum(s.p99_us[-1] for s in route.stages) for route in routes)
        slos.append(int(slowest * rng.uniform(1.5, 4.0)) + 10_000)
    return make_topology(
        *models, slo_us=slos, slot_node=slot_node, bytes_per_us=float(rng.uniform(5, 50))
    )


def random_shared_topology(rng: np.random.Generator) -> Topology:
    """Two to four models of one stage each take turns on one to three slots, some with duty cycles;
    the last model has all slots, the others some of them."""
    slots = int(rng.integers(1, 4))
    models, slos = [], []
    count = int(rng.integers(2, 5))
    for number in range(count):
        every = number == count - 1
        pool = np.flatnonzero(rng.random(slots) < 0.7) if not every else np.arange(slots)
        size, first = int(rng.integers(1, 6)), int(rng.integers(1_000, 9_000))
        p50 = [first + int(first * rng.choice([0.2, 0.9])) * b for b in range(size)]
        stage = make_stage(
            pool.tolist() or [0], sorted(p50), p99_us=[int(us * 1.2) for us in sorted(p50)]
        )
        models.append([make_route(stage)])
        slos.append(int(max(p50) * rng.uniform(1.5, 8.0)) + 10_000)
    topology = make_topology(*models, slo_us=slos)
    if rng.random() < 0.5:
        return topology
    return replace(topology, slot_duty_us=(int(rng.integers(10_000, 40_000)),) * slots)


def random_cut_topology(rng: np.random.Generator) -> Topology:
    """One or two models of two or three stages, and one or two of one stage, on two or three
    slots; so most take turns with a stage that others come to later."""
    slots = int(rng.integers(2, 4))
    models, slos = [], []
    for stages in [*rng.integers(2, 4, size=rng.integers(1, 3)), *[1] * int(rng.integers(1, 3))]:
        size = int(rng.integers(1, 4))
        route, path_us = [], 0
        for slot in rng.permutation(slots).tolist()[:stages]:
            first = int(rng.integers(1_000, 6_000))
            p50 = [first + first // 2 * b for b in range(size)]
            route.append(make_stage([slot], p50, p99_us=[int(us * 1.1) for us in p50]))
            path_us += p50[-1]
        models.append([make_route(*route)])
        slos.append(int(path_us * rng.uniform(2.0, 6.0)))
    return make_topology(*models, slo_us=slos)


def random_rounds_topology(rng: np.random.Generator) -> Topology:
    """Two to four modules take turns on one slot, in one or two batches each; some have machines of
    their own before it, and some follow the first."""
    routes, slos = [], []
    slots = 1
    for _ in range(int(rng.integers(2, 5))):
        size, first = int(rng.integers(2, 6)), int(rng.integers(1_000, 6_000))
        p50 = [first + first // 3 * b for b in range(size)]
        mine = []
        if rng.random() < 0.5:
            machines = int(rng.integers(1, 3))
            mine.append(make_route(make_stage(range(slots, slots + machines), p50), name="own"))
            slots += machines
        mine += [
            make_route(make_stage([0], p50[:b]), name=f"turn{b}")
            for b in (size, 2)[: 1 + slots % 2]
        ]
        routes.append(mine)
        slos.append(int(p50[-1] * rng.uniform(4.0, 12.0)) + 10_000)
    topology = make_topology(*routes, slo_us=slos)
    models = [topology.models[0]] + [
        replace(model, follows=(0,), lead_us=int(rng.choice([0, 300])))
        if rng.random() < 0.5
        else model
        for model in topology.models[1:]
    ]
    duty_us = sum(r.stages[0].p50_us[-1] for mine in routes for r in mine if r.name != "own")
    return replace(
        topology, models=tuple(models), slot_duty_us=(duty_us, *(None,) * (len(topology.slots) - 1))
    )


_SLOS = (0.5, 1.0, 1.0, 2.0)
_PRIORITIES = (0, 0, 0, 1)
"""Looked up: `rng.choice` of a list takes the same numbers, and ten times as long."""


def random_requests(
    topology: Topology, rng: np.random.Generator, *, count: int = 40, load: float = 1.0
) -> list[Request]:
    """Poisson arrivals near the topology's capacity, some with timeouts and priorities."""
    capacity = sum(
        min(len(s.slots) * route.batch_size / s.p50_us[-1] for s in route.stages)
        for model in topology.models
        for route in model.routes
    )
    at_us = np.cumsum(rng.exponential(1 / (capacity * load), size=count)).astype(int)
    requests = []
    for number, arrived in enumerate(at_us.tolist()):
        model = int(rng.integers(len(topology.models)))
        slo_us = topology.models[model].slo_us
        requests.append(
            Request(
                id=number,
                model=model,
                arrived_at_us=arrived,
                deadline_at_us=arrived + int(slo_us * _SLOS[rng.integers(4)]),
                priority=_PRIORITIES[rng.integers(4)],
            )
        )
    return requests


def assert_each_request_ended_once(events: Sequence[AnyEvent]) -> None:
    arrived = [e.request for e in events if isinstance(e, Arrived)]
    ended = [e.request for e in events if isinstance(e, Answered | Dropped)]
    assert sorted(arrived) == sorted(ended)
    assert len(set(ended)) == len(ended)


def assert_runs_as_logged(events: Sequence[AnyEvent]) -> None:
    """Every stage runs, and its tensors arrive, on the slot that its batch's log said last.

    Policies that choose a slot as each stage begins say nothing of later ones.
    """
    said: dict[tuple[int, int], int] = {}
    for event in events:
        if isinstance(event, Dispatched):
            path = enumerate(event.path, event.first_stage)
            said.update({(event.batch, stage): hop.slot for stage, hop in path})
        elif isinstance(event, Ran):
            assert said.get((event.batch, event.stage), event.slot) == event.slot, event
        elif isinstance(event, Transferred):
            assert said.get((event.batch, event.stage), event.to_slot) == event.to_slot, event


def assert_exclusive(events: Sequence[AnyEvent], topology: Topology) -> None:
    """No slot runs two batches at once; no link direction carries two transfers at once."""
    busy: dict[tuple[str, int], list[tuple[int, int]]] = {}
    for event in events:
        if isinstance(event, Ran):
            busy.setdefault(("slot", event.slot), []).append((event.started_at_us, event.at_us))
        elif isinstance(event, Transferred):
            span = event.started_at_us, event.at_us
            busy.setdefault(("up", topology.slot_node[event.from_slot]), []).append(span)
            busy.setdefault(("down", topology.slot_node[event.to_slot]), []).append(span)
    for resource, spans in busy.items():
        spans.sort()
        for (_, ended), (started, _) in pairwise(spans):
            assert started >= ended, f"{resource} is used twice at {started}"
