"""The worker process: holds the stages of one slot and runs one batch at a time.

Slots of a kind that only holds them need no device, so one process may serve many (`timelines`).

Started by the supervisor as `python -m headrace.serving.workers.worker`, with its control socket
and the arena inherited as descriptors. It has no other connection to the world, trusts nobody but
the gateway, and ends when the gateway does. Kept lean on purpose: its start is what a lost slot
waits for.
"""

import argparse
import contextlib
import os
import re
import resource
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable
from importlib import import_module

from headrace.children import die_with_parent
from headrace.domain.elements import fill_neutral
from headrace.domain.errors import ModelError, NoRoomError, ProcessLimitError
from headrace.executors.base import (
    Executor,
    SizedExecutor,
    StreamingExecutor,
    TensorMemory,
    describe,
    require_checked,
)
from headrace.executors.table import executor
from headrace.serving.workers.affinity import keep_on
from headrace.serving.workers.arena import map_arena
from headrace.serving.workers.arrivals import Arrivals
from headrace.serving.workers.beats import beat_for_ever
from headrace.serving.workers.frames import (
    EXPECTED,
    AnyFrame,
    Expect,
    Failed,
    Finished,
    FrameReader,
    Load,
    Loaded,
    Run,
    Stop,
    Unload,
    Unloaded,
    encode,
)

_RECEIVE_BYTES = 1 << 16
_OUT_OF_MEMORY = re.compile(r"bad_alloc|MemoryError|[Aa]llocat|out of memory")
_PR_SET_TIMERSLACK = 29


