"""Bringing a plan to life: engine, apps, fronts and what watches them, until it is told to stop."""

import asyncio
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from headrace.domain.errors import DocumentError

if TYPE_CHECKING:
    from headrace.serving.apps.host import AppHost
    from headrace.serving.changes.plan_watch import ReplanRule
    from headrace.serving.core.protocol import Backend
    from headrace.serving.engine.served_plan import ServedPlan, ServiceOptions
    from headrace.serving.front.base import FrontsAsked
    from headrace.serving.front.http_messages import Limits
    from headrace.serving.lifecycle import ServingEngine

log = logging.getLogger("headrace.serve")


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerSetup:
    """All that a server is brought up from."""

    whole: "ServedPlan"
    """What the plan's file says; models of several sizes are served by bucket."""
    plan_path: Path
    service: "ServiceOptions"
    fronts: "FrontsAsked"
    events: Path | None
    """Where the first plan's event log goes; None: nothing is logged."""
    functions: "AppHost | None"
    """Of the plan's apps; None: modules are served on their own."""
    pad: frozenset[str]
    """Models whose inputs are filled up to their buckets' sizes."""
    replan: "ReplanRule | None"
    """When to plan anew; None: never."""
    lame_duck_s: float
    sequence_idle_us: int


async def run_server(setup: ServerSetup, on_ready: Callable[[Mapping[str, str]], None]) -> None:
    """Serve until SIGTERM or Ctrl-C.

    Args:
        on_ready: called with the address of each front, by its name.

    Raises:
        DocumentError: the policy does not fit the plan.
    """
    from headrace.commands.replanning import Replanner
    from headrace.dispatch.policies import chosen_for, policy_for
    from headrace.dispatch.topology import Topology
    from headrace.domain.errors import PlanError
    from headrace.serving.apps.runtime import AppLog, AppRuntime
    from headrace.serving.certificates import reminder
    from headrace.serving.changes.changeover import Changeover
    from headrace.serving.core.by_shape import ByShape
    from headrace.serving.core.epoch_logs import EpochLogs
    from headrace.serving.core.protocol import ProtocolCore
    from headrace.serving.engine.engine import Engine
    from headrace.serving.front.table import fronts_of
    from headrace.serving.lifecycle import Server

    service, functions = setup.service, setup.functions
    served = setup.whole.by_bucket()
    topology = Topology.from_plan(served.plan, served.profiles)
    logs = EpochLogs(setup.events)
    names = () if functions is None else tuple(app.name for app in functions.apps)
    app_log = AppLog(names, logs.open, logs.join, logs.leave)
    policy = service.policy or policy_for(served.plan)
    try:
        chosen_for(topology, policy)
    except PlanError as error:
        raise DocumentError(f"serve: {error}") from error
    sink = app_log.open(topology.event_log_header("live", policy))
    engine = Engine(served, service, sink=sink, leave_sink=logs.leave, counts=logs.counters)
    changeover = Changeover(
        engine, setup.plan_path, setup.whole, service.executor, app_log.open, service.policy
    )
    lived: ServingEngine = engine
    behind: Backend = ByShape(engine, setup.pad)
    if functions is not None:
        apps = AppRuntime(engine, functions, logs.counters, app_log)
        behind = lived = apps
        changeover.check = apps.check
    core = ProtocolCore(behind, logs.counters, setup.sequence_idle_us, residences=engine)
    changeover.on_switch = core.refresh
    limits = _limits(served, setup)
    asked = replace(
        setup.fronts,
        common=replace(setup.fronts.common, limits=limits),
        migrate=changeover.migrate,
    )
    fronts = fronts_of(core, asked)
    started = Server(lived, tuple(fronts.values()), changeover, setup.lame_duck_s)
    tls = asked.common.tls
    if tls is not None:
        started.remind = reminder(log, tls.certificate, tls.key)
    aside = [asyncio.create_task(logs.keep_flushed())]
    if setup.replan is not None:
        replanner = Replanner(changeover, logs.counters, setup.plan_path, setup.replan)
        aside.append(asyncio.create_task(replanner.run()))
    try:
        await started.run(
            lambda _: on_ready({name: front.address for name, front in fronts.items()})
        )
    finally:
        for task in aside:
            task.cancel()
        await asyncio.gather(*aside, return_exceptions=True)
        logs.close()


def _limits(served: "ServedPlan", setup: ServerSetup) -> "Limits":
    """Of each front: those asked for, or fewer connections where descriptors are few."""
    from headrace.serving.front.seat_limits import seated_within
    from headrace.serving.front.table import fronts_for_all
    from headrace.serving.workers.descriptors import descriptor_limit, left_for_clients
    from headrace.serving.workers.placement import worker_count

    workers = worker_count(served.plan, setup.service.executor, setup.service.processes)
    deployments = served.plan.deployments
    stages = sum(len(each.stages) for model in deployments for each in model.pipelines)
    weights = 2 * len(deployments)
    left = left_for_clients(workers, stages + weights)
    fronts, usual = fronts_for_all(setup.fronts), setup.fronts.common.limits
    limits = seated_within(left // fronts, usual)
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
