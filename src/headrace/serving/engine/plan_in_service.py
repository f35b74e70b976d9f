"""One plan with all that serves it, here or on several machines: workers, tensors, data plane."""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import pairwise, product

import msgspec

from headrace.catalog.cache_folder import content_key
from headrace.dispatch.dispatcher import StageTime
from headrace.dispatch.kernel.handle import kernel_of
from headrace.dispatch.policies import chosen_for, policy_for
from headrace.dispatch.protocols import Clock, EventSink
from headrace.dispatch.topology import Topology
from headrace.domain.base import encode_fraction
from headrace.domain.errors import PlanError
from headrace.domain.events import EventLogHeader
from headrace.executors.mps import MpsService
from headrace.executors.table import executor, kind_for
from headrace.serving.engine.data_plane import DataPlane, arena_bytes_for, served_models
from headrace.serving.engine.drift_watch import DriftWatch
from headrace.serving.engine.live_clock import LiveClock
from headrace.serving.engine.model_weights import ModelWeights
from headrace.serving.engine.moderation import Moderation
from headrace.serving.engine.pending import PendingRequests
from headrace.serving.engine.served_plan import AcrossPlans, ServedPlan, ServiceOptions
from headrace.serving.workers.affinity import allowed_cores
from headrace.serving.workers.arena import Arena
from headrace.serving.workers.cores import Place, place_of
from headrace.serving.workers.device_parts import start_service
from headrace.serving.workers.host import Host, LocalHost
from headrace.serving.workers.kept_files import KeptFiles, kept
from headrace.serving.workers.placement import loadable_models, worker_specs
from headrace.serving.workers.remote.cluster import (
    Gateway,
    close_links,
    connect_links,
    open_links,
)
from headrace.serving.workers.remote.host import FileHashes, RemoteHost
from headrace.serving.workers.remote.link import AgentLink
from headrace.serving.workers.remote.transport import NetworkTransport
from headrace.serving.workers.stage_io import StageIndex, stage_index
from headrace.serving.workers.status import LoadStatus, SlotStatus
from headrace.serving.workers.supervised import Renewed
from headrace.serving.workers.supervisor import Supervisor
from headrace.serving.workers.transport import SharedMemory, TimedLinks, Transport
from headrace.serving.workers.worker_process import WorkerLimits, WorkerSpec


