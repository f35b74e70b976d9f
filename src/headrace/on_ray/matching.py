"""Which node of a plan is which node of the cluster.

A node of a plan needs what its slots use: cores, GPUs, and devices that Ray knows by name because a
node was started with such a resource (`ray start --resources='{"L4": 4}'`). A node of the cluster
that is labelled with a name is the plan's node of that name and no other; all others go to whoever
they fit, and whose CPUs and GPUs are of the plan's kinds where these have names:

1. One to one. As many nodes of the plan as possible get a machine of their own: a maximum matching
   of a bipartite graph, by augmenting paths (Kuhn), in the order of names, so that equal clusters
   are matched alike. O(plan's nodes x edges): thousands of nodes take no time.
2. Those that are left share: the one that needs most first, each with the machine that has the
   fewest and what it needs still free.
3. If that leaves one out, step 2 for all of them. Packing is hard (it is bin packing in several
   dimensions), so a way may exist that neither finds: labels say it.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
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
    """Node of the plan -> id of the cluster's, which may have several."""
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


def match(
    wanted: Sequence[Wanted],
    nodes: Sequence[RayNode],
    held: Mapping[str, Sequence[Wanted]] | None = None,
    kinds: Iterable[str] = (),
) -> Matching:
    """Give as many nodes of the plan as possible one of the cluster's that fits.

    Args:
        held: id of a node -> what it has of the plan already.
        kinds: that the cluster has had, besides those of `nodes`.
    """
    named = named_resources(nodes)
    before, kinds = held or {}, frozenset(kinds)
    there = _Rooms(nodes, named, before, kinds)
    there.place_one_to_one(wanted)
    there.place_beside(wanted)
    if len(there.owner_of) < len(wanted):
        packed = _Rooms(nodes, named, before, kinds)
        packed.place_beside(wanted)
        there = max(there, packed, key=lambda rooms: len(rooms.owner_of))
    return Matching(
        pairs=dict(sorted(there.owner_of.items())),
        missing={
            each.name: tuple(f"{node.name}: {there.why_not(each, node)}" for node in nodes)
            for each in wanted
            if each.name not in there.owner_of
        },
        spare=tuple(node.id for node in nodes if not there.of[node.id]),
    )


class _Rooms:
    """What each node of the cluster has of the plan, and room for."""

    def __init__(
        self,
        nodes: Sequence[RayNode],
        named: frozenset[str],
        held: Mapping[str, Sequence[Wanted]],
        kinds: frozenset[str],
    ) -> None:
        self._nodes, self._named = nodes, named
        self._labels = {node.name for node in nodes if node.labelled}
        self._kinds = kinds | {kind for node in nodes for kind in node.kinds}
        self.of = {node.id: list(held.get(node.id, ())) for node in nodes}
        self.owner_of: dict[str, str] = {}
        """Node of the plan -> id; of those that were placed here."""

    def why_not(self, each: Wanted, node: RayNode) -> str:
        """Empty: there is room for it."""
        beside = self.of[node.id]
        alone = other_kind(each, node, self._kinds) or lacking(
            each, node, self._named, self._labels
        )
        why = alone or lacking(each, node, self._named, self._labels, beside)
        return why if alone or not why else f"is {', '.join(w.name for w in beside)}; {why}"

    def place_one_to_one(self, wanted: Sequence[Wanted]) -> None:
        """Step 1, on nodes that have nothing."""
        free = [node for node in self._nodes if not self.of[node.id]]
        # A plan that was made for these machines has their names.
        fits = {
            each.name: [
                node.id
                for node in sorted(free, key=lambda node: node.name != each.name)
                if not self.why_not(each, node)
            ]
            for each in wanted
        }
        owner: dict[str, str] = {}

        def place(name: str, tried: set[str]) -> bool:
            for id in fits[name]:
                if id in tried:
                    continue
                tried.add(id)
                if id not in owner or place(owner[id], tried):
                    owner[id] = name
                    return True
            return False

        for each in wanted:
            place(each.name, set())
        by_name = {each.name: each for each in wanted}
        for id, name in owner.items():
            self._put(by_name[name], id)

    def place_beside(self, wanted: Sequence[Wanted]) -> None:
        """Step 2, of those that have no place."""
        left = [each for each in wanted if each.name not in self.owner_of]
        for each in sorted(left, key=lambda each: (-self._size(each), each.name)):
            fitting = [node for node in self._nodes if not self.why_not(each, node)]
            if fitting:
                self._put(each, min(fitting, key=lambda node: len(self.of[node.id])).id)

    def _size(self, each: Wanted) -> float:
        return sum(bundle_of(each, self._named).values())

    def _put(self, each: Wanted, id: str) -> None:
        self.of[id].append(each)
        self.owner_of[each.name] = id


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


def other_kind(wanted: Wanted, node: RayNode, kinds: frozenset[str]) -> str:
    """Which device of it this node has not, though others do; empty: none.

    Args:
        kinds: of all nodes, where they were asked for.
    """
    others = [
        each.device
        for each in wanted.devices
        if each.device in kinds and each.device not in node.kinds
    ]
    return f"is {', '.join(node.kinds) or 'no CPU or GPU'}, not {others[0]}" if others else ""


def lacking(
    wanted: Wanted,
    node: RayNode,
    named: frozenset[str],
    labels: set[str] | frozenset[str],
    beside: Iterable[Wanted] = (),
) -> str:
    """What keeps this node from being that one, besides others; empty: nothing."""
    if node.labelled and node.name != wanted.name:
        return f"is labelled {NODE_LABEL}={node.name}"
    if wanted.name in labels and not node.labelled:
        return f"another node is labelled {NODE_LABEL}={wanted.name}"
    room: dict[str, float] = {"CPU": node.cpus, "GPU": node.gpus, **node.resources}
    for other in beside:
        for name, amount in bundle_of(other, named).items():
            room[name] = room.get(name, 0.0) - amount
    short = [
        f"{has:.3g} {name} of {amount:g}"
        for name, amount in bundle_of(wanted, named).items()
        if (has := room.get(name, 0.0)) < amount - 1e-9
    ]
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
