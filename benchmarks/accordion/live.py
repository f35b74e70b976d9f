"""Requests of many items served live: real networks on cores, and 64 emulated places.

    python -m benchmarks.accordion.live cores [--changes 1000] [--side 32]
    python -m benchmarks.accordion.live places [--stream 5] [--slo moderate] [--faster 5]

`cores` sends bursts of requests to VGG16 with random weights on two real workers until depths have
changed so often, compares every answer with the whole network's, and prints how long a change
takes: from the decision until the request's first item runs on its new places, less what it waits
for the item that its first place had under way. Targets: none wrong or lost, p99 <= 20 ms.

`places` sends one of the study's streams to 64 emulated slots in one process, and the same requests
to the simulator. Targets: violations within 1.5 points, none unanswered. `--faster n` divides all
times by n, so that minutes hold n times as many of the stream's.
"""

import argparse
import asyncio
import os
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from benchmarks.accordion.networks import MODELS, profiles
from benchmarks.accordion.real_networks import Network, vgg16
from benchmarks.accordion.streams import SLOS, QueryStream, query_stream
from benchmarks.accordion.table1 import study_cluster
from msgspec.structs import replace

from headrace.catalog.stage_files import stage_path
from headrace.domain.cluster import Cluster, DeviceType, Node
from headrace.domain.events import AnyEvent, Dispatched, Opened, Placed, Ran
from headrace.domain.plan import Plan
from headrace.domain.problem import Demand, Items, PlanOptions, Problem
from headrace.domain.profile import Profile
from headrace.domain.tensors import TensorSpec
from headrace.executors.onnx_session import open_session
from headrace.metrics import run_report
from headrace.planning import solve
from headrace.serving.engine.engine import Engine
from headrace.serving.engine.inference import Answer, Inference, Refusal
from headrace.serving.engine.served_plan import ServedPlan, ServiceOptions
from headrace.simulation.offered.arrivals import Arrival
from headrace.simulation.session import simulate

WRONG = 1e-4
"""Of an answer, beyond which it is not the whole network's."""
PICTURES = 16
BURST = 4
MOST_ITEMS = 8
UNHURRIED_US = 120_000_000
TIMED_RUNS = 9


def planned(
    cluster: Cluster, found: dict[str, Profile], demands: Sequence[Demand], max_items: int
) -> Plan:
    """
    Raises:
        SystemExit: there is no plan.
    """
    problem = Problem(
        cluster=cluster,
        demands=tuple(demands),
        profiles=found,
        options=PlanOptions(planner="malleable", margin=0.0, max_items=max_items, max_depth=None),
    )
    result = solve(problem)
    if result.plan is None:
        raise SystemExit(result.refusal)
    return result.plan


# -- two cores ------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Changes:
    """Of one run on real workers."""

    requests: int
    items: int
    wrong: int
    lost: int
    decided: int
    """Changes of depth."""
    took_us: tuple[int, ...]
    """Of those after which an item was sent."""


def timed_blocks(network: Network, folder: Path) -> list[int]:
    """Median microseconds of each block on one core, as a stage of its own."""
    path = folder / f"{network.name}.onnx"
    rough = network.profile(path, [1] * len(network.cuts))
    rng = np.random.default_rng(0)
    found = []
    for block in range(len(network.cuts)):
        session = open_session(stage_path(rough, folder, block, block + 1))
        (spec,) = rough.inputs if block == 0 else rough.blocks[block - 1].cut
        feeds = {spec.name: rng.standard_normal((1, *spec.item_shape)).astype(np.float32)}
        took = []
        for _ in range(TIMED_RUNS):
            began_ns = time.perf_counter_ns()
            session.run(None, feeds)
            took.append(time.perf_counter_ns() - began_ns)
        found.append(max(1, round(float(np.median(took)) / 1_000)))
    return found


async def _bursts(
    engine: Engine, events: list[AnyEvent], wanted: Any, pictures: Any, changes: int
) -> tuple[int, int, int, int]:
    """Requests, items, wrong and lost ones."""
    rng = np.random.default_rng(1)
    requests = items = wrong = lost = 0
    while len(changes_in(events)) < changes:
        burst = []
        for _ in range(int(rng.integers(2, BURST + 1))):
            which = rng.integers(0, PICTURES, int(rng.integers(2, MOST_ITEMS + 1)))
            burst.append((which, _sent(engine, "vgg16", (pictures[which],), len(which))))
            await asyncio.sleep(float(rng.exponential(0.02)))
        for which, asked in burst:
            answer = await asked
            requests, items = requests + 1, items + len(which)
            if not isinstance(answer, Answer):
                lost += 1
                continue
            found = np.frombuffer(answer.outputs[0], np.float32).reshape(len(which), -1)
            wrong += int(np.abs(found - wanted[which]).max() > WRONG)
    return requests, items, wrong, lost


