"""Sessions of models that come and go, from a seed, and what must hold of their events."""

from collections import defaultdict
from dataclasses import replace

import numpy as np

from headrace.dispatch.policies import PROVISIONING
from headrace.dispatch.topology import Topology
from headrace.domain.events import (
    Answered,
    AnyEvent,
    Arrived,
    Dispatched,
    Dropped,
    Evicted,
    Loaded,
    LoadFailed,
    Loading,
    Ran,
    SlotLost,
)
from headrace.domain.request import Request
from headrace.start_times import Start
from helpers.four_ways import Trace, random_fault
from helpers.topologies import make_route, make_stage, make_topology


def provisioned_topology(rng: np.random.Generator) -> Topology:
    """Two to twelve models, one to three slots with memory for some of them."""
    slots, models = int(rng.integers(1, 4)), int(rng.integers(2, 13))
    tick = 1_000 if rng.random() < 0.5 else 1
    routes, starts = [], []
    for _ in range(models):
        warm_us = int(rng.integers(2, 12)) * 1_000 + int(rng.integers(0, 900)) // tick * tick
        exec_us = warm_us + int(rng.integers(0, 3)) * 1_000
        load_us = int(rng.integers(1, 50)) * 1_000
        last_us = load_us + int(rng.integers(0, exec_us + 1)) // tick * tick
        stage = make_stage(range(slots), [warm_us], p99_us=[warm_us * 3 // 2])
        routes.append([make_route(stage)])
        starts.append(
            Start(
                load_us,
                exec_us,
                last_us,
                0,
                int(rng.integers(1, 5)),
                bool(rng.random() < 0.3),
                load99_us=load_us * 3 // 2,
            )
        )
    topology = make_topology(*routes, slo_us=int(rng.integers(30, 200)) * 1_000)
    copies = bool(rng.random() < 0.75)
    helped = copies and slots > 1
    helpers = tuple((slot + 1) % slots if helped else -1 for slot in range(slots))
    shared = copies and rng.spawn(1)[0].random() < 0.5
    links = tuple(slot - slot % 2 if shared else slot for slot in range(slots))
    return replace(
        topology,
        models=tuple(
            replace(model, start=start)
            for model, start in zip(topology.models, starts, strict=True)
        ),
        memory_bytes=tuple(int(rng.integers(4, 13)) for _ in range(slots)),
        copy_streams=(copies,) * slots,
        helpers=helpers,
        links=links,
    )


def provisioned_trace(seed: int, requests: int = 60, faults: bool = True) -> Trace:
    rng = np.random.default_rng(seed)
    topology = provisioned_topology(rng)
    gap_us = 10_000 / float(rng.choice([0.3, 1.0, 3.0])) / len(topology.slots)
    shares = rng.random(len(topology.models)) ** 2
    at_us, offered = 0, []
    for number in range(requests):
        at_us += int(rng.exponential(gap_us)) // 500 * 500
        model = int(rng.choice(len(shares), p=shares / shares.sum()))
        patience_us = int(topology.models[model].slo_us * rng.choice([0.5, 1.0, 1.0, 3.0]))
        offered.append(
            Request(
                id=number,
                model=model,
                arrived_at_us=at_us,
                deadline_at_us=at_us + patience_us,
                priority=int(rng.integers(0, 2)),
            )
        )
    changes = [
        change
        for _ in range(int(rng.integers(3)) if faults else 0)
        for change in random_fault(topology, at_us + 2, 60_000, rng)
    ]
    return Trace(
        topology=topology,
        policy=[*PROVISIONING, "provision"][seed % (len(PROVISIONING) + 1)],
        requests=tuple(offered),
        changes=tuple(sorted(changes, key=lambda change: change.at_us)),
        jitter_seed=seed if rng.random() < 0.4 else None,
    )


def assert_memory_is_kept(events: list[AnyEvent], topology: Topology) -> None:
    """No slot ever holds more than fits, no batch has run of a model that is not there, none leaves
    while a batch of it is promised, and a link brings one model at a time, whichever of the slots
    that share it."""
    sizes = [model.start.held_bytes for model in topology.models if model.start]
    there: dict[int, set[int]] = defaultdict(set)
    on_way: dict[int, tuple[int, int]] = {}
    promised: dict[int, tuple[int, int]] = {}
    of_request: dict[int, int] = {}
    for event in events:
        match event:
            case Loading(_, load, slot, model):
                assert slot not in on_way, "a slot has one load at a time"
                assert model not in there[slot]
                on_way[slot] = (load, model)
                there[slot].add(model)
                held = sum(sizes[each] for each in there[slot])
                assert held <= topology.memory_bytes[slot], "the memory is kept"
                links = [_links(topology, each, model) for each, (_, model) in on_way.items()]
                assert len(set().union(*links)) == sum(map(len, links)), "links are not shared"
            case Loaded(_, load, slot, model) | LoadFailed(_, load, slot, model):
                assert on_way.pop(slot) == (load, model)
                if isinstance(event, LoadFailed):
                    there[slot].discard(model)
            case Evicted(_, slot, model):
                assert model in there[slot]
                assert on_way.get(slot, (0, -1))[1] != model
                assert (slot, model) not in promised.values(), "what is promised stays"
                there[slot].discard(model)
            case Dispatched():
                for request in event.requests:  # a batch that was lost is dispatched anew
                    promised.pop(of_request.get(request, -1), None)
                    of_request[request] = event.batch
                promised[event.batch] = (event.path[0].slot, event.model)
            case Dropped(_, request):
                promised.pop(of_request.get(request, -1), None)
            case Ran(_, batch, _, slot):
                assert promised[batch][0] == slot
                model = promised.pop(batch)[1]
                assert model in there[slot], "it ran where its model was"
                assert on_way.get(slot, (0, -1))[1] != model, "all of its weights were there"
            case SlotLost(_, slot):
                there[slot].clear()
                on_way.pop(slot, None)
                for batch in [each for each, at in promised.items() if at[0] == slot]:
                    del promised[batch]


def _links(topology: Topology, slot: int, model: int) -> set[int]:
    start = topology.models[model].start
    assert start is not None
    helper = topology.helpers[slot] if start.uses_helper else -1
    return {topology.links[each] for each in (slot, helper) if each >= 0}


def late_requests(events: list[AnyEvent]) -> list[int]:
    """Answered behind their deadlines."""
    due = {event.request: event.deadline_at_us for event in events if isinstance(event, Arrived)}
    return [
        event.request
        for event in events
        if isinstance(event, Answered) and event.at_us > due[event.request]
    ]


def promises_hold(trace: Trace) -> bool:
    """Whether nothing keeps a policy that promises from keeping its word."""
    return trace.jitter_seed is None and not trace.changes and trace.policy.startswith("provision")
