"""`headrace agent`: the workers of one node, for a gateway elsewhere."""

from pathlib import Path
from typing import Annotated

import typer

from headrace.commands.output import notices, print_line, whoever_reads
from headrace.commands.values import LEAST_WORKER_MEMORY_MB
from headrace.user_cache import MODEL_FILES_MB, cache_folder

SPARES = tuple(f"-{number}" for number in range(2, 9))
"""Agents of one name on one machine, of two clusters say, have a folder each."""


def agent(
    name: Annotated[str, typer.Option(help="The plan's node that this machine is.")],
    host: Annotated[
        str,
        typer.Option(
            help="Address to listen on, by which the gateway and the other agents reach this one."
        ),
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="0: any free port.")] = 7070,
    secret_file: Annotated[
        Path | None,
        typer.Option(
            help="File with the cluster's secret, the same for gateway and agents"
            " (default: the environment variable HEADRACE_CLUSTER_SECRET)."
        ),
    ] = None,
    cache: Annotated[
        Path | None,
        typer.Option(
            help="Folder for model files (default: agent-NAME in the cache folder, or agent-NAME-2"
            " and so on where other agents have these)."
        ),
    ] = None,
    cache_mb: Annotated[
        int, typer.Option(min=1, help="Most that this folder holds, in megabytes.")
    ] = MODEL_FILES_MB,
    cores: Annotated[
        str | None,
        typer.Option(
            metavar="0,1,...",
            help="CPU cores that workers may be kept on (default: all that this process may use).",
        ),
    ] = None,
    worker_memory_mb: Annotated[
        int | None,
        typer.Option(
            min=LEAST_WORKER_MEMORY_MB,
            help="Most memory of one worker, in megabytes (default: what the gateway says). About"
            " 100 are the runtime's own.",
        ),
    ] = None,
    grace_s: Annotated[
        float,
        typer.Option(
            min=0.0,
            max=86_400.0,
            help="How long workers stay loaded without a gateway, for the next one to take over.",
        ),
    ] = 30.0,
    tls_cert: Annotated[
        Path | None,
        typer.Option(help="Certificate (PEM): gateway and other agents then speak TLS."),
    ] = None,
    tls_key: Annotated[Path | None, typer.Option(help="Its private key (PEM).")] = None,
    tls_ca: Annotated[
        Path | None,
        typer.Option(help="The authority (PEM) that has signed the certificates of all agents."),
    ] = None,
    json: Annotated[
        bool, typer.Option("--json", help="One line of JSON when ready, for scripts to wait for.")
    ] = False,
) -> None:
    """Start and watch the workers of one node, as a gateway elsewhere tells it, until SIGTERM.

    `headrace serve PLAN --node NAME=HOST:PORT` is that gateway. Without one, an agent waits. Only
    who knows the cluster's secret is let in.

    [dim]headrace agent --name n0 --host 10.0.0.1 --secret-file cluster.secret[/dim]
    """
    import os
    from logging import getLogger

    import msgspec

    from headrace import __version__
    from headrace.commands import event_loop
    from headrace.domain.base import host_port
    from headrace.serving.certificates import reminder
    from headrace.serving.server_log import log_to_stderr
    from headrace.serving.service_manager import say_ready
    from headrace.serving.workers.affinity import allowed_cores
    from headrace.serving.workers.descriptors import raise_descriptor_limit
    from headrace.serving.workers.remote.agent import AgentOptions, run_agent
    from headrace.serving.workers.remote.cluster import check_name
    from headrace.serving.workers.remote.handshake import read_secret
    from headrace.serving.workers.remote.tls import agent_contexts

    check_name(name)
    listens, calls = agent_contexts(tls_cert, tls_key, tls_ca)
    usual = [cache_folder() / f"agent-{name}{spare}" for spare in ("", *SPARES)]
    options = AgentOptions(
        name=name,
        host=host,
        port=port,
        secret=read_secret(secret_file),
        cache=cache or usual[0],
        spare_caches=() if cache else tuple(usual[1:]),
        cache_bytes=cache_mb * 1_000_000,
        cores=_cores(cores, allowed_cores()),
        memory_bytes=worker_memory_mb and worker_memory_mb * 1_000_000,
        grace_s=grace_s,
        listens=listens,
        calls=calls,
    )
    raise_descriptor_limit()
    log_to_stderr()
    if tls_cert is not None and tls_key is not None:
        reminder(getLogger("headrace.agent"), tls_cert, tls_key)()

    @whoever_reads()
    def on_ready(at: str, number: int) -> None:
        say_ready()
        if json:
            ready = {"ready": True, "name": name, "host": at, "port": number, "pid": os.getpid()}
            print_line(msgspec.json.encode(ready | {"version": __version__}))
        else:
            place = host_port(at, number)
            notices.print(f"node {name} waits for its gateway on {place}", soft_wrap=True)

    event_loop.run(run_agent(options, on_ready))


def _cores(text: str | None, allowed: tuple[int, ...]) -> tuple[int, ...]:
    """Returns those that were named; none where nothing was said.

    Raises:
        DocumentError: those are no cores that this process may use.
    """
    from headrace.domain.errors import DocumentError

    if text is None:
        return ()
    words = [word.strip() for word in text.split(",")]
    if not all(word.isascii() and word.isdigit() and int(word) in allowed for word in words):
        raise DocumentError(f"agent: --cores {text}: this process may use cores {list(allowed)}")
    return tuple(dict.fromkeys(map(int, words)))
