"""What a model that comes and goes takes of memory and of time, as a worker opens it.

    python -m headrace.profiling.held PROFILE FOLDER DEVICE

In a process of its own, which loads the model as it is prepared for serving (`loadable_stages`),
runs it, waits until what is done behind the first answer is done, and gives it back; twice, since
the first time also fills what the library keeps. Counted is what is the process's own (a page that
n processes map counts 1/n) beyond what it has with the library imported:

    held       the model is loaded and idle, asked once or more often, less what the process keeps
               once it is given back
    working    the most there ever was, less held

Then it is started again and again, each time from its files until its first answer, on a core of
its own: what that takes and its layers' times do not tell is the time to open it (`layers`).
"""

import subprocess
import sys
import threading
import time
from collections.abc import Callable
from functools import partial
from importlib import import_module
from mmap import mmap
from pathlib import Path
from typing import NamedTuple

import msgspec
import numpy as np

from headrace.catalog.documents import read_profile, write_document
from headrace.catalog.loadable_stages import LoadableModel
from headrace.catalog.scratch import scratch_folder
from headrace.catalog.stage_files import model_format
from headrace.children import child_command
from headrace.domain.base import Record
from headrace.domain.elements import element_dtype
from headrace.domain.errors import ModelError
from headrace.domain.percentiles import percentile
from headrace.domain.profile import Profile
from headrace.executors.base import Executor, StageToLoad, TensorMemory
from headrace.executors.behind import do_behind
from headrace.executors.table import AUTO, executor, kind_for
from headrace.profiling.items import random_items, tiled
from headrace.profiling.machine import one_quiet_core
from headrace.profiling.ranges import as_they_lie

TURNS = 2
LOOK_S = 0.003
"""Between two looks at the memory."""
ALIGNMENT = 64
SEED = 0
_ROLLUP = Path("/proc/self/smaps_rollup")


MIN_STARTS, MAX_STARTS = 3, 25
STARTS_S = 2.0
"""Seconds for starts; at least `MIN_STARTS` are made."""


class HeldMemory(Record, frozen=True, kw_only=True):
    """Of one model."""

    held_bytes: int
    working_bytes: int
    start_p50_us: int
    """From its files until the first answer."""
    start_p99_us: int


def held_memory(profile: Profile, folder: Path, device: str) -> HeldMemory | None:
    """None where the system does not tell.

    Args:
        folder: what the profile's paths are relative to.

    Raises:
        ModelError: the model cannot be prepared or loaded.
    """
    if not _ROLLUP.exists():
        return None
    with scratch_folder("headrace-held-") as scratch:
        path = scratch / "profile.json"
        write_document(profile, path)
        command = child_command("headrace.profiling.held", str(path), str(folder), device)
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        said = done.stderr.strip().splitlines()[-1:] or [f"exit code {done.returncode}"]
        raise ModelError(
            f"model {profile.model!r}: what it takes of memory was not measured: {said[0][:300]}"
        )
    return msgspec.json.decode(done.stdout.encode(), type=HeldMemory)


# -- in the child ----------------------------------------------------------------------------------


def own_bytes() -> int:
    """Proportional set size of this process."""
    lines = _ROLLUP.read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("Pss:"))


class MemoryWatch:
    """Remembers the most that this process had in memory while it was entered."""

    def __init__(self) -> None:
        self.most_bytes = own_bytes()
        self._ends = threading.Event()
        self._thread = threading.Thread(target=self._look)

    def __enter__(self) -> "MemoryWatch":
        self._thread.start()
        return self

    def _look(self) -> None:
        while not self._ends.wait(LOOK_S):
            self.most_bytes = max(self.most_bytes, own_bytes())

    def __exit__(self, *_: object) -> None:
        self._ends.set()
        self._thread.join()


