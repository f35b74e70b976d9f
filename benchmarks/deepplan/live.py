"""Sixty real models on two cores with memory for twenty of them: live, beside the simulation.

    python -m benchmarks.deepplan.live [--seconds 20] [--loads 0.4 0.8] [--arrivals poisson trace]

Two systems serve the same arrivals, one after the other:

    ours        stages prepared, tables of words left where they are and read in place; `provision`
    on demand   sessions from the models' files, all weights loaded before the first run, the model
                unused for longest evicted (`bound-lru`: requests in order, each model on one slot)

What plans say that loads and runs take is measured in a session of its own with the same server,
since it runs on the same cores. What they take at a load, beside as many others and with what
gateway and client leave, is what the logs of two sessions say that are served with other arrivals,
one just before and one just behind: simulated times are drawn from either. A load of 1 is what two
cores would do if every model were in memory. Poisson arrivals go to all models alike; the trace is
the Azure Functions trace of 2019, its minutes squeezed into seconds.
Targets, at every load: attainment above on demand, simulated within 3 points of measured, memory of
the workers within the budget, none unanswered, none wrong.
"""

import argparse
import asyncio
import dataclasses
import os
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from benchmarks.deepplan.live_networks import KINDS, Times, keep_times, kinds, prepare, timed
from benchmarks.deepplan.live_times import served_times

from headrace.catalog.documents import sha256_file
from headrace.catalog.shared_weights import SharedWeightsMaker
from headrace.dispatch.topology import Topology
from headrace.domain.cluster import Cluster, DeviceType, Node
from headrace.domain.events import AnyEvent, Loaded
from headrace.domain.layers import Layer, LayerTimes, Residency, Transfer
from headrace.domain.plan import Deployment, Pipeline, Plan, Slot, Stage
from headrace.domain.problem import Demand, PlanOptions
from headrace.domain.profile import Block, BlockTimes, Profile, Provenance
from headrace.domain.tensors import TensorSpec
from headrace.executors import onnx
from headrace.executors.onnx_shared import MAKER
from headrace.executors.table import executor
from headrace.metrics import run_report
from headrace.serving.engine.engine import Engine
from headrace.serving.engine.inference import Answer, Inference, Refusal
from headrace.serving.engine.served_plan import ServedPlan, ServiceOptions
from headrace.simulation.offered.arrivals import Arrival
from headrace.simulation.session import simulate

SLOTS = 2
WHOLE = Fraction(1)
SLO_US = 150_000
EQUAL = 1e-4
SIMULATIONS = 8
"""With each log, times drawn anew: their mean counts. Beyond what two cores can do, which
slow moments meet which requests decides over points."""
LOOK_S = 1.0
SETTLE_S = 2.0
MINUTES_PER_S = 1
"""Of the trace."""
LEARN_LOAD, LEARN_S, LEARN_SEED = 0.4, 10.0, 1_000
"""Of the session in which the server's own times are measured; its arrivals, and those of sessions
whose logs are simulated with, are none of those that are served afterwards."""


@dataclass(frozen=True, slots=True)
class System:
    """How models come to a slot."""

    name: str
    policy: str
    prepared: bool


OURS = System("ours", "provision", prepared=True)
ON_DEMAND = System("on demand", "bound-lru", prepared=False)


# -- plan and profiles -------------------------------------------------------------------------


def profile_of(folder: Path, model: str, times: Times) -> Profile:
    """Of one instance; two layers, where it has a table that a run reads a few rows of."""
    kind = kinds()[model.split("-")[0]]
    path = folder / f"{model}.onnx"
    answers = np.load(path.with_suffix(".npz"))
    outputs = tuple(_spec(name, answers[name]) for name in answers.files)
    inputs = tuple(_spec(name, array) for name, array in kind.feed.items())
    size = path.stat().st_size
    # What a worker really takes of memory.
    layers = [Layer(name="all", weights_bytes=max(1, size - kind.host_bytes))]
    if kind.host_bytes:
        layers.insert(0, Layer(name="words", kind="Embedding", weights_bytes=kind.host_bytes))
    (load50, load99), (run50, run99) = times.load_us, times.run_us
    table = (1,) * (len(layers) - 1)
    zero = (0,) * (len(layers) - 1)
    return Profile(
        model=model,
        provenance=Provenance(kind="measured", date="2026-11-23T00:00:00Z"),
        model_path=path.name,
        model_sha256=_hash(path),
        inputs=inputs,
        outputs=outputs,
        blocks=(Block(name="all", node_count=1, weights_bytes=size, cut=outputs, cut_bytes=1),),
        block_times=(
            BlockTimes(device="cpu", share=WHOLE, p50_us=((run50,),), p99_us=((run99,),)),
        ),
        layers=tuple(layers),
        layer_times=(
            LayerTimes(
                device="cpu",
                share=WHOLE,
                load_p50_us=(*table, load50),
                load_p99_us=(*table, max(load50, load99)),
                saved_us=(*zero, 0),
                inside_p50_us=(*zero, run50),
                inside_p99_us=(*zero, run99),
                host_p50_us=(*zero, 2 * run50),
                host_p99_us=(*zero, 2 * run99),
                held_bytes=times.held_bytes,
                working_bytes=times.working_bytes,
            ),
        ),
    )


