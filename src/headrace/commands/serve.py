"""`headrace serve`: bring a plan to life."""

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from headrace.commands.output import console, next_step, notices

if TYPE_CHECKING:
    from headrace.catalog.event_log import EventLogWriter
    from headrace.domain.plan import Plan

_FLUSH_PERIOD_S = 1.0


def serve(
    plan_path: Annotated[
        Path, typer.Argument(metavar="PLAN", help="The plan that `headrace plan` wrote.")
    ],
    host: Annotated[
        str, typer.Option(help="Address to listen on. Beyond loopback, clients need the token.")
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="0: any free port.")] = 8000,
    policy: Annotated[
        str,
        typer.Option(
            help="How batches find their way: reservation (probe and reserve a path that meets"
            " the deadline) or reactive (first free slot; the baseline)."
        ),
    ] = "reservation",
    executor: Annotated[
        str,
        typer.Option(
            help="onnx (ONNX Runtime), emulated (hold the slot for the profiled time and answer"
            " zeros), or auto: onnx for slots on this machine's CPU, emulated for the rest."
        ),
    ] = "auto",
    processes: Annotated[
        int | None,
        typer.Option(
            min=1,
            max=256,
            help="Worker processes that all emulated slots share; one is enough for a hundred"
            " slots. Losing one loses all its slots until it is back (default: one per slot).",
            show_default=False,
        ),
    ] = None,
    events: Annotated[
        Path | None,
        typer.Option(help="Write the event log here; see it with `headrace trace`."),
    ] = None,
    token_file: Annotated[
        Path | None,
        typer.Option(
            help="File with the token that clients send as `Authorization: Bearer TOKEN`; made"
            " if missing. Your own programs on this machine need none."
        ),
    ] = None,
    no_auth: Annotated[
        bool, typer.Option("--no-auth", help="No token for anybody; on loopback only.")
    ] = False,
    allow_host: Annotated[
        list[str] | None,
        typer.Option(help="Another name under which clients reach this server. Repeatable."),
    ] = None,
    max_body_bytes: Annotated[
        int, typer.Option(min=1024, max=1 << 31, help="Largest request.")
    ] = 64 << 20,
    queue_limit: Annotated[
        int, typer.Option(min=1, max=1_000_000, help="Most requests waiting per model.")
    ] = 4096,
    core: Annotated[
        int | None,
        typer.Option(min=0, help="Keep gateway and dispatcher on this CPU core."),
    ] = None,
    json: Annotated[
        bool, typer.Option("--json", help="One line of JSON when ready, for scripts to wait for.")
    ] = False,
) -> None:
    """Serve a plan over HTTP (Open Inference Protocol v2) until Ctrl-C or SIGTERM.

    One worker process per slot, but for emulated slots with --processes; requests that cannot
    meet their deadline are refused at once with the reason and a Retry-After. Stopping answers
    what was accepted first; a second Ctrl-C does not wait.

    [dim]headrace serve plan.json --port 8000[/dim]
    """
    import uvloop

    from headrace.catalog.documents import plan_profiles, read_plan
    from headrace.serving.access import Access, default_token_path, read_or_create_token
    from headrace.serving.stand_ins import with_tensors

    plan = read_plan(plan_path)
    profiles = plan_profiles(plan, plan_path)
    _check(plan, profiles, policy, executor)
    profiles = {name: with_tensors(profile) for name, profile in profiles.items()}
    token_path = None if no_auth else token_file or default_token_path()
    access = Access(
        bind_host=host,
        token=None if token_path is None else read_or_create_token(token_path),
        allow_hosts=allow_host or (),
    )
    _keep_on_core(core)
    _log_to_stderr()
    folders = {ref.model: (plan_path.parent / ref.path).parent for ref in plan.profiles}

    def on_ready(url: str) -> None:
        if json:
            _print_line({"ready": True, "url": url, "token_file": _text(token_path)})
        else:
            _print_ready(plan, url, token_path)

    uvloop.run(
        _run(
            plan,
            on_ready,
            events,
            engine={
                "profiles": profiles,
                "profile_folders": folders,
                "policy": policy,
                "executor": executor,
                "processes": processes,
                "queue_limit": queue_limit,
            },
            server={"access": access, "host": host, "port": port},
            body_bytes=max_body_bytes,
        )
    )