def _measure(profile: Profile, folder: Path, device: str) -> HeldMemory:
    kind = executor(kind_for(device, AUTO, model_format(profile, folder)))
    open_stage = kind.open
    assert open_stage is not None, "layers were measured with it"
    assert kind.measures is not None, "layers were measured with it"
    blocks = (0, len(profile.blocks))
    found = LoadableModel(profile, folder, blocks, kind.shares_weights).stage()
    stage = StageToLoad(
        name=profile.model,
        path=found.path,
        weights=found.weights,
        own=found.own,
        inputs=profile.inputs,
        outputs=profile.outputs,
        max_batch=1,
        p50_us=(1,),
        p99_us=(1,),
        seed=SEED,
        warm_up=False,
        comes_and_goes=True,
    )
    tensors = _placed(profile)
    for library in kind.measures.libraries:
        import_module(library)
    open_it = partial(open_stage, stage, tensors.memory)
    held, most = _memory_taken(open_it, tensors)
    starts_ns = sorted(_starts_ns(open_it, tensors, kind.measures.timer_ns))
    return HeldMemory(
        held_bytes=held,
        working_bytes=max(0, most - held),
        start_p50_us=percentile(starts_ns, 500) // 1000,
        start_p99_us=percentile(starts_ns, 990) // 1000,
    )


class _Placed(NamedTuple):
    """Tensors of one item as in a server's arena, the inputs filled."""

    memory: TensorMemory
    inputs: list[int]
    """Offsets."""
    outputs: list[int]


def _placed(profile: Profile) -> _Placed:
    specs, offsets, end = (*profile.inputs, *profile.outputs), [], 0
    for spec in specs:
        offsets.append(end)
        size = spec.item_count * element_dtype(spec).itemsize
        end += -(-size // ALIGNMENT) * ALIGNMENT
    tensors = mmap(-1, max(1, end))
    tensors.write(bytes(end))  # its pages are the server's
    memory = TensorMemory(tensors)
    inputs, outputs = offsets[: len(profile.inputs)], offsets[len(profile.inputs) :]
    items = tiled(random_items(profile.inputs, 1, np.random.default_rng(SEED)), 1)
    given = as_they_lie(profile.inputs, items)
    for spec, offset in zip(profile.inputs, inputs, strict=True):
        memory.tensor(spec, 1, offset)[...] = given[spec.name]
    return _Placed(memory, inputs, outputs)


def _memory_taken(open_it: Callable[[], Executor], tensors: _Placed) -> tuple[int, int]:
    """(bytes that the model holds, the most that it took beyond what was there before)."""
    base, held, most = own_bytes(), 0, 0
    for turn in range(TURNS):
        with MemoryWatch() as watch:
            opened = open_it()
            opened.run(1, tensors.inputs, tensors.outputs)
            behind = threading.Event()
            do_behind(behind.set)
            while turn == 0 and not behind.is_set():
                opened.run(1, tensors.inputs, tensors.outputs)
            behind.wait()
            loaded = own_bytes()
            opened.run(1, tensors.inputs, tensors.outputs)
            loaded = max(loaded, own_bytes())
        opened.unload()
        del opened
        held = max(1, loaded - own_bytes())
        most = max(most, watch.most_bytes - base)
    return held, most


def _starts_ns(
    open_it: Callable[[], Executor], tensors: _Placed, timer_ns: Callable[[], int]
) -> list[int]:
    """From its files until the first answer, of each start that there is time for."""
    starts_ns: list[int] = []

    def start() -> None:
        began_ns = timer_ns()
        opened = open_it()
        opened.run(1, tensors.inputs, tensors.outputs)
        starts_ns.append(timer_ns() - began_ns)
        opened.unload()
        behind = threading.Event()
        do_behind(behind.set)
        behind.wait()

    with one_quiet_core():
        began_s = time.perf_counter()
        while len(starts_ns) < MIN_STARTS or (
            len(starts_ns) < MAX_STARTS and time.perf_counter() - began_s < STARTS_S
        ):
            start()
    return starts_ns


if __name__ == "__main__":
    measured = _measure(read_profile(Path(sys.argv[1])), Path(sys.argv[2]), sys.argv[3])
    sys.stdout.write(msgspec.json.encode(measured).decode())