class Worker:
    """Answers each Expect, Load, Unload and Run with exactly one frame, until it loses its device.

    That of a Load whose weights are copied beside what runs (`StreamingExecutor`) is sent when they
    are there, from a thread of its own, and frames behind it are worked off meanwhile.
    """

    def __init__(
        self,
        memory: TensorMemory,
        memory_bytes: int | None = None,
        cores: frozenset[int] = frozenset(),
        send: Callable[[bytes], None] = lambda data: None,
    ) -> None:
        """
        Args:
            send: what an answer that comes later is sent with, from another thread.
            memory_bytes: how much data memory the process may have, for messages.
            cores: those of its slot, among which stages place their threads; empty: any.
        """
        self._memory = memory
        self._memory_bytes = memory_bytes
        self._cores = cores
        self._executors: dict[int, Executor] = {}
        self._loads: dict[int, Load] = {}
        self._runs = threading.Lock()
        """Held by a run until it is known whether it has lost the device: of all that fails with a
        device, such as weights on their way, the run alone is told of."""
        self._lost = False
        """The device: the gateway was told, ends this worker, and is told nothing more."""
        self._arrivals = Arrivals(lambda frame: send(encode(frame)), self._late)

    def answer(self, frame: AnyFrame) -> AnyFrame | None:
        """None: the answer comes later; or never, where the device is lost, as was answered."""
        if self._lost:
            return None
        for stage in self._arrivals.failed():
            self._drop(stage)
        match frame:
            case Run():
                return self._run(frame)
            case Load():
                return self._load(frame)
            case Expect():
                return self._expect(frame)
            case Unload():
                return self._unload(frame)
        raise TypeError(f"a worker is not sent {type(frame).__name__}")

    def close(self) -> None:
        self._arrivals.end()
        for stage in self._executors.values():
            stage.unload()

    def _run(self, run: Run) -> AnyFrame | None:
        with self._runs:
            return None if self._lost else self._ran(run)

    def _ran(self, run: Run) -> AnyFrame:
        started_at_us = _now_us()
        stage = self._executors.get(run.stage)
        if stage is None:  # its load has failed, as was said
            return Failed(run.batch, run.attempt, run.stage, "stage is not loaded", run.slot)
        try:
            if not run.sizes:
                stage.run(run.size, run.input_offsets, run.output_offsets)
            elif isinstance(stage, SizedExecutor):
                stage.run_at(run.sizes, run.size, run.input_offsets, run.output_offsets)
            else:
                raise ModelError("sizes between those profiled need `headrace serve --pad` here")
        except Exception as error:  # whatever a backend raises concerns this batch only
            message = self._describe(error)
            broken = self._loses(self._loads[run.stage], error) or (
                # Where zeros never ran, nothing tells a broken stage from an input that is wrong.
                run.size == 1
                and not getattr(stage, "refuses_zeros", False)
                and not self._runs_zeros(run)
            )
            return Failed(run.batch, run.attempt, run.stage, message, run.slot, broken)
        return Finished(run.batch, run.attempt, run.stage, started_at_us, _now_us(), run.slot)

    def _describe(self, error: Exception) -> str:
        """What to report of it; with the limit, where that may be the cause."""
        said = describe(error)
        if self._memory_bytes is None or not _OUT_OF_MEMORY.search(said):
            return said
        limit_mb = self._memory_bytes / 1e6
        return f"{said} (a worker may have {limit_mb:g} MB here: --worker-memory-mb)"

    def _runs_zeros(self, run: Run) -> bool:
        """Whether a stage that failed with one item still computes what it was warmed up with."""
        try:
            stage, load = self._executors[run.stage], self._loads[run.stage]
            inputs = [
                self._memory.tensor(spec, 1, offset)
                for spec, offset in zip(load.inputs, run.input_offsets, strict=True)
            ]
            # If the stage is of no use, another worker may get the same input, from here.
            kept = [tensor.copy() for tensor in inputs]
            for tensor in inputs:
                fill_neutral(tensor)
            try:
                stage.run(1, run.input_offsets, run.output_offsets)
            finally:
                for tensor, content in zip(inputs, kept, strict=True):
                    tensor[...] = content
        except Exception:  # of the same kind or another: this stage is of no use
            return False
        return True

    def _load(self, load: Load) -> AnyFrame | None:
        started_at_us = _now_us()
        if self._cores:
            # The stage before may have placed this thread on one of them.
            keep_on(self._cores)
        try:
            require_checked(load)
            opened = open_stage(load, self._memory)
            require_checked(load)
        except Exception as error:  # reported; the gateway decides what it means
            return self._not_loaded(load, error)
        self._executors[load.stage], self._loads[load.stage] = opened, load
        if isinstance(opened, StreamingExecutor):
            self._arrivals.expect(opened, load, started_at_us)
            return None
        ended_at_us = _now_us()
        return Loaded(load.stage, ended_at_us - started_at_us, load.slot, ended_at_us)

    def _not_loaded(self, load: Load, error: Exception) -> Failed:
        message, broken = self._describe(error), self._loses(load, error)
        no_room = isinstance(error, NoRoomError)
        return Failed(-1, 0, load.stage, message, load.slot, broken, no_room)

    def _late(self, load: Load, error: Exception) -> Failed | None:
        """What to say of weights that did not come; on the thread of arrivals."""
        with self._runs:
            return None if self._lost else self._not_loaded(load, error)

    def _loses(self, load: Load, error: Exception) -> bool:
        """Whether no stage of its kind can be computed here any more, as an error tells."""
        try:
            is_lost = executor(load.executor).is_lost
        except ModelError:  # of an unknown kind nothing is lost
            return False
        self._lost = self._lost or (is_lost is not None and is_lost(error))
        return self._lost

    def _expect(self, expect: Expect) -> AnyFrame:
        """Import what takes longer than many a model."""
        started_at_us = _now_us()
        try:
            measures = executor(expect.executor).measures
            for library in () if measures is None else measures.libraries:
                import_module(library)
        except Exception as error:  # reported; the gateway decides what it means
            return Failed(-1, 0, EXPECTED, describe(error), expect.slot)
        ended_at_us = _now_us()
        return Loaded(EXPECTED, ended_at_us - started_at_us, expect.slot, ended_at_us)

    def _unload(self, unload: Unload) -> Unloaded:
        # What is told of a stage is told in order: that it was there, then that it is gone.
        self._arrivals.settle(unload.stage)
        self._drop(unload.stage)
        return Unloaded(unload.stage, unload.slot)

    def _drop(self, stage: int) -> None:
        executor = self._executors.pop(stage, None)
        self._loads.pop(stage, None)
        if executor is not None:
            executor.unload()


