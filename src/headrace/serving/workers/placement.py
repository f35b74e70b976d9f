"""Which worker holds which slots and stages, with which executor, on which cores."""

import logging
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import count
from pathlib import Path

from headrace.catalog.loadable_stages import LoadableModel
from headrace.catalog.shared_stages import Blocks, SharedStage, sound_stages
from headrace.catalog.stage_files import model_format, stage_path, stage_weights
from headrace.catalog.weights_files import ExternalWeights
from headrace.cost import TimedStage, cost_model
from headrace.dispatch.starts_of_plan import start_of
from headrace.dispatch.topology import slowdowns
from headrace.domain.errors import ModelError, PlanError
from headrace.domain.plan import Deployment, Plan, Slot
from headrace.domain.profile import Profile
from headrace.executors.base import StageStart
from headrace.executors.table import AUTO, ExecutorChoice, executor, kind_for
from headrace.interference import slowed_us
from headrace.own_groups import cores_by_quota
from headrace.serving.workers.affinity import allowed_cores
from headrace.serving.workers.control_groups import quota_folder
from headrace.serving.workers.cores import (
    Place,
    divided_cores,
    part_of_a_core,
    place_of,
    say_quota,
    say_unenforced,
    slot_cores,
    threads_of,
)
from headrace.serving.workers.device_parts import percents, refuse_undivided
from headrace.serving.workers.frames import Load
from headrace.serving.workers.stage_io import StageIndex, StageIO
from headrace.serving.workers.worker_process import WorkerSpec
from headrace.start_times import Start

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Tenant:
    """A stage of a slot, the same on all slots that have it."""

    io: StageIO
    executor: str
    path: str
    weights: ExternalWeights | None
    p50_us: tuple[int, ...]
    p99_us: tuple[int, ...]
    start: Start | None
    """Of a model that comes and goes."""
    layers: StageStart | None
    """Of such a model: which of them are copied."""


def worker_specs(
    plan: Plan,
    profiles: Mapping[str, Profile],
    profile_folders: Mapping[str, Path],
    stages: StageIndex,
    choice: ExecutorChoice,
    processes: int | None = None,
    host_cores: Sequence[int] | None = None,
    node_cores: Mapping[str, Sequence[int]] | None = None,
    kept: Mapping[Place, tuple[int, ...]] | None = None,
    unenforced_shares: bool = False,
) -> tuple[WorkerSpec, ...]:
    """Describe what serves each slot, in the plan's order; extracts missing stage files.

    Args:
        stages: the plan's, with their tensors.
        choice: of the kinds of executors.
        processes: that such slots share; None: one for each slot.
        host_cores: where workers may be kept; None: as this process may run.
        node_cores: the same, of nodes of the plan that are machines of their own.
        kept: device -> its cores, of a plan that is being replaced.
        unenforced_shares: whether slots may divide a core, or another device, that nothing divides
            as planned.

    Raises:
        ModelError: a stage's model file is missing or not the one that was profiled; or the choice
            is unknown.
        PlanError: slots divide a core or another device, and nothing keeps them to their parts.
    """
    elsewhere = node_cores or {}
    if not unenforced_shares:
        refuse_unenforced(plan, choice, tuple(elsewhere))
    names = {slot.device: kind_for(slot.device, choice) for slot in plan.slots}
    kinds = {device: executor(name) for device, name in names.items()}
    held = sorted(device for device, kind in kinds.items() if kind.hold is not None)
    if held and choice == AUTO:
        logger.warning("emulated, so it answers zeros at profiled speed: %s", ", ".join(held))
    tenants = _tenants(plan, profiles, profile_folders, stages, choice, here=not node_cores)
    on_cores = [slot for slot in plan.slots if kinds[slot.device].slot_is == "core"]
    cores_of = {kind.name: kind.cores for kind in plan.cluster.device_types}
    allowed = allowed_cores() if host_cores is None else host_cores
    cores = slot_cores([s for s in on_cores if s.node not in elsewhere], allowed, cores_of, kept)
    say_quota(len({core for some in cores.values() for core in some}), cores_by_quota())
    for node, of_node in elsewhere.items():
        cores |= slot_cores([s for s in on_cores if s.node == node], of_node, cores_of, kept)
    parts = {slot.name: part_of_a_core(slot.share, cores_of[slot.device]) for slot in on_cores}
    divided = [name for name, part in parts.items() if part is not None]
    if divided and quota_folder() is None:
        say_unenforced(divided)
    percent_of = percents(plan, choice)
    numbers = _device_numbers(plan, choice, elsewhere)
    threads = {slot.name: threads_of(slot.share, cores_of[slot.device]) for slot in on_cores}
    together = shared_processes([s for s in plan.slots if kinds[s.device].hold], processes)

    def loads(slot: str, number: int, *, later: bool) -> tuple[Load, ...]:
        return tuple(
            _load(tenant, number, threads.get(slot, 1))
            for tenant in tenants[slot]
            if (tenant.start is not None) == later
        )

    return tuple(
        WorkerSpec(
            slot=slot.name,
            executor=names[slot.device],
            cores=cores.get(slot.name, ()),
            quota=parts.get(slot.name),
            device=numbers.get(place_of(slot)),
            percent=percent_of.get(slot.name),
            process=together.get(slot.name),
            loads=loads(slot.name, number, later=False),
            later=loads(slot.name, number, later=True),
        )
        for number, slot in enumerate(plan.slots)
    )


