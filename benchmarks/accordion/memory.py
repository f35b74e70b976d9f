"""Memory of workers that hold ten depths of one model: how many copies of its weights?

    python -m benchmarks.accordion.memory [--network vgg16|encoder] [--workers 2] [--apart]

Starts as many processes as a machine has workers. Each opens all stages of depths 1 to 10 as a
worker does and runs each once. Counted is what is theirs (proportional set size: a page that n
processes map counts 1/n in each) beyond what the same process has with no stage open. Target: at
most 1.3 times one copy of the weights. `--apart` opens every stage from a file of its own.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from headrace.catalog.shared_stages import SharedStage, shared_stages
from headrace.catalog.stage_files import stage_path
from headrace.domain.profile import Profile
from headrace.domain.tensors import TensorSpec
from headrace.executors.onnx_shared import MAKER
from headrace.profiling.held import own_bytes

DEPTHS = 10
NETWORKS = ("vgg16", "encoder")


def ranges(blocks: int) -> list[tuple[int, int]]:
    """Of all stages of depths 1 to 10, as even as can be."""
    return sorted(
        {
            (blocks * i // depth, blocks * (i + 1) // depth)
            for depth in range(1, DEPTHS + 1)
            for i in range(depth)
        }
    )


def _files(
    profile: Profile, folder: Path, *, apart: bool
) -> dict[tuple[int, int], SharedStage | Path]:
    wanted = ranges(len(profile.blocks))
    if apart:
        return {blocks: stage_path(profile, folder, *blocks) for blocks in wanted}
    found = shared_stages(profile, folder, wanted, MAKER)
    assert found is not None, "the log says why"
    return dict(found)


def _stages(profile: Profile, folder: Path, *, apart: bool) -> list[dict[str, object]]:
    """What a process is told of each stage."""
    told = []
    for (first, end), file in _files(profile, folder, apart=apart).items():
        told.append(
            {
                "path": str(file) if isinstance(file, Path) else file.path,
                "shared": not isinstance(file, Path),
                "inputs": _told(profile.inputs if first == 0 else profile.blocks[first - 1].cut),
                "outputs": _told(profile.blocks[end - 1].cut),
            }
        )
    return told


def _told(specs: tuple[TensorSpec, ...]) -> list[tuple[str, str, tuple[int, ...]]]:
    return [(spec.name, spec.dtype, spec.item_shape) for spec in specs]


def _hold() -> None:
    """In a process of its own: open everything, say so, wait, and say what that takes."""
    import onnxruntime  # noqa: F401  # what it takes itself is not counted

    from headrace.catalog.shared_weights import WEIGHTS
    from headrace.catalog.weights_files import weights_in
    from headrace.executors.base import StageToLoad, TensorMemory
    from headrace.executors.onnx import OnnxExecutor
    from headrace.serving.workers.arena import Arena, map_arena

    arena = Arena(1 << 20)
    memory = TensorMemory(map_arena(os.dup(arena.descriptor), arena.size_bytes))
    before = own_bytes()
    held = []
    began_s = time.monotonic()
    for told in json.loads(sys.stdin.readline()):
        specs = [
            tuple(TensorSpec(name=n, dtype=d, item_shape=tuple(s)) for n, d, s in told[end])
            for end in ("inputs", "outputs")
        ]
        held.append(
            OnnxExecutor(
                StageToLoad(
                    name=told["path"],
                    path=told["path"],
                    weights=weights_in(Path(told["path"]), [WEIGHTS] if told["shared"] else []),
                    inputs=specs[0],
                    outputs=specs[1],
                    max_batch=1,
                    p50_us=(1,),
                    p99_us=(1,),
                    seed=0,
                ),
                memory,
            )
        )
    print(json.dumps({"opened_s": time.monotonic() - began_s}), flush=True)
    sys.stdin.readline()
    print(json.dumps({"bytes": own_bytes() - before}), flush=True)
    sys.stdin.readline()
    arena.close()


def measured(name: str, workers: int, *, apart: bool) -> tuple[int, int, float]:
    """Bytes of all workers, bytes of the model's weights, seconds until a worker had opened all."""
    from benchmarks.accordion.real_networks import encoder, vgg16

    network = vgg16() if name == "vgg16" else encoder()
    weights = sum(len(each.raw_data) for each in network.model.graph.initializer)
    with tempfile.TemporaryDirectory() as scratch:
        os.environ["HEADRACE_CACHE"] = str(Path(scratch) / "cache")
        folder = Path(scratch)
        profile = network.profile(network.saved(folder), [1] * len(network.cuts))
        told = json.dumps(_stages(profile, folder, apart=apart))
        del network
        command = [sys.executable, "-m", "benchmarks.accordion.memory", "--hold"]
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
        processes = [subprocess.Popen(command, **pipes) for _ in range(workers)]  # type: ignore[call-overload]
        opened = [_asked(process, told)["opened_s"] for process in processes]
        total = sum(int(_asked(process, "")["bytes"]) for process in processes)
        for process in processes:
            process.communicate("\n")
    return total, weights, max(opened)


def _asked(process: "subprocess.Popen[str]", line: str) -> dict[str, float]:
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write(line + "\n")
    process.stdin.flush()
    found: dict[str, float] = json.loads(process.stdout.readline())
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--network", choices=NETWORKS, action="append")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--apart", action="store_true", help="a file for each stage")
    parser.add_argument("--hold", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.hold:
        _hold()
        return
    for name in options.network or NETWORKS:
        total, weights, opened_s = measured(name, options.workers, apart=options.apart)
        print(
            f"{name}: {options.workers} workers with depths 1-{DEPTHS} hold {total / 1e6:.0f} MB,"
            f" the weights are {weights / 1e6:.0f} MB: {total / weights:.2f} x"
            f" (target 1.3); all opened in {opened_s:.1f} s"
        )


if __name__ == "__main__":
    main()
