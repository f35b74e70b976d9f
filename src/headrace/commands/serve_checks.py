"""What `headrace serve` makes of its options before anything is started, and what it refuses."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from headrace.commands.together import option, refuse_alone
from headrace.commands.values import given
from headrace.domain.errors import DocumentError
from headrace.executors.table import choices

if TYPE_CHECKING:
    import typer

    from headrace.domain.plan import Plan
    from headrace.executors.table import ExecutorChoice
    from headrace.serving.apps.host import AppHost
    from headrace.serving.workers.remote.cluster import ClusterAddresses


REPLANNING = ("replan_fraction", "replan_after_s", "replan_period_s", "replan_headroom")
OF_OTHERS = {
    **dict.fromkeys(REPLANNING, ("replan",)),
    "app_threads": ("app",),
    "secret_file": ("agents", "node"),
    "cluster_ca": ("agents", "node"),
}
"""Option -> those of which it is part."""
AGAINST_NO_AUTH = ("token_file", "require_token")


def check_together(context: "typer.Context") -> None:
    """Refuse options that contradict each other, or that would do nothing."""
    if context.params["no_auth"]:
        for name in AGAINST_NO_AUTH:
            if given(context, name):
                raise DocumentError(
                    f"serve: {option(name)} asks for a token and --no-auth for none; leave one out"
                )
    refuse_alone(context, OF_OTHERS)


def check_addresses(host: str, port: int, grpc_port: int | None, admin_socket: Path | None) -> None:
    """Try whether the server can listen there, before what takes long: a rehearsal, say, takes the
    cores of the server that has the address already.

    Args:
        port: 0: any, which the admin socket is then named after.

    Raises:
        AddressError: it cannot.
    """
    import asyncio

    from headrace.serving.front.access import default_folder
    from headrace.serving.front.admin import socket_path, try_socket
    from headrace.serving.front.grpc.front import GrpcFront
    from headrace.serving.front.http_front import HttpFront
    from headrace.serving.front.tcp_front import bind

    async def try_port(port: int, another: str) -> None:
        listener = await bind(asyncio.Protocol, host, port, another, start_serving=False)
        listener.close()

    asyncio.run(try_port(port, HttpFront.another))
    if grpc_port is not None:
        asyncio.run(try_port(grpc_port, GrpcFront.another))
    if admin_socket is not None or port:
        try_socket(admin_socket or socket_path(default_folder(), port))


def cluster_addresses(
    agents: Path | None,
    nodes: Sequence[str],
    secret_file: Path | None,
    authority: Path | None,
    plan: "Plan",
) -> "ClusterAddresses | None":
    """Where the plan's nodes are; None: this machine stands in for all of them."""
    from headrace.serving.workers.remote.cluster import ClusterAddresses, parse_nodes, read_agents
    from headrace.serving.workers.remote.handshake import read_secret
    from headrace.serving.workers.remote.tls import calling

    if agents is None and not nodes:
        return None
    found = {**(read_agents(agents) if agents else {}), **parse_nodes(nodes)}
    needs_secret = any(address is not None for address in found.values())
    cluster = ClusterAddresses(
        nodes=found,
        secret=read_secret(secret_file) if needs_secret else b"",
        tls=calling(authority),
    )
    cluster.require([slot.node for slot in plan.slots])
    return cluster


def check_sizes(plan: "Plan", served: "Plan", pad: Sequence[str], replan: bool) -> None:
    """Refuse options that do not fit the plan or its models of several sizes."""
    from headrace.serving.changes.plan_watch import unfollowed

    names = {deployment.model for deployment in plan.deployments}
    sized = names - {deployment.model for deployment in served.deployments}
    if strangers := [name for name in pad if name not in sized]:
        known = ", ".join(sorted(sized)) or "none"
        raise DocumentError(
            f"--pad {strangers[0]}: the plan has no such model of several sizes; it has: {known}"
        )
    if replan and (why := unfollowed(plan)):
        raise DocumentError(f"--replan: {why}")


def check_plans_beside(plan_path: Path) -> None:
    """Refuse `--replan` where no new plan can be made beside the plan.

    Raises:
        DocumentError: its problem could not name the plan's profiles, or the folder is not the
            server's to write.
    """
    from headrace.catalog.whole_file import folder_beside
    from headrace.commands.replanning import ADVICE

    folder = str(plan_path.absolute().parent)
    try:
        folder.encode()
    except UnicodeEncodeError as error:
        raise DocumentError(
            f"--replan: {folder!r} is no UTF-8, and the problem of a new plan names the profiles"
            " in it\n"
            "  try    another name for the folder, or leave out --replan"
        ) from error
    # Of a plan that is missing, whoever reads it says so.
    if plan_path.exists():
        with folder_beside(plan_path, "replan", ADVICE):
            pass


def check_cache(plan: "Plan", choice: "ExecutorChoice") -> None:
    """Refuse to begin where no stage of a model can be kept: what comes before takes a minute.

    Raises:
        ModelError: the cache folder cannot be written.
    """
    from headrace.catalog.stage_files import check_first_stage
    from headrace.executors.table import executor, kind_for

    kinds = {kind_for(slot.device, choice) for slot in plan.slots}
    if any(executor(kind).reads_model for kind in kinds):
        check_first_stage()


def app_host(paths: Sequence[Path], threads: int | None, plan: "Plan") -> "AppHost | None":
    """The apps' process, with all files loaded. It dies with this one."""
    from headrace.domain.errors import PlanError
    from headrace.serving.apps.files import check_files
    from headrace.serving.apps.host import AppHost

    if not paths:
        return None
    host = AppHost(paths, threads)
    try:
        check_files(host.open(), plan)
    except PlanError:
        host.close()
        raise
    return host


def check_names(policy: str | None, executor: str) -> None:
    """Refuse options that mean nothing, before anything is started."""
    from headrace.dispatch.policies import MALLEABLE, POLICIES

    for what, chosen, known in (
        ("--policy", policy, (*POLICIES, *MALLEABLE)),
        ("--executor", executor, choices()),
    ):
        if chosen is not None and chosen not in known:
            raise DocumentError(f"serve: {what} {chosen!r} is unknown; known: {', '.join(known)}")


def keep_on_core(core: int | None) -> tuple[int, ...] | None:
    """Returns the cores of workers, those first that they share with nobody; None: any."""
    import os

    if core is None:
        return None
    allowed = os.sched_getaffinity(0)
    if core not in allowed:
        raise DocumentError(f"serve: --core {core}: this process may use cores {sorted(allowed)}")
    os.sched_setaffinity(0, {core})
    return (*sorted(allowed - {core}), core)
