"""`headrace.problem/1`: what a person writes, in human units, and what it means.

Milliseconds and short forms here; microseconds and full records in `domain.problem`.
"""

from fractions import Fraction
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from headrace.catalog.source import Source
from headrace.catalog.strict import convert
from headrace.domain.base import Record
from headrace.domain.cluster import WHOLE, Cluster, DeviceType, Node
from headrace.domain.errors import DocumentError
from headrace.domain.problem import Demand, PlanOptions

SCHEMA = "headrace.problem/1"

MAX_NODES = 10_000
MAX_SLO_MS = 86_400_000.0


class DeviceEntry(Record, frozen=True, kw_only=True):
    """One device type; its name is its key."""

    # A factory, because a JSON Schema cannot state a Fraction as its default.
    shares: tuple[Fraction, ...] = msgspec.field(default_factory=lambda: (WHOLE,))
    """Legal shares of one device, such as "1" and "1/2"."""
    price_per_hour: float | None = None
    memory_bytes: int | None = None
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


class ProblemFile(Record, frozen=True, kw_only=True):
    """The whole file."""

    schema: Literal["headrace.problem/1"]
    cluster: ClusterEntry
    models: tuple[ModelEntry, ...]
    options: PlanOptions = PlanOptions()


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
                shares=device.shares,
                price_per_hour=device.price_per_hour,
                memory_bytes=device.memory_bytes,
                max_utilisation=device.max_utilisation,
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
    )
