"""`headrace simulate`: a plan under load, in virtual time."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NamedTuple

import typer

from headrace.commands.output import console, next_step, notices, print_json, quoted
from headrace.dispatch.limits import QUEUE_LIMIT

if TYPE_CHECKING:
    from headrace.dispatch.changes.migration import How
    from headrace.domain.events import AnyEvent, EventLogHeader
    from headrace.domain.interference import Interference
    from headrace.domain.plan import Plan
    from headrace.domain.profile import Profile
    from headrace.metrics import Report
    from headrace.simulation.driver import Slower
    from headrace.simulation.migration import MigrationRun
    from headrace.simulation.offered.arrivals import Arrival

LATEST_S = 1e9
"""Instants are whole microseconds, and must stay exact."""

OF_OTHERS = {
    "at": ("migrate",),
    "how": ("migrate",),
    "slower_from_s": ("slower", "delay_ms"),
}
"""Option -> those of which it is part."""

PlanArgument = Annotated[Path, typer.Argument(help="Plan, as `headrace plan` writes it.")]
RpsOption = Annotated[
    float | None,
    typer.Option(
        help="Requests per second to offer: the total, shared out by the models' weights, or by"
        " the apps' rates (default: what the problem asks for; 0.8 of the planned throughput of a"
        " model without a rate)."
    ),
]
LoadFactorOption = Annotated[
    float | None,
    typer.Option(help="Instead of --rps: offered / planned throughput, of each model."),
]
DurationSOption = Annotated[
    float | None, typer.Option(help="How long to offer it (default: 30; a file: all of it).")
]
SeedOption = Annotated[
    int, typer.Option(min=0, help="Same seed, same run; `headrace load` shares it.")
]
ArrivalsOption = Annotated[
    str,
    typer.Option(
        metavar="poisson|uniform|gamma[:CV]|mmpp[:BURST]|FILE",
        help="When requests arrive. gamma: gaps with this coefficient of variation (2; Poisson"
        " has 1). mmpp: bursts of about a second, a fifth of the time, at this multiple of the"
        " rate (2). FILE: of one model, an instant in seconds per line; or columns at_us or at_s,"
        " model, timeout_ms, priority, sizes, items; or a trace: MAF 2019, MAF 2021, or requests"
        " per second, blanks or line ends between, at least two on the first line, or below a line"
        " `rps`. Stretched to the rate if one is given.",
    ),
]
PolicyOption = Annotated[
    str | None,
    typer.Option(
        help="Dispatch policy: reservation, reactive, duty-cycle, batch-aware, rounds, …; of plans"
        " with depths: malleable, accordion, slo-conforming, fastest, buffer-based, one-stage, or"
        " one of the last five with -all, which drops nothing. Default: reservation, or malleable;"
        " for apps the one that their plan's worst cases hold under."
    ),
]
JitterOption = Annotated[
    bool, typer.Option(help="Vary execution times as the profile's p50 and p99 say.")
]
TimesOption = Annotated[
    Path | None,
    typer.Option(
        metavar="EVENTS",
        help="Event log of a server with this plan: draw execution times from it instead of"
        " the profile, so that whatever shares the cores with the workers counts.",
    ),
]
ProfileTimesOption = Annotated[
    bool,
    typer.Option(
        "--profile-times",
        help="Draw execution times from the profile, though the plan was rehearsed.",
    ),
]
SlowerOption = Annotated[
    list[str] | None,
    typer.Option(
        metavar="FACTOR|WHERE=FACTOR",
        help="Batches really take so many times what the profile says, which the dispatcher has to"
        " find out. WHERE: a device type, a slot, or a stage as MODEL/PIPELINE/NUMBER, stages from"
        " 0; without it, all. Repeatable; a batch takes all factors that concern it.",
    ),
]
SlowerFromOption = Annotated[
    float,
    typer.Option(min=0.0, help="--slower and --delay-ms: only from this second on."),
]
DelayOption = Annotated[
    float,
    typer.Option(min=0.0, help="So much longer for every batch, on top of --slower."),
]
InterferenceOption = Annotated[
    list[Path] | None,
    typer.Option(
        metavar="FILE",
        help="What batches really cost each other on the slots of one device (a document"
        " headrace.interference/1), which the dispatcher has to find out; whatever the plan reckons"
        " with. Repeatable, one per device type (default: as the plan says).",
    ),
]
ModelOption = Annotated[str | None, typer.Option(help="Offer load to this model only.")]
MigrateOption = Annotated[
    Path | None,
    typer.Option(
        metavar="NEW_PLAN",
        help="Move to this plan in the middle of the run, as `headrace migrate` does.",
    ),
]
AtOption = Annotated[
    float, typer.Option(min=0.0, help="--migrate: when, in seconds from the start.")
]
HowOption = Annotated[
    str, typer.Option(metavar="drain|flush", help="--migrate: which way, as of `headrace migrate`.")
]
QueueLimitOption = Annotated[
    int,
    typer.Option(
        min=1,
        max=1_000_000,
        help="Most requests waiting per model, as of `headrace serve`; of apps, per module.",
    ),
]
EventsOption = Annotated[Path | None, typer.Option(help="Write the event log here.")]
JsonOption = Annotated[bool, typer.Option("--json", help="Print the report as JSON.")]


def simulate(
    context: typer.Context,
    plan: PlanArgument,
    rps: RpsOption = None,
    load_factor: LoadFactorOption = None,
    duration_s: DurationSOption = None,
    seed: SeedOption = 1,
    arrivals: ArrivalsOption = "poisson",
    policy: PolicyOption = None,
    jitter: JitterOption = True,
    times: TimesOption = None,
    profile_times: ProfileTimesOption = False,
    slower: SlowerOption = None,
    slower_from_s: SlowerFromOption = 0.0,
    delay_ms: DelayOption = 0.0,
    interference: InterferenceOption = None,
    model: ModelOption = None,
    migrate: MigrateOption = None,
    at: AtOption = 10.0,
    how: HowOption = "drain",
    queue_limit: QueueLimitOption = QUEUE_LIMIT,
    events: EventsOption = None,
    json: JsonOption = False,
) -> None:
    """Run a plan in virtual time, by the dispatch code that serves live.

    [dim]headrace simulate plan.json --load-factor 0.8 --duration-s 60[/dim]
    """
    from headrace.catalog.documents import files_behind, plan_profiles, read_plan
    from headrace.catalog.event_log import EventLogWriter, check_event_log
    from headrace.catalog.whole_file import check_apart
    from headrace.commands.kept_rehearsal import check_not_kept
    from headrace.commands.kernel import load_kernel
    from headrace.commands.offer import (
        explain_default,
        explain_left_out,
        offered_arrivals,
        offered_rates,
        offers_of,
    )
    from headrace.commands.together import refuse_alone
    from headrace.dispatch.policies import policy_for
    from headrace.domain.errors import DocumentError
    from headrace.reporting.summary import slots_table, summary_table, weights_line
    from headrace.simulation.offered.processes import is_generated

    refuse_alone(context, OF_OTHERS)
    if events is not None:
        listed = None if is_generated(arrivals) else Path(arrivals)
        stated = (plan, times, migrate, listed, *(interference or ()))
        check_event_log(events, *(path for path in stated if path is not None))
        for each in filter(None, (plan, migrate)):
            check_not_kept(events, each)
    document = read_plan(plan)
    given, policy = policy, policy or policy_for(document)
    profiles = plan_profiles(document, plan)
    if events is not None:
        check_apart(events, *files_behind(document.profiles, plan.parent, profiles))
    offers = offers_of(document)
    rates = offered_rates(offers, rps=rps, load_factor=load_factor, model=model, source=arrivals)
    if left_out := explain_left_out(offers, rates, model):
        notices.print(left_out, soft_wrap=True)
    if rps is None and load_factor is None and any(rates.values()):
        notices.print(explain_default(offers, rates), soft_wrap=True)
    requests, span_us = offered_arrivals(arrivals, rates, duration_s, seed)
    of_profile = profile_times or migrate is not None or bool(interference)
    measured, levels = _times(plan, times, of_profile)
    asked = _Asked(
        plan=document,
        profiles=profiles,
        requests=requests,
        span_us=span_us,
        policy=given,
        jitter=jitter,
        seed=seed,
        times=measured,
        slower=_slower(document, profiles, slower or (), slower_from_s, delay_ms),
        interference=_interference(interference or (), document, times, migrate),
        levels=levels,
        queue_limit=queue_limit,
    )
    if migrate is not None and times is not None:
        raise DocumentError("simulate: --times are of one plan; leave them out with --migrate")
    # It may be compiled, for half a minute: whatever is wrong with a file is said before.
    load_kernel(policy, simulator=True)
    if migrate is not None:
        found = _migrated(asked, migrate, at, how)
    else:
        found = _of_apps(asked) if document.apps else _of_models(asked)
    if events is not None:
        with EventLogWriter(events, found.header) as writer:
            for event in found.events:
                writer.append(event)
    if json:
        print_json(found.report)
    else:
        title = f"simulated: {policy}, {arrivals} arrivals, seed {seed}"
        console.print(summary_table(found.report, title))
        console.print(slots_table(found.report.slots))
        if found.report.weights is not None:
            console.print(weights_line(found.report.weights))
    next_step(
        f"headrace serve {quoted(plan)}" if events is None else f"headrace trace {quoted(events)}"
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Asked:
    """What to run, however it is run."""

    plan: "Plan"
    profiles: "Mapping[str, Profile]"
    requests: "Sequence[Arrival]"
    span_us: int | None
    """How long they are offered; None: as their instants say."""
    policy: str | None
    """None: the plan's own."""
    jitter: bool
    seed: int
    times: "tuple[EventLogHeader, Sequence[AnyEvent]] | None"
    """A server's event log of the plan; None: as the profile says."""
    slower: "Slower | None"
    interference: "Sequence[Interference]"
    """True interference; none: as the plan says."""
    levels: "Mapping[str, float]"
    """As rehearsed, where `times` are the rehearsal's."""
    queue_limit: int


