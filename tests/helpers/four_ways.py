"""Sessions over small random plans, and ways to run them that must give the same events."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from hashlib import sha256

import msgspec
import numpy as np

from headrace.dispatch.policies import POLICIES
from headrace.dispatch.topology import StageTable, Topology
from headrace.domain.events import AnyEvent
from headrace.domain.plan import MachineLoad
from headrace.domain.request import Request
from headrace.simulation.compiled import Offered, SlotChange, run
from headrace.simulation.driver import JitteredDurations, exact_durations
from helpers.sim import Sim
from helpers.topologies import (
    make_route,
    random_requests,
    random_rounds_topology,
    random_shared_topology,
    random_topology,
)

TICK_US = 2_000
"""Of sessions with many events at equal instants."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Trace:
    """One session: what it runs on, what comes, and what fails when."""

    topology: Topology
    policy: str
    requests: tuple[Request, ...]
    changes: tuple[SlotChange, ...]
    """In order of time."""
    jitter_seed: int | None
    """None: every batch takes its median."""


def random_trace(seed: int, requests: int = 40) -> Trace:
    """Policies, ties, lost slots and jitter in turn, so that few seeds have them all."""
    rng = np.random.default_rng(seed)
    *others, last = POLICIES
    # Six of every 48 seeds for each policy; those of the last come at the end.
    policy = last if seed % 48 >= 42 else others[(seed + 4) % len(others)]
    topology = random_shared_topology(rng) if seed % 5 == 4 else random_topology(rng)
    if policy == "rounds" and seed % 5 != 4:
        topology = random_rounds_topology(rng)
    if POLICIES[policy].parameters.get("rule") is not None and seed % 4:
        topology = _with_loads(topology, rng)
    offered = random_requests(topology, rng, count=requests, load=float(rng.choice([0.5, 1, 2])))
    jittered = bool(rng.random() < 0.5)
    if not jittered:
        topology = _on_ticks(topology)
        offered = [_on_tick(request) for request in offered]
    changes = [
        change
        for _ in range(int(rng.integers(3)))
        for change in random_fault(topology, offered[-1].arrived_at_us + 2, 60_000, rng)
    ]
    return Trace(
        topology=topology,
        policy=policy,
        requests=tuple(offered),
        changes=tuple(sorted(changes, key=lambda change: change.at_us)),
        jitter_seed=seed if jittered else None,
    )


def random_fault(
    topology: Topology, end_us: int, longest_us: int, rng: np.random.Generator
) -> list[SlotChange]:
    """A slot that is lost before `end_us`, and back less than `longest_us` later."""
    slot, lost_at_us = int(rng.integers(len(topology.slots))), int(rng.integers(1, end_us))
    back_at_us = lost_at_us + int(rng.integers(1, longest_us))
    return [
        SlotChange(at_us=lost_at_us, slot=slot, gained=False),
        SlotChange(at_us=back_at_us, slot=slot, gained=True),
    ]


def _on_tick(request: Request) -> Request:
    arrived_at_us = request.arrived_at_us // TICK_US * TICK_US
    deadline_at_us = -(-request.deadline_at_us // TICK_US) * TICK_US
    return msgspec.structs.replace(
        request, arrived_at_us=arrived_at_us, deadline_at_us=deadline_at_us
    )


def _on_ticks(topology: Topology) -> Topology:
    """All execution times whole ticks, and so all that is added up from them."""

    def whole(times_us: tuple[int, ...]) -> tuple[int, ...]:
        return tuple(-(-us // TICK_US) * TICK_US for us in times_us)

    def stage_on_ticks(stage: StageTable) -> StageTable:
        return replace(stage, p50_us=whole(stage.p50_us), p99_us=whole(stage.p99_us))

    models = []
    for model in topology.models:
        routes = [
            make_route(*map(stage_on_ticks, route.stages), name=route.name)
            for route in model.routes
        ]
        loaded = [
            replace(route, load=old.load) for route, old in zip(routes, model.routes, strict=True)
        ]
        models.append(replace(model, routes=tuple(loaded)))
    return replace(topology, models=tuple(models))


def _with_loads(topology: Topology, rng: np.random.Generator) -> Topology:
    """Every route's machines are planned to be given some part of what they can take."""
    models = []
    for model in topology.models:
        routes = []
        for route in model.routes:
            first = route.stages[0]
            full_rps = 1e6 * route.batch_size / first.p50_us[-1]
            machines = float(len(first.slots))
            if machines == 1 and rng.random() < 0.5:
                machines = float(rng.uniform(0.2, 0.9))
            load = MachineLoad(
                machines=machines,
                rate_rps=full_rps * machines,
                machine_rps=full_rps * min(1.0, machines),
                remaining_rps=full_rps * machines,
                collect_us=int(first.p50_us[-1] * rng.uniform(0.5, 1.5)),
                worst_case_us=0,
                cost_per_hour=0.0,
            )
            routes.append(replace(route, load=load))
        models.append(replace(model, routes=tuple(routes)))
    return replace(topology, models=tuple(models))


# -- ways to run it -------------------------------------------------------------------------------


def by_dispatcher(trace: Trace) -> list[AnyEvent]:
    """The Dispatcher on SimClock and SimDriver."""
    sim = Sim(
        trace.topology,
        policy=trace.policy,
        durations=exact_durations
        if trace.jitter_seed is None
        else JitteredDurations(np.random.default_rng(trace.jitter_seed)),
    )
    for change in trace.changes:
        report = sim.dispatcher.on_slot_gained if change.gained else sim.dispatcher.on_slot_lost
        sim.clock.call_at(change.at_us, partial(report, change.slot))
    return sim.run(trace.requests)


def by_loop(trace: Trace) -> list[AnyEvent]:
    """The simulator's loop; request ids are places in `trace.requests`."""

    def column(name: str) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
        return np.array([getattr(request, name) for request in trace.requests], dtype=np.int64)

    log: list[AnyEvent] = []
    seed = trace.jitter_seed
    run(
        trace.topology,
        trace.policy,
        Offered(
            arrived_at_us=column("arrived_at_us"),
            model=column("model"),
            deadline_at_us=column("deadline_at_us"),
            priority=column("priority"),
        ),
        rng=None if seed is None else np.random.default_rng(seed),
        changes=trace.changes,
        log=log,
    )
    return log


WAYS: dict[str, Callable[[Trace], list[AnyEvent]]] = {
    "dispatcher": by_dispatcher,
    "loop": by_loop,
}


def digest(events: Sequence[AnyEvent]) -> str:
    """Equal for equal events in the same order."""
    return sha256(msgspec.json.encode(events)).hexdigest()[:16]