def _sent(
    engine: Engine,
    model: str,
    rows: tuple[Any, ...],
    items: int,
    timeout_us: int | None = None,
    priority: int = 0,
) -> "asyncio.Future[Answer | Refusal]":
    done: asyncio.Future[Answer | Refusal] = asyncio.get_running_loop().create_future()
    inputs = tuple(np.ascontiguousarray(each).data.cast("B") for each in rows)
    engine.submit(
        Inference(
            model=model,
            items=items,
            inputs=inputs,
            on_done=done.set_result,
            timeout_us=timeout_us,
            priority=priority,
        )
    )
    return done


def changes_in(events: Sequence[AnyEvent]) -> list[tuple[int, Placed]]:
    """(index, event) of decisions that give a request under way another number of places."""
    depths: dict[int, int] = {}
    found = []
    for index, event in enumerate(events):
        if isinstance(event, Placed):
            before = depths.get(event.request, 0)
            if event.slots and before not in (0, len(event.slots)):
                found.append((index, event))
            depths[event.request] = len(event.slots)
    return found


def durations_us(events: Sequence[AnyEvent]) -> list[int]:
    """How long changes of depth take; not those that were changed again before an item was sent."""
    items_of = {event.request: event.items for event in events if isinstance(event, Opened)}
    first_runs: dict[int, Ran] = {}
    ends: dict[int, list[int]] = {}
    for event in events:
        if isinstance(event, Ran):
            ends.setdefault(event.slot, []).append(event.at_us)
            if event.stage == 0:
                first_runs.setdefault(event.batch, event)
    found = []
    for index, change in changes_in(events):
        mine = range(change.request, change.request + items_of[change.request])
        for event in events[index + 1 :]:
            if isinstance(event, Placed) and event.request == change.request:
                break
            if isinstance(event, Dispatched) and event.requests[0] in mine:
                ran = first_runs.get(event.batch)
                if ran is not None:
                    before = [at for at in ends[ran.slot] if at <= ran.started_at_us]
                    since_us = max(change.at_us, before[-1] if before else 0)
                    found.append(max(0, ran.started_at_us - since_us))
                break
    return found


async def on_cores(changes: int, side: int) -> Changes:
    """Send bursts until depths have changed so often."""
    network = vgg16(side)
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        os.environ["HEADRACE_CACHE"] = str(folder / "cache")
        path = network.saved(folder)
        profile = network.profile(path, timed_blocks(network, folder))
        cluster = Cluster(
            device_types=(DeviceType(name="cpu"),), nodes=(Node(name="local", devices={"cpu": 2}),)
        )
        demand = Demand(model="vgg16", slo_us=UNHURRIED_US, items=Items(mean=MOST_ITEMS))
        plan = planned(cluster, {"vgg16": profile}, [demand], MOST_ITEMS)
        pictures = np.random.default_rng(0).standard_normal(
            (PICTURES, 3, side, side), dtype=np.float32
        )
        whole = open_session(path)
        wanted = np.concatenate([whole.run(None, {"x": each[None]})[0] for each in pictures])
        del whole
        events: list[AnyEvent] = []
        served = ServedPlan(plan=plan, profiles={"vgg16": profile}, folders={"vgg16": folder})
        engine = Engine(served, ServiceOptions(), sink=events.append)
        await engine.start()
        try:
            counts = await _bursts(engine, events, wanted, pictures, changes)
        finally:
            await engine.stop()
    requests, items, wrong, lost = counts
    return Changes(
        requests=requests,
        items=items,
        wrong=wrong,
        lost=lost,
        decided=len(changes_in(events)),
        took_us=tuple(durations_us(events)),
    )


# -- 64 places ------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Compared:
    """One stream live and simulated; parts of its requests."""

    requests: int
    live: float
    """Not answered in time, as clients saw it."""
    simulated: float
    unanswered: int
    """Neither answered nor refused."""


