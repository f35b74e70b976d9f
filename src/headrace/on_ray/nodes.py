"""The nodes of a Ray cluster, as far as plans are about them."""

import re
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from headrace.domain.base import Record, is_name
from headrace.on_ray.connection import refuses

NODE_LABEL = "headrace.io/node"
"""On a Ray node: which node of a plan it is (`ray start --labels headrace.io/node=NAME`)."""

KIND_LABEL = "headrace.io/kind"
"""What tells a machine from others of the same hardware, for profiles (`kinds`)."""

_ACCELERATOR = "accelerator_type:"
_ACCELERATOR_LABEL = "ray.io/accelerator-type"
_RAYS_OWN = re.compile(
    r"CPU|GPU|memory|object_store_memory|node:.*|accelerator_type:.*|.*_group_.*"
)


class RayNode(Record, frozen=True, kw_only=True):
    """One node that is alive."""

    id: str
    """Hexadecimal, Ray's."""
    name: str
    """The label's, else the machine's where that is one node, else from the id."""
    labelled: bool
    """Whether the label says the name: it is that node of a plan, then, and no other."""
    address: str
    port: int
    """Of Ray's own process there, which is the node as far as Ray goes; 0: not said."""
    cpus: int
    gpus: int
    accelerator: str | None
    """What Ray calls its GPUs, such as L4."""
    resources: dict[str, float]
    """Others that it was started with: device types of plans, by name."""
    kind: str = ""
    """Of the label `KIND_LABEL`."""
    kinds: tuple[str, ...] = ()
    """Device types of its CPUs and GPUs (`kinds`), where they were asked for."""


def nodes_of(ray: Any) -> tuple[RayNode, ...]:
    """The cluster's, those that are alive, by name."""
    return nodes_from([node for node in ray.nodes() if node["Alive"]])


def living(nodes: Sequence[RayNode], suspects: Collection[str]) -> tuple[RayNode, ...]:
    """Those of which nothing says that they have gone.

    Ray calls a node dead when it has missed several looks, ten seconds or more after its process
    died. Where the machine lives, it says so at once: it refuses connections to that process, which
    never comes back under the same id. A machine that says nothing may be cut off: Ray's to judge.

    Args:
        suspects: ids of the nodes that are asked.
    """
    return tuple(
        node
        for node in nodes
        if node.id not in suspects or not node.port or not refuses(node.address, node.port)
    )


def nodes_from(stated: Sequence[Mapping[str, Any]]) -> tuple[RayNode, ...]:
    """What `ray.nodes()` says, as records.

    >>> node = {"NodeID": "f00d" * 14, "NodeManagerHostname": "gpu-1",
    ...         "NodeManagerAddress": "10.0.0.1", "Resources": {"CPU": 4.0}, "Labels": {}}
    >>> nodes_from([node])[0].name, nodes_from([node, node])[1].name
    ('gpu-1', 'node-f00df00d')
    """
    machines = Counter(node["NodeManagerHostname"] for node in stated)
    found = [_node(node, machines[node["NodeManagerHostname"]] == 1) for node in stated]
    return tuple(sorted(found, key=lambda node: (node.name, node.id)))


def _node(stated: Mapping[str, Any], alone: bool) -> RayNode:
    labels, resources = stated.get("Labels") or {}, stated.get("Resources") or {}
    label = labels.get(NODE_LABEL, "")
    machine = stated["NodeManagerHostname"]
    by_machine = machine if alone and is_name(machine) else f"node-{stated['NodeID'][:8]}"
    kinds = [name[len(_ACCELERATOR) :] for name in resources if name.startswith(_ACCELERATOR)]
    return RayNode(
        id=stated["NodeID"],
        name=label if is_name(label) else by_machine,
        labelled=is_name(label),
        address=stated["NodeManagerAddress"],
        port=int(stated.get("NodeManagerPort", 0)),
        cpus=int(resources.get("CPU", 0)),
        gpus=int(resources.get("GPU", 0)),
        accelerator=labels.get(_ACCELERATOR_LABEL) or next(iter(kinds), None),
        kind=kind if is_name(kind := labels.get(KIND_LABEL, "")) else "",
        resources={
            name: float(amount)
            for name, amount in sorted(resources.items())
            if not _RAYS_OWN.fullmatch(name) and is_name(name)
        },
    )