class _Finished(NamedTuple):
    """What a run left behind."""

    header: "EventLogHeader"
    events: "Sequence[AnyEvent]"
    report: "Report"


def _slower(
    plan: "Plan",
    profiles: "Mapping[str, Profile]",
    given: "Sequence[str]",
    from_s: float,
    delay_ms: float,
) -> "Slower | None":
    """
    Raises:
        DocumentError: what is said to be slower is not in the plan, or a number has no bounds.
    """
    from headrace.dispatch.buckets import by_bucket
    from headrace.dispatch.topology import Topology
    from headrace.domain.errors import DocumentError
    from headrace.simulation.slower import slower_of

    if not given and not delay_ms:
        return None
    for name, value_s in (("--slower-from-s", from_s), ("--delay-ms", delay_ms / 1000)):
        if not value_s <= LATEST_S:
            raise DocumentError(f"simulate: {name}: expected at most {LATEST_S:g} seconds")
    return slower_of(
        Topology.from_plan(*by_bucket(plan, profiles)),
        {slot.name: slot.device for slot in plan.slots},
        given,
        from_us=round(from_s * 1e6),
        delay_us=round(delay_ms * 1e3),
    )


def _interference(
    paths: "Sequence[Path]", plan: "Plan", times: Path | None, migrate: Path | None
) -> "list[Interference]":
    """
    Raises:
        DocumentError: a file is none, or something is asked for that does not go with it.
    """
    from headrace.catalog.documents import read_interference
    from headrace.simulation.beside import refuse_with

    for given, what in ((times, "--times"), (migrate, "--migrate"), (plan.apps, "apps")):
        if paths and given:
            raise refuse_with(what)
    return [read_interference(path) for path in paths]


