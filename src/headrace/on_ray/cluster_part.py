"""The cluster part of a problem, from the nodes that are there: what a person would write."""

from collections.abc import Sequence

from headrace.on_ray.kinds import Kind
from headrace.on_ray.links import Links
from headrace.on_ray.nodes import RayNode


def device_types(nodes: Sequence[RayNode], kinds: Sequence[Kind]) -> dict[str, dict[str, int]]:
    """Node's name -> device type -> how many."""
    found: dict[str, dict[str, int]] = {}
    for node in nodes:
        counts = {"cpu": node.cpus, "cuda": node.gpus}
        own = [kind for kind in kinds if node.id in {each.id for each in kind.nodes}]
        devices = {kind.name: counts[kind.device] for kind in own}
        devices |= {name: int(amount) for name, amount in node.resources.items()}
        found[node.name] = {name: count for name, count in devices.items() if count >= 1}
    return found


def cluster_text(nodes: Sequence[RayNode], kinds: Sequence[Kind], links: Links | None) -> str:
    """YAML."""
    of_node = device_types(nodes, kinds)
    types = sorted({name for devices in of_node.values() for name in devices})
    lines = [
        "# The cluster part of a problem, written by `headrace nodes`.",
        "cluster:",
        "  devices:",
    ]
    lines += [f"    {name}: {{}}" for name in types]
    lines.append("  nodes:")
    for node in nodes:
        devices = ", ".join(f"{name}: {count}" for name, count in of_node[node.name].items())
        gbps = None if links is None else links.node_gbps(node.id)
        speed = "" if gbps is None else f", bandwidth_gbps: {gbps:.3g}"
        if devices:
            lines.append(f"    - {{name: {node.name}, devices: {{{devices}}}{speed}}}")
    return "\n".join(lines) + "\n"