async def _run(
    plan: "Plan",
    on_ready: Any,
    events: Path | None,
    *,
    engine: dict[str, Any],
    server: dict[str, Any],
    body_bytes: int,
) -> None:
    from headrace.catalog.event_log import EventLogWriter
    from headrace.domain.events import AnyEvent
    from headrace.serving.engine import Engine
    from headrace.serving.http_messages import Limits
    from headrace.serving.lifecycle import Server
    from headrace.serving.prometheus import BatchCounter, ModelCounters

    counters = {deployment.model: ModelCounters() for deployment in plan.deployments}
    count_batches = BatchCounter(list(counters.values()))
    log: EventLogWriter | None = None

    def sink(event: AnyEvent) -> None:
        count_batches(event)
        if log is not None:
            log.append(event)

    running = Engine(plan, sink=sink, **engine)
    limits = Limits(body_bytes=body_bytes)
    front = Server(running, limits=limits, counters=counters, **server)
    flusher: asyncio.Task[None] | None = None
    if events is not None:
        log = EventLogWriter(events, running.header)
        flusher = asyncio.create_task(keep_flushed(log))
    try:
        await front.run(on_ready)
    finally:
        if flusher is not None:
            flusher.cancel()
        if log is not None:
            log.close()


async def keep_flushed(log: "EventLogWriter") -> None:
    """Hand the log over every second: the log of a server that was killed is wanted most."""
    while True:
        await asyncio.sleep(_FLUSH_PERIOD_S)
        log.flush()


def _check(plan: "Plan", profiles: Any, policy: str, executor: str) -> None:
    """Refuse what could not keep its promises, before anything is started."""
    from headrace.dispatch.policies import POLICIES
    from headrace.domain.errors import DocumentError, PlanError
    from headrace.verify import verify

    for what, given, known in (
        ("--policy", policy, tuple(POLICIES)),
        ("--executor", executor, ("auto", "onnx", "emulated")),
    ):
        if given not in known:
            raise DocumentError(f"serve: {what} {given!r} is unknown; known: {', '.join(known)}")
    violations = verify(plan, profiles)
    if violations:
        shown = "\n".join(
            f"  {found.where}: {found.what}: needs {found.needed}, has {found.available}"
            for found in violations[:5]
        )
        raise PlanError(
            f"serve: the plan fails verification ({len(violations)} violations)\n{shown}\n"
            "  try    `headrace verify` for all of them, then `headrace plan` again"
        )


def _keep_on_core(core: int | None) -> None:
    import os

    from headrace.domain.errors import DocumentError

    if core is None:
        return
    allowed = os.sched_getaffinity(0)
    if core not in allowed:
        raise DocumentError(f"serve: --core {core}: this process may use cores {sorted(allowed)}")
    os.sched_setaffinity(0, {core})


def _log_to_stderr() -> None:
    import logging

    # Plain lines, never wrapped: a server's log is read by grep.
    logging.basicConfig(
        level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s"
    )


def _print_line(value: Any) -> None:
    import sys

    import msgspec

    sys.stdout.write(msgspec.json.encode(value).decode() + "\n")
    sys.stdout.flush()


def _print_ready(plan: "Plan", url: str, token_path: Path | None) -> None:
    from rich.table import Table

    table = Table(title="READY", title_style="bold green")
    for name, right in (
        ("model", False),
        ("SLO ms", True),
        ("pipeline", False),
        ("stages (blocks)", False),
        ("slots", True),
        ("batch", True),
        ("predicted p99 ms", True),
        ("throughput /s", True),
    ):
        table.add_column(name, justify="right" if right else "left")
    for deployment in plan.deployments:
        for pipeline in deployment.pipelines:
            stages = " → ".join(f"{s.first_block}–{s.end_block - 1}" for s in pipeline.stages)
            slots = " + ".join(str(len(stage.pool)) for stage in pipeline.stages)
            table.add_row(
                deployment.model,
                f"{deployment.slo_us / 1000:g}",
                pipeline.name,
                stages,
                slots,
                str(pipeline.batch_size),
                f"{pipeline.latency_us / 1000:.1f}",
                f"{pipeline.throughput_rps:.1f}",
            )
    console.print(table)
    console.print(f"listening on [bold]{url}[/bold]", soft_wrap=True)
    if token_path is not None:
        notices.print(f"[dim]token for other users:[/dim]  {token_path}", soft_wrap=True)
    first = plan.deployments[0]
    next_step(
        f"headrace load {url} --model {first.model} --rps {max(1, first.throughput_rps * 0.5):.0f}"
        f" --duration-s 20 --slo-ms {first.slo_us / 1000:g}"
    )


def _text(path: Path | None) -> str | None:
    return None if path is None else str(path)
