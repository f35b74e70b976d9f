"""The parts of `check`: each prints a JSON line per finding, and goes on whatever fails.

With DEVICE=cpu in the environment the same code runs on a CPU.
"""

import json
import os
import signal
import time
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
from benchmarks.command_line import new_parser
from benchmarks.gpu.commands import attainment, headrace, is_ready, server, workers
from benchmarks.gpu.findings import DEVICE, finding, say

NETWORKS = ("small", "mobilenetv2", "resnet50", "bert")
TOLERANCE = 1e-4
POINTS = 0.02
"""By how much simulated and measured attainment may differ."""
ANSWERED = 0.9
"""Of requests, by a server that has what its plan promises."""
PROBLEM = """\
schema: headrace.problem/1
cluster:
  devices: {{{device}: {{}}}}
  nodes: [{{name: local, devices: {{{device}: 1}}}}]
models:
  - {{profile: model.profile.json, slo_ms: {slo_ms}}}
"""


def models(folder: Path) -> None:
    """Answers on the GPU = answers on the CPU, of exports and of ONNX models by translation."""
    from helpers.torch_networks import example, export, network

    for name in NETWORKS:
        for half in (False, True) if name == "resnet50" else (False,):
            what = f"{name}{' float16' if half else ''}.pt2"
            with finding(f"{what}: answers as the CPU's") as found:
                model, x = network(name), example(name, 4)
                if half:
                    model, x = model.half(), x.half()
                path = export(model, x, folder / what)
                _compare(path, x.numpy(), 1e-2 if half else TOLERANCE, found)
        _compare_onnx(folder, name)


def _compare_onnx(folder: Path, name: str) -> None:
    if not find_spec("onnxscript"):
        say(f"{name}.onnx: translated, answers as the CPU's", "not checked", "no onnxscript")
        return
    import torch

    from helpers.torch_networks import example, network

    with finding(f"{name}.onnx: translated, answers as the CPU's") as found:
        x = example(name, 4)
        batch = torch.export.Dim("batch", min=1, max=64)
        path = folder / f"{name}.onnx"
        torch.onnx.export(network(name), (x,), str(path), dynamic_shapes=({0: batch},), dynamo=True)
        _compare(path, x.numpy(), TOLERANCE, found)


def _compare(
    path: Path, x: np.ndarray, tolerance: float, found: Callable[[bool, str], None]
) -> None:
    from headrace.catalog.onnx_graph import load_graph, whole_model
    from headrace.executors.table import reference
    from headrace.executors.torch_model import TorchModel
    from headrace.profiling.observe import relative_error

    graph = load_graph(path)
    content = whole_model(graph)
    name = graph.inputs[0].name
    here: Any = TorchModel(content, graph.weights, "cpu")
    if graph.format == "onnx" and find_spec("onnxruntime"):
        here = reference("onnx")(content, graph.weights)
    there = TorchModel(content, graph.weights, DEVICE)
    worst, figures = 0.0, []
    sizes = (1, len(x))
    for size in sizes:
        given = x[:size].copy()
        answers = [np.zeros_like(array) for array in here.run(graph.outputs, {name: given})]
        run = there.binding({name: given}, dict(zip(graph.outputs, answers, strict=True)))
        # What is replayed is to read what lies there now, not what was recorded.
        for items in (x[:size], x[::-1][:size]):
            given[...] = items
            for _ in range(3):  # recorded, then replayed
                run()
            wanted = here.run(graph.outputs, {name: given})
            pairs = zip(answers, wanted, strict=True)
            worst = max(worst, *(relative_error(a, b) for a, b in pairs))
        started = time.perf_counter()
        for _ in range(20):
            run()
        figures.append(f"batch {size} {(time.perf_counter() - started) / 20 * 1e3:.2f} ms")
    recorded = "" if DEVICE == "cpu" else f", {there.recorded} CUDA graphs"
    found(
        worst <= tolerance and (DEVICE == "cpu" or there.recorded == len(sizes)),
        f"relative error {worst:.1e}; {', '.join(figures)}{recorded}",
    )


def serve(folder: Path) -> None:
    """The documented way from a model to answers, and whether the simulator foretold it."""
    with finding("profile, plan and verify") as found:
        _planned(folder)
        profile = json.loads((folder / "model.profile.json").read_text())
        whole = [row["p50_us"] for row in profile.get("stage_times", ()) if not row["first_block"]]
        found(True, f"{len(profile['blocks'])} blocks; whole {(whole or [['?']])[-1][0]} us")
    simulated = 0.0
    with finding("simulate") as found:
        told = headrace(folder, "simulate", "plan.json", "--duration-s", "20", "--json")
        simulated = attainment(told)
        found(True, f"attainment {simulated}")
    with finding("serve and load; simulated within 2 points of measured") as found:
        with server(folder) as url:
            told = headrace(folder, "load", url, "--duration-s", "20", "--json")
        measured = attainment(told)
        found(
            abs(measured - simulated) <= POINTS and measured > ANSWERED,
            f"attainment {measured} measured, {simulated} simulated",
        )


def faults(folder: Path) -> None:
    """kill -9 of the worker: it comes back, answers again, and GPU memory is not lost."""
    from helpers.waiting import wait_until

    with finding("a worker killed with -9 comes back") as found:
        _planned(folder)
        with server(folder) as url:
            headrace(folder, "load", url, "--duration-s", "2", "--json")
            before = _device_bytes()
            victims = workers()
            for pid in victims:
                os.kill(pid, signal.SIGKILL)
            wait_until(
                lambda: bool(set(workers()) - set(victims)) and is_ready(url),
                "no new worker has loaded",
            )
            told = headrace(folder, "load", url, "--duration-s", "5", "--json")
            after = _device_bytes()
        answered = attainment(told)
        found(answered > ANSWERED, f"attainment {answered} afterwards")
    with finding("GPU memory after it") as found:
        grown = (after - before) / 1e6
        found(grown < 200, f"{before / 1e6:.0f} MB before, {after / 1e6:.0f} MB after")
    with finding("a model larger than the GPU is refused in a sentence") as found:
        from headrace.executors.cuda import room_missing

        refusal = room_missing("too-large", 1 << 50, 0)
        found(refusal is not None and "does not fit" in refusal, str(refusal)[:120])


def _planned(folder: Path) -> None:
    from helpers.torch_networks import example, export, network

    export(network("resnet50"), example("resnet50"), folder / "model.pt2")
    headrace(
        folder, "profile", "model.pt2", "--device", DEVICE, "--blocks", "4", "--budget-s", "30"
    )
    slo_ms = 1000 if DEVICE == "cpu" else 50
    (folder / "problem.yaml").write_text(PROBLEM.format(device=DEVICE, slo_ms=slo_ms))
    headrace(folder, "plan", "problem.yaml", "-o", "plan.json")
    headrace(folder, "verify", "plan.json")


def _device_bytes() -> int:
    """In use on the GPU, by anybody."""
    if DEVICE == "cpu":
        return 0
    import torch

    free, total = torch.cuda.mem_get_info(0)
    return int(total - free)


if __name__ == "__main__":
    from benchmarks.gpu.provision import provision
    from benchmarks.gpu.shares import shares

    parts = {
        "models": models,
        "serve": serve,
        "faults": faults,
        "shares": shares,
        "provision": provision,
    }
    parser = new_parser(__doc__)
    parser.add_argument("part", choices=parts)
    parser.add_argument("folder", type=Path, help="for what it makes")
    given = parser.parse_args()
    parts[given.part](given.folder)
