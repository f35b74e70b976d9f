"""A supervisor over virtual time, with workers behind it that do what a script says."""

import asyncio
from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import closing
from itertools import count
from typing import Any

from headrace.domain.errors import ModelError
from headrace.serving.workers.activity import Activity
from headrace.serving.workers.frames import (
    AnyFrame,
    Beat,
    Failed,
    Finished,
    Load,
    Loaded,
    Run,
    Unload,
    Unloaded,
)
from headrace.serving.workers.host import HostGoneError
from headrace.serving.workers.pulse import LOOK_S, NO_CORE
from headrace.serving.workers.supervisor import Supervisor
from headrace.serving.workers.worker_process import WorkerSpec
from helpers.virtual_loop import VirtualTimeLoop

LOAD_S = 1.0
P99_US = 100_000
FAILS, LOADS, HANGS, REFUSED = "fails", "loads", "hangs", "refused"


class FakeWorker:
    """Once it has loaded it beats, unless it is `stopped`, or `starved` while it would run."""

    def __init__(
        self,
        host: "FakeHost",
        what: str,
        on_frame: Callable[[AnyFrame], None],
        on_lost: Callable[[str], None],
    ) -> None:
        self.descriptor = None
        self.stopped = False
        self.starved = False
        self.waited_us = 0
        self.busy: int | None = None
        """For how long it is known to have had its batch, us; None: since it was sent."""
        self.share = 0.0
        """Of a core that it gets, without its beats having any of it."""
        self.began_at_s = asyncio.get_running_loop().time()
        self._on_frame = on_frame
        self.process_id = next(host.numbers)
        self._host = host
        self._what = what
        self.lose = on_lost
        self.sent: list[AnyFrame] = []
        host.alive.add(self)

    def _beat(self) -> None:
        if self in self._host.alive:
            if not self.stopped and not self.starved and not self.share:
                self._on_frame(Beat(self.waited_us))
            asyncio.get_running_loop().call_later(LOOK_S, self._beat)

    @property
    def activity(self) -> Activity:
        lived_s = asyncio.get_running_loop().time() - self.began_at_s
        runs = self.starved or self.share > 0.0
        return Activity(runs and not self.stopped, round(self.share * lived_s * 1e6))

    def send(self, frame: Run | Load | Unload) -> None:
        """Nothing is run here."""
        self.sent.append(frame)

    def busy_us(self, slot: int) -> int | None:
        return self.busy

    def says(self, frame: AnyFrame) -> None:
        """Whatever a scene has it say."""
        self._on_frame(frame)

    async def load(self, timeout_s: float) -> None:
        host = self._host
        host.loading += 1
        together, host.most_loading = host.loading, max(host.most_loading, host.loading)
        try:
            await asyncio.sleep(timeout_s if self._what == HANGS else LOAD_S)
        finally:
            host.loading -= 1
        if not host.is_up:
            raise ModelError("its agent is lost")
        if self._what == REFUSED:
            raise HostGoneError("another gateway has taken over")
        if self._what != LOADS or max(together, host.loading + 1) > host.room:
            raise ModelError("no memory")
        self._beat()

    def kill(self) -> None:
        self.lose("killed")

    async def stop(self) -> None:
        self._host.alive.discard(self)

    async def reap(self) -> int:
        await asyncio.sleep(self._host.reap_s)
        self._host.alive.discard(self)
        return 1


