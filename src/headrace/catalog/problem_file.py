"""`headrace.problem/1`: what a person writes, in human units, and what it means.

Milliseconds and short forms here; microseconds and full records in `domain.problem`.
"""

from fractions import Fraction
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from headrace.catalog.source import Source
from headrace.catalog.strict import convert
from headrace.domain.app import MODULES_MAX, App, FanOut, Module
from headrace.domain.base import Priority, Record, Version
from headrace.domain.cluster import WHOLE, Cluster, DeviceType, Node
from headrace.domain.errors import DocumentError
from headrace.domain.interference import Interference
from headrace.domain.problem import Bill, Demand, Items, Objective, Partition, PlanOptions

SCHEMA = "headrace.problem/1"

MAX_NODES = 200_000
MAX_SLO_MS = 86_400_000.0


class DeviceEntry(Record, frozen=True, kw_only=True):
    """One device type; its name is its key."""

    # A factory, because a JSON Schema cannot state a Fraction as its default.
    shares: tuple[Fraction, ...] = msgspec.field(default_factory=lambda: (WHOLE,))
    """Legal shares of one device, such as "1" and "1/2"."""
    splits: Literal["any"] | tuple[tuple[Fraction, ...], ...] = "any"
    """Legal cuts of one device, each a list of shares; any: whatever shares sum to at most 1."""
    cores: Annotated[int, Meta(ge=1, le=4096)] = 1
    """Of a CPU: a slot of share k/cores owns k whole cores."""
    price_per_hour: float | None = None
    memory_bytes: int | None = None
    copy_stream: bool = False
    """Whether weights are copied to it while it executes, as to a GPU."""
    devices_per_link: Annotated[int, Meta(ge=1, le=100_000)] = 1
    """How many devices of a machine share one link to host memory, as GPUs behind one PCIe switch
    do: the first so many of them, the next, and so on."""
    max_utilisation: float = 1.0
    """Fraction of its time that a slot may be planned busy."""


class NodeEntry(Record, frozen=True, kw_only=True):
    """One machine, or `count` machines alike."""

    name: str
    """Of the machine; with `count`, machines are called NAME-0, NAME-1, …"""
    devices: dict[str, Annotated[int, Meta(ge=1, le=100_000)]]
    """Device type -> how many of them a machine has."""
    count: Annotated[int, Meta(ge=1, le=MAX_NODES)] | None = None
    bandwidth_gbps: float | None = None
    """10^9 bits per second, each direction; without it the link is never the limit."""


class ClusterEntry(Record, frozen=True, kw_only=True):
    devices: dict[str, DeviceEntry]
    nodes: tuple[NodeEntry, ...]


class ModelEntry(Record, frozen=True, kw_only=True):
    """One model and what is asked of it."""

    profile: str
    """File that `headrace profile` wrote, relative to this one."""
    slo_ms: Annotated[float, Meta(gt=0, le=MAX_SLO_MS)]
    """From arrival to answer."""
    name: str | None = None
    """Defaults to the profile's; where given, it must match it."""
    weight: float = 1.0
    """Relative load; max-min maximises the smallest throughput / weight."""
    rate_rps: float | None = None
    """Needed throughput; without it, as much as possible."""
    version: Version = 1
    """Under which clients know it."""
    priority: Priority = 0
    """Of requests that state none, or 0; smaller is served first."""
    shapes: dict[str, float] = msgspec.field(default_factory=dict)
    """Of a model profiled at several sizes: sizes, such as "64" or "224x320" -> their part of all
    requests, in any unit. Without it, every size gets the same part."""
    items: float | Items = 1.0
    """Of one request: their number, or mean and distribution; planner malleable."""


