"""`headrace simulate`: a plan under load, in virtual time."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from headrace.commands.output import console, next_step, notices, print_json

if TYPE_CHECKING:
    from headrace.domain.events import AnyEvent, EventLogHeader
    from headrace.domain.plan import Plan
    from headrace.domain.profile import Profile
    from headrace.metrics import Report
    from headrace.simulation.offered.arrivals import Arrival

LATEST_S = 1e9
"""Instants are whole microseconds, and must stay exact."""


def simulate(
    plan: Annotated[Path, typer.Argument(help="Plan, as `headrace plan` writes it.")],
    rps: Annotated[
        float | None,
        typer.Option(
            "--rps",
            help="Requests per second to offer: the total, shared out by the models' weights, or by"
            " the apps' rates.",
            show_default=False,
        ),
    ] = None,
    load_factor: Annotated[
        float | None,
        typer.Option(
            "--load-factor",
            help="Instead of --rps: offered / planned throughput, of each model.",
            show_default=False,
        ),
    ] = None,
    duration_s: Annotated[
        float | None,
        typer.Option(
            "--duration-s",
            help="How long to offer it (default: 30; a file: all of it).",
            show_default=False,
        ),
    ] = None,
    seed: Annotated[
        int, typer.Option("--seed", min=0, help="Same seed, same run; `headrace load` shares it.")
    ] = 1,
    arrivals: Annotated[
        str,
        typer.Option(
            "--arrivals",
            metavar="poisson|uniform|gamma[:CV]|mmpp[:BURST]|FILE",
            help="When requests arrive. gamma: gaps with this coefficient of variation (2; Poisson"
            " has 1). mmpp: bursts of about a second, a fifth of the time, at this multiple of the"
            " rate (2). FILE: one instant in seconds per line, or columns at_us or at_s, model,"
            " timeout_ms, priority; or a trace: MAF 2019, MAF 2021, requests per second. Stretched"
            " to the rate if one is given.",
        ),
    ] = "poisson",
    policy: Annotated[
        str | None,
        typer.Option(
            "--policy",
            help="Dispatch policy: reservation, reactive, batch-aware, … Default: reservation;"
            " for apps the one that their plan's worst cases hold under.",
            show_default=False,
        ),
    ] = None,
    jitter: Annotated[
        bool,
        typer.Option(help="Vary execution times as the profile's p50 and p99 say."),
    ] = True,
    times: Annotated[
        Path | None,
        typer.Option(
            "--times",
            metavar="EVENTS",
            help="Event log of a server with this plan: draw execution times from it instead of"
            " the profile, so that whatever shares the cores with the workers counts.",
            show_default=False,
        ),
    ] = None,
    model: Annotated[
        str | None,
        typer.Option("--model", help="Offer load to this model only.", show_default=False),
    ] = None,
    migrate: Annotated[
        Path | None,
        typer.Option(
            "--migrate",
            metavar="NEW_PLAN",
            help="Move to this plan in the middle of the run, as `headrace migrate` does.",
            show_default=False,
        ),
    ] = None,
    at: Annotated[
        float, typer.Option("--at", min=0.0, help="--migrate: when, in seconds from the start.")
    ] = 10.0,
    how: Annotated[
        str, typer.Option("--how", metavar="drain|flush", help="--migrate: which way.")
    ] = "drain",
    events: Annotated[
        Path | None,
        typer.Option("--events", help="Write the event log here.", show_default=False),
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print the report as JSON.")] = False,
) -> None:
    """Run a plan in virtual time, by the dispatch code that serves live.

    [dim]headrace simulate plan.json --load-factor 0.8 --duration-s 60[/dim]
    """
    from headrace.catalog.documents import plan_profiles, read_plan
    from headrace.catalog.event_log import EventLogWriter, read_event_log
    from headrace.commands.kernel import load_kernel
    from headrace.commands.offer import offered_arrivals, offered_rates
    from headrace.commands.progress import counting
    from headrace.dispatch.policies import policy_for
    from headrace.metrics import run_report
    from headrace.reporting.summary import slots_table, summary_table
    from headrace.simulation.apps.session import simulate_apps
    from headrace.simulation.session import simulate as run

    document = read_plan(plan)
    asked, policy = policy, policy or policy_for(document)
    profiles = plan_profiles(document, plan)
    rates = offered_rates(document, rps=rps, load_factor=load_factor, model=model, source=arrivals)
    load_kernel(policy, simulator=True)
    requests, span_us = offered_arrivals(arrivals, rates, duration_s, seed)
    report = None
    if migrate is not None:
        header, log, report = _migrated(
            (document, profiles),
            migrate,
            requests,
            (at, how),
            span_us,
            policy=asked,
            jitter=jitter,
            seed=seed,
            times=times,
        )
    elif document.apps:
        with counting("simulating", len(requests)) as advance:
            session = simulate_apps(
                document,
                profiles,
                requests,
                policy=policy,
                jitter=jitter,
                seed=seed,
                times=read_event_log(times, allow_cut_short=True) if times else None,
                on_progress=advance,
            )
        header, log, report = session.header, session.events, session.report(span_us)
    else:
        with counting("simulating", len(requests)) as advance:
            header, log = run(
                document,
                profiles,
                requests,
                policy=policy,
                jitter=jitter,
                seed=seed,
                times=read_event_log(times, allow_cut_short=True) if times else None,
                on_progress=advance,
            )
    if events is not None:
        with EventLogWriter(events, header) as writer:
            for event in log:
                writer.append(event)
    report = report or run_report("simulated", header, log, span_us)
    if json:
        print_json(report)
    else:
        title = f"simulated: {policy}, {arrivals} arrivals, seed {seed}"
        console.print(summary_table(report, title))
        console.print(slots_table(report.slots))
    next_step(f"headrace serve {plan}" if events is None else f"headrace trace {events}")


def _migrated(
    old: "tuple[Plan, Mapping[str, Profile]]",
    new_path: Path,
    arrivals: "Sequence[Arrival]",
    when: tuple[float, str],
    span_us: int | None,
    *,
    policy: str | None,
    jitter: bool,
    seed: int,
    times: Path | None,
) -> "tuple[EventLogHeader, Sequence[AnyEvent], Report]":
    """Both plans' logs as one, and the report on them.

    Raises:
        DocumentError: an option that means nothing here.
    """
    from typing import get_args

    from headrace.catalog.documents import plan_profiles, read_plan
    from headrace.dispatch.changes.migration import How
    from headrace.dispatch.policies import policy_for
    from headrace.domain.epochs import joined
    from headrace.domain.errors import DocumentError
    from headrace.metrics import run_report
    from headrace.simulation.apps.migration import simulate_app_migration
    from headrace.simulation.migration import simulate_migration

    at_s, how = when
    if how not in get_args(How):
        raise DocumentError(f"simulate: --how {how!r} is unknown; known: drain, flush")
    if not at_s <= LATEST_S:
        raise DocumentError(f"simulate: --at {at_s:g}: expected seconds, {LATEST_S:g} at most")
    if times is not None:
        raise DocumentError("simulate: --times are of one plan; leave them out with --migrate")
    new = read_plan(new_path)
    if bool(new.apps) != bool(old[0].apps):
        raise DocumentError("simulate: --migrate goes from models to models, or from apps to apps")
    following = (new, plan_profiles(new, new_path))
    at_us = round(at_s * 1e6)
    way: How = "flush" if how == "flush" else "drain"
    if new.apps:
        run, session = simulate_app_migration(
            old, following, arrivals, at_us=at_us, how=way, policy=policy, jitter=jitter, seed=seed
        )
        found = session.header, session.events, session.report(span_us)
    else:
        run = simulate_migration(
            old,
            following,
            arrivals,
            at_us=at_us,
            how=way,
            policy=policy or policy_for(new),
            jitter=jitter,
            seed=seed,
        )
        header, log = joined(run.epochs)
        found = header, list(log), run_report("simulated", header, log, span_us)
    if run.done_at_us is not None:
        took_ms = (run.done_at_us - run.began_at_us) / 1e3
        notices.print(f"migrated by {how} in {run.steps} steps, {took_ms:.1f} ms")
    return found
