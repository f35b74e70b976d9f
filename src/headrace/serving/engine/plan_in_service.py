"""One plan with all that serves it on this machine: workers, tensor memory, data plane."""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from headrace.dispatch.buckets import by_bucket
from headrace.dispatch.dispatcher import StageTime
from headrace.dispatch.policies import chosen_for, policy_for
from headrace.dispatch.protocols import BatchCounts, Clock, EventSink
from headrace.dispatch.topology import Topology
from headrace.domain.events import EventLogHeader
from headrace.domain.plan import Plan
from headrace.domain.profile import Profile
from headrace.executors.table import AUTO, ExecutorChoice, executor
from headrace.serving.engine.data_plane import DataPlane, arena_bytes_for, served_models
from headrace.serving.engine.live_clock import LiveClock
from headrace.serving.engine.moderation import Moderation
from headrace.serving.engine.pending import PendingRequests
from headrace.serving.workers.arena import Arena
from headrace.serving.workers.cores import Place, place_of
from headrace.serving.workers.host import Host, LocalHost, allowed_cores
from headrace.serving.workers.kept_files import KeptFiles, kept
from headrace.serving.workers.placement import worker_specs
from headrace.serving.workers.stage_io import stage_index
from headrace.serving.workers.status import SlotStatus
from headrace.serving.workers.supervisor import Supervisor
from headrace.serving.workers.transport import SharedMemory, TimedLinks
from headrace.serving.workers.worker_process import WorkerLimits, WorkerSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedPlan:
    """A plan and what its profiles say."""

    plan: Plan
    profiles: Mapping[str, Profile]
    """By model name."""
    folders: Mapping[str, Path]
    """By model name; what a profile's relative paths are relative to."""
    levels: Mapping[str, float] = field(default_factory=dict)
    """MODEL/PIPELINE/NUMBER of a stage -> how many times its profile it takes; as learned later
    where nothing is said."""

    def by_bucket(self) -> "ServedPlan":
        """As the engine serves it, with a deployment per bucket (`dispatch.buckets`)."""
        plan, profiles = by_bucket(self.plan, self.profiles)
        if plan is self.plan:
            return self
        folders = {
            name: self.folders[profile.bucket_of or name] for name, profile in profiles.items()
        }
        return replace(self, plan=plan, profiles=profiles, folders=folders)


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceOptions:
    """How plans are served, whichever it is."""

    policy: str | None = None
    """None: the one that the plan was made for."""
    executor: ExecutorChoice = AUTO
    processes: int | None = None
    """That emulated slots share; None: one for each slot."""
    queue_limit: int = 4096
    """Requests that may wait for batches, per model."""
    arena_bytes: int | None = None
    """Shared memory for tensors; None: enough for the plan."""
    seed: int = 0
    """Of emulated slots' execution times."""
    cores: tuple[int, ...] | None = None
    """That workers may be kept on, the first ones first; None: those of this process."""
    worker_memory_bytes: int | None = None
    """Most data memory of one worker; None: any."""
    unenforced_shares: bool = False
    """Whether slots may divide a core that nothing divides as planned."""
    counts: Mapping[str, BatchCounts] | None = None
    """See `DataPlane`."""


