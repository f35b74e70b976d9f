"""Time to the first answer of an evicted model: a worker, and ONNX Runtime as its users load it.

    python -m benchmarks.deepplan.first_answer [--rounds 9] [--threads 1] [--layers 12]

The model is an encoder like BERT-base with random weights (437 MB, 94 of them a table of words),
one item of 128 tokens. Two processes on the same cores, asked in turn, the page cache warm:

    users    a session from the model's file, then its runs; closed
    worker   frames as the engine sends them: Load of the stage as it was prepared, Run, Unload

Users' sessions have default options but for the number of threads, which is that of the cores: what
ONNX Runtime takes by itself is that of the machine. An evicted model has given its memory back, so
both processes do; a process that keeps the freed heap opens its next session in half the time, and
is shown with `--keep-heap`. Answers follow each other at once, the third after PAUSE_S.

What is compared is the time from the load's beginning to the first answer, and what later answers
take. Memory is read before the load, after the runs and after the unload. Targets: first answer in
at most 0.38 of the users' time; later ones no slower; answers equal within 1e-4.
"""

import argparse
import gc
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from mmap import mmap
from pathlib import Path
from statistics import median

import numpy as np

TARGET = 0.38
EQUAL = 1e-4
TOKENS = 128
LATER = 4
"""Runs after the first."""
PAUSE_S = 0.5
"""Before the third answer, and before memory is read."""


def _answers(rows: "list[list[float]]", at: int) -> float:
    return median(row[at] for row in rows)


class Child:
    """One of the two processes."""

    def __init__(self, what: str, folder: Path, threads: int, *, keep_heap: bool) -> None:
        command = [sys.executable, "-m", "benchmarks.deepplan.first_answer", "--child", what]
        command += ["--threads", str(threads), "--folder", str(folder)]
        command += ["--keep-heap"] if keep_heap else []
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self.rows: list[list[float]] = []
        self.memory: list[list[int]] = []

    def ask(self, *, counts: bool) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write("\n")
        self._process.stdin.flush()
        said = json.loads(self._process.stdout.readline())
        if counts:
            self.rows.append(said["took_s"])
            self.memory.append(said["bytes"])

    def close(self) -> None:
        self._process.communicate("")


# -- in a child --------------------------------------------------------------------------------


def _users(folder: Path, threads: int, *, keep_heap: bool) -> None:
    import onnxruntime as ort

    from headrace.executors.onnx_session import trim_heap

    ids = np.load(folder / "ids.npy")
    options = ort.SessionOptions()
    options.intra_op_num_threads = threads

    def once() -> tuple[list[float], np.ndarray, list[int]]:
        sizes, began_s = [resident_bytes()], time.perf_counter()
        opened = [
            ort.InferenceSession(
                str(folder / "encoder.onnx"), options, providers=["CPUExecutionProvider"]
            )
        ]
        answers = []
        took = _timed(lambda: answers.append(opened[0].run(None, {"ids": ids})[0]), began_s)
        sizes.append(resident_bytes())
        opened.clear()
        gc.collect()
        if not keep_heap:
            trim_heap()
        time.sleep(PAUSE_S)
        return took, answers[0], [*sizes, resident_bytes()]

    _serve(once, folder / "users.npy")


def _worker(folder: Path, threads: int) -> None:
    from headrace.catalog.documents import read_profile
    from headrace.catalog.loadable_stages import LoadableModel
    from headrace.executors.base import TensorMemory
    from headrace.executors.onnx import EXECUTOR
    from headrace.serving.workers.frames import (
        AnyFrame,
        Finished,
        Load,
        Loaded,
        Run,
        Unload,
        Unloaded,
    )
    from headrace.serving.workers.worker import Worker

    profile = read_profile(folder / "encoder.profile.json")
    blocks = (0, len(profile.blocks))
    stage = LoadableModel(profile, folder, blocks, EXECUTOR.shares_weights).stage()
    memory = TensorMemory(mmap(-1, 1 << 24))
    worker = Worker(memory, cores=frozenset(os.sched_getaffinity(0)))
    load = Load(
        stage=0,
        name="encoder/whole/0",
        executor="onnx",
        path=stage.path,
        weights=stage.weights,
        own=stage.own,
        inputs=profile.inputs,
        outputs=profile.outputs,
        max_batch=1,
        threads=threads,
        p50_us=(1,),
        p99_us=(1,),
        seed=0,
        warm_up=False,
    )
    memory.tensor(profile.inputs[0], 1, 0)[...] = np.load(folder / "ids.npy")
    out = 1 << 20

    def answered(frame: AnyFrame, kind: type) -> None:
        reply = worker.answer(frame)
        assert isinstance(reply, kind), reply

    def once() -> tuple[list[float], np.ndarray, list[int]]:
        sizes, began_s = [resident_bytes()], time.perf_counter()
        answered(load, Loaded)
        took = _timed(lambda: answered(Run(0, 0, 0, 1, (0,), (out,)), Finished), began_s)
        sizes.append(resident_bytes())
        answered(Unload(0), Unloaded)
        time.sleep(PAUSE_S)
        return took, memory.tensor(profile.outputs[0], 1, out).copy(), [*sizes, resident_bytes()]

    _serve(once, folder / "worker.npy")


