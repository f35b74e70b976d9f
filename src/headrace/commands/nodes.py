"""`headrace nodes`: the machines of a cluster beside those of a plan."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from headrace.commands.output import console, next_step, notices, print_json, quoted, wrote
from headrace.commands.studies import RAY, AddressOption, check_cluster

if TYPE_CHECKING:
    from headrace.on_ray.kinds import Kind
    from headrace.on_ray.links import Links
    from headrace.on_ray.matching import Matching, Wanted


def nodes(
    path: Annotated[
        Path | None,
        typer.Argument(
            metavar="[PLAN|PROBLEM]", help="Whose nodes are to be found there.", show_default=False
        ),
    ] = None,
    cluster: Annotated[str, typer.Option(metavar=RAY, help="Kind of the cluster.")] = RAY,
    address: AddressOption = None,
    out: Annotated[
        Path | None,
        typer.Option(
            "--out",
            "-o",
            help="Write the cluster part of a problem here: the nodes that are there, with their"
            " CPUs and GPUs.",
            show_default=False,
        ),
    ] = None,
    measure: Annotated[
        bool,
        typer.Option(
            "--measure", help="Measure the link between each two nodes, one pair after another."
        ),
    ] = False,
    executor: Annotated[
        str, typer.Option(help="What will run the stages, as for `headrace serve`.")
    ] = "auto",
    json: Annotated[bool, typer.Option("--json", help="One JSON document.")] = False,
) -> None:
    """Show the nodes of a Ray cluster, those of a plan, and which is which.

    Exits with 2, and says what is missing, when a node of the plan has none in the cluster, or a
    link is slower than the plan's.

    [dim]headrace nodes --cluster ray plan.json[/dim]

    [dim]headrace nodes --cluster ray --measure -o cluster.yaml[/dim]
    """
    from headrace.catalog.whole_file import check_writable
    from headrace.domain.errors import ClusterError
    from headrace.on_ray.connection import connected
    from headrace.on_ray.kinds import KnownNodes, kinds_of, of_kinds, processors_of
    from headrace.on_ray.links import links_of
    from headrace.on_ray.matching import match, missing_text
    from headrace.on_ray.nodes import nodes_of
    from headrace.reporting.nodes_table import nodes_table, wanted_table

    check_cluster(cluster, address)
    if out is not None:
        check_writable(out, *([] if path is None else [path]))
    wanted, speeds = ((), {}) if path is None else _wanted(path, executor)
    with connected(address) as ray:
        there = nodes_of(ray)
        links = None
        kinds: tuple[Kind, ...] = ()
        if out is not None:
            kinds = kinds_of(there, processors_of(ray, there))
            there = of_kinds(there, kinds)
        else:
            devices = (each.device for node in wanted for each in node.devices)
            there = KnownNodes(ray, devices).with_kinds(there)
        if measure:
            with notices.status("measuring links"):
                links = links_of(ray, there)
    found = match(wanted, there)
    slow = _slow(found, speeds, links)
    if json:
        print_json(
            {"nodes": there, "wanted": wanted, "matching": found, "links": links, "slow": slow}
        )
    else:
        console.print(nodes_table(there, found, links))
        if path is not None:
            console.print(wanted_table(wanted, there, found))
    if out is not None:
        from headrace.catalog.whole_file import whole_file
        from headrace.on_ray.cluster_part import cluster_text

        with whole_file(out) as file:
            file.write(cluster_text(there, kinds, links).encode())
        wrote(out)
    if found.missing:
        raise ClusterError(missing_text(found))
    if slow:
        raise ClusterError("\n".join(slow))
    if path is not None:
        next_step(f"headrace serve {quoted(path)} --cluster ray")


def _wanted(path: Path, executor: str) -> "tuple[Sequence[Wanted], Mapping[str, float]]":
    """What a plan's or a problem's nodes need, and how fast it takes their links to be."""
    from headrace.catalog.documents import read_plan, read_problem
    from headrace.catalog.source import decode_text, parse_json, read_bounded
    from headrace.domain.errors import DocumentError
    from headrace.on_ray.matching import wanted_of_cluster, wanted_of_plan

    try:
        stated = parse_json(path, decode_text(path, read_bounded(path))).data
    except DocumentError:
        stated = None
    if isinstance(stated, dict) and str(stated.get("schema", "")).startswith("headrace.plan/"):
        plan = read_plan(path)
        cluster, wanted = plan.cluster, wanted_of_plan(plan, executor)
    else:
        cluster = read_problem(path).cluster
        wanted = wanted_of_cluster(cluster, executor)
    speeds = {node.name: node.bandwidth_gbps for node in cluster.nodes}
    return wanted, {name: gbps for name, gbps in speeds.items() if gbps is not None}


def _slow(found: "Matching", speeds: Mapping[str, float], links: "Links | None") -> list[str]:
    """Links that are slower than the plan takes them to be."""
    from headrace.domain.apart import apart

    if links is None:
        return []
    measured = {name: links.node_gbps(id) for name, id in found.pairs.items()}
    return [
        f"the link of node {name!r} is slower than planned: needs {needs} Gbit/s, has {has} Gbit/s;"
        " state that in the problem as bandwidth_gbps and plan again"
        for name, gbps in measured.items()
        if gbps is not None and name in speeds and gbps < speeds[name]
        for needs, has in [apart(speeds[name], gbps, digits=3)]
    ]