def small(profile: Profile, faster: int = 1) -> Profile:
    """With tensors of a few bytes: nothing is computed, and what is copied is not measured."""
    times = tuple(
        replace(
            each,
            p50_us=tuple(tuple(us // faster + 1 for us in row) for row in each.p50_us),
            p99_us=tuple(tuple(us // faster + 1 for us in row) for row in each.p99_us),
        )
        for each in profile.block_times
    )
    tensor = TensorSpec(name="x", dtype="float32", item_shape=(4,))
    blocks = tuple(
        replace(block, cut=(replace(block.cut[0], item_shape=(4,)),)) for block in profile.blocks
    )
    return replace(
        profile, inputs=(tensor,), outputs=(blocks[-1].cut[0],), blocks=blocks, block_times=times
    )


def arrivals_of(stream: QueryStream, slo_us: int, faster: int = 1) -> list[Arrival]:
    return [
        Arrival(
            at_us=at_us // faster,
            model=MODELS[model],
            timeout_us=slo_us,
            priority=priority,
            items=items,
        )
        for at_us, model, items, priority in zip(
            stream.arrived_at_us.tolist(),
            stream.model.tolist(),
            stream.items.tolist(),
            stream.priority.tolist(),
            strict=True,
        )
    ]


async def on_places(
    number: int, slo: str, duration_s: float, faster: int, seed: int, policy: str
) -> Compared:
    """Send a stream on schedule; one process holds all slots."""
    stream = query_stream(number, seed, duration_s=duration_s * faster)
    slo_us, most = stream.slo_us(slo) // faster, int(stream.items.max())
    found = {name: small(profile, faster) for name, profile in profiles().items()}
    demands = [
        Demand(model=name, slo_us=slo_us, items=Items(mean=max(1, round(stream.items.mean()))))
        for name in MODELS
    ]
    plan = planned(study_cluster(), found, demands, most)
    arrivals = arrivals_of(stream, slo_us, faster)
    header, events = simulate(plan, found, arrivals, policy=policy, seed=seed)
    simulated = run_report("simulated", header, events).total
    served = ServedPlan(plan=plan, profiles=found, folders=dict.fromkeys(found, Path()))
    engine = Engine(served, ServiceOptions(policy=policy, executor="emulated", processes=1))
    await engine.start()
    try:
        outcomes = await _scheduled(engine, arrivals, slo_us)
    finally:
        await engine.stop()
    late = sum(not (isinstance(each, Answer) and not each.late_us) for each in outcomes)
    return Compared(
        requests=len(arrivals),
        live=late / len(arrivals),
        simulated=1 - (simulated.slo_attainment or 0.0),
        unanswered=sum(each is None for each in outcomes),
    )


async def _scheduled(
    engine: Engine, arrivals: Sequence[Arrival], slo_us: int
) -> list[Answer | Refusal | None]:
    rows = np.zeros((max(each.items for each in arrivals), 4), np.float32)
    loop = asyncio.get_running_loop()
    began_s, asked = loop.time() + 0.1, []
    for each in arrivals:
        await asyncio.sleep(max(0.0, began_s + each.at_us / 1e6 - loop.time()))
        given = (rows[: each.items],)
        asked.append(_sent(engine, each.model, given, each.items, each.timeout_us, each.priority))
    await asyncio.wait(asked, timeout=2 * slo_us / 1e6)
    return [each.result() if each.done() else None for each in asked]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    commands = parser.add_subparsers(dest="what", required=True)
    cores = commands.add_parser("cores")
    cores.add_argument("--changes", type=int, default=1_000)
    cores.add_argument("--side", type=int, default=32, help="pixels of a picture's side")
    places = commands.add_parser("places")
    places.add_argument("--stream", type=int, default=5)
    places.add_argument("--slo", choices=tuple(SLOS), default="moderate")
    places.add_argument("--duration-s", type=float, default=180.0)
    places.add_argument("--faster", type=int, default=1, help="divides all times")
    places.add_argument("--seed", type=int, default=0)
    places.add_argument("--policy", default="malleable")
    options = parser.parse_args()
    if options.what == "cores":
        found = asyncio.run(on_cores(options.changes, options.side))
        p50, p99 = np.percentile(found.took_us, [50, 99]) / 1_000
        print(
            f"{found.requests} requests of {found.items} items: {found.wrong} wrong,"
            f" {found.lost} lost; {found.decided} changes of depth, {len(found.took_us)} followed"
            f" by an item: p50 {p50:.2f} ms, p99 {p99:.2f} ms (target 20),"
            f" most {max(found.took_us) / 1_000:.2f} ms"
        )
        return
    compared = asyncio.run(
        on_places(
            options.stream,
            options.slo,
            options.duration_s,
            options.faster,
            options.seed,
            options.policy,
        )
    )
    points = 100 * (compared.live - compared.simulated)
    print(
        f"{compared.requests} requests: {100 * compared.live:.2f} % late or refused live,"
        f" {100 * compared.simulated:.2f} % simulated ({points:+.2f} points, target 1.5),"
        f" {compared.unanswered} unanswered"
    )


if __name__ == "__main__":
    main()