def _timed(run: Callable[[], None], began_s: float) -> list[float]:
    """Seconds of each answer, the first one from `began_s` on."""
    took = []
    for number in range(1 + LATER):
        if number == 2:
            time.sleep(PAUSE_S)
        begin_s = time.perf_counter() if number else began_s
        run()
        took.append(time.perf_counter() - begin_s)
    return took


def _serve(once: object, answer_path: Path) -> None:
    for _ in sys.stdin:
        took, answer, sizes = once()  # type: ignore[operator]
        np.save(answer_path, answer)
        print(json.dumps({"took_s": took, "bytes": sizes}), flush=True)


def resident_bytes() -> int:
    """Of this process, mapped files included."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


# -- in the parent -----------------------------------------------------------------------------


def measured(
    folder: Path, threads: int, rounds: int, *, keep_heap: bool
) -> tuple[Child, Child, float]:
    """Both, asked in turn after one round that does not count, and how far answers are apart."""
    cores = sorted(os.sched_getaffinity(0))[-threads:]
    os.sched_setaffinity(0, cores)  # the children are where we are
    users, worker = (
        Child(what, folder, threads, keep_heap=keep_heap) for what in ("users", "worker")
    )
    for number in range(rounds + 1):
        for child in (users, worker):
            child.ask(counts=number > 0)
    users.close()
    worker.close()
    apart = np.abs(np.load(folder / "users.npy") - np.load(folder / "worker.npy")).max()
    return users, worker, float(apart)


def prepare(folder: Path, layers: int) -> int:
    """Write the model, its profile and an input; returns the weights' bytes."""
    from benchmarks.accordion.real_networks import WORDS, encoder

    from headrace.catalog.documents import write_document

    network = encoder(layers, TOKENS)
    profile = network.profile(network.saved(folder), [1] * layers)
    write_document(profile, folder / "encoder.profile.json")
    np.save(folder / "ids.npy", np.random.default_rng(0).integers(0, WORDS, (1, TOKENS)))
    return sum(len(each.raw_data) for each in network.model.graph.initializer)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--threads", type=int, default=1, help="cores of the slot, and of users")
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument("--keep-heap", action="store_true", help="users give no memory back")
    parser.add_argument("--child", choices=("users", "worker"), help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child == "users":
        _users(options.folder, options.threads, keep_heap=options.keep_heap)
        return
    if options.child == "worker":
        _worker(options.folder, options.threads)
        return
    with tempfile.TemporaryDirectory() as scratch:
        os.environ["HEADRACE_CACHE"] = str(Path(scratch) / "cache")
        weights = prepare(Path(scratch), options.layers)
        users, worker, apart = measured(
            Path(scratch), options.threads, options.rounds, keep_heap=options.keep_heap
        )
    first = _answers(worker.rows, 0) / _answers(users.rows, 0)
    print(f"weights {weights / 1e6:.0f} MB, {options.threads} core(s), {options.rounds} rounds")
    for name, child in (("users", users), ("worker", worker)):
        times = "  ".join(f"{1e3 * _answers(child.rows, at):.0f}" for at in range(1 + LATER))
        before, held, after = (median(row[at] for row in child.memory) / 1e6 for at in range(3))
        print(
            f"{name:7} first and later answers, ms: {times}; resident MB before {before:.0f},"
            f" held {held:.0f}, after {after:.0f}"
        )
    later = [_answers(worker.rows, at) / _answers(users.rows, at) for at in range(1, 1 + LATER)]
    print(
        f"first answer {first:.2f} of the users' (target {TARGET}), later ones"
        f" {', '.join(f'{ratio:.2f}' for ratio in later)}; answers {apart:.1e} apart (target"
        f" {EQUAL:g})"
    )


if __name__ == "__main__":
    main()