_HASHES: dict[tuple[Path, int], str] = {}


def _hash(path: Path) -> str:
    key = (path, path.stat().st_mtime_ns)
    if key not in _HASHES:
        _HASHES[key] = sha256_file(path)
    return _HASHES[key]


def _spec(name: str, array: Any) -> TensorSpec:
    return TensorSpec(name=name, dtype=str(array.dtype), item_shape=tuple(array.shape[1:]))


def planned(profiles: dict[str, Profile], system: System, memory_bytes: int) -> Plan:
    """Every model on either core, with its start."""
    names = [f"cpu-{i}" for i in range(SLOTS)]
    deployments = []
    for model, profile in profiles.items():
        [times] = profile.layer_times
        last = len(profile.layers) - 1
        host = tuple(range(last)) if system.prepared else ()
        moved = tuple(i for i in range(last + 1) if i not in host)
        run_us = profile.block_times[0].p99_us[0][0]
        stage = Stage(
            first_block=0,
            end_block=1,
            device="cpu",
            share=WHOLE,
            pool=tuple(names),
            latency_us=run_us,
            transfer_us=0,
            throughput_rps=SLOTS * 1e6 / run_us,
        )
        pipeline = Pipeline(
            name="whole",
            batch_size=1,
            stages=(stage,),
            latency_us=run_us,
            throughput_rps=stage.throughput_rps,
        )
        deployments.append(
            Deployment(
                model=model,
                slo_us=SLO_US,
                budget_us=SLO_US,
                pipelines=(pipeline,),
                throughput_rps=stage.throughput_rps,
                start=Residency(
                    planner="exact" if host else "on-demand",
                    device="cpu",
                    share=WHOLE,
                    batch_size=1,
                    host=host,
                    transfers=(Transfer(layers=moved),),
                    waits_for_all=True,
                    host_bytes=sum(profile.layers[i].weights_bytes for i in host),
                    start_us=sum(times.load_p99_us[i] for i in moved) + run_us,
                ),
                cold_share=2 / 3,
            )
        )
    return Plan(
        planner="by-hand",
        options=PlanOptions(),
        cluster=Cluster(
            device_types=(DeviceType(name="cpu", memory_bytes=memory_bytes // SLOTS),),
            nodes=(Node(name="here", devices={"cpu": SLOTS}),),
        ),
        demands=tuple(Demand(model=model, slo_us=SLO_US) for model in profiles),
        profiles=(),
        slots=tuple(
            Slot(name=name, node="here", device="cpu", device_index=i, share=WHOLE, tenants=())
            for i, name in enumerate(names)
        ),
        deployments=tuple(deployments),
        objective=1.0,
        bound=None,
        gap=None,
        stopped="heuristic",
        binding="none",
        cost_per_hour=None,
        runtime_s=0.0,
    )


# -- arrivals ----------------------------------------------------------------------------------


def arrivals_of(
    how: str, models: Sequence[str], rate_rps: float, seconds: float, seed: int
) -> list[Arrival]:
    if how == "trace":
        from benchmarks.deepplan.azure import requests

        minutes = max(1, round(seconds * MINUTES_PER_S))
        at_us, who = requests(len(models), 600, minutes, rate_rps / 60 / MINUTES_PER_S, seed)
        at_us = at_us // (60 * MINUTES_PER_S)
    else:
        rng = np.random.default_rng(seed)
        count = rng.poisson(rate_rps * seconds)
        at_us = np.sort(rng.integers(0, round(seconds * 1e6), count))
        who = rng.integers(0, len(models), count)
    return [
        Arrival(at_us=int(at), model=models[int(each)]) for at, each in zip(at_us, who, strict=True)
    ]


# -- live --------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Served:
    """What became of one run."""

    requests: int
    in_time: int
    unanswered: int
    wrong: int
    starts: int
    most_bytes: int
    """Of all workers, beyond what they take with no model loaded."""
    events: Sequence[AnyEvent]

    @property
    def attainment(self) -> float:
        return self.in_time / self.requests


async def serve(
    plan: Plan,
    profiles: dict[str, Profile],
    system: System,
    folder: Path,
    arrivals: Sequence[Arrival],
) -> Served:
    """Send the arrivals to an engine, and look at every answer and at its workers' memory."""
    events: list[AnyEvent] = []
    served = ServedPlan(plan=plan, profiles=profiles, folders=dict.fromkeys(profiles, folder))
    engine = Engine(served, ServiceOptions(policy=system.policy), sink=events.append)
    feeds = {name: next(iter(kind.feed.values())) for name, kind in kinds().items()}
    wanted = {model: np.load(folder / f"{model}.npz") for model in profiles}
    loop = asyncio.get_running_loop()
    found: dict[int, Answer | Refusal] = {}
    _prepare_stages(MAKER if system.prepared else None)
    try:
        await engine.start()
        base = _memory_bytes(engine)
        memory = loop.create_task(_watch_memory(engine))
        began_s = loop.time() + SETTLE_S
        for number, arrival in enumerate(arrivals):
            await asyncio.sleep(max(0.0, began_s + arrival.at_us / 1e6 - loop.time()))
            given = np.ascontiguousarray(feeds[arrival.model.split("-")[0]])
            engine.submit(
                Inference(
                    model=arrival.model,
                    items=1,
                    inputs=(given.data.cast("B"),),
                    on_done=partial(found.__setitem__, number),
                )
            )
        until_s = loop.time() + 30
        while len(found) < len(arrivals) and loop.time() < until_s:
            await asyncio.sleep(0.05)
        memory.cancel()
        most = max(_peak, default=base) - base
        _peak.clear()
    finally:
        _prepare_stages(MAKER)
        await engine.stop()
    wrong = in_time = 0
    for number, result in found.items():
        if isinstance(result, Answer):
            model = arrivals[number].model
            in_time += result.late_us == 0
            wrong += not _is_right(result, profiles[model], wanted[model])
    return Served(
        requests=len(arrivals),
        in_time=in_time,
        unanswered=len(arrivals) - len(found),
        wrong=wrong,
        starts=sum(isinstance(event, Loaded) for event in events),
        most_bytes=most,
        events=events,
    )


def _is_right(answer: Answer, profile: Profile, wanted: Any) -> bool:
    return all(
        np.allclose(
            np.frombuffer(raw, spec.dtype).reshape(1, *spec.item_shape),
            wanted[spec.name],
            rtol=EQUAL,
            atol=EQUAL,
        )
        for raw, spec in zip(answer.outputs, profile.outputs, strict=True)
    )


_peak: list[int] = []


async def _watch_memory(engine: Engine) -> None:
    while True:
        # Not on the loop: the system walks all pages of a worker.
        _peak.append(await asyncio.to_thread(_memory_bytes, engine))
        await asyncio.sleep(LOOK_S)


def _memory_bytes(engine: Engine) -> int:
    """What the workers have in memory that is theirs: a page that n processes map counts 1/n."""
    total = 0
    for slot in engine.status().slots:
        try:
            lines = Path(f"/proc/{slot.process_id}/smaps_rollup").read_text().splitlines()
        except OSError:
            continue
        total += next(int(line.split()[1]) * 1024 for line in lines if line.startswith("Pss:"))
    return total


def _prepare_stages(maker: SharedWeightsMaker | None) -> None:
    """Whether models are loaded as they were prepared (by `maker`), or from files as they are."""
    onnx.EXECUTOR = dataclasses.replace(onnx.EXECUTOR, shares_weights=maker)
    executor.cache_clear()


# -- the study ---------------------------------------------------------------------------------


Setup = tuple[Plan, dict[str, Profile], int]
"""And the memory for models, in bytes."""


def _setup(asked: argparse.Namespace, models: Sequence[str], system: System) -> Setup:
    """With what loads and runs take when the server itself does them, in a session of its own."""
    times = timed(asked.folder, prepared=system.prepared)
    found = _planned_with(times, asked, models, system)
    if not any(each.served for each in times.values()):
        rate = LEARN_LOAD * SLOTS * 1e6 / float(np.mean([t.run_us[0] for t in times.values()]))
        arrivals = arrivals_of("poisson", models, rate, LEARN_S, asked.seed + LEARN_SEED)
        told = asyncio.run(serve(*found[:2], system, asked.folder, arrivals))
        times = served_times(times, list(found[1]), told.events)
        keep_times(asked.folder, times, prepared=system.prepared)
        found = _planned_with(times, asked, models, system)
    for kind, each in times.items():
        print(
            f"{system.name:10} {kind:10} loads {each.load_us} us, runs {each.run_us} us, holds"
            f" {each.held_bytes / 1e6:.0f} MB"
        )
    return found


def _planned_with(
    times: dict[str, Times], asked: argparse.Namespace, models: Sequence[str], system: System
) -> Setup:
    profiles = {m: profile_of(asked.folder, m, times[m.split("-")[0]]) for m in models}
    weights = sum(profile.blocks[0].weights_bytes for profile in profiles.values())
    memory = round(asked.memory_for * weights)
    return planned(profiles, system, memory), profiles, memory


def attainment_of(
    plan: Plan,
    profiles: dict[str, Profile],
    arrivals: Sequence[Arrival],
    system: System,
    log: Sequence[AnyEvent],
    seed: int,
) -> float:
    """Simulated, with times of a session's log."""
    how = system.policy
    times = Topology.from_plan(plan, profiles).event_log_header("live", how), log
    header, events = simulate(plan, profiles, arrivals, policy=how, seed=seed, times=times)
    return run_report("simulated", header, events).total.slo_attainment or 0.0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--folder", type=Path, default=Path("results/deepplan-live"))
    parser.add_argument(
        "--instances", type=int, default=20, help="of each of three kinds; at least 6"
    )
    parser.add_argument("--memory-for", type=float, default=1 / 3, help="part of all weights")
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--loads", type=float, nargs="+", default=[0.3, 0.6])
    parser.add_argument("--arrivals", nargs="+", default=["poisson", "trace"])
    parser.add_argument("--seed", type=int, default=8)
    parser.add_argument("--only-prepare", action="store_true")
    asked = parser.parse_args()
    asked.folder.mkdir(parents=True, exist_ok=True)
    os.environ.setdefault("HEADRACE_CACHE", str(asked.folder / "cache"))
    prepare(asked.folder, asked.instances)
    models = [f"{kind}-{i}" for i in range(asked.instances) for kind in KINDS]
    setups = {system: _setup(asked, models, system) for system in (OURS, ON_DEMAND)}
    run_us = float(
        np.mean([each.run_us[0] for each in timed(asked.folder, prepared=True).values()])
    )
    if asked.only_prepare:
        for system, (plan, profiles, _) in setups.items():
            asyncio.run(serve(plan, profiles, system, asked.folder, []))
        return
    for how in asked.arrivals:
        for load in asked.loads:
            rate = load * SLOTS * 1e6 / run_us
            arrivals = arrivals_of(how, models, rate, asked.seconds, asked.seed)
            others = [
                arrivals_of(how, models, rate, asked.seconds, asked.seed + at * LEARN_SEED)
                for at in (1, 2)
            ]
            for system, (plan, profiles, memory) in setups.items():
                before, live, behind = (
                    asyncio.run(serve(plan, profiles, system, asked.folder, offered))
                    for offered in (others[0], arrivals, others[1])
                )
                each = [
                    attainment_of(plan, profiles, arrivals, system, log.events, asked.seed + number)
                    for log in (before, behind)
                    for number in range(SIMULATIONS)
                ]
                simulated = float(np.mean(each))
                print(
                    f"{how:8} load {load:.2f} ({rate:.0f}/s) {system.name:10}"
                    f" {live.requests} requests, in time {live.attainment:7.2%} live,"
                    f" {simulated:7.2%} simulated, {min(each):.2%} to {max(each):.2%}; before and"
                    f" behind {before.attainment:.2%} and {behind.attainment:.2%} live"
                    f" ({100 * (live.attainment - simulated):+.2f} points);"
                    f" {live.starts} starts; memory {live.most_bytes / 1e6:.0f} of"
                    f" {memory / 1e6:.0f} MB; {live.unanswered} unanswered, {live.wrong} wrong",
                    flush=True,
                )


if __name__ == "__main__":
    main()
