"""The steps of `headrace serve` before its server runs: check, access, rehearse."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from headrace.serving.apps.host import AppHost
    from headrace.serving.changes.plan_watch import ReplanRule
    from headrace.serving.engine.served_plan import ServedPlan, ServiceOptions
    from headrace.serving.front.base import FrontsAsked
    from headrace.serving.workers.remote.cluster import ClusterAddresses


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanAsked:
    """What is to be served, and what goes with it."""

    path: Path
    events: Path | None
    apps: tuple[Path, ...]
    app_threads: int | None
    pad: tuple[str, ...]
    replan: "ReplanRule | None"


@dataclass(frozen=True, slots=True, kw_only=True)
class NodesAsked:
    """Where the plan's nodes are, and how to speak to them."""

    agents: Path | None
    nodes: tuple[str, ...]
    secret_file: Path | None
    authority: Path | None


@dataclass(frozen=True, slots=True, kw_only=True)
class AccessAsked:
    """Where clients find the server, and who may ask."""

    host: str
    port: int
    grpc_port: int | None
    admin_socket: Path | None
    no_auth: bool
    token_file: Path | None
    require_token: bool
    allow_hosts: tuple[str, ...]
    body_bytes: int
    tls_certificate: Path | None
    tls_key: Path | None
    tls_client_authority: Path | None

    @property
    def token_path(self) -> Path | None:
        """None: nobody needs a token."""
        from headrace.serving.front.access import default_token_path

        return None if self.no_auth else self.token_file or default_token_path()


@dataclass(frozen=True, slots=True, kw_only=True)
class Checked:
    """What can be served."""

    whole: "ServedPlan"
    cluster: "ClusterAddresses | None"
    functions: "AppHost | None"


def check_files(asked: PlanAsked) -> None:
    """Whether what the server will write can be, before anything is read.

    Raises:
        DocumentError: it cannot.
    """
    from headrace.catalog.event_log import check_event_log
    from headrace.commands.kept_rehearsal import check_not_kept
    from headrace.commands.serve_checks import check_plans_beside

    if asked.replan is not None:
        check_plans_beside(asked.path)
    if asked.events is not None:
        check_event_log(asked.events, asked.path, *asked.apps)
        check_not_kept(asked.events, asked.path)


def check(asked: PlanAsked, nodes: NodesAsked, service: "ServiceOptions") -> Checked:
    """Read the plan and what it names; the apps' process, if any, runs from here on.

    Raises:
        HeadraceError: the plan cannot be served, or not as asked.
    """
    from headrace.catalog.documents import files_behind
    from headrace.catalog.whole_file import check_apart
    from headrace.commands.serve_checks import (
        app_host,
        check_cache,
        check_sizes,
        cluster_addresses,
    )
    from headrace.serving.changes.vetting import read_served_plan, refuse_violations
    from headrace.serving.workers.placement import refuse_unenforced

    whole = read_served_plan(asked.path)
    if asked.events is not None:
        read = files_behind(whole.plan.profiles, asked.path.parent, whole.profiles)
        check_apart(asked.events, *read)
    refuse_violations(whole)
    served = whole.by_bucket().plan
    check_sizes(whole.plan, served, asked.pad, asked.replan is not None)
    cluster = cluster_addresses(
        nodes.agents, nodes.nodes, nodes.secret_file, nodes.authority, served
    )
    if not service.unenforced_shares:
        refuse_unenforced(served, service.executor, () if cluster is None else cluster.elsewhere)
    check_cache(served, service.executor)
    functions = app_host(asked.apps, asked.app_threads, whole.plan)
    return Checked(whole=whole, cluster=cluster, functions=functions)


def access(asked: AccessAsked) -> "FrontsAsked":
    """Who may ask where; the token's file is made if it is missing.

    Raises:
        HeadraceError: the server could not listen there, or would be open to others.
    """
    from headrace.commands.serve_checks import check_addresses
    from headrace.serving.front.access import Access, default_folder, read_or_create_token
    from headrace.serving.front.base import FrontOptions, FrontsAsked
    from headrace.serving.front.http_messages import Limits
    from headrace.serving.front.tls import tls_files

    if asked.admin_socket is None:
        default_folder()  # Refused now, and not when all has been compiled and rehearsed.
    token_path = asked.token_path
    allowed = Access(
        bind_host=asked.host,
        token=None if token_path is None else read_or_create_token(token_path),
        allow_hosts=asked.allow_hosts,
        trust_owner=not asked.require_token,
    )
    check_addresses(asked.host, asked.port, asked.grpc_port, asked.admin_socket)
    common = FrontOptions(
        limits=Limits(body_bytes=asked.body_bytes),
        access=allowed,
        host=asked.host,
        port=asked.port,
        tls=tls_files(asked.tls_certificate, asked.tls_key, asked.tls_client_authority),
    )
    return FrontsAsked(common=common, grpc_port=asked.grpc_port, admin_socket=asked.admin_socket)


def rehearse(asked: PlanAsked, service: "ServiceOptions", core: int | None) -> Mapping[str, float]:
    """Unless that was done, or would tell nothing: a rehearsal measures this machine.

    Args:
        core: of the gateway; None: any.

    Returns:
        How many times its profile each stage took, by MODEL/PIPELINE/NUMBER.
    """
    from headrace.commands.rehearse import rehearse_before_ready
    from headrace.executors.table import EMULATED

    if service.executor == EMULATED or service.cluster is not None:
        return {}
    arguments = ["--unenforced-shares"] if service.unenforced_shares else []
    arguments += [f"--core={core}"] if core is not None else []
    return rehearse_before_ready(
        asked.path, service.policy, service.executor, asked.apps, arguments
    )