class FakeHost:
    """A machine on which workers start: with room for so many that load at once."""

    home = "elsewhere"
    clock_offset_us = 0
    incarnation = 0
    last_frame: Callable[[AnyFrame], None]

    def __init__(self, script: Iterator[str], room: int = 100) -> None:
        self.script = script
        self.room = room
        self.loading = 0
        self.most_loading = 0
        self.alive: set[FakeWorker] = set()
        self.numbers: Iterator[int] = count(1)
        self.tells = True
        """What its processes do."""
        self.reap_s = 0.0
        """From the kill of a worker to its end."""
        self.started_at_s: list[float] = []
        self._up = asyncio.Event()
        self._up.set()

    @property
    def is_up(self) -> bool:
        return self._up.is_set()

    async def until_up(self) -> None:
        await self._up.wait()

    async def cut_off(self, for_s: float, *, died: bool = False) -> None:
        """It is not heard, and then again. `died`: it was started anew meanwhile; else its workers
        live on, and whoever is started is one of them: give them one number."""
        self._up.clear()
        for worker in [*self.alive]:
            worker.lose("its agent is lost")
        await asyncio.sleep(for_s)
        self.incarnation += died
        self._up.set()

    def start_worker(
        self,
        specs: Sequence[WorkerSpec],
        on_frame: Callable[[AnyFrame], None],
        on_lost: Callable[[str], None],
    ) -> FakeWorker:
        self.started_at_s.append(asyncio.get_running_loop().time())
        self.last_frame = on_frame
        return FakeWorker(self, next(self.script), on_frame, on_lost)

    def cores(self) -> Sequence[int]:
        return ()

    def available_memory_bytes(self) -> int | None:
        return None

    def set_niceness(self, process_id: int, niceness: int) -> None:
        """Nothing is run here."""

    def activity(self, process_id: int) -> Activity | None:
        [found] = [worker for worker in self.alive if worker.process_id == process_id]
        return found.activity if self.tells else None

    def excuse(self) -> str:
        return NO_CORE

    def close(self) -> None:
        """Nothing is held here."""


class Told:
    """What the supervisor said of slots, and when."""

    def __init__(self) -> None:
        self.lost: list[tuple[float, int]] = []
        self.gained: list[tuple[float, int]] = []
        self.ran: list[Finished] = []
        self.of_stages: list[tuple[float, AnyFrame]] = []
        """Replies to loads and unloads."""
        self.changed = asyncio.Event()

    def on_ran(self, slot: int, frame: Finished) -> None:
        self.ran.append(frame)

    def on_failed(self, slot: int, frame: Failed) -> None:
        raise AssertionError("nothing runs here")

    def on_slot_lost(self, slot: int) -> None:
        self.lost.append((asyncio.get_running_loop().time(), slot))

    def on_loaded(self, slot: int, frame: Loaded) -> None:
        self.of_stages.append((asyncio.get_running_loop().time(), frame))

    def on_load_failed(self, slot: int, frame: Failed) -> None:
        self.of_stages.append((asyncio.get_running_loop().time(), frame))

    def on_unloaded(self, slot: int, frame: Unloaded) -> None:
        self.of_stages.append((asyncio.get_running_loop().time(), frame))

    def on_slot_gained(self, slot: int) -> None:
        self.gained.append((asyncio.get_running_loop().time(), slot))
        self.changed.set()

    async def until_gained(self, times: int) -> None:
        while len(self.gained) < times:
            self.changed.clear()
            await self.changed.wait()


def load_of(stage: int) -> Load:
    return Load(
        stage=stage,
        executor="onnx",
        name="m/p/0",
        path="",
        inputs=(),
        outputs=(),
        max_batch=1,
        p50_us=(P99_US,),
        p99_us=(P99_US,),
        seed=0,
    )


def specs(slots: int) -> list[WorkerSpec]:
    """Stage 0 is there from the beginning, stage 1 may come."""
    now, later = (load_of(0),), (load_of(1),)
    return [
        WorkerSpec(slot=f"slot{i}", executor="onnx", loads=now, later=later) for i in range(slots)
    ]


Scene = Callable[[Supervisor, Told], Coroutine[Any, Any, None]]


def play(
    host: FakeHost,
    scene: Scene,
    slots: int = 1,
    loop_type: type[VirtualTimeLoop] = VirtualTimeLoop,
) -> None:
    """Run a scene in virtual time; afterwards no worker may be left."""

    async def main() -> None:
        supervisor, told = Supervisor(specs(slots), host), Told()
        supervisor.connect(told)
        try:
            await scene(supervisor, told)
        finally:
            await supervisor.stop()

    with closing(loop_type()) as loop:
        loop.run_until_complete(main())
    assert not host.alive


def run(supervisor: Supervisor, batch: int = 0) -> None:
    supervisor.slots[0].run(Run(batch, 0, 0, 1, (), (), 0))


def end(host: FakeHost, batch: int = 0) -> None:
    host.last_frame(Finished(batch, 0, 0, 0, 0, 0))