def _device_numbers(
    plan: Plan, choice: ExecutorChoice, elsewhere: Collection[str]
) -> dict[Place, int]:
    """The number that each device, cores apart, has on its machine: those of one kind of executor
    are counted node by node and type by type, in the order of the types' names (a plan's file knows
    no other), whether used or not.

    Args:
        choice: of the kinds of executors.
        elsewhere: nodes of the plan that are machines of their own; all others are this one.
    """
    found: dict[Place, int] = {}
    numbers: defaultdict[tuple[str | None, str], Iterator[int]] = defaultdict(count)
    for node in plan.cluster.nodes:
        machine = node.name if node.name in elsewhere else None
        for device, there in sorted(node.devices.items()):
            kind = kind_for(device, choice)
            if executor(kind).slot_is == "device":
                for index in range(there):
                    found[node.name, device, index] = next(numbers[machine, kind])
    return found


def _tenants(
    plan: Plan,
    profiles: Mapping[str, Profile],
    profile_folders: Mapping[str, Path],
    stages: StageIndex,
    choice: ExecutorChoice,
    *,
    here: bool,
) -> dict[str, list[_Tenant]]:
    """Slot -> the stages that it runs.

    Args:
        here: all slots are on this machine. Stages that share one file of weights are optimised for
            its processor: another machine gets the stages as they are cut.

    Raises:
        ModelError, PlanError: as `_tenant`.
    """
    tenants: dict[str, list[_Tenant]] = {slot.name: [] for slot in plan.slots}
    slowed = slowdowns(plan)
    for deployment, pipelines in zip(plan.deployments, stages, strict=True):
        profile, folder = profiles[deployment.model], profile_folders[deployment.model]
        shared = deployment.depths and here
        with_one_file = _SharedStages(pipelines if shared else (), profile, folder)
        for io in (io for pipeline in pipelines for io in pipeline):
            times = _times(io, profile, slowed)
            tenant = _tenant(deployment, profile, folder, io, choice, times, with_one_file)
            for name in io.planned.pool:
                tenants[name].append(tenant)
    return tenants