class PlanInService:
    """`prepare`, then `start` (all workers or some), then `stop`."""

    def __init__(self, served: ServedPlan, options: ServiceOptions) -> None:
        """Check the plan against its profiles; nothing is started yet.

        Raises:
            PlanError: the plan names something that does not exist, or the policy is for others.
        """
        self.served = served
        self.topology = Topology.from_plan(served.plan, served.profiles)
        self.models = served_models(served.plan, self.topology, served.profiles)
        self._options = options
        self._policy = options.policy or policy_for(served.plan)
        chosen_for(self.topology, self._policy)  # or it says why not
        self._specs: tuple[WorkerSpec, ...] = ()
        self._files = KeptFiles()
        self.arena: Arena | None = None
        self.host: Host | None = None
        """Where the workers run; from `prepare` on."""
        self.supervisor: Supervisor | None = None
        self.plane: DataPlane | None = None

    @property
    def header(self) -> EventLogHeader:
        """First line of the plan's event log."""
        return self.topology.event_log_header("live", self._policy)

    async def prepare(
        self,
        clock: Clock,
        pending: PendingRequests,
        sink: EventSink | None,
        cores: Mapping[Place, tuple[int, ...]] | None = None,
    ) -> None:
        """Extract stage files and build the data plane; no worker runs yet.

        Args:
            cores: device -> its cores, of a plan that is being replaced: it stays where it is.

        Raises:
            ModelError: a stage cannot be extracted, or its file not be opened.
        """
        loop = asyncio.get_running_loop()
        served, options = self.served, self._options
        stages = stage_index(served.plan, served.profiles)
        self.arena = Arena(
            options.arena_bytes or arena_bytes_for(stages, malleable=self.topology.is_malleable)
        )
        worker_cores = allowed_cores() if options.cores is None else options.cores
        self.host = LocalHost(
            self.arena,
            WorkerLimits(cores=tuple(worker_cores), memory_bytes=options.worker_memory_bytes),
        )
        # Parsing and cutting a large model takes seconds.
        specs = await asyncio.to_thread(
            worker_specs,
            served.plan,
            served.profiles,
            served.folders,
            stages,
            options.executor,
            options.seed,
            options.processes,
            self.host.cores(),
            cores,
            options.unenforced_shares,
        )
        self._specs = kept(specs, self._files)
        renewed = self._files.renewed if self._files.hold_weights else None
        self.supervisor = Supervisor(self._specs, self.host, renewed)
        self.plane = DataPlane(
            served.plan,
            served.profiles,
            clock=clock,
            call_soon=loop.call_soon,
            links=self.supervisor.slots,
            # This machine stands in for all nodes of the plan, and so for the links between them.
            transport=TimedLinks(SharedMemory(self.arena), clock),
            sink=sink,
            counts=options.counts,
            policy=self._policy,
            queue_limit=options.queue_limit,
            pending=pending,
        )
        self.plane.dispatcher.assume(served.levels)
        self.supervisor.connect(self.plane.driver)

    async def start(self, slots: Sequence[int] | None = None) -> None:
        """Start the workers of these slots, or of all, and wait until they have loaded.

        Raises:
            ModelError: one cannot load its stages.
        """
        assert self.supervisor is not None, "prepare() comes before start()"
        await self.supervisor.start(slots)

    async def insist(self, slots: Sequence[int], on_tried: Callable[[Sequence[int]], None]) -> None:
        """Start the workers of these slots, again and again where they cannot load; see
        `Supervisor.insist`."""
        assert self.supervisor is not None, "prepare() comes before insist()"
        await self.supervisor.insist(slots, on_tried)

    async def stop(self) -> None:
        """End all workers and give the memory back. Idempotent."""
        self.plane = None
        supervisor, self.supervisor = self.supervisor, None
        if supervisor is not None:
            await supervisor.stop()
        if self.arena is not None:
            self.arena.close()
        self._files.close()
        if self.host is not None:
            self.host.close()
        self.host = None

    def cores(self) -> dict[Place, tuple[int, ...]]:
        """Device -> the cores that its workers stay on."""
        found: dict[Place, tuple[int, ...]] = {}
        for slot, spec in zip(self.served.plan.slots, self._specs, strict=True):
            if spec.cores:
                before = found.get(place_of(slot), ())
                found[place_of(slot)] = tuple(dict.fromkeys((*before, *spec.cores)))
        return found

    def moderation(self, clock: LiveClock) -> Moderation | None:
        """Of the gateway's wake-ups, where its workers compute on all cores that it may use."""
        if not compute_on_all(self._specs, allowed_cores()):
            return None
        assert self.supervisor is not None, "prepare() comes before moderation()"
        assert self.plane is not None, "prepare() comes before moderation()"
        driver, slots = self.plane.driver, self.supervisor.slots
        moderation = Moderation(
            asyncio.get_running_loop(),
            lambda: driver.all_busy,
            lambda: [clock.descriptor, *(slot.descriptor for slot in slots)],
        )
        driver.on_started = moderation.stir
        return moderation

    def can_answer(self, name: str) -> bool:
        """Whether each stage of one of the model's pipelines has a worker."""
        if self.supervisor is None:
            return False
        up = [slot.up for slot in self.supervisor.slots]
        return any(
            all(any(up[slot] for slot in stage.slots) for stage in route.stages)
            for model in self.topology.models
            if model.name == name
            for route in model.routes
        )

    def retry_in_s(self, name: str) -> float:
        """Until the model may be answered again: until each stage of one of its pipelines has a
        worker, or has tried to load one. 0 where it can be answered now, or is not served."""
        if self.supervisor is None or name not in self.models:
            return 0.0
        waits_s = [0.0 if slot.up else slot.retry_in_s for slot in self.supervisor.slots]
        return min(
            max(min(waits_s[slot] for slot in stage.slots) for stage in route.stages)
            for model in self.topology.models
            if model.name == name
            for route in model.routes
        )

    def levels(self) -> list[StageTime]:
        """What its stages really take; nothing before `prepare` and after `stop`."""
        return [] if self.plane is None else self.plane.dispatcher.levels()

    def slots(self) -> tuple[SlotStatus, ...]:
        supervised = self.supervisor.slots if self.supervisor else ()
        times = self.levels()
        return tuple(
            SlotStatus(
                name=slot.name,
                device=slot.device,
                up=keeper.up,
                restarts=keeper.restarts,
                process_id=keeper.process_id,
                executor=keeper.spec.executor,
                core=keeper.spec.cores[0] if keeper.spec.cores else None,
                outage=keeper.outage,
                time_ratios=tuple((time.stage, time.ratio) for time in times if time.slot == index),
            )
            for index, (slot, keeper) in enumerate(
                zip(self.served.plan.slots, supervised, strict=False)
            )
        )


def compute_on_all(specs: Sequence[WorkerSpec], cores: Sequence[int]) -> bool:
    """Whether these workers leave none of the cores to anybody else.

    >>> spec = WorkerSpec(slot="cpu-0", executor="onnx", loads=(), cores=(0, 1))
    >>> compute_on_all([spec], [0, 1]), compute_on_all([spec], [0, 1, 2])
    (True, False)
    """
    computing = all(executor(spec.executor).hold is None for spec in specs)
    taken = {core for spec in specs for core in spec.cores}
    return computing and bool(cores) and taken.issuperset(cores)
