"""The live data plane behind one door: start workers, accept inferences, answer or refuse them."""

import asyncio
import logging
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from headrace.dispatch.protocols import EventSink
from headrace.dispatch.topology import Topology
from headrace.domain.events import AnyEvent, EventLogHeader
from headrace.domain.plan import Plan
from headrace.domain.profile import Profile
from headrace.serving.arena import Arena
from headrace.serving.data_plane import DataPlane, arena_bytes_for, served_models
from headrace.serving.frames import ExecutorKind
from headrace.serving.inference import Inference, Refusal, ServedModel
from headrace.serving.live_clock import LiveClock
from headrace.serving.placement import ExecutorChoice, worker_specs
from headrace.serving.stage_io import stage_index
from headrace.serving.supervisor import Supervisor

logger = logging.getLogger(__name__)

_STOPPED = "the server is shutting down and takes no new requests"


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotStatus:
    """One slot as /metrics and the READY table show it."""

    name: str
    device: str
    up: bool
    restarts: int
    process_id: int | None
    executor: ExecutorKind
    """`emulated` slots answer zeros."""
    core: int | None
    """The CPU core that the worker stays on."""
    given_up: bool
    """Its worker failed to start too often; it stays lost."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineStatus:
    """A snapshot; cheap enough to take at every scrape."""

    slots: tuple[SlotStatus, ...]
    open_inferences: int
    """Accepted and not yet answered or refused."""
    open_requests: int
    """Their items."""
    running_batches: int
    arena_used_bytes: int
    arena_size_bytes: int
    draining: bool


class Engine:
    """Serves a plan on this machine: one worker process per slot, one dispatcher, one arena.

    All methods must be called on the loop's thread.
    """

    def __init__(
        self,
        plan: Plan,
        profiles: Mapping[str, Profile],
        profile_folders: Mapping[str, Path],
        *,
        policy: str = "reservation",
        executor: ExecutorChoice = "auto",
        processes: int | None = None,
        sink: EventSink | None = None,
        queue_limit: int = 4096,
        arena_bytes: int | None = None,
        seed: int = 0,
    ) -> None:
        """Check the plan against its profiles; nothing is started yet.

        Args:
            profiles: by model name.
            profile_folders: by model name; what a profile's relative paths are relative to.
            processes: that emulated slots share; None: one for each slot.
            sink: gets every event, on the loop's thread; must be fast.
            queue_limit: requests that may wait for batches, per model.
            arena_bytes: shared memory for tensors; None: enough for the plan.
            seed: of emulated slots' execution times.

        Raises:
            PlanError: the plan names something that does not exist.
        """
        self.models: Mapping[str, ServedModel]
        """By name, in the plan's order."""
        self._plan = plan
        self._profiles = profiles
        self._profile_folders = profile_folders
        self._policy = policy
        self._executor = executor
        self._processes = processes
        self._sink = sink or _ignore
        self._queue_limit = queue_limit
        self._arena_bytes = arena_bytes
        self._seed = seed
        self._topology = Topology.from_plan(plan, profiles)
        self.models = served_models(self._topology, profiles)
        self._arena: Arena | None = None
        self._supervisor: Supervisor | None = None
        self._plane: DataPlane | None = None
        self._clock: LiveClock | None = None
        self._started = False
        self._draining = False
        self._idle = asyncio.Event()

    # -- what it is doing ----------------------------------------------------------------------

    @property
    def ready(self) -> bool:
        """Every model can be answered: started, not draining, each stage has a slot up."""
        if not self._started or self._draining or self._supervisor is None:
            return False
        up = [slot.up for slot in self._supervisor.slots]
        return all(
            any(
                all(any(up[slot] for slot in stage.slots) for stage in route.stages)
                for route in model.routes
            )
            for model in self._topology.models
        )

    @property
    def header(self) -> EventLogHeader:
        """First line of the event log that `sink` receives."""
        return self._topology.event_log_header("live", self._policy)

    def now_us(self) -> int:
        """The clock of all events and of `Answer`'s instants; after `start`."""
        assert self._clock is not None, "the engine has no clock before start()"
        return self._clock.now_us()

    def status(self) -> EngineStatus:
        supervised = self._supervisor.slots if self._supervisor else ()
        plane, arena = self._plane, self._arena
        return EngineStatus(
            slots=tuple(
                SlotStatus(
                    name=slot.name,
                    device=slot.device,
                    up=keeper.up,
                    restarts=keeper.restarts,
                    process_id=keeper.process_id,
                    executor=keeper.spec.executor,
                    core=keeper.spec.core,
                    given_up=keeper.given_up,
                )
                for slot, keeper in zip(self._plan.slots, supervised, strict=False)
            ),
            open_inferences=plane.desk.open_inferences if plane else 0,
            open_requests=plane.desk.open_requests if plane else 0,
            running_batches=plane.driver.running_batches if plane else 0,
            arena_used_bytes=arena.used_bytes if arena else 0,
            arena_size_bytes=arena.size_bytes if arena else 0,
            draining=self._draining,
        )

    # -- its life ------------------------------------------------------------------------------

    async def start(self) -> None:
        """Extract stage files, start one worker per slot, return when all have loaded.

        Raises:
            HeadraceError: a stage cannot be extracted or loaded; nothing is left running.
        """
        loop = asyncio.get_running_loop()
        stages = stage_index(self._plan, self._profiles)
        # Parsing and cutting a large model takes seconds.
        specs = await asyncio.to_thread(
            worker_specs,
            self._plan,
            self._profiles,
            self._profile_folders,
            stages,
            self._executor,
            self._seed,
            self._processes,
        )
        self._arena = Arena(self._arena_bytes or arena_bytes_for(stages))
        self._supervisor = Supervisor(specs, self._arena)
        self._clock = LiveClock(loop)
        try:
            self._plane = DataPlane(
                self._plan,
                self._profiles,
                clock=self._clock,
                call_soon=loop.call_soon,
                links=self._supervisor.slots,
                arena=self._arena,
                sink=self._sink,
                policy=self._policy,
                queue_limit=self._queue_limit,
            )
            self._plane.desk.on_idle = self._idle.set
            self._supervisor.connect(self._plane.driver)
            await self._supervisor.start()
        except BaseException:
            await self.stop()
            raise
        self._started = True

    async def drain(self, grace_s: float) -> bool:
        """Refuse new work as "draining", answer what was accepted; True: all of it was."""
        self._draining = True
        if self._plane is None:
            return True
        self._plane.dispatcher.drain()
        self._idle.clear()
        if self._plane.desk.open_inferences:
            try:
                await asyncio.wait_for(self._idle.wait(), grace_s)
            except TimeoutError:
                logger.warning(
                    "%d inferences are still open after %.1f s of grace",
                    self._plane.desk.open_inferences,
                    grace_s,
                )
                return False
        return True

    async def stop(self) -> None:
        """End all workers. Whatever is still open is refused. Idempotent."""
        self._draining = True
        self._started = False
        plane, self._plane = self._plane, None
        if plane is not None:
            plane.desk.refuse_all("draining", _STOPPED)
            plane.desk.flush()
        if self._clock is not None:
            self._clock.stop()
        supervisor, self._supervisor = self._supervisor, None
        if supervisor is not None:
            await supervisor.stop()
        if self._arena is not None:
            self._arena.close()

    # -- its work ------------------------------------------------------------------------------

    def submit(self, inference: Inference) -> None:
        """Accept or refuse; the result comes later through `inference.on_done`, exactly once.

        Raises:
            ValueError: the model is unknown or a buffer has the wrong size (the front end's bug).
        """
        if self._plane is None:
            refusal = Refusal(reason="draining", message=_STOPPED, retry_after_us=0)
            asyncio.get_running_loop().call_soon(inference.on_done, refusal)
        else:
            self._plane.submit(inference)

    def cancel(self, inference: Inference) -> None:
        """The client went away: `on_done` will not be called. Harmless when already done."""
        if self._plane is not None:
            self._plane.desk.cancel(inference)


def _ignore(event: AnyEvent) -> None:
    """The sink of an engine that nobody logs."""
