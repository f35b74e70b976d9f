"""Bringing a plan to life: engine, apps, fronts and what watches them, until it is told to stop."""

import asyncio
import logging
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headrace.domain.errors import DocumentError

if TYPE_CHECKING:
    from headrace.serving.apps.host import AppHost
    from headrace.serving.changes.plan_watch import ReplanRule
    from headrace.serving.engine.plan_in_service import ServedPlan
    from headrace.serving.front.base import FrontOptions
    from headrace.serving.front.http_messages import Limits

log = logging.getLogger("headrace.serve")


async def run_server(
    whole: "ServedPlan",
    plan_path: Path,
    on_ready: Any,
    events: Path | None,
    functions: "AppHost | None",
    *,
    replan: "ReplanRule | None",
    engine: dict[str, Any],
    pad: frozenset[str],
    options: "FrontOptions",
    grpc_port: int | None,
    admin_socket: Path | None,
    lame_duck_s: float,
    sequence_idle_us: int,
) -> None:
    """Serve until SIGTERM or Ctrl-C.

    Args:
        whole: what the plan's file says; models of several sizes are served by bucket.
        on_ready: called with the addresses of HTTP, of gRPC (None: not served) and of the admin's.
        engine: arguments of `Engine` beside the plan.
        pad: models whose inputs are filled up to their buckets' sizes.

    Raises:
        DocumentError: the policy does not fit the plan.
    """
    from headrace.commands.replanning import Replanner
    from headrace.dispatch.policies import chosen_for, policy_for
    from headrace.dispatch.topology import Topology
    from headrace.domain.errors import PlanError
    from headrace.serving.apps.runtime import AppLog, AppRuntime
    from headrace.serving.changes.changeover import Changeover
    from headrace.serving.core.by_shape import ByShape
    from headrace.serving.core.epoch_logs import EpochLogs
    from headrace.serving.core.protocol import ProtocolCore
    from headrace.serving.engine.engine import Engine
    from headrace.serving.front.access import default_folder
    from headrace.serving.front.table import FRONTS
    from headrace.serving.lifecycle import Server

    served = whole.by_bucket()
    topology = Topology.from_plan(served.plan, served.profiles)
    logs = EpochLogs(events)
    names = () if functions is None else tuple(app.name for app in functions.apps)
    app_log = AppLog(names, logs.open, logs.join, logs.leave)
    policy = engine["policy"] or policy_for(served.plan)
    try:
        chosen_for(topology, policy)
    except PlanError as error:
        raise DocumentError(f"serve: {error}") from error
    sink = app_log.open(topology.event_log_header("live", policy))
    running = Engine(
        served.plan,
        served.profiles,
        served.folders,
        sink=sink,
        leave_sink=logs.leave,
        counts=logs.counters,
        **engine,
    )
    changeover = Changeover(
        running, plan_path, whole, engine["executor"], app_log.open, engine["policy"]
    )
    lived: Any = running
    behind: Any = ByShape(running, pad)
    if functions is not None:
        behind = lived = AppRuntime(running, functions, logs.counters, app_log)
        changeover.check = behind.check
    options = replace(options, limits=_limits(served, engine, options, grpc_port))
    core = ProtocolCore(behind, logs.counters, sequence_idle_us, residences=running)
    changeover.on_switch = core.refresh
    http = FRONTS["http"](core, options)
    grpc = None if grpc_port is None else FRONTS["grpc"](core, replace(options, port=grpc_port))
    admin = FRONTS["admin"](
        core,
        replace(
            options,
            host=str(admin_socket or default_folder()),
            migrate=changeover.migrate,
            beside=None if admin_socket else http,
        ),
    )
    fronts = [http, admin] if grpc is None else [http, grpc, admin]
    started = Server(lived, fronts, changeover, lame_duck_s)
    aside = [asyncio.create_task(logs.keep_flushed())]
    if replan is not None:
        replanner = Replanner(changeover, logs.counters, plan_path, replan)
        aside.append(asyncio.create_task(replanner.run()))
    try:
        await started.run(lambda url: on_ready(url, grpc and grpc.address, admin.address))
    finally:
        for task in aside:
            task.cancel()
        await asyncio.gather(*aside, return_exceptions=True)
        logs.close()


def _limits(
    served: "ServedPlan", engine: dict[str, Any], options: "FrontOptions", grpc_port: int | None
) -> "Limits":
    """Of each front: those of the options, or fewer connections where descriptors are few."""
    from headrace.serving.front.seat_limits import seated_within
    from headrace.serving.workers.descriptors import descriptor_limit, left_for_clients
    from headrace.serving.workers.placement import worker_count

    workers = worker_count(served.plan, engine["executor"], engine["processes"])
    deployments = served.plan.deployments
    stages = sum(len(each.stages) for model in deployments for each in model.pipelines)
    weights = 2 * len(deployments)
    left = left_for_clients(workers, stages + weights)
    fronts = 1 if grpc_port is None else 2
    limits, usual = seated_within(left // fronts, options.limits), options.limits
    if limits.connections < usual.connections:
        log.warning(
            "each port has at most %d connections at a time, and %d of one stranger, where %d and"
            " %d are usual: the server may have no more than %d files open; raise its hard limit"
            " (ulimit -Hn, LimitNOFILE)",
            limits.connections,
            limits.connections_per_stranger,
            usual.connections,
            usual.connections_per_stranger,
            descriptor_limit(),
        )
    return limits