def _of_models(asked: _Asked) -> _Finished:
    from headrace.commands.progress import counting
    from headrace.dispatch.policies import policy_for
    from headrace.metrics import run_report
    from headrace.simulation.session import simulate as run

    with counting("simulating", len(asked.requests)) as advance:
        header, events = run(
            asked.plan,
            asked.profiles,
            asked.requests,
            policy=asked.policy or policy_for(asked.plan),
            jitter=asked.jitter,
            seed=asked.seed,
            times=asked.times,
            slower=asked.slower,
            interference=asked.interference,
            levels=asked.levels,
            queue_limit=asked.queue_limit,
            on_progress=advance,
        )
    return _Finished(header, events, run_report("simulated", header, events, asked.span_us))


def _of_apps(asked: _Asked) -> _Finished:
    from headrace.commands.progress import counting
    from headrace.simulation.apps.session import simulate_apps

    with counting("simulating", len(asked.requests)) as advance:
        session = simulate_apps(
            asked.plan,
            asked.profiles,
            asked.requests,
            policy=asked.policy,
            jitter=asked.jitter,
            seed=asked.seed,
            times=asked.times,
            slower=asked.slower,
            queue_limit=asked.queue_limit,
            on_progress=advance,
        )
    return _Finished(session.header, session.events, session.report(asked.span_us))


