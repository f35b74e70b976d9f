"""A tiny ONNX model with its profile and plan, ready for an engine, and ways to wait for it."""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path

import numpy as np
import onnx
from numpy.typing import NDArray

from headrace.catalog.onnx_graph import load_graph
from headrace.dispatch.protocols import BatchCounts, EventSink
from headrace.domain.cluster import Cluster, DeviceType, Node
from headrace.domain.plan import Deployment, Pipeline, Plan, Slot, Stage, Tenant
from headrace.domain.problem import Demand, PlanOptions
from headrace.domain.profile import Block, BlockTimes, Profile, Provenance
from headrace.domain.tensors import TensorSpec
from headrace.serving.engine.engine import Engine
from headrace.serving.engine.inference import Answer, Inference, Refusal
from headrace.serving.engine.served_plan import ServedPlan, ServiceOptions
from helpers.onnx_models import add_one_model, chain_model, saved

WHOLE = Fraction(1)
WIDTH = 16
UNHURRIED_US = 600_000_000
"""An objective that nothing misses, however busy the machine is."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Served:
    """What `Engine` needs."""

    plan: Plan
    profiles: Mapping[str, Profile]
    folders: Mapping[str, Path]

    def engine(
        self,
        options: ServiceOptions | None = None,
        *,
        levels: Mapping[str, float] | None = None,
        sink: EventSink | None = None,
        leave_sink: Callable[[EventSink], None] = lambda sink: None,
        counts: Mapping[str, BatchCounts] | None = None,
    ) -> Engine:
        served = ServedPlan(
            plan=self.plan, profiles=self.profiles, folders=self.folders, levels=levels or {}
        )
        options = options or ServiceOptions()
        return Engine(served, options, sink=sink, leave_sink=leave_sink, counts=counts)


def served_chain(
    folder: Path,
    *,
    pools: Sequence[int] = (1, 1),
    batch_size: int = 4,
    slo_us: int = UNHURRIED_US,
    stage_us: int = 1_000,
    device: str = "cpu",
    nodes: int = 1,
    gbps: float | None = None,
    model: onnx.ModelProto | None = None,
    save: Callable[[onnx.ModelProto, Path], Path] = saved,
) -> Served:
    """A chain of one MatMul and Tanh per stage (or `model`); stage i has `pools[i]` slots.

    `save` writes the model. `stage_us` is the profiled latency of every stage at every batch size.
    Slots are dealt to
    `nodes` in turn, so that with two nodes neighbouring stages are apart.
    """
    model = model or chain_model(layers=len(pools), width=WIDTH)
    cuts = [f"h{i}" for i in range(len(pools) - 1)] + ["y"]
    path = save(model, folder / "m.onnx")
    return _served(path, cuts, pools, batch_size, slo_us, stage_us, device, nodes, gbps)


def served_add_one(folder: Path, *, slots: int = 1) -> Served:
    """float32 x [N, 16] -> y = x + 1 in one stage."""
    model = add_one_model(WIDTH)
    path = saved(model, folder / "m.onnx")
    return _served(path, ["y"], [slots], 32, UNHURRIED_US, 100, "cpu", 1, None)


def _served(
    path: Path,
    cuts: Sequence[str],
    pools: Sequence[int],
    batch_size: int,
    slo_us: int,
    stage_us: int,
    device: str,
    nodes: int,
    gbps: float | None,
) -> Served:
    profile = profile_by_hand(cuts, batch_size, stage_us, device, path)
    plan = plan_by_hand(pools, batch_size, slo_us, stage_us, device, nodes, gbps)
    return Served(plan=plan, profiles={"m": profile}, folders={"m": path.parent})


def profile_by_hand(
    cuts: Sequence[str], batch_size: int, stage_us: int, device: str, path: Path | None = None
) -> Profile:
    """Model "m": one block per cut, each taking `stage_us` at every batch size."""
    specs = [TensorSpec(name=name, dtype="float32", item_shape=(WIDTH,)) for name in cuts]
    times = tuple((stage_us,) * batch_size for _ in cuts)
    return Profile(
        model="m",
        provenance=Provenance(kind="synthetic", date="2026-01-01T00:00:00Z"),
        model_path=path.name if path else None,
        weights_files=_beside(path) if path else (),
        model_sha256=load_graph(path).sha256 if path else None,
        inputs=(TensorSpec(name="x", dtype="float32", item_shape=(WIDTH,)),),
        outputs=(specs[-1],),
        blocks=tuple(
            Block(name=f"block{i}", node_count=2, weights_bytes=1, cut=(spec,), cut_bytes=WIDTH * 4)
            for i, spec in enumerate(specs)
        ),
        block_times=(BlockTimes(device=device, share=WHOLE, p50_us=times, p99_us=times),),
    )


def _beside(path: Path) -> tuple[str, ...]:
    """Of a model that was `saved_beside`."""
    beside = path.with_name(path.name + ".data")
    return (beside.name,) if beside.exists() else ()


def plan_by_hand(
    pools: Sequence[int],
    batch_size: int,
    slo_us: int,
    stage_us: int,
    device: str,
    nodes: int,
    gbps: float | None,
) -> Plan:
    """One pipeline "p" of model "m"; stage i is block i on `pools[i]` slots."""
    slots: list[Slot] = []
    stages = []
    for number, count in enumerate(pools):
        names = []
        for _ in range(count):
            index = len(slots)
            names.append(f"slot{index}")
            slots.append(
                Slot(
                    name=names[-1],
                    node=f"n{index % nodes}",
                    device=device,
                    device_index=index // nodes,
                    share=WHOLE,
                    tenants=(Tenant(model="m", pipeline="p", stage=number),),
                )
            )
        stages.append(
            Stage(
                first_block=number,
                end_block=number + 1,
                device=device,
                share=WHOLE,
                pool=tuple(names),
                latency_us=stage_us,
                transfer_us=0,
                throughput_rps=1.0,
            )
        )
    latency_us = stage_us * len(pools)
    pipeline = Pipeline(
        name="p",
        batch_size=batch_size,
        stages=tuple(stages),
        latency_us=latency_us,
        throughput_rps=1.0,
    )
    return Plan(
        planner="by-hand",
        options=PlanOptions(),
        cluster=Cluster(
            device_types=(DeviceType(name=device),),
            nodes=tuple(
                Node(name=f"n{i}", devices={device: len(slots)}, bandwidth_gbps=gbps)
                for i in range(nodes)
            ),
        ),
        demands=(Demand(model="m", slo_us=slo_us),),
        profiles=(),
        slots=tuple(slots),
        deployments=(
            Deployment(
                model="m",
                slo_us=slo_us,
                budget_us=slo_us,
                pipelines=(pipeline,),
                throughput_rps=1.0,
            ),
        ),
        objective=1.0,
        bound=None,
        gap=None,
        stopped="heuristic",
        binding="none",
        cost_per_hour=None,
        runtime_s=0.0,
    )


class Client:
    """Submits inferences and waits for what becomes of them."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def send(
        self, rows: NDArray[np.float32], timeout_us: int | None = None
    ) -> asyncio.Future[Answer | Refusal]:
        """Submit `rows` of shape (items, WIDTH)."""
        return self.submit(rows, timeout_us)[1]

    def submit(
        self, rows: NDArray[np.float32], timeout_us: int | None = None
    ) -> tuple[Inference, asyncio.Future[Answer | Refusal]]:
        done: asyncio.Future[Answer | Refusal] = asyncio.get_running_loop().create_future()
        inference = Inference(
            model="m",
            items=len(rows),
            inputs=(rows.tobytes(),),
            on_done=done.set_result,
            timeout_us=timeout_us,
        )
        self._engine.submit(inference)
        return inference, done


def rows_of(answer: Answer | Refusal) -> NDArray[np.float32]:
    """The first output, shape (items, WIDTH)."""
    assert isinstance(answer, Answer), answer
    return np.frombuffer(answer.outputs[0], np.float32).reshape(-1, WIDTH)
