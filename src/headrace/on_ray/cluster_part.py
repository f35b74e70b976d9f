"""The cluster part of a problem, from the nodes that are there: what a person would write."""

from collections.abc import Sequence

from headrace.on_ray.links import Links
from headrace.on_ray.nodes import RayNode

CPU, GPU = "cpu", "cuda"
"""Device types that have executors of those names' patterns."""


def device_types(nodes: Sequence[RayNode]) -> dict[str, dict[str, int]]:
    """Node's name -> device type -> how many.

    GPUs of several kinds get a device type each, such as `cuda-l4`: their times differ.
    """
    kinds = {node.accelerator for node in nodes if node.gpus}
    found: dict[str, dict[str, int]] = {}
    for node in nodes:
        devices = {CPU: node.cpus}
        devices[_gpu_type(node, len(kinds) > 1)] = node.gpus
        devices |= {name: int(amount) for name, amount in node.resources.items()}
        found[node.name] = {name: count for name, count in devices.items() if count >= 1}
    return found


def cluster_text(nodes: Sequence[RayNode], links: Links | None) -> str:
    """YAML."""
    of_node = device_types(nodes)
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


def _gpu_type(node: RayNode, several: bool) -> str:
    return f"{GPU}-{(node.accelerator or 'other').lower()}" if several else GPU
