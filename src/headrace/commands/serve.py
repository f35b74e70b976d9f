"""`headrace serve`: bring a plan to life."""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

import typer

from headrace.commands.ending import orderly_end
from headrace.commands.studies import AddressOption, check_cluster
from headrace.commands.values import LEAST_WORKER_MEMORY_MB
from headrace.dispatch.limits import QUEUE_LIMIT
from headrace.executors.table import AUTO, EXECUTORS


@orderly_end()
def serve(
    context: typer.Context,
    plan_path: Annotated[
        Path, typer.Argument(metavar="PLAN", help="The plan that `headrace plan` wrote.")
    ],
    host: Annotated[
        str, typer.Option(help="Address to listen on. Beyond loopback, clients need the token.")
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="0: any free port.")] = 8000,
    grpc_port: Annotated[
        int | None,
        typer.Option(
            min=0,
            max=65535,
            help="Serve gRPC too, on this port of the same address; 8001 is usual, 0: any free"
            " port (default: HTTP only).",
            show_default=False,
        ),
    ] = None,
    tls_cert: Annotated[
        Path | None,
        typer.Option(help="Certificate (PEM, with its chain): both ports then speak TLS."),
    ] = None,
    tls_key: Annotated[Path | None, typer.Option(help="Its private key (PEM).")] = None,
    tls_client_ca: Annotated[
        Path | None,
        typer.Option(
            help="Clients must show a certificate signed by one of these authorities (PEM), besides"
            " the token."
        ),
    ] = None,
    policy: Annotated[
        str | None,
        typer.Option(
            help="How batches find their way: reservation (probe and reserve a path that meets"
            " the deadline), reactive (first free slot; the baseline), duty-cycle (models of a slot"
            " in fixed rounds), batch-aware (batches of consecutive requests for machines in"
            " order), or rounds (also turns of apps' modules). Of a plan with depths: malleable, or"
            " a baseline such as accordion. Default: reservation; for apps the one that their"
            " plan's worst cases hold under; malleable for plans with depths."
        ),
    ] = None,
    executor: Annotated[
        str,
        typer.Option(
            help="What runs the stages: "
            + "; ".join(f"{kind} ({what})" for kind, (_, what) in EXECUTORS.items())
            + "; or auto: what serves a slot's device type unasked, else emulated."
        ),
    ] = AUTO,
    processes: Annotated[
        int | None,
        typer.Option(
            min=1,
            max=256,
            help="Worker processes that all emulated slots share; one is enough for a"
            " 16-GPU cluster. Losing one loses all its slots until it is back (default: one per"
            " slot).",
        ),
    ] = None,
    events: Annotated[
        Path | None, typer.Option(help="Write the event log here; see it with `headrace trace`.")
    ] = None,
    token_file: Annotated[
        Path | None,
        typer.Option(
            help="File with the token that clients send as `Authorization: Bearer TOKEN`; made"
            " if missing (default: ~/.config/headrace/token). Your own programs on this machine"
            " need none."
        ),
    ] = None,
    no_auth: Annotated[
        bool, typer.Option("--no-auth", help="No token for anybody; on loopback only.")
    ] = False,
    require_token: Annotated[
        bool,
        typer.Option(
            "--require-token",
            help="A token for your own programs on this machine too; for a proxy that runs as the"
            " same user.",
        ),
    ] = False,
    admin_socket: Annotated[
        Path | None,
        typer.Option(
            help="Unix socket on which `headrace migrate` asks, in a folder that only you can enter"
            " (default: ~/.config/headrace/admin-PORT.sock)."
        ),
    ] = None,
    lame_duck_s: Annotated[
        float,
        typer.Option(
            min=0.0,
            max=3600.0,
            help="How long, after SIGTERM, the server says that it is not ready and goes on"
            " answering, so that load balancers send nothing more.",
        ),
    ] = 1.0,
    allow_host: Annotated[
        list[str] | None,
        typer.Option(help="Another name under which clients reach this server. Repeatable."),
    ] = None,
    max_body_bytes: Annotated[
        int, typer.Option(min=1024, max=1 << 31, help="Largest request.")
    ] = 64 << 20,
    sequence_idle_s: Annotated[
        float,
        typer.Option(
            min=0.001,
            max=86_400.0,
            help="Models that keep state (`headrace profile --state`): how long a sequence may be"
            " without a request before its state is dropped.",
        ),
    ] = 60.0,
    queue_limit: Annotated[
        int, typer.Option(min=1, max=1_000_000, help="Most requests waiting per model.")
    ] = QUEUE_LIMIT,
    app: Annotated[
        list[Path] | None,
        typer.Option(
            metavar="FILE.py",
            help="Python file with the function of an app of the plan (see `headrace.apps`). It"
            " runs in a process of its own, with the server's rights. Repeatable: every app of the"
            " plan needs its function; without any, modules are served on their own.",
        ),
    ] = None,
    app_threads: Annotated[
        int | None,
        typer.Option(
            min=1,
            max=64,
            help="Threads for what app functions do `aside` (default: one per core, at most 4).",
        ),
    ] = None,
    pad: Annotated[
        list[str] | None,
        typer.Option(
            metavar="MODEL",
            help="Fill inputs of this model, which was profiled at several sizes, up with zeros to"
            " the next of them, and cut its outputs back: requests of different sizes then share"
            " batches. Only for models that answer alike with zeros behind. Repeatable.",
        ),
    ] = None,
    rehearsal: Annotated[
        bool,
        typer.Option(
            help="Before READY, rehearse a plan that was not yet (see `headrace rehearse`)."
        ),
    ] = True,
    core: Annotated[
        int | None,
        typer.Option(
            min=0,
            help="Keep gateway and dispatcher on this CPU core. Workers get the others first.",
        ),
    ] = None,
    worker_memory_mb: Annotated[
        int | None,
        typer.Option(
            min=LEAST_WORKER_MEMORY_MB,
            help="Most memory of one worker, in megabytes, without the tensors that it shares with"
            " the gateway; an input that needs more is refused. About 100 are the runtime's own.",
        ),
    ] = None,
    unenforced_shares: Annotated[
        bool,
        typer.Option(
            "--unenforced-shares",
            help="Serve slots that divide one core, or a GPU, where nothing keeps them to their"
            " parts (no permission for CPU quotas; no multi-process service): while busy they"
            " divide a core evenly, and take turns on a whole GPU, whatever is planned.",
        ),
    ] = False,
    replan: Annotated[
        bool,
        typer.Option(
            "--replan",
            help="Plan anew, and migrate, when the models' shares of the load have shifted; for"
            " apps, and for plans of fewest devices or least cost, when a request rate is no longer"
            " the planned one.",
        ),
    ] = False,
    replan_fraction: Annotated[
        float,
        typer.Option(
            min=0.01,
            help="--replan: how far off a model's share, or an app's rate, must be, as a part of"
            " the planned one.",
        ),
    ] = 0.25,
    replan_after_s: Annotated[
        float,
        typer.Option(
            min=6.0,
            help="--replan: for how long it must be off; an app is planned for less after three"
            " times as long.",
        ),
    ] = 300.0,
    replan_period_s: Annotated[
        float,
        typer.Option(
            min=1.0,
            help="--replan, plans of fewest devices or least cost, but of models that come and go:"
            " how often models' rates are estimated and the plan is judged, instead of"
            " --replan-after-s.",
        ),
    ] = 20.0,
    replan_headroom: Annotated[
        float,
        typer.Option(
            min=0.0,
            max=10.0,
            help="The same: part of an estimated rate that is planned for on top of it.",
        ),
    ] = 0.25,
    agents: Annotated[
        Path | None,
        typer.Option(
            help="File that says where the agents of the plan's nodes are (`nodes:`, and under it"
            " NAME: HOST:PORT); see `headrace agent`. Without any, this machine stands in for all"
            " nodes."
        ),
    ] = None,
    node: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=HOST:PORT",
            help="The same of one node, or NAME=local for this machine. Repeatable.",
        ),
    ] = None,
    secret_file: Annotated[
        Path | None,
        typer.Option(
            help="--agents: file with the cluster's secret (default: the environment variable"
            " HEADRACE_CLUSTER_SECRET)."
        ),
    ] = None,
    cluster_ca: Annotated[
        Path | None,
        typer.Option(help="--agents: the authority (PEM) of their certificates, for TLS."),
    ] = None,
    cluster: Annotated[
        str | None,
        typer.Option(
            "--cluster",
            metavar="ray",
            help="Serve on the nodes of a Ray cluster that the plan names (`headrace nodes`): Ray"
            " starts and watches an agent on each; the gateway is here.",
            show_default=False,
        ),
    ] = None,
    address: AddressOption = None,
    json: Annotated[
        bool, typer.Option("--json", help="One line of JSON when ready, for scripts to wait for.")
    ] = False,
) -> None:
    """Serve a plan over HTTP and gRPC (Open Inference Protocol v2) until Ctrl-C or SIGTERM.

    One worker process per slot, but for emulated slots with --processes; requests that cannot
    meet their deadline are refused at once with the reason and a Retry-After. Stopping answers
    what was accepted first; a second Ctrl-C does not wait. `headrace migrate` gives it another
    plan while it serves; so does SIGHUP, which makes it read its plan file again, but for the one
    that comes as its terminal goes: that stops it, unless it was started with `nohup`.

    [dim]headrace serve plan.json --port 8000[/dim]

    [dim]headrace serve plan.json --cluster ray --address 10.0.0.1:6379[/dim]
    """
    from dataclasses import replace

    from headrace.commands import event_loop, serve_steps
    from headrace.commands.bring_up import ServerSetup, run_server
    from headrace.commands.kernel import load_kernel
    from headrace.commands.output import whoever_reads
    from headrace.commands.ready import print_ready, print_ready_line
    from headrace.commands.serve_checks import check_names, check_together, keep_on_core
    from headrace.dispatch.buckets import levels_by_model
    from headrace.dispatch.policies import policy_for
    from headrace.serving.changes.plan_watch import ReplanRule
    from headrace.serving.engine.served_plan import ServiceOptions
    from headrace.serving.server_log import log_to_stderr
    from headrace.serving.service_manager import say_ready
    from headrace.serving.workers.descriptors import raise_descriptor_limit

    check_names(policy, executor)
    check_together(context)
    check_cluster(cluster, address)
    rule = ReplanRule(
        fraction=replan_fraction,
        after_s=replan_after_s,
        period_s=replan_period_s,
        headroom=replan_headroom,
    )
    asked = serve_steps.PlanAsked(
        path=plan_path,
        events=events,
        apps=tuple(app or ()),
        app_threads=app_threads,
        pad=tuple(pad or ()),
        replan=rule if replan else None,
    )
    nodes = serve_steps.NodesAsked(
        agents=agents, nodes=tuple(node or ()), secret_file=secret_file, authority=cluster_ca
    )
    doors = serve_steps.AccessAsked(
        host=host,
        port=port,
        grpc_port=grpc_port,
        admin_socket=admin_socket,
        no_auth=no_auth,
        token_file=token_file,
        require_token=require_token,
        allow_hosts=tuple(allow_host or ()),
        body_bytes=max_body_bytes,
        tls_certificate=tls_cert,
        tls_key=tls_key,
        tls_client_authority=tls_client_ca,
    )
    service = ServiceOptions(
        policy=policy,
        executor=executor,
        processes=processes,
        queue_limit=queue_limit,
        worker_memory_bytes=worker_memory_mb and worker_memory_mb * 1_000_000,
        unenforced_shares=unenforced_shares,
    )

    serve_steps.check_files(asked)
    if cluster is not None:
        from headrace.commands.serve_on_ray import serve_on_ray

        serve_on_ray(context, plan_path, executor, host, port, address, json)
        return
    checked = serve_steps.check(asked, nodes, service)
    fronts = serve_steps.access(doors)
    service = replace(service, cluster=checked.cluster, cores=keep_on_core(core))
    raise_descriptor_limit()
    log_to_stderr()
    levels = serve_steps.rehearse(asked, service, core) if rehearsal else {}
    whole, functions = replace(checked.whole, levels=levels), checked.functions
    load_kernel(policy or policy_for(whole.plan), simulator=False)

    @whoever_reads()
    def on_ready(addresses: Mapping[str, str]) -> None:
        say_ready()
        if json:
            print_ready_line(addresses, doors.token_path)
            return
        apps = () if functions is None else tuple(app.name for app in functions.apps)
        shown = levels_by_model(levels, whole.by_bucket().profiles)
        urls = [addresses[name] for name in ("http", "grpc") if name in addresses]
        print_ready(whole.plan, urls, doors.token_path, shown, apps)

    setup = ServerSetup(
        whole=whole,
        plan_path=plan_path,
        service=service,
        fronts=fronts,
        events=events,
        functions=functions,
        pad=frozenset(asked.pad),
        replan=asked.replan,
        lame_duck_s=lame_duck_s,
        sequence_idle_us=round(sequence_idle_s * 1e6),
    )
    event_loop.run(run_server(setup, on_ready))