def _tenant(
    deployment: Deployment,
    profile: Profile,
    folder: Path,
    io: StageIO,
    choice: ExecutorChoice,
    times_us: tuple[tuple[int, ...], tuple[int, ...]],
    with_one_file: "_SharedStages",
) -> _Tenant:
    """
    Args:
        times_us: p50 and p99, as `_times`.

    Raises:
        ModelError: its model file is missing, or not the one that was profiled.
        PlanError: it starts over a second device, and is not emulated.
    """
    device, path, weights = io.planned.device, "", None
    kind = kind_for(device, choice)
    start, layers = start_of(deployment, profile), None
    if start is not None:
        layers = _layers_of(deployment, profile)
        # Where its files are is said when it is loaded.
        kind = kind_of_model(device, choice, profile, folder)
        if executor(kind).hold is None:
            _refuse_helpers(deployment, kind)
    elif executor(kind).reads_model:
        # Of what a device can run, not all models are run by the same library.
        kind = kind_for(device, choice, model_format(profile, folder))
        blocks = (io.planned.first_block, io.planned.end_block)
        once = with_one_file.of(kind, blocks)
        if once is not None:
            path, weights = once.path, once.weights
        else:
            path = str(stage_path(profile, folder, *blocks))
            weights = stage_weights(profile, folder)
    p50_us, p99_us = times_us
    return _Tenant(
        io=io,
        executor=kind,
        path=path,
        weights=weights,
        p50_us=p50_us,
        p99_us=p99_us,
        start=start,
        layers=layers,
    )


def loadable_models(
    plan: Plan,
    profiles: Mapping[str, Profile],
    profile_folders: Mapping[str, Path],
    choice: ExecutorChoice,
) -> tuple[LoadableModel | None, ...]:
    """The files of each model of a plan whose models come and go; None: of one whose slots read
    none. Reads nothing yet but what kind of file it is."""
    found: list[LoadableModel | None] = []
    for deployment in plan.deployments:
        [[stage]] = [pipeline.stages for pipeline in deployment.pipelines]
        profile, folder = profiles[deployment.model], profile_folders[deployment.model]
        kind = executor(kind_of_model(stage.device, choice, profile, folder))
        blocks = (stage.first_block, stage.end_block)
        files = LoadableModel(profile, folder, blocks, kind.shares_weights)
        found.append(files if kind.reads_model else None)
    return tuple(found)


def kind_of_model(device: str, choice: ExecutorChoice, profile: Profile, folder: Path) -> str:
    """What runs a model that comes and goes; where its file cannot be read, what runs others."""
    kind = kind_for(device, choice)
    if not executor(kind).reads_model:
        return kind
    try:
        return kind_for(device, choice, model_format(profile, folder))
    except ModelError:
        return kind


def refuse_unenforced(plan: Plan, choice: ExecutorChoice, elsewhere: Collection[str] = ()) -> None:
    """
    Args:
        choice: of the kinds of executors.
        elsewhere: nodes of the plan that are machines of their own.

    Raises:
        PlanError: slots divide a core or another device, and nothing keeps them to their parts.
    """
    refuse_undivided(plan, choice, elsewhere)
    kinds = {slot.device: executor(kind_for(slot.device, choice)) for slot in plan.slots}
    on_cores = [slot for slot in plan.slots if kinds[slot.device].slot_is == "core"]
    divided = divided_cores(on_cores, {kind.name: kind.cores for kind in plan.cluster.device_types})
    if not divided or quota_folder() is not None:
        return
    place, slots = next(iter(divided.items()))
    shares = ", ".join(f"{slot.name} {slot.share}" for slot in slots)
    raise PlanError(
        f"the plan divides a core ({place[1]} {place[2]} of {place[0]}), and nothing here keeps its"
        " slots to their parts\n"
        f"  needs     CPU quotas (control groups, version 2, `cpu.max`) for {shares}\n"
        "  has       no permission to set them: busy slots would divide the core evenly\n"
        "  try       a device of several `cores`, whose slots own whole ones; a service with"
        " `Delegate=cpu` and without `ProtectControlGroups`; or --unenforced-shares, to serve it"
        " all the same"
    )


def shared_processes(slots: Sequence[Slot], processes: int | None) -> dict[str, int]:
    """Deal slots that compute nothing to so many processes; empty: each has one of its own.

    In turn, so that the slots of a pool lie apart: a process that dies takes few of each.
    """
    if processes is None:
        return {}
    return {slot.name: number % processes for number, slot in enumerate(slots)}


