"""`headrace serve --cluster ray`: the same command on a cluster's nodes."""

import socket
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from headrace.commands.output import console, print_line, whoever_reads
from headrace.commands.values import given
from headrace.domain.base import host_port
from headrace.domain.errors import DocumentError

if TYPE_CHECKING:
    from headrace.domain.plan import Plan
    from headrace.on_ray.serving import ServedOnRay

OF_THE_CLUSTER = ("cluster", "address", "json", "port", "plan_path")
NOT_WITH_IT = ("agents", "node", "secret_file", "cluster_ca", "core")


def serve_on_ray(
    context: typer.Context,
    plan_path: Path,
    executor: str,
    host: str,
    port: int,
    address: str | None,
    json: bool,
) -> None:
    """Serve until told to end, then exit with the gateway's code.

    Raises:
        ClusterError: no cluster there, or it is not as the plan needs it; nothing was started.
        DocumentError, ModelError, PlanError: plan, profiles or models are not fit to be served, or
            not as asked.
    """
    import msgspec

    from headrace.commands.ready import print_ready
    from headrace.commands.serve_checks import check_plans_beside
    from headrace.on_ray.serving import serve_on_ray as serve
    from headrace.serving.changes.vetting import read_served_plan, refuse_violations
    from headrace.serving.service_manager import say_ready
    from headrace.serving.workers.device_parts import refuse_undivided

    refused = [name for name in NOT_WITH_IT if given(context, name)]
    if refused:
        raise DocumentError(
            f"--{refused[0].replace('_', '-')}: is not for --cluster ray, which starts agents and"
            " gateway itself; leave it out"
        )
    if context.params["replan"]:
        check_plans_beside(plan_path)
    served = read_served_plan(plan_path)
    refuse_violations(served)
    if not context.params["unenforced_shares"]:
        refuse_undivided(served.plan, executor, {slot.node for slot in served.plan.slots})
    _check_models(served, executor)
    gateway = ["serve", str(plan_path), "--json", f"--port={port or _free_port(host)}"]
    gateway += repeated_arguments(context)

    @whoever_reads()
    def on_ready(said: Mapping[str, Any], on_ray: "ServedOnRay") -> None:
        say_ready()
        if json:
            nodes = {name: agent.node.name for name, agent in on_ray.agents.items()}
            print_line(msgspec.json.encode({**said, "nodes": nodes}))
            return
        _print_nodes(served.plan, on_ray)
        urls = [url for url in (said["url"], said.get("grpc_url")) if url]
        token = said.get("token_file")
        print_ready(served.plan, urls, None if token is None else Path(token), {})

    code = serve(served.plan, executor, gateway, address, on_ready)
    if code:
        sys.exit(code)


def repeated_arguments(context: typer.Context) -> list[str]:
    """What was given on the command line and is the gateway's, as it was given."""
    words = []
    for parameter in context.command.params:
        name, value = str(parameter.name), context.params.get(str(parameter.name))
        if name in OF_THE_CLUSTER or not given(context, name):
            continue
        if isinstance(value, bool):
            words.append((parameter.opts if value else parameter.secondary_opts)[0])
        else:
            several = value if isinstance(value, list | tuple) else [value]
            words += [f"{parameter.opts[0]}={each}" for each in several]
    return words


def _free_port(host: str) -> int:
    """One that a gateway that is started again can have again."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family) as listening:
        listening.bind((host, 0))
        port: int = listening.getsockname()[1]
        return port


def _check_models(served: Any, executor: str) -> None:
    """
    Raises:
        ModelError: a model's file is missing, or not the one that was profiled.
    """
    from headrace.catalog.stage_files import stage_weights
    from headrace.executors.table import executor as stated
    from headrace.executors.table import kind_for

    devices = {slot.device for slot in served.plan.slots}
    if any(stated(kind_for(device, executor)).reads_model for device in devices):
        for model in {deployment.model for deployment in served.plan.deployments}:
            stage_weights(served.profiles[model], served.folders[model])


def _print_nodes(plan: "Plan", on_ray: "ServedOnRay") -> None:
    for name, agent in on_ray.agents.items():
        slots = sum(slot.node == name for slot in plan.slots)
        at = host_port(*agent.address)
        many = f"{slots} slot{'' if slots == 1 else 's'}"
        console.print(f"node {name} is {agent.node.name} ({at}), {many}", soft_wrap=True)
