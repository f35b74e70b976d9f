"""More models than memory: tiny ONNX models, each with a file of its own, and a plan by hand."""

import asyncio
from pathlib import Path

import numpy as np
import onnxruntime as ort
from msgspec.structs import replace
from numpy.typing import NDArray

from headrace.domain.cluster import Cluster, DeviceType, Node
from headrace.domain.layers import Layer, LayerTimes, Residency, Transfer
from headrace.domain.plan import Slot
from headrace.domain.problem import Demand
from headrace.serving.engine.engine import Engine
from headrace.serving.engine.inference import Answer, Inference, Refusal
from helpers.onnx_models import chain_model, saved
from helpers.served import UNHURRIED_US, WHOLE, WIDTH, Served, plan_by_hand, profile_by_hand

WEIGHTS_BYTES = WIDTH * WIDTH * 4
LOAD_US = 20_000
RUN_US = 1_000


def provisioned(
    folder: Path,
    *,
    models: int = 4,
    room: int = 2,
    slots: int = 1,
    batch_size: int = 1,
    slo_us: int = UNHURRIED_US,
    device: str = "cpu",
    load_us: int = LOAD_US,
) -> Served:
    """Models "m0", "m1", ... which are unlike each other; each slot has memory for `room`.

    A load takes a device without a copy stream whole.
    """
    base = plan_by_hand([slots], batch_size, slo_us, RUN_US, device, 1, None)
    [deployment] = base.deployments
    times = LayerTimes(
        device=device,
        share=WHOLE,
        load_p50_us=(load_us,),
        load_p99_us=(load_us,),
        saved_us=(0,),
        inside_p50_us=(RUN_US,),
        inside_p99_us=(RUN_US,),
        host_p50_us=(2 * RUN_US,),
        host_p99_us=(2 * RUN_US,),
    )
    start = Residency(
        planner="on-demand",
        device=device,
        share=WHOLE,
        batch_size=1,
        host=(),
        transfers=(Transfer(layers=(0,)),),
        waits_for_all=True,
        host_bytes=0,
        start_us=load_us + RUN_US,
    )
    names = [f"m{i}" for i in range(models)]
    profiles = {}
    for seed, name in enumerate(names):
        path = saved(chain_model(layers=1, width=WIDTH, seed=seed), folder / f"{name}.onnx")
        profile = profile_by_hand(["y"], batch_size, RUN_US, device, path)
        profiles[name] = replace(
            profile,
            model=name,
            layers=(Layer(name="all", weights_bytes=WEIGHTS_BYTES),),
            layer_times=(times,),
        )
    plan = replace(
        base,
        cluster=Cluster(
            device_types=(DeviceType(name=device, memory_bytes=room * WEIGHTS_BYTES),),
            nodes=(Node(name="n0", devices={device: slots}),),
        ),
        demands=tuple(Demand(model=name, slo_us=slo_us) for name in names),
        slots=tuple(without_tenants(slot) for slot in base.slots),
        deployments=tuple(
            replace(deployment, model=name, start=start, cold_share=0.5) for name in names
        ),
    )
    return Served(plan=plan, profiles=profiles, folders=dict.fromkeys(names, folder))


def without_tenants(slot: Slot) -> Slot:
    return replace(slot, tenants=())


def send(
    engine: Engine, model: str, rows: NDArray[np.float32]
) -> "asyncio.Future[Answer | Refusal]":
    """Ask for one item."""
    done: asyncio.Future[Answer | Refusal] = asyncio.get_running_loop().create_future()
    engine.submit(
        Inference(model=model, items=len(rows), inputs=(rows.tobytes(),), on_done=done.set_result)
    )
    return done


def expected(folder: Path, model: str, rows: NDArray[np.float32]) -> NDArray[np.float32]:
    """What ONNX Runtime answers."""
    session = ort.InferenceSession(str(folder / f"{model}.onnx"))
    [found] = session.run(None, {"x": rows})
    return np.asarray(found)
