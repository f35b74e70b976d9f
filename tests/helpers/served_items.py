"""A small convolutional network with a malleable plan, ready for an engine."""

import asyncio
from collections.abc import Sequence
from fractions import Fraction
from itertools import pairwise
from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
from msgspec.structs import replace
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from headrace.catalog.documents import sha256_file
from headrace.domain.plan import Plan
from headrace.domain.problem import Items, PlanOptions, Problem
from headrace.domain.profile import Block, BlockTimes, Profile, Provenance
from headrace.domain.tensors import TensorSpec
from headrace.planning import solve
from headrace.serving.engine.engine import Engine
from headrace.serving.engine.inference import Answer, Inference, Refusal
from helpers.onnx_models import finished, saved
from helpers.problems import make_problem
from helpers.served import Served

CHANNELS = (3, 8, 8, 8, 8)
SIDE = 16
CLASSES = 10
ITEM = (CHANNELS[0], SIDE, SIDE)
UNHURRIED_US = 600_000_000
BLOCK_US = 1_000


def convolutions(*, channels: tuple[int, ...] = CHANNELS, side: int = SIDE) -> onnx.ModelProto:
    """float32 `x` [N, 3, side, side] -> a convolution and Relu per block `h{i}` -> `y` [N, 10]."""
    rng = np.random.default_rng(0)
    nodes, weights, current = [], [], "x"

    def weight(name: str, *shape: int) -> str:
        scale = 1 / np.sqrt(np.prod(shape[1:]))
        values = (rng.standard_normal(shape) * scale).astype(np.float32)
        weights.append(numpy_helper.from_array(values, name))
        return name

    for i, (into, out) in enumerate(pairwise(channels)):
        given = [current, weight(f"w{i}", out, into, 3, 3), weight(f"b{i}", out)]
        nodes.append(helper.make_node("Conv", given, [f"c{i}"], pads=[1] * 4, kernel_shape=[3, 3]))
        nodes.append(helper.make_node("Relu", [f"c{i}"], [f"h{i}"]))
        current = f"h{i}"
    nodes.append(helper.make_node("Flatten", [current], ["flat"]))
    given = ["flat", weight("wy", channels[-1] * side * side, CLASSES)]
    nodes.append(helper.make_node("MatMul", given, ["y"]))
    shapes = {"x": ["N", channels[0], side, side], "y": ["N", CLASSES]}
    ends = {n: helper.make_tensor_value_info(n, TensorProto.FLOAT, s) for n, s in shapes.items()}
    return finished(helper.make_graph(nodes, "net", [ends["x"]], [ends["y"]], weights))


def network_profile(path: Path, *, device: str = "cpu", block_us: int = BLOCK_US) -> Profile:
    """Of `convolutions` in that file, a block per convolution, each taking `block_us`."""
    count = len(CHANNELS) - 1
    hidden = [
        TensorSpec(name=f"h{i}", dtype="float32", item_shape=(CHANNELS[i + 1], SIDE, SIDE))
        for i in range(count - 1)
    ]
    cuts = [*hidden, TensorSpec(name="y", dtype="float32", item_shape=(CLASSES,))]
    times = tuple((block_us, 2 * block_us) for _ in cuts)
    return Profile(
        model="net",
        provenance=Provenance(kind="synthetic", date="2026-01-01T00:00:00Z"),
        model_path=path.name,
        model_sha256=sha256_file(path),
        inputs=(TensorSpec(name="x", dtype="float32", item_shape=ITEM),),
        outputs=(cuts[-1],),
        blocks=tuple(
            Block(name=f"block{i}", node_count=2, weights_bytes=1, cut=(cut,), cut_bytes=4)
            for i, cut in enumerate(cuts)
        ),
        block_times=(BlockTimes(device=device, share=Fraction(1), p50_us=times, p99_us=times),),
    )


def planned_items(
    profile: Profile,
    *,
    slots: int = 2,
    device: str = "cpu",
    items: int = 6,
    max_items: int = 40,
    slo_us: int = UNHURRIED_US,
    item_batch: int = 1,
    nodes: Sequence[str] = ("local",),
) -> tuple[Problem, Plan]:
    """A malleable plan on so many slots of each node."""
    options = PlanOptions(
        planner="malleable", margin=0.0, max_items=max_items, item_batch=item_batch
    )
    asked = make_problem(
        [profile],
        nodes={node: {device: slots} for node in nodes},
        slo_us=slo_us,
        options=options,
    )
    demands = tuple(replace(each, items=Items(mean=items)) for each in asked.demands)
    result = solve(replace(asked, demands=demands))
    assert result.plan is not None, result.refusal
    return asked, result.plan


def served_items(folder: Path, **options: object) -> Served:
    """`convolutions` under a malleable plan; options as of `planned_items`."""
    profile = network_profile(
        saved(convolutions(), folder / "net.onnx"),
        device=str(options.get("device", "cpu")),
        block_us=int(str(options.pop("block_us", BLOCK_US))),
    )
    _, plan = planned_items(profile, **options)  # type: ignore[arg-type]
    return Served(plan=plan, profiles={"net": profile}, folders={"net": folder})


def pictures(items: int, seed: int) -> NDArray[np.float32]:
    return np.random.default_rng(seed).standard_normal((items, *ITEM), dtype=np.float32)


def whole_network(folder: Path) -> ort.InferenceSession:
    return ort.InferenceSession(folder / "net.onnx", providers=["CPUExecutionProvider"])


def send(
    engine: Engine, rows: NDArray[np.float32], *, timeout_us: int | None = None, priority: int = 0
) -> asyncio.Future[Answer | Refusal]:
    done: asyncio.Future[Answer | Refusal] = asyncio.get_running_loop().create_future()
    engine.submit(
        Inference(
            model="net",
            items=len(rows),
            inputs=(rows.tobytes(),),
            on_done=done.set_result,
            timeout_us=timeout_us,
            priority=priority,
        )
    )
    return done


def classes_of(answer: Answer | Refusal) -> NDArray[np.float32]:
    """Shape (items, CLASSES)."""
    assert isinstance(answer, Answer), answer
    return np.frombuffer(answer.outputs[0], np.float32).reshape(-1, CLASSES)
