"""A machine that workers run on: starts them, and says what they may use of it.

Supervision talks to a host and knows no process. This machine is one host (`LocalHost`); another
kind of host starts its workers elsewhere, and needs what is stated here and no more.

Instants that a worker reports are on its host's clock. Whoever receives them adds
`clock_offset_us`, so that all events of a server are on one clock.
"""

import logging
import os
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Protocol

from headrace.domain.errors import ModelError
from headrace.executors.mps import MpsService
from headrace.serving.workers.activity import Activity, activity_of
from headrace.serving.workers.affinity import allowed_cores, cores_left, still_allowed
from headrace.serving.workers.arena import Arena
from headrace.serving.workers.control_groups import keep_to_share, quota_folder
from headrace.serving.workers.descriptors import DescriptorReserve, process_reserve
from headrace.serving.workers.frames import AnyFrame, Load, Run, Unload
from headrace.serving.workers.machine_memory import MachineMemory
from headrace.serving.workers.pulse import NO_CORE
from headrace.serving.workers.stage_io import HERE, Home
from headrace.serving.workers.worker_process import WorkerLimits, WorkerProcess, WorkerSpec

logger = logging.getLogger(__name__)


class HostGoneError(ModelError):
    """A host starts no worker for this server, and never will again."""

    exit_code = 5


class WorkerHandle(Protocol):
    """A worker that was started: it loads its stages, then runs batches until it ends."""

    @property
    def process_id(self) -> int: ...

    @property
    def descriptor(self) -> int | None:
        """Of this machine: readable when the worker has said something; None: there is none."""
        ...

    @property
    def send(self) -> Callable[[Run | Load | Unload], None]: ...

    def busy_us(self, slot: int) -> int | None:
        """For how long it is known to have had what that slot runs; None: since it was sent."""
        ...

    async def load(self, timeout_s: float) -> None:
        """
        Raises:
            ModelError: a stage cannot be loaded, or the worker died or hung meanwhile.
            HostGoneError: its host takes no workers any more.
        """
        ...

    def kill(self) -> None: ...

    async def stop(self) -> None: ...

    async def reap(self) -> int: ...


class Host(Protocol):
    """Where workers run."""

    @property
    def home(self) -> Home:
        """Where the tensors lie that its workers read and write now."""
        ...

    @property
    def clock_offset_us(self) -> int:
        """What is added to its clock to get ours."""
        ...

    @property
    def is_up(self) -> bool:
        """False: it is not heard, and so what ran there is lost, though it may live on."""
        ...

    @property
    def incarnation(self) -> int:
        """Another one when it has come back with nothing of what ran there before."""
        ...

    async def until_up(self) -> None:
        """
        Raises:
            HostGoneError: it never will be.
        """
        ...

    def start_worker(
        self,
        specs: Sequence[WorkerSpec],
        on_frame: Callable[[AnyFrame], None],
        on_lost: Callable[[str], None],
    ) -> WorkerHandle:
        """Start one process for these slots, inside a running event loop.

        `on_frame` gets what it reports of runs; `on_lost` is called once, with the reason, when it
        ends or must be given up though nobody asked it to stop.

        Raises:
            ProcessLimitError: the system starts no more processes.
            OSError: it cannot be started.
        """
        ...

    def cores(self) -> Sequence[int]:
        """The CPU cores that its workers may be kept on now; none where it cannot keep them."""
        ...

    def available_memory_bytes(self) -> int | None:
        """What it would give to new processes without swapping; None: it does not say."""
        ...

    def set_niceness(self, process_id: int, niceness: int) -> None:
        """Of one of its workers. Raises OSError: it is denied, or the worker is gone."""
        ...

    def activity(self, process_id: int) -> Activity | None:
        """Of one of its workers, as far as its system says."""
        ...

    def excuse(self) -> str:
        """For messages: why a worker that `activity` calls runnable is silent."""
        ...

    def close(self) -> None:
        """Its last worker has ended: give back what was held for them. Idempotent."""
        ...


class LocalHost:
    """This machine. Its workers inherit the arena, share our clock, and die with us.

    Until `close` it holds descriptors for those that must be started again.
    """

    home: Home = HERE
    clock_offset_us = 0
    is_up = True
    incarnation = 0

    def __init__(
        self,
        arena: Arena,
        limits: WorkerLimits | None = None,
        service: MpsService | None = None,
    ) -> None:
        """
        Args:
            limits: None: workers may use what this process may.
            service: that has started, and keeps workers to their parts of devices; None: nothing
                does.
        """
        self._arena = arena
        self._limits = limits or WorkerLimits(cores=allowed_cores())
        self._service = service
        self._reserve: DescriptorReserve | None = process_reserve()
        self._reserve.join()
        self._memory = MachineMemory()

    async def until_up(self) -> None:
        """It always is."""

    def start_worker(
        self,
        specs: Sequence[WorkerSpec],
        on_frame: Callable[[AnyFrame], None],
        on_lost: Callable[[str], None],
    ) -> WorkerProcess:
        assert self._reserve is not None, "a host that is closed starts no workers"
        spec, environment = specs[0], {}
        specs = [replace(spec, cores=still_allowed(spec.cores) or self.cores()), *specs[1:]]
        if spec.percent is not None and self._service is not None:
            environment = self._service.client(spec.percent)
        # Also where clients hold all others.
        with self._reserve.given():
            worker = WorkerProcess(
                specs,
                self._arena,
                on_frame,
                on_lost,
                self._limits,
                environment,
                self._memory.news,
            )
        folder = None if spec.quota is None else quota_folder()
        if spec.quota is not None and folder is not None:
            name = f"headrace-{os.getpid()}-{spec.slot.replace('/', '.')}"
            try:
                keep_to_share(worker.process_id, name, spec.quota, folder)
            except OSError as error:
                logger.warning("slot %s: its share is not enforced: %s", spec.slot, error)
        return worker

    def cores(self) -> tuple[int, ...]:
        return cores_left(self._limits.cores)

    def available_memory_bytes(self) -> int | None:
        return self._memory.available_bytes()

    def set_niceness(self, process_id: int, niceness: int) -> None:
        os.setpriority(os.PRIO_PROCESS, process_id, niceness)

    def activity(self, process_id: int) -> Activity | None:
        return activity_of(process_id)

    def excuse(self) -> str:
        return NO_CORE

    def close(self) -> None:
        reserve, self._reserve = self._reserve, None
        if reserve is not None:
            reserve.leave()
