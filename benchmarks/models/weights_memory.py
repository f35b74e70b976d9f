"""How much memory a large model takes: while it is profiled, and in a worker that serves it.

    python -m benchmarks.models.weights_memory --gigabytes 3

Claim: at most 1.3 times its weights, in each of the two. The model is synthetic, a chain of
products with square matrices, its weights beside it; profiled in one process and opened as a worker
does in another. What is counted is each process's largest resident set, mapped files included; the
interpreter and its libraries are counted too, and stated apart.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from mmap import mmap
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper

TARGET = 1.3
WIDTH = 2048
LAYER_BYTES = WIDTH * WIDTH * 4
HELD_FRACTION = 3
"""Sessions that profiling may hold open at once are a third of the model's weights: of a model of
3 GB that is what `headrace profile` allows."""


def build(path: Path, layers: int) -> None:
    """Write a model of `layers` products to `path`, and its weights to `path`.data."""
    rng = np.random.default_rng(0)
    matrix = rng.standard_normal((WIDTH, WIDTH), np.float32) / np.float32(np.sqrt(WIDTH))
    nodes, weights = [], []
    with path.with_name(path.name + ".data").open("wb") as file:
        for i in range(layers):
            tensor = TensorProto(name=f"w{i}", data_type=TensorProto.FLOAT, dims=[WIDTH, WIDTH])
            tensor.data_location = TensorProto.EXTERNAL
            for key, value in (
                ("location", path.name + ".data"),
                ("offset", str(file.tell())),
                ("length", str(LAYER_BYTES)),
            ):
                tensor.external_data.add(key=key, value=value)
            file.write(np.roll(matrix, i, axis=0).data)
            weights.append(tensor)
            nodes.append(helper.make_node("MatMul", [f"h{i}" if i else "x", f"w{i}"], [f"m{i}"]))
            out = "y" if i == layers - 1 else f"h{i + 1}"
            nodes.append(helper.make_node("Tanh", [f"m{i}"], [out]))
    value = helper.make_tensor_value_info
    graph = helper.make_graph(
        nodes,
        "chain",
        [value("x", TensorProto.FLOAT, ["N", WIDTH])],
        [value("y", TensorProto.FLOAT, ["N", WIDTH])],
        weights,
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.save_model(model, path)


def measure(path: Path, layers: int) -> dict[str, dict[str, int]]:
    """Peak and base resident sets, in bytes, of profiling and of a worker."""
    found = {}
    for what in ("profile", "worker"):
        environment = os.environ | {"HEADRACE_CACHE": str(path.parent / "cache")}
        command = [sys.executable, "-m", __spec__.name, "--child", what, "--layers", str(layers)]
        output = subprocess.run(
            [*command, str(path)], env=environment, check=True, capture_output=True, text=True
        ).stdout
        found[what] = json.loads(output)
    return found


def _profile(path: Path, layers: int) -> int:
    from headrace.catalog.documents import write_document
    from headrace.executors import base as executors
    from headrace.profiling.options import ProfileOptions
    from headrace.profiling.profiler import profile_model

    executors.HELD_WEIGHTS_BYTES = layers * LAYER_BYTES // HELD_FRACTION
    base = _resident("VmRSS")
    options = ProfileOptions(blocks=4, max_batch=2, budget_s=0.1, profile_folder=path.parent)
    write_document(profile_model(path, options), path.with_suffix(".profile.json"))
    return base


def _worker(path: Path) -> int:
    from headrace.catalog.documents import read_profile
    from headrace.catalog.stage_files import stage_path, stage_weights
    from headrace.executors.base import StageToLoad, TensorMemory
    from headrace.executors.onnx import OnnxExecutor

    profile = read_profile(path.with_suffix(".profile.json"))
    blocks = len(profile.blocks)
    stage = StageToLoad(
        name="whole",
        path=str(stage_path(profile, path.parent, 0, blocks)),
        weights=stage_weights(profile, path.parent),
        inputs=profile.inputs,
        outputs=profile.outputs,
        max_batch=2,
        p50_us=(1, 1),
        p99_us=(1, 1),
        seed=0,
    )
    base = _resident("VmRSS")
    OnnxExecutor(stage, TensorMemory(mmap(-1, 1 << 20))).run(2, (0,), (1 << 19,))
    return base


def _resident(field: str) -> int:
    """VmRSS: now; VmHWM: the most so far; bytes."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return 1024 * next(int(line.split()[1]) for line in lines if line.startswith(field))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--gigabytes", type=float, default=3.0)
    parser.add_argument("--folder", type=Path, help="where to put the model [a temporary folder]")
    parser.add_argument("--child", choices=("profile", "worker"), help=argparse.SUPPRESS)
    parser.add_argument("--layers", type=int, help=argparse.SUPPRESS)
    parser.add_argument("path", nargs="?", type=Path, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.child:
        base = (
            _profile(given.path, given.layers) if given.child == "profile" else _worker(given.path)
        )
        print(json.dumps({"base_bytes": base, "peak_bytes": _resident("VmHWM")}))
        return
    layers = max(4, round(given.gigabytes * 1e9 / LAYER_BYTES))
    with tempfile.TemporaryDirectory(dir=given.folder) as folder:
        path = Path(folder) / "large.onnx"
        build(path, layers)
        found = measure(path, layers)
    weights = layers * LAYER_BYTES
    print(f"weights {weights / 1e9:.2f} GB, target {TARGET}")
    for what, sizes in found.items():
        ratio = sizes["peak_bytes"] / weights
        grown = (sizes["peak_bytes"] - sizes["base_bytes"]) / weights
        print(f"{what:8} peak {ratio:.2f} x weights, {grown:.2f} without the interpreter")


if __name__ == "__main__":
    main()