def open_stage(load: Load, memory: TensorMemory) -> Executor:
    """Load a stage with the kind of executor that it names, and warm it up.

    Raises:
        ModelError: the stage's file does not fit what the plan says of it; or the kind is unknown,
            or computes nothing, which takes a process of `timelines`.
    """
    kind = executor(load.executor)
    if kind.open is None:
        raise ModelError(f"stage {load.name!r}: {load.executor} stages are not run, but timed")
    return kind.open(load, memory)


def serve(channel: socket.socket, send: Callable[[bytes], None], worker: Worker) -> None:
    """Answer frames, by `send`, until Stop, or until the gateway's end is closed."""
    reader = FrameReader()
    while data := channel.recv(_RECEIVE_BYTES):
        for frame in reader.feed(data):
            if isinstance(frame, Stop):
                return
            answered = worker.answer(frame)
            if answered is not None:
                send(encode(answered))


def main() -> None:
    """Read the inherited descriptors from the command line and serve until told to stop."""
    try:
        _serve_until_told()
    except ProcessLimitError as error:
        # The gateway says so. At once: it kills a worker that has closed its end, and is to see the
        # code.
        os._exit(error.exit_code)


def _serve_until_told() -> None:
    parser = argparse.ArgumentParser(prog="headrace-worker")
    parser.add_argument("--channel", type=int, required=True, help="descriptor of the socket")
    parser.add_argument("--arena", type=int, required=True, help="descriptor of shared memory")
    parser.add_argument("--arena-bytes", type=int, required=True)
    parser.add_argument("--parent", type=int, required=True, help="process id of the gateway")
    parser.add_argument("--holds", action="store_true", help="hold slots for profiled times")
    parser.add_argument("--cores", type=_numbers, help="the CPU cores to stay on")
    parser.add_argument("--memory-bytes", type=int, help="most data memory")
    options = parser.parse_args()

    # Ctrl-C is for the gateway, which drains first and then says Stop.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # In the middle of a long batch, even; the closed socket would end it only after that.
    die_with_parent(options.parent)
    wake_on_time()
    cores = options.cores if options.cores and hasattr(os, "sched_setaffinity") else frozenset()
    if cores:
        keep_on(cores)
    if options.memory_bytes is not None:
        resource.setrlimit(resource.RLIMIT_DATA, (options.memory_bytes, options.memory_bytes))
    # A low number: those that a busy gateway hands down may be too high for `select`.
    channel = socket.socket(fileno=os.dup(options.channel))
    os.close(options.channel)
    send = beat_for_ever(channel)
    memory = TensorMemory(map_arena(options.arena, options.arena_bytes))
    os.close(options.arena)
    # A gateway that is gone cannot be told anything; the exit code is nobody's concern either.
    with contextlib.suppress(ConnectionError):
        if options.holds:
            from headrace.serving.workers.timelines import Timelines, serve_timelines

            serve_timelines(channel, send, Timelines(memory))
        else:
            _compute_in_the_background()
            worker = Worker(memory, options.memory_bytes, cores, send)
            serve(channel, send, worker)
            worker.close()


def wake_on_time() -> None:
    """Emulated slots sleep; Linux's default slack of 50 us would be added to every batch."""
    if sys.platform != "linux":
        return
    import ctypes

    ctypes.CDLL(None).prctl(_PR_SET_TIMERSLACK, 1)


def _compute_in_the_background() -> None:
    """Where it shares a core, the gateway, which needs little time but needs it at once, starts as
    soon as it has something to do: it has slept, and a batch process never interrupts another. And
    a gateway that is flooded gets half of that core and no more, being of the same weight.

    Not so emulated slots: they need even less, and what they wait for their core would be time that
    the hardware they stand for does not take.
    """
    if hasattr(os, "SCHED_BATCH"):
        with contextlib.suppress(OSError):  # forbidden in some containers
            os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))


def _numbers(words: str) -> frozenset[int]:
    return frozenset(map(int, words.split(",")))


def _now_us() -> int:
    return time.monotonic_ns() // 1000


if __name__ == "__main__":
    main()
