"""The nodes of a cluster and those of a plan, side by side, for `headrace nodes`."""

from collections.abc import Sequence

from rich.markup import escape
from rich.table import Column, Table

from headrace.on_ray.links import Links
from headrace.on_ray.matching import Matching, Wanted
from headrace.on_ray.nodes import RayNode
from headrace.reporting.readable import ReadableTable, figures


def nodes_table(nodes: Sequence[RayNode], found: Matching, links: Links | None) -> Table:
    """One row per node of the cluster."""
    owners: dict[str, list[str]] = {}
    for name, id in found.pairs.items():
        owners.setdefault(id, []).append(name)
    headings: list[str | Column] = ["node", "address", figures("CPU"), figures("GPU"), "resources"]
    if links is not None:
        headings += [figures("slowest link"), figures("round trip")]
    table = ReadableTable(*headings, "in the plan", title="the cluster", title_justify="left")
    for node in nodes:
        gpus = f"{node.gpus} {node.accelerator or ''}".strip() if node.gpus else "0"
        named = ", ".join(f"{name}: {amount:g}" for name, amount in node.resources.items())
        cells = [node.name, node.address, str(node.cpus), gpus, named]
        if links is not None:
            gbps, round_trip_us = links.node_gbps(node.id), links.round_trip_us(node.id)
            cells.append("" if gbps is None else f"{gbps:.3g} Gbit/s")
            cells.append("" if round_trip_us is None else f"{round_trip_us / 1000:.2f} ms")
        table.add_row(*map(escape, cells), ", ".join(owners.get(node.id, ())))
    return table


def wanted_table(wanted: Sequence[Wanted], nodes: Sequence[RayNode], found: Matching) -> Table:
    """One row per node of the plan."""
    names = {node.id: node.name for node in nodes}
    title = "the plan"
    table = ReadableTable("node", "needs", "is", title=title, title_justify="left")
    for each in wanted:
        needs = ", ".join(
            f"{devices.count} x {devices.device}"
            + (" (emulated)" if devices.kind == "emulated" else "")
            for devices in each.devices
        )
        id = found.pairs.get(each.name)
        table.add_row(each.name, needs, "missing" if id is None else escape(names[id]))
    return table