class PlanInService:
    """`prepare`, then `start` (all workers or some), then `stop`."""

    def __init__(self, served: ServedPlan, options: ServiceOptions, across: AcrossPlans) -> None:
        """Check the plan against its profiles; nothing is started yet.

        Raises:
            PlanError: the plan names something that does not exist, or the policy is for others.
        """
        self.served = served
        self.topology = Topology.from_plan(served.plan, served.profiles)
        self.models = served_models(served.plan, self.topology, served.profiles)
        self._options, self._across = options, across
        self._policy = options.policy or policy_for(served.plan)
        self._rule = chosen_for(self.topology, self._policy).module
        if options.cluster is not None:
            if served.plan.is_provisioned:
                raise PlanError(
                    "models of this plan come and go, and agents load what they start with, once\n"
                    "  try       the plan on this machine, without --agents, --node and --cluster"
                )
            options.cluster.require([slot.node for slot in served.plan.slots])
        self._specs: tuple[WorkerSpec, ...] = ()
        self._links: Mapping[str, AgentLink] = {}
        """By node, of those that are other machines."""
        self._files = KeptFiles()
        self.arena: Arena | None = None
        self.host: Host | None = None
        """Of those workers that run on this machine; from `prepare` on."""
        self.supervisor: Supervisor | None = None
        self.plane: DataPlane | None = None
        self.weights: ModelWeights | None = None
        """Of a plan whose models come and go; from `prepare` on."""
        self._drift_watch = DriftWatch()

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
            HandshakeError: an agent is out of reach, for this machine or another agent.
        """
        served, options = self.served, self._options
        stages = stage_index(served.plan, served.profiles)
        arena_bytes = arena_bytes_for(stages, malleable=self.topology.is_malleable)
        self.arena = Arena(arena_bytes)
        if options.cluster is not None:
            nodes = [slot.node for slot in served.plan.slots]
            self._links = await connect_links(options.cluster, nodes, clock.now_us)
        divides = await self._divide()
        given = allowed_cores() if options.cores is None else options.cores
        limits = WorkerLimits(cores=given, memory_bytes=options.worker_memory_bytes)
        self.host = here = LocalHost(self.arena, limits, divides)
        # Aside: to find out, a thread may have to wait on a core that computes.
        worker_cores = await asyncio.to_thread(here.cores)
        self._specs = await self._describe(stages, worker_cores, cores)
        # This machine stands in for all nodes of the plan, and so for the links between them.
        transport: Transport = TimedLinks(SharedMemory(self.arena), clock)
        hosts: list[Host] = [here] * len(self._specs)
        if options.cluster is not None:
            await self._open(options.cluster.gateway, arena_bytes)
            transport, remote = await self._join(self.arena, clock)
            hosts = [remote.get(slot.node, here) for slot in served.plan.slots]
        renewed = self._files.renewed if self._files.hold_weights else None
        if divides is not None:
            renewed = partial(_divided_again, divides, renewed)
        self.supervisor = Supervisor(self._specs, hosts, renewed)
        weights = None
        if served.plan.is_provisioned:
            weights = await self._checked_weights(stages, self.supervisor, worker_cores)
        # Aside: as long as some batches to load, and ten seconds where it can only be compiled.
        await asyncio.to_thread(kernel_of, self._rule)
        self.plane = DataPlane(
            served.plan,
            served.profiles,
            clock=clock,
            call_soon=asyncio.get_running_loop().call_soon,
            links=self.supervisor.slots,
            transport=transport,
            sink=sink,
            counts=self._across.counts,
            policy=self._policy,
            queue_limit=options.queue_limit,
            pending=pending,
            weights=weights,
        )
        if weights is not None:
            weights.tell_all()
        self.weights = weights
        self.plane.dispatcher.assume(served.levels)
        self.supervisor.connect(self.plane.driver)

    async def _divide(self) -> MpsService | None:
        """Have what keeps slots to their parts of devices running; None: none here is divided."""
        hellos = {node: link.hello for node, link in self._links.items()}
        start = partial(
            start_service,
            self.served.plan,
            self._options.executor,
            {node: hello.undivided if hello else "" for node, hello in hellos.items()},
            self._across.service,
            unenforced=self._options.unenforced_shares,
        )
        return await asyncio.to_thread(start)

    async def _describe(
        self,
        stages: StageIndex,
        cores: Sequence[int],
        taken: Mapping[Place, tuple[int, ...]] | None,
    ) -> tuple[WorkerSpec, ...]:
        """The workers, with their files.

        Args:
            cores: of this machine, for workers.
            taken: device -> its cores, of a plan that is being replaced.
        """
        served, options = self.served, self._options
        hellos = {node: link.hello for node, link in self._links.items()}
        describe = partial(
            worker_specs,
            served.plan,
            served.profiles,
            served.folders,
            stages,
            options.executor,
            processes=options.processes,
            host_cores=cores,
            node_cores={node: hello.cores if hello else () for node, hello in hellos.items()},
            kept=taken,
            unenforced_shares=options.unenforced_shares,
        )
        # Aside: parsing and cutting a large model takes seconds.
        return kept(await asyncio.to_thread(describe), self._files)

    async def _open(self, gateway: Gateway, arena_bytes: int) -> None:
        """A session with each agent."""
        await open_links(
            self._links,
            gateway,
            self._content(arena_bytes),
            arena_bytes,
            self._options.worker_memory_bytes,
            self._paths(),
        )

    async def _join(
        self, arena: Arena, clock: Clock
    ) -> tuple[NetworkTransport, Mapping[str, RemoteHost]]:
        """What tensors go over, and node -> the host of its workers; of open sessions."""
        network, hashes = NetworkTransport(arena, self._links, clock), FileHashes()
        hosts = {
            node: RemoteHost(link, hashes, network.answer_bytes)
            for node, link in self._links.items()
        }
        for link in self._links.values():
            link.keep()
        await network.paths.require(self._paths())
        return network, hosts

    def _paths(self) -> list[tuple[str, str]]:
        """From which agents to which others tensors go."""
        slots, found = self.served.plan.slots, dict[tuple[str, str], None]()
        for model in self.topology.models:
            for route in model.routes:
                for stage, after in pairwise(route.stages):
                    nodes = {slots[i].node for i in stage.slots}
                    others = {slots[i].node for i in after.slots}
                    found |= dict.fromkeys(
                        (node, other)
                        for node, other in product(sorted(nodes), sorted(others))
                        if node != other and {node, other} <= self._links.keys()
                    )
        return list(found)

    async def _checked_weights(
        self, stages: StageIndex, supervisor: Supervisor, cores: Sequence[int]
    ) -> ModelWeights:
        """Find out which models have files that are as they were profiled."""
        served = self.served
        files = await asyncio.to_thread(
            loadable_models, served.plan, served.profiles, served.folders, self._options.executor
        )
        by_stage = {
            pipeline[0].key: model
            for model, pipelines in enumerate(stages)
            for pipeline in pipelines
        }
        loads = [
            {by_stage[load.stage]: load for load in slot.spec.later} for slot in supervisor.slots
        ]
        names = [deployment.model for deployment in served.plan.deployments]
        counts = [self._across.load_counts[name] for name in names]
        moved_bytes = self.header.resident_bytes
        weights = ModelWeights(
            *(names, files, loads, supervisor.slots, self._across.unloaded),
            counts=counts,
            moved_bytes=moved_bytes,
        )
        await asyncio.to_thread(weights.check, len(cores))
        return weights

    def loads(self) -> tuple[LoadStatus, ...]:
        """Of each model, where they come and go."""
        weights = self.weights
        if weights is None:
            return ()
        self.note_batches()
        found = []
        for model, deployment in enumerate(self.served.plan.deployments):
            counts = weights.counts[model]
            found.append(
                LoadStatus(
                    model=deployment.model,
                    begun=counts.begun,
                    failed=counts.failed,
                    evictions=counts.evictions,
                    took_counts=tuple(counts.took_counts),
                    took_sum_us=counts.took_sum_us,
                    moved_bytes=counts.moved_bytes,
                    held_by=len(weights.standing(model).slots),
                    host_layers=counts.host_layers,
                )
            )
        return tuple(found)

    def note_batches(self, *, ran_here: bool = True) -> None:
        """Count the host layers of what has run since the last call, of models that come and go.

        Args:
            ran_here: False: it ran under another plan, which has counted it.
        """
        known, loads = self._across.counts, self._across.load_counts
        for deployment in self.served.plan.deployments:
            start = deployment.start
            if known is not None and start is not None:
                kind = executor(kind_for(start.device, self._options.executor))
                batches = sum(known[deployment.name].batches.values())
                layers = len(start.host) if ran_here and kind.streams_layers else 0
                loads[deployment.name].note_batches(batches, layers)

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
        links, self._links = self._links, {}
        await close_links(links)
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
        if self._links or not compute_on_all(self._specs, allowed_cores()):
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

    def available_memory_bytes(self) -> tuple[int | None, dict[str, int | None]]:
        """What this machine would give to new workers, and what the nodes that are others would;
        None: it does not say."""
        here_bytes = None if self.host is None else self.host.available_memory_bytes()
        return here_bytes, {node: link.available_bytes for node, link in self._links.items()}

    def _content(self, arena_bytes: int) -> str:
        """A hash of all that its workers depend on."""
        options = self._options
        return content_key(
            [
                msgspec.json.encode(self.served.plan, enc_hook=encode_fraction).decode(),
                options.executor,
                options.worker_memory_bytes,
                arena_bytes,
            ]
        )

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
        worker, or has tried to load one. 0 where it can be answered now, or is not served; inf:
        never, since no slot of a stage will have a worker again."""
        if self.supervisor is None or name not in self.models:
            return 0.0
        waits_s = [0.0 if slot.up else slot.retry_in_s for slot in self.supervisor.slots]
        return min(
            max(min(waits_s[slot] for slot in stage.slots) for stage in route.stages)
            for model in self.topology.models
            if model.name == name
            for route in model.routes
        )

    @property
    def gone(self) -> tuple[str, ...]:
        """Why none of its slots will ever have a worker again; nothing: one may."""
        reasons = [slot.gone for slot in self.supervisor.slots] if self.supervisor else []
        return tuple(dict.fromkeys(reasons)) if all(reasons) else ()

    def levels(self) -> list[StageTime]:
        """What its stages really take; nothing before `prepare` and after `stop`."""
        return [] if self.plane is None else self.plane.dispatcher.levels()

    def look_at_times(self) -> None:
        """Say in the log which stages run slower than profiled; every LOOK_EVERY_S."""
        self._drift_watch.report(self.levels())

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
                time_ratios=tuple(
                    (time.stage, self._drift_watch.ratio(time.stage, index))
                    for time in times
                    if time.slot == index
                ),
            )
            for index, (slot, keeper) in enumerate(
                zip(self.served.plan.slots, supervised, strict=False)
            )
        )


def _divided_again(service: MpsService, renewed: Renewed | None, spec: WorkerSpec) -> WorkerSpec:
    """Before a worker is started again: a service that has died is, too."""
    if spec.percent is not None:
        service.start()
    return spec if renewed is None else renewed(spec)


def compute_on_all(specs: Sequence[WorkerSpec], cores: Sequence[int]) -> bool:
    """Whether these workers leave none of the cores to anybody else.

    >>> spec = WorkerSpec(slot="cpu-0", executor="onnx", loads=(), cores=(0, 1))
    >>> compute_on_all([spec], [0, 1]), compute_on_all([spec], [0, 1, 2])
    (True, False)
    """
    computing = all(executor(spec.executor).hold is None for spec in specs)
    taken = {core for spec in specs for core in spec.cores}
    return computing and bool(cores) and taken.issuperset(cores)
