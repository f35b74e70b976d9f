"""Which node of a plan is which node of the cluster.

A node of a plan needs what its slots use: cores, GPUs, and devices that Ray knows by name because a
node was started with such a resource (`ray start --resources='{"L4": 4}'`). A node of the cluster
that is labelled with a name is the plan's node of that name and no other; all others go to whoever
they fit. As many nodes of the plan as possible get one: a maximum matching of a bipartite graph, by
augmenting paths (Kuhn), in the order of names, so that equal clusters are matched alike. O(plan's
nodes x edges): thousands of nodes take no time.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from math import ceil
from typing import Literal

from headrace.domain.base import Record
from headrace.domain.cluster import Cluster
from headrace.domain.plan import Plan
from headrace.executors.table import AUTO, ExecutorChoice, executor, kind_for
from headrace.on_ray.nodes import NODE_LABEL, RayNode

Kind = Literal["core", "gpu", "emulated"]


class Devices(Record, frozen=True, kw_only=True):
    """Devices of one type that a node needs."""

    device: str
    kind: Kind
    """What serves them there: CPU cores, GPUs, or nothing but time."""
    count: int
    cores: int = 0
    """All of them together; of kind core."""


class Wanted(Record, frozen=True, kw_only=True):
    """What one node of a plan needs."""

    name: str
    devices: tuple[Devices, ...]

    @property
    def cores(self) -> int:
        return sum(each.cores for each in self.devices)

    @property
    def gpus(self) -> int:
        return sum(each.count for each in self.devices if each.kind == "gpu")


class Matching(Record, frozen=True, kw_only=True):
    """Who is who."""

    pairs: dict[str, str]
    """Node of the plan -> id of the cluster's."""
    missing: dict[str, tuple[str, ...]]
    """Node of the plan that has none -> why not, a line for each node of the cluster."""
    spare: tuple[str, ...]
    """Ids of nodes that are nobody's."""


def wanted_of_plan(plan: Plan, choice: ExecutorChoice = AUTO) -> tuple[Wanted, ...]:
    """What the plan's slots use, node by node; nodes without a slot need nothing.

    Raises:
        ModelError: the choice of executors is unknown.
    """
    used: dict[str, dict[str, dict[int, float]]] = defaultdict(lambda: defaultdict(dict))
    for slot in plan.slots:
        parts = used[slot.node][slot.device]
        parts[slot.device_index] = parts.get(slot.device_index, 0.0) + float(slot.share)
    return tuple(
        Wanted(
            name=node,
            devices=tuple(
                _devices(plan.cluster, device, list(used[node][device].values()), choice)
                for device in sorted(used[node])
            ),
        )
        for node in sorted(used)
    )


def wanted_of_cluster(cluster: Cluster, choice: ExecutorChoice = AUTO) -> tuple[Wanted, ...]:
    """All that the nodes of a problem have."""
    return tuple(
        Wanted(
            name=node.name,
            devices=tuple(
                _devices(cluster, device, [1.0] * count, choice)
                for device, count in sorted(node.devices.items())
            ),
        )
        for node in sorted(cluster.nodes, key=lambda node: node.name)
    )


def _devices(
    cluster: Cluster, device: str, shares: Sequence[float], choice: ExecutorChoice
) -> Devices:
    kind = executor(kind_for(device, choice))
    if kind.hold is not None:
        return Devices(device=device, kind="emulated", count=len(shares))
    if kind.slot_is != "core":
        return Devices(device=device, kind="gpu", count=len(shares))
    cores = cluster.device_type(device).cores
    # Shares of a device of several cores are whole cores; those of one core fill up whole ones.
    return Devices(
        device=device,
        kind="core",
        count=len(shares),
        cores=sum(ceil(share * cores - 1e-9) for share in shares),
    )


def match(wanted: Sequence[Wanted], nodes: Sequence[RayNode]) -> Matching:
    """Give as many nodes of the plan as possible one of the cluster's that fits."""
    named = named_resources(nodes)
    labels = {node.name for node in nodes if node.labelled}
    lacks = {
        each.name: {node.id: lacking(each, node, named, labels) for node in nodes}
        for each in wanted
    }
    owner: dict[str, str] = {}

    def place(name: str, tried: set[str]) -> bool:
        for node in nodes:
            if lacks[name][node.id] or node.id in tried:
                continue
            tried.add(node.id)
            if node.id not in owner or place(owner[node.id], tried):
                owner[node.id] = name
                return True
        return False

    placed = {each.name: place(each.name, set()) for each in wanted}
    return Matching(
        pairs={name: id for id, name in sorted(owner.items(), key=lambda pair: pair[1])},
        missing={
            name: tuple(
                f"{node.name}: {lacks[name][node.id] or f'is {owner[node.id]}'}" for node in nodes
            )
            for name, found in placed.items()
            if not found
        },
        spare=tuple(node.id for node in nodes if node.id not in owner),
    )


def missing_text(found: Matching) -> str:
    """One sentence, then why not, node by node."""
    first, reasons = next(iter(found.missing.items()))
    lines = [f"  has       {line}" for line in reasons[:8]]
    names = ", ".join(map(repr, found.missing))
    return (
        f"the cluster has no node for {names} of the plan; nothing was started\n"
        f"  needs     a node for {first!r} with what its slots use\n"
        + "\n".join(lines or ["  has       no node"])
        + f"\n  try       `ray start --address … --labels {NODE_LABEL}={first}` on that machine, or"
        " plan for the nodes that there are: `headrace nodes -o cluster.yaml`"
    )


def named_resources(nodes: Sequence[RayNode]) -> frozenset[str]:
    """What some node was started with by name; a device type of that name is looked for so."""
    return frozenset(name for node in nodes for name in node.resources)


def lacking(
    wanted: Wanted, node: RayNode, named: frozenset[str], labels: set[str] | frozenset[str]
) -> str:
    """What keeps this node from being that one; empty: nothing."""
    if node.labelled and node.name != wanted.name:
        return f"is labelled {NODE_LABEL}={node.name}"
    if wanted.name in labels and not node.labelled:
        return f"another node is labelled {NODE_LABEL}={wanted.name}"
    short = [
        f"{has:g} {device} of {count}"
        for device, count in by_name(wanted, named).items()
        if (has := node.resources.get(device, 0.0)) < count
    ]
    if node.cpus < wanted.cores:
        short.append(f"{node.cpus} CPU of {wanted.cores}")
    gpus = [each for each in wanted.devices if each.kind == "gpu" and each.device not in named]
    if node.gpus < sum(each.count for each in gpus):
        short.append(f"{node.gpus} GPU of {sum(each.count for each in gpus)}")
    return f"has {', '.join(short)}" if short else ""


def by_name(wanted: Wanted, named: frozenset[str]) -> Mapping[str, int]:
    """Devices that are looked for by their type's name."""
    return {each.device: each.count for each in wanted.devices if each.device in named}


def bundle_of(wanted: Wanted, named: frozenset[str]) -> dict[str, float]:
    """What Ray is asked to keep for a node: exactly what the plan uses there.

    Emulated devices use nothing; since Ray knows no empty bundle they get a thousandth of a CPU.

    >>> gpu = Devices(device="cuda", kind="gpu", count=2)
    >>> bundle_of(Wanted(name="a", devices=(gpu,)), frozenset())
    {'GPU': 2}
    """
    bundle: dict[str, float] = dict(by_name(wanted, named))
    if wanted.cores:
        bundle["CPU"] = wanted.cores
    if wanted.gpus:
        bundle["GPU"] = wanted.gpus
    return bundle or {"CPU": 0.001}