def worker_count(plan: Plan, choice: ExecutorChoice, processes: int | None) -> int:
    """How many processes serve the plan's slots, where those that compute nothing share so many."""
    held = sum(executor(kind_for(slot.device, choice)).hold is not None for slot in plan.slots)
    return len(plan.slots) - held + (held if processes is None else min(held, processes))


class _SharedStages:
    """Of one model of a malleable plan; looked up when the first is needed."""

    def __init__(self, depths: Sequence[Sequence[StageIO]], profile: Profile, folder: Path) -> None:
        """`depths`: none of a model whose stages have slots of their own."""
        self._ranges = {
            (io.planned.first_block, io.planned.end_block) for depth in depths for io in depth
        }
        self._profile, self._folder = profile, folder
        self._found: dict[str, Mapping[Blocks, SharedStage]] = {}

    def of(self, kind: str, blocks: Blocks) -> SharedStage | None:
        """None: this kind of executor, or this model, has a file for each stage."""
        maker = executor(kind).shares_weights
        if maker is None or not self._ranges:
            return None
        if kind not in self._found:
            made = sound_stages(self._profile, self._folder, self._ranges, maker)
            self._found[kind] = made or {}
        return self._found[kind].get(blocks)


def _times(
    io: StageIO, profile: Profile, slowed: Mapping[tuple[str, str, int], float]
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """What an emulated slot is held for, p50 and p99; entry b-1 is batch size b.

    The server's own part of its batches is real. Neighbours on its device cost it what the plan
    says.
    """
    stage, costs = TimedStage.of(profile.model, io.planned), cost_model({profile.model: profile})
    model, pipeline, number = io.name.rsplit("/", 2)
    slowdown = slowed.get((model, pipeline, int(number)), 1.0)
    times = [costs.execution(stage, size) for size in range(1, io.max_batch + 1)]
    return (
        tuple(slowed_us(time.p50_us, slowdown) for time in times),
        tuple(slowed_us(time.p99_us, slowdown) for time in times),
    )


def _load(tenant: _Tenant, slot: int, threads: int) -> Load:
    io = tenant.io
    return Load(
        stage=io.key,
        name=io.name,
        executor=tenant.executor,
        path=tenant.path,
        weights=tenant.weights,
        inputs=io.inputs.specs,
        outputs=io.outputs.specs,
        max_batch=io.max_batch,
        threads=threads,
        dimensions=io.dimensions,
        p50_us=tenant.p50_us,
        p99_us=tenant.p99_us,
        # Equal stages on different slots must not take equal times.
        seed=slot + io.key * 7_919,
        slot=slot,
        load_us=0 if tenant.start is None else tenant.start.load_us,
        start_us=0 if tenant.start is None else tenant.start.last_us,
        # Of a model that is loaded when it is asked for, somebody waits for the first batch.
        warm_up=tenant.start is None,
        start=tenant.layers,
        comes_and_goes=tenant.start is not None,
    )


def _refuse_helpers(deployment: Deployment, kind: str) -> None:
    """
    Raises:
        PlanError: part of its start comes over a second device.
    """
    residency = deployment.start
    if residency is not None and any(transfer.helper for transfer in residency.transfers):
        raise PlanError(
            f"plan: the start of {deployment.model!r} copies layers over a second device, which"
            f" executor {kind!r} does not do\n"
            "  try       `headrace plan --provision exact` or `deepplan`, whose starts use one"
            " device; or `headrace serve --executor emulated`"
        )


def _layers_of(deployment: Deployment, profile: Profile) -> StageStart:
    """What its start says, as an executor is told."""
    residency = deployment.start
    assert residency is not None, "of a model that comes and goes"
    return StageStart(
        layers=tuple(layer.name for layer in profile.layers),
        host=residency.host,
        transfers=tuple(transfer.layers for transfer in residency.transfers),
        waits_for_all=residency.waits_for_all,
    )