class ModuleEntry(Record, frozen=True, kw_only=True):
    """One use of a model in an app; its name is its key."""

    profile: str
    """File that `headrace profile` or `headrace estimate` wrote, relative to this one."""
    after: tuple[str, ...] = ()
    """Modules whose outputs it needs."""
    fan_out: float | FanOut = 1.0
    """Calls per request of the app: their mean, or mean and distribution."""
    code_ms: Annotated[float, Meta(ge=0, le=MAX_SLO_MS)] = 0.0
    """What the app's own code takes before these calls, p99; `headrace rehearse --out` measures
    it."""


class AppEntry(Record, frozen=True, kw_only=True):
    """Several models behind one objective."""

    name: str
    slo_ms: Annotated[float, Meta(gt=0, le=MAX_SLO_MS)]
    """End to end, from a request's arrival to its answer."""
    rate_rps: Annotated[float, Meta(gt=0)]
    """Requests of the app per second."""
    modules: Annotated[dict[str, ModuleEntry], Meta(min_length=1, max_length=MODULES_MAX)]
    priority: int = 0
    """Smaller is served first."""
    code_ms: Annotated[float, Meta(ge=0, le=MAX_SLO_MS)] = 0.0
    """What the app's own code takes after the last answer, p99."""
    version: Version = 1
    """Under which clients know it."""


class OptionsEntry(Record, frozen=True, kw_only=True):
    """How to plan; what is left out has another default for apps than for models."""

    planner: str | None = None
    """Default: pooled; least-cost for apps; shares for apps and models together."""
    objective: Objective | None = None
    """Default: max-min; least-cost where there are apps. least-devices: planners of shares."""
    bill: Bill | None = None
    """Of apps. devices, the default of planner least-cost: price of the whole devices used, which
    modules then share; fraction, all that the other planners know: price in proportion to load."""
    margin: float | None = None
    """Fraction of the SLO kept for what the plan does not count. Default: 0.4; for apps on their
    own 0, since collecting batches is counted there."""
    model_margins: dict[str, float] | None = None
    """Model or app -> its margin, in place of `margin`."""
    carried_parts: dict[str, float] | None = None
    """Model -> the part of its planned throughput that it is expected to carry, by simulation.
    Default: 1."""
    link_parts: dict[str, float] | None = None
    """Model -> how much of its slots' shares of a link it is planned to use. Default: 1."""
    min_stages: int | None = None
    max_stages: int | None = None
    """Default: 3; always 1 for modules of apps."""
    max_batch: int | None = None
    """Default: as large as profiled."""
    max_tenants: int | None = None
    """Of shared slots: models or modules that take turns on one. Default: as many as have time and
    memory."""
    partition: Partition | None = None
    """Of malleable plans: exact (the default), or shisha, the heuristic."""
    max_depth: int | None = None
    """Of malleable plans: most slots that one request is cut over. Default: 8."""
    max_items: int | None = None
    """Of malleable plans: most items of one request. Default: what all but one request in a
    thousand have."""
    item_batch: int | None = None
    """Of malleable plans: items of a request that go through a stage together. Default: 1."""
    provision: str | None = None
    """Planner of the starts of models that are not in memory, such as `exact`; see `headrace plan
    --provision`. Default: all weights are loaded before they serve."""
    move_ms: float | None = None
    """Of malleable plans: how long moving blocks between slots holds a request up when it changes
    depth. Default: 0."""
    time_limit_s: float | None = None


class ProblemFile(Record, frozen=True, kw_only=True):
    """The whole file."""

    schema: Literal["headrace.problem/1"]
    cluster: ClusterEntry
    models: tuple[ModelEntry, ...] = ()
    """Models that are served on their own."""
    apps: tuple[AppEntry, ...] = ()
    """Apps of several models, planned for least cost. Beside models: planner `shares`."""
    interference: tuple[str | Interference, ...] = ()
    """Files that `headrace interfere` wrote, relative to this one, or such documents themselves;
    one for a device type."""
    options: OptionsEntry = OptionsEntry()


def parse_problem(source: Source) -> ProblemFile:
    """Return the file as typed entries.

    Raises:
        DocumentError: it does not follow `headrace.problem/1`.
    """
    return convert(source, ProblemFile, SCHEMA)


