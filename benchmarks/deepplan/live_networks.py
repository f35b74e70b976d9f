"""Sixty models of three kinds, each with weights of its own, and what each takes of a core.

    detector    PP-OCRv4's text detection at 160 x 160          4.7 MB
    recogniser  PP-OCRv4's text recognition at 48 x 160        10.8 MB
    encoder     two layers like BERT-base's, random weights,    57 MB and a table of words of 94 MB

Files, hashes, expected answers and times are kept in a folder, so that runs with different loads
start from the same.
"""

import os
import subprocess
import sys
import time
from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import onnx
from benchmarks.command_line import new_parser

from headrace.profiling.held import MemoryWatch, own_bytes

KINDS = ("detector", "recogniser", "encoder")
LAYERS, TOKENS = 2, 64
PAUSE_S = 0.5
ROUNDS = 15
"""Starts of each kind that are timed."""
INSTANCES = 3
"""Of each kind, that a process times."""


class Times(msgspec.Struct, frozen=True, kw_only=True):
    """Of one kind, microseconds, p50 and p99."""

    load_us: tuple[int, int]
    """From the order to load until the first answer, less a run; and the eviction before it."""
    run_us: tuple[int, int]
    held_bytes: int
    """What a worker has in memory of one that is loaded and idle."""
    working_bytes: int
    """The most that it has beside, while it loads and runs one."""
    served: bool = False
    """Loads and runs as the server itself makes them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """What its instances have in common."""

    name: str
    feed: dict[str, Any]
    """One item."""
    host_bytes: int
    """Of weights that a run reads a few rows of."""


def ocr_file(word: str) -> Path:
    import rapidocr_onnxruntime

    folder = Path(rapidocr_onnxruntime.__file__).parent / "models"
    return next(folder.glob(f"*{word}*.onnx"))


def kinds() -> dict[str, Kind]:
    from benchmarks.accordion.real_networks import WIDTH, WORDS

    rng = np.random.default_rng(0)

    def picture(height: int, width: int) -> dict[str, Any]:
        return {"x": rng.standard_normal((1, 3, height, width)).astype(np.float32)}

    ids = {"ids": rng.integers(0, WORDS, (1, TOKENS))}
    return {
        "detector": Kind(name="detector", feed=picture(160, 160), host_bytes=0),
        "recogniser": Kind(name="recogniser", feed=picture(48, 160), host_bytes=0),
        "encoder": Kind(name="encoder", feed=ids, host_bytes=4 * WORDS * WIDTH),
    }


def build(kind: str, number: int, path: Path) -> None:
    """Write an instance; no two have the same content."""
    if kind == "encoder":
        from benchmarks.accordion.real_networks import encoder

        model = encoder(LAYERS, TOKENS).model
        for tensor in model.graph.initializer:
            if tensor.name.endswith("w") and len(tensor.raw_data) > 1 << 20:
                values = np.frombuffer(tensor.raw_data, np.float32)
                tensor.raw_data = np.roll(values, number + 1).tobytes()
    else:
        model = onnx.load(str(ocr_file("det" if kind == "detector" else "rec")))
        # Its weights are values of nodes, not initializers.
        for node in model.graph.node:
            for attribute in node.attribute if node.op_type == "Constant" else ():
                tensor = attribute.t
                if len(tensor.raw_data) > 1 << 16 and tensor.data_type == onnx.TensorProto.FLOAT:
                    values = np.frombuffer(tensor.raw_data, np.float32)
                    tensor.raw_data = (values * np.float32(1 + 1e-3 * (number + 1))).tobytes()
    onnx.save(model, str(path))


def prepare(folder: Path, instances: int) -> None:
    """Write the models and what ONNX Runtime answers, as far as they are not there."""
    import onnxruntime as ort

    for name, kind in kinds().items():
        for number in range(instances):
            path = folder / f"{name}-{number}.onnx"
            answers = path.with_suffix(".npz")
            if answers.exists():
                continue
            build(name, number, path)
            session = ort.InferenceSession(str(path), providers=["CPUExecutionProvider"])
            found = session.run(None, kind.feed)
            named = zip((each.name for each in session.get_outputs()), found, strict=True)
            np.savez(answers, **dict(named))


class Samples(msgspec.Struct, frozen=True, kw_only=True):
    """Of one kind, in one process."""

    load_us: list[int]
    run_us: list[int]
    held_bytes: int
    working_bytes: int


def timed(folder: Path, *, prepared: bool, processes: int = 2) -> dict[str, Times]:
    """Of each kind on one core, while other cores do the same, as they do where models are loaded
    all the time: two sessions that are opened at once take a twentieth longer. Kept in the folder.
    """
    path = _times_path(folder, prepared=prepared)
    if not path.exists():
        command = [sys.executable, "-m", "benchmarks.deepplan.live_networks", str(folder)]
        command += ["--prepared"] if prepared else []
        children = [
            subprocess.Popen([*command, str(core), str(number)], stdout=subprocess.PIPE)
            for number, core in enumerate(sorted(os.sched_getaffinity(0))[-processes:])
        ]
        said = [child.communicate()[0] for child in children]
        if any(child.returncode for child in children):
            raise RuntimeError("the networks were not timed; what failed stands above")
        found = [msgspec.json.decode(each, type=dict[str, Samples]) for each in said]
        times = {kind: _pooled([each[kind] for each in found]) for kind in KINDS}
        keep_times(folder, times, prepared=prepared)
    return msgspec.json.decode(path.read_bytes(), type=dict[str, Times])


def keep_times(folder: Path, times: Mapping[str, Times], *, prepared: bool) -> None:
    _times_path(folder, prepared=prepared).write_bytes(msgspec.json.encode(times))


def _times_path(folder: Path, *, prepared: bool) -> Path:
    return folder / f"times-{'prepared' if prepared else 'plain'}.json"


def _pooled(samples: list[Samples]) -> Times:
    def percentiles(us: list[int]) -> tuple[int, int]:
        return round(float(np.percentile(us, 50))), round(float(np.percentile(us, 99)))

    return Times(
        load_us=percentiles([us for each in samples for us in each.load_us]),
        run_us=percentiles([us for each in samples for us in each.run_us]),
        held_bytes=max(each.held_bytes for each in samples),
        working_bytes=max(each.working_bytes for each in samples),
    )


def _time_all(folder: Path, core: int, process: int, *, prepared: bool) -> None:
    from benchmarks.deepplan.live import profile_of

    from headrace.catalog.loadable_stages import LoadableModel
    from headrace.executors.base import TensorMemory
    from headrace.executors.onnx import EXECUTOR
    from headrace.serving.workers.arena import Arena, map_arena
    from headrace.serving.workers.frames import Expect, Finished, Load, Loaded, Run, Unload
    from headrace.serving.workers.worker import Worker

    os.sched_setaffinity(0, [core])
    arena = Arena(1 << 26)
    memory = TensorMemory(map_arena(os.dup(arena.descriptor), arena.size_bytes))
    worker = Worker(memory)
    assert isinstance(worker.answer(Expect("onnx")), Loaded)
    base = own_bytes()
    found: dict[str, Samples] = {}
    rough = Times(load_us=(1, 1), run_us=(1, 1), held_bytes=1, working_bytes=0)
    for name, kind in kinds().items():
        loads, runs, held, most = [], [], [], []
        for number in range(ROUNDS + 3):
            # Of each process others: a file that two map counts half in each.
            which = f"{name}-{INSTANCES * process + number % INSTANCES}"
            profile = profile_of(folder, which, rough)
            maker = EXECUTOR.shares_weights if prepared else None
            stage = LoadableModel(profile, folder, (0, 1), maker).stage()
            load = Load(
                stage=0,
                name=which,
                executor="onnx",
                path=stage.path,
                weights=stage.weights,
                own=stage.own,
                inputs=profile.inputs,
                outputs=profile.outputs,
                max_batch=1,
                p50_us=(1,),
                p99_us=(1,),
                seed=0,
                warm_up=False,
            )
            memory.tensor(profile.inputs[0], 1, 0)[...] = next(iter(kind.feed.values()))
            run = Run(0, 0, 0, 1, (0,), tuple((i + 1) << 23 for i in range(len(profile.outputs))))
            with MemoryWatch() if number > ROUNDS else nullcontext() as watch:
                loaded, first = worker.answer(load), worker.answer(run)
                assert isinstance(loaded, Loaded), loaded
                assert isinstance(first, Finished), first
                later = []
                for _ in range(3):
                    again = worker.answer(run)
                    assert isinstance(again, Finished), again
                    later.append(again.ended_at_us - again.started_at_us)
                if watch is not None:
                    time.sleep(PAUSE_S)  # in which it may be packed
                    worker.answer(run)
            if watch is not None:
                most.append(watch.most_bytes - base)
                loaded_bytes = own_bytes()
            began_ns = time.perf_counter_ns()
            worker.answer(Unload(0))
            dropped_us = (time.perf_counter_ns() - began_ns) // 1_000
            if watch is not None:
                held.append(loaded_bytes - own_bytes())
            if 0 < number <= ROUNDS:  # the first one fills caches
                took = first.ended_at_us - first.started_at_us + loaded.took_us
                loads.append(max(1, took - round(float(np.median(later))) + dropped_us))
                runs += later
        # Beside: what is the process's since it began, of the kinds before too.
        found[name] = Samples(
            load_us=loads,
            run_us=runs,
            held_bytes=max(held),
            working_bytes=max(most) - min(held),
        )
    arena.close()
    sys.stdout.buffer.write(msgspec.json.encode(found))


if __name__ == "__main__":
    parser = new_parser(__doc__)
    parser.add_argument("folder", type=Path, help="where the networks are; times go to stdout")
    parser.add_argument("core", type=int)
    parser.add_argument("number", type=int, help="of this process")
    parser.add_argument("--prepared", action="store_true", help="as files that are prepared")
    given = parser.parse_args()
    _time_all(given.folder, given.core, given.number, prepared=given.prepared)
