"""A worker process of slots that compute nothing: each holds its batch until its time is over.

Any number of slots in one thread. Nothing is computed, so a slot is no more than the instant at
which its batch ends, and all of them wait in one heap.
"""

import select
import socket
import time
from collections.abc import Callable
from heapq import heappop, heappush

from headrace.domain.errors import ModelError
from headrace.executors.base import HeldStage, TensorMemory, describe
from headrace.executors.table import executor
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


def _monotonic_us() -> int:
    return time.monotonic_ns() // 1000


class Timelines:
    """Slots by the engine's number of them. Knows time only through `now_us`.

    A stage that is loaded while others are served takes as long as it is said to, beside batches;
    one of its own that begins meanwhile ends no sooner than its start does.
    """

    def __init__(self, memory: TensorMemory, now_us: Callable[[], int] = _monotonic_us) -> None:
        self._memory = memory
        self._now_us = now_us
        self._stages: dict[tuple[int, int], HeldStage] = {}
        self._free_at_us: dict[int, int] = {}
        self._starts_at_us: dict[tuple[int, int], int] = {}
        """When a stage's first batch may end, by slot and stage."""
        self._running: list[tuple[int, int, int, Run | Load]] = []
        """A heap: end, sequence number, start, what runs."""
        self._sequence = 0

    def take(self, frame: AnyFrame) -> AnyFrame | None:
        """Load a stage, or begin a batch; None: the reply comes when the batch has ended.

        A slot runs one batch at a time: a second one begins when the first has ended.
        """
        match frame:
            case Load():
                return self._load(frame)
            case Expect():
                return Loaded(EXPECTED, 0, frame.slot, self._now_us())
            case Unload():
                self._stages.pop((frame.slot, frame.stage), None)
                return Unloaded(frame.stage, frame.slot)
            case Run():
                return self._begin(frame)
        raise TypeError(f"a worker is not sent {type(frame).__name__}")

    def ended(self) -> list[AnyFrame]:
        """Reports of all batches whose time is over, in the order in which they ended."""
        reports: list[AnyFrame] = []
        running = self._running
        while running and running[0][0] <= (now_us := self._now_us()):
            _, _, started_at_us, run = heappop(running)
            if isinstance(run, Load):
                took_us = now_us - started_at_us
                reports.append(Loaded(run.stage, took_us, run.slot, now_us))
                continue
            # Not the instant at which it should have ended: the log tells what happened.
            reports.append(
                Finished(run.batch, run.attempt, run.stage, started_at_us, now_us, run.slot)
            )
        return reports

    def wait_s(self) -> float | None:
        """Until the next batch ends; None: none is running."""
        if not self._running:
            return None
        return max(0, self._running[0][0] - self._now_us()) / 1e6

    def _load(self, load: Load) -> Loaded | Failed | None:
        try:
            hold = executor(load.executor).hold
            if hold is None:
                raise ModelError(f"stage {load.name!r}: {load.executor} stages are run, not timed")
            self._stages[load.slot, load.stage] = hold(load, self._memory)
        except Exception as error:  # reported; the gateway decides what it means
            return Failed(-1, 0, load.stage, describe(error), load.slot)
        now_us = self._now_us()
        if not load.load_us:
            return Loaded(load.stage, 0, load.slot, now_us)
        self._starts_at_us[load.slot, load.stage] = now_us + load.start_us
        self._push(now_us + load.load_us, now_us, load)
        return None

    def _begin(self, run: Run) -> Failed | None:
        started_at_us = max(self._now_us(), self._free_at_us.get(run.slot, 0))
        try:
            took_us = self._stages[run.slot, run.stage].begin(run.size, run.output_offsets)
        except Exception as error:  # whatever it is concerns this batch only
            return Failed(run.batch, run.attempt, run.stage, describe(error), run.slot)
        end_at_us = max(started_at_us + took_us, self._starts_at_us.pop((run.slot, run.stage), 0))
        self._free_at_us[run.slot] = end_at_us
        self._push(end_at_us, started_at_us, run)
        return None

    def _push(self, end_at_us: int, started_at_us: int, what: Run | Load) -> None:
        self._sequence += 1
        heappush(self._running, (end_at_us, self._sequence, started_at_us, what))


def serve_timelines(
    channel: socket.socket, send: Callable[[bytes], None], timelines: Timelines
) -> None:
    """Answer frames, by `send`, until Stop and the end of all batches, or no gateway is left."""
    reader = FrameReader()
    stopping = False
    while not stopping or timelines.wait_s() is not None:
        # `select` counts microseconds, `poll` and `epoll` only milliseconds.
        readable, _, _ = select.select([channel], [], [], timelines.wait_s())
        replies: list[AnyFrame | None] = []
        if readable:
            data = channel.recv(_RECEIVE_BYTES)
            if not data:
                return
            for frame in reader.feed(data):
                if isinstance(frame, Stop):
                    stopping = True
                else:
                    replies.append(timelines.take(frame))
        replies += timelines.ended()
        if encoded := b"".join(encode(reply) for reply in replies if reply is not None):
            send(encoded)