def _times(
    plan: Path, given: Path | None, of_profile: bool
) -> "tuple[tuple[EventLogHeader, list[AnyEvent]] | None, Mapping[str, float]]":
    """The log that was given, else that of the plan's rehearsal with its levels, if any."""
    from headrace.catalog.event_log import read_event_log
    from headrace.commands.kept_rehearsal import rehearsed_times

    if given is not None:
        return read_event_log(given, allow_cut_short=True), {}
    return (None, {}) if of_profile else rehearsed_times(plan)


def _migrated(asked: _Asked, new_path: Path, at_s: float, how: str) -> _Finished:
    """Both plans' logs as one, and the report on them.

    Raises:
        DocumentError: an option that means nothing here.
    """
    from typing import get_args

    from headrace.catalog.documents import plan_profiles, read_plan
    from headrace.dispatch.changes.migration import How
    from headrace.domain.errors import DocumentError

    if how not in get_args(How):
        raise DocumentError(f"simulate: --how {how!r} is unknown; known: drain, flush")
    if not at_s <= LATEST_S:
        raise DocumentError(f"simulate: --at {at_s:g}: expected seconds, {LATEST_S:g} at most")
    if asked.slower is not None:
        raise DocumentError("simulate: --slower and --delay-ms are of one plan; not with --migrate")
    new = read_plan(new_path)
    if bool(new.apps) != bool(asked.plan.apps):
        raise DocumentError("simulate: --migrate goes from models to models, or from apps to apps")
    at_us = round(at_s * 1e6)
    if all(request.at_us < at_us for request in asked.requests):
        raise DocumentError(
            f"simulate: --at {at_s:g}: no request comes from then on, and nothing would be seen of"
            " the new plan\n"
            "  try    an earlier --at, or a longer --duration-s"
        )
    following = (new, plan_profiles(new, new_path))
    way: How = "flush" if how == "flush" else "drain"
    moving = _moving_apps if new.apps else _moving_models
    run, found = moving(asked, following, at_us, way)
    if run.done_at_us is not None:
        took_ms = (run.done_at_us - run.began_at_us) / 1e3
        notices.print(f"migrated by {run.how} in {run.steps} steps, {took_ms:.1f} ms")
    for name, count in sorted(run.unserved.items()):
        notices.print(
            f"{count} requests for {name!r} came when no plan had it any more: they are not in the"
            " counts, and a server answers them with 404",
            soft_wrap=True,
        )
    return found


def _moving_models(
    asked: _Asked, new: "tuple[Plan, Mapping[str, Profile]]", at_us: int, how: "How"
) -> "tuple[MigrationRun, _Finished]":
    from headrace.domain.epochs import joined
    from headrace.metrics import run_report
    from headrace.simulation.migration import simulate_migration

    run = simulate_migration(
        (asked.plan, asked.profiles),
        new,
        asked.requests,
        at_us=at_us,
        how=how,
        policy=asked.policy,
        jitter=asked.jitter,
        seed=asked.seed,
        queue_limit=asked.queue_limit,
    )
    header, log = joined(run.epochs)
    events = list(log)
    return run, _Finished(header, events, run_report("simulated", header, events, asked.span_us))


def _moving_apps(
    asked: _Asked, new: "tuple[Plan, Mapping[str, Profile]]", at_us: int, how: "How"
) -> "tuple[MigrationRun, _Finished]":
    from headrace.simulation.apps.migration import simulate_app_migration

    run, session = simulate_app_migration(
        (asked.plan, asked.profiles),
        new,
        asked.requests,
        at_us=at_us,
        how=how,
        policy=asked.policy,
        jitter=asked.jitter,
        seed=asked.seed,
        queue_limit=asked.queue_limit,
    )
    return run, _Finished(session.header, session.events, session.report(asked.span_us))