def build_cluster(entry: ClusterEntry) -> Cluster:
    """Name the devices and write out machines that are given as a count."""
    total = sum(node.count or 1 for node in entry.nodes)
    if total > MAX_NODES:
        raise DocumentError(f"$.cluster.nodes: {total:,} machines, at most {MAX_NODES:,} allowed")
    return Cluster(
        device_types=tuple(
            DeviceType(
                name=name,
                **msgspec.structs.asdict(device)
                | {"splits": () if device.splits == "any" else device.splits},
            )
            for name, device in entry.devices.items()
        ),
        nodes=tuple(
            Node(name=name, devices=node.devices, bandwidth_gbps=node.bandwidth_gbps)
            for node in entry.nodes
            for name in _node_names(node)
        ),
    )


def _node_names(node: NodeEntry) -> list[str]:
    if node.count is None:
        return [node.name]
    return [f"{node.name}-{i}" for i in range(node.count)]


def build_demand(entry: ModelEntry, profile_model: str) -> Demand:
    """Turn milliseconds into microseconds and settle the model's name.

    Raises:
        DocumentError: the entry names another model than its profile.
    """
    if entry.name is not None and entry.name != profile_model:
        raise DocumentError(
            f"model {entry.name!r} names the profile of another model\n"
            f"  expected  a profile of {entry.name!r}\n"
            f"  got       {entry.profile}: a profile of {profile_model!r}\n"
            f"  try       `name: {profile_model}`, or leave `name` out"
        )
    return Demand(
        model=profile_model,
        slo_us=round(entry.slo_ms * 1000),
        weight=entry.weight,
        rate_rps=entry.rate_rps,
        version=entry.version,
        priority=entry.priority,
        shapes=entry.shapes,
        items=entry.items if isinstance(entry.items, Items) else Items(mean=entry.items),
    )


APP_OPTIONS = PlanOptions(planner="least-cost", objective="least-cost", margin=0.0, max_stages=1)
"""Collecting and queueing are part of an app's worst case, so no margin is kept for them."""


TOGETHER_OPTIONS = PlanOptions(planner="shares", objective="least-cost")
"""Of apps beside models: bursts are not counted, so a margin is kept as for models."""


def options_of(file: ProblemFile, planner: str | None = None) -> PlanOptions:
    """The file's options over the defaults, which are an app's own where there are apps.

    Args:
        planner: asked for in place of the file's.
    """
    given = {
        name: value
        for name, value in msgspec.structs.asdict(file.options).items()
        if value is not None
    }
    if planner is not None:
        given["planner"] = planner
    if not file.apps:
        return msgspec.structs.replace(PlanOptions(), **given)
    if file.models or given.get("planner") == TOGETHER_OPTIONS.planner:
        return msgspec.structs.replace(TOGETHER_OPTIONS, **given)
    if given.get("planner", APP_OPTIONS.planner) == "least-cost":
        given.setdefault("bill", "devices")
    return msgspec.structs.replace(APP_OPTIONS, **given)


def build_app(entry: AppEntry, models: dict[str, str]) -> App:
    """Turn milliseconds into microseconds and `after` into edges.

    Args:
        models: module -> model, as its profile says.

    Raises:
        DocumentError: modules wait for each other or for what is not there.
    """
    return App(
        name=entry.name,
        modules=tuple(
            Module(
                name=name,
                model=models[name],
                fan_out=module.fan_out
                if isinstance(module.fan_out, FanOut)
                else FanOut(mean=module.fan_out),
                code_us=round(module.code_ms * 1000),
            )
            for name, module in entry.modules.items()
        ),
        edges=tuple(
            (before, name) for name, module in entry.modules.items() for before in module.after
        ),
        slo_us=round(entry.slo_ms * 1000),
        rate_rps=entry.rate_rps,
        priority=entry.priority,
        code_us=round(entry.code_ms * 1000),
        version=entry.version,
    )
