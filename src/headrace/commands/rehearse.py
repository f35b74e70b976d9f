"""`headrace rehearse`: does a plan hold on this machine, with all its workers at once?"""

import os
import shlex
from bisect import bisect_right
from collections.abc import Collection, Mapping, Sequence
from itertools import chain, count, product
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from headrace.commands.ending import orderly_end
from headrace.commands.output import (
    console,
    labelled,
    next_step,
    notices,
    print_json,
    quoted,
)

if TYPE_CHECKING:
    from rich.console import Console

    from headrace.domain.events import AnyEvent, EventLogHeader
    from headrace.load.result import LoadResult
    from headrace.reporting.rehearsal import Rehearsal

DURATION_S, LONGEST_S = 6.0, 20.0
REQUESTS = 100
"""Of each model at least, where that takes no longer than LONGEST_S: fewer have no p99, and few of
the bursts that later loads will have."""
PARTS = (0.4, 0.6, 0.8, 1.0)
"""Of the rate, one after the other: times are shorter at a lower load, and `simulate` is asked for
such loads too. What is found is of the full rate."""
TURNS = 3
"""That each rate gets its time in, where it has REQUESTS for each: a machine is slow and quick for
seconds on end, and a rate that had all its time in one of them would tell of the moment."""
LEAST_SHARE = 1 / 3
"""Of the duration, what each lower rate takes at least: less shows one stall for every load that is
simulated, or none."""
SEED = 1_000_000
"""Other arrivals than those that are usually measured afterwards."""


@orderly_end()
def rehearse(
    plan: Annotated[Path, typer.Argument(help="Plan, as `headrace plan` writes it.")],
    duration_s: Annotated[
        float | None,
        typer.Option(
            min=0.1,
            help="How long to send requests at the plan's rate; by turns with it, three lower rates"
            f" for as long each, but no longer than {DURATION_S:g} or a third of it, whichever is"
            f" more (default: {DURATION_S:g}, or until each model has had {REQUESTS}, but"
            f" {LONGEST_S:g} at most).",
        ),
    ] = None,
    load_factor: Annotated[
        float | None,
        typer.Option(
            help="Offered / planned throughput of each model (default: what the problem asks for,"
            " or 0.8)."
        ),
    ] = None,
    app: Annotated[
        list[Path] | None, typer.Option(metavar="FILE.py", help="As for `headrace serve`.")
    ] = None,
    input: Annotated[
        list[str] | None,
        typer.Option(
            metavar="[MODEL=]PATH",
            help="As for `headrace load`: real inputs instead of random values.",
        ),
    ] = None,
    policy: Annotated[
        str | None,
        typer.Option(help="As for `headrace serve`."),
    ] = None,
    unenforced_shares: Annotated[
        bool, typer.Option("--unenforced-shares", help="As for `headrace serve`.")
    ] = False,
    out: Annotated[
        Path | None,
        typer.Option(
            metavar="PROBLEM",
            help="Write the plan's problem again, with new profiles beside it at the times of the"
            " rehearsal and with what the apps' own code took: `headrace plan` it for a plan that"
            " holds here.",
        ),
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print the findings as JSON.")] = False,
) -> None:
    """Serve a plan for some seconds, on a port of its own, and compare its times with the plan's.

    A profile times every stage alone on its core; here all slots run at once, behind a real
    gateway, at the rate that the plan is for. What was found is kept beside the plan:
    PLAN.rehearsal.json, and PLAN.rehearsal.events, which `headrace simulate` then takes its times
    from. `headrace serve` rehearses a plan that was not rehearsed yet.

    [dim]headrace rehearse plan.json --out rehearsed.json[/dim]
    """
    from headrace.catalog.documents import read_plan
    from headrace.catalog.whole_file import check_writable
    from headrace.commands.replanning import plan_command

    arguments = [f"--app={path}" for path in app or ()]
    arguments += [f"--policy={policy}"] if policy else []
    arguments += ["--unenforced-shares"] if unenforced_shares else []
    if out is not None:
        check_writable(out, plan)
        check_not_kept(out, plan)
        _check_rewritable(plan, out)
    found = run_rehearsal(plan, arguments, duration_s, load_factor, input or [])
    if out is not None:
        write_rehearsed_problem(plan, found, out)
    if json:
        print_json(found)
    else:
        show(found)
    if out is None:
        next_step(f"headrace simulate {quoted(plan)}")
    else:
        next_step(shlex.join(["headrace", *plan_command(read_plan(plan).options, out, plan)]))


def _check_rewritable(path: Path, out: Path) -> None:
    """Refuse to write what a rehearsal of this plan does not tell, or over what it is made from,
    before it takes its seconds."""
    from headrace.catalog.documents import files_behind, plan_profiles, read_plan
    from headrace.catalog.whole_file import check_apart
    from headrace.domain.errors import DocumentError

    plan = read_plan(path)
    profiles = plan_profiles(plan, path)
    check_apart(out, *files_behind(plan.profiles, path.parent, profiles))
    if several := ", ".join(sorted(name for name, each in profiles.items() if each.dimensions)):
        raise DocumentError(
            f"rehearse --out: does not write profiles of several sizes yet ({several}); rehearse"
            " without --out, and a lower max_utilisation in the problem plans for slower batches"
        )


def rehearsal_paths(plan: Path) -> tuple[Path, Path]:
    """Where findings and event log of a plan's rehearsal are kept.

    >>> [path.name for path in rehearsal_paths(Path("plan.json"))]
    ['plan.rehearsal.json', 'plan.rehearsal.events']
    """
    return plan.with_suffix(".rehearsal.json"), plan.with_suffix(".rehearsal.events")


def check_not_kept(path: Path, plan: Path) -> None:
    """Refuse to write anything else where a rehearsal of the plan is kept, or will be.

    Raises:
        DocumentError: the path is one of `rehearsal_paths`.
    """
    from headrace.domain.errors import DocumentError

    if path.resolve() in [kept.resolve() for kept in rehearsal_paths(plan)]:
        raise DocumentError(
            f"{path}: is where the rehearsal of {plan} is kept; name another file to write"
        )


def kept_rehearsal(plan: Path) -> "Rehearsal | None":
    """The findings beside the plan, if they are of this very plan and the log beside them was
    measured; what cannot be read is said to be ignored."""
    import msgspec

    from headrace.catalog.documents import sha256_file
    from headrace.catalog.event_log import read_header
    from headrace.domain.base import JSON_ERRORS
    from headrace.domain.errors import DocumentError
    from headrace.reporting.rehearsal import Rehearsal

    findings, events = rehearsal_paths(plan)
    try:
        found = msgspec.json.decode(findings.read_bytes(), type=Rehearsal)
    except FileNotFoundError:
        return None
    except (OSError, *JSON_ERRORS) as error:
        _ignored(findings, error)
        return None
    if not events.exists():
        return None
    try:
        is_measured = read_header(events).clock == "live"
    except DocumentError as error:
        _ignored(events, error)
        return None
    return found if is_measured and found.plan_sha256 == sha256_file(plan) else None


def _ignored(path: Path, error: Exception) -> None:
    labelled("warning: ", f"the rehearsal in {path} is ignored: {error}", "bold yellow")


def run_rehearsal(
    path: Path,
    arguments: Sequence[str],
    duration_s: float | None = None,
    load_factor: float | None = None,
    inputs: Sequence[str] = (),
) -> "Rehearsal":
    """Serve the plan in a process of its own, send requests, compare, keep what was found.

    Args:
        arguments: of the server.
        duration_s: None: long enough for REQUESTS of each model.

    Raises:
        HeadraceError: the server does not start, or there is nothing to send.
    """
    from headrace.catalog.documents import plan_profiles, read_plan, sha256_file, write_document
    from headrace.catalog.event_log import EventLogWriter
    from headrace.catalog.whole_file import folder_beside
    from headrace.commands.load import check_models, input_paths
    from headrace.commands.offer import offered_rates, offers_of
    from headrace.dispatch.buckets import by_bucket
    from headrace.domain.errors import DocumentError
    from headrace.load.child_server import child_server
    from headrace.load.generator import LoadOptions, run_load_of_models
    from headrace.load.kept_up import attained, latest, not_sent
    from headrace.load.result import LoadResult
    from headrace.load.seen import with_seen
    from headrace.reporting.rehearsal import (
        Rehearsal,
        code_contradictions,
        contradictions,
        refused_inputs,
        rehearsed_code,
        rehearsed_stages,
    )
    from headrace.simulation.offered.arrivals import arrivals_for

    plan = read_plan(path)
    profiles = plan_profiles(plan, path)
    offers = offers_of(plan)
    rates = offered_rates(offers, rps=None, load_factor=load_factor, model=None, source="poisson")
    positive = [rate_rps for rate_rps in rates.values() if rate_rps > 0]
    if not positive:
        raise DocumentError(f"{path}: a rehearsal needs a load above 0; raise --load-factor")
    duration_s = duration_s or max(DURATION_S, min(LONGEST_S, REQUESTS / min(positive)))
    lower_s = max(LEAST_SHARE * duration_s, min(DURATION_S, duration_s))
    before_s = lower_s * (len(PARTS) - 1)
    turns = turns_of(duration_s, min(positive))
    findings, events_path = rehearsal_paths(path)
    paths = input_paths(list(inputs))
    check_models(paths.keys() - {""}, rates)
    options = LoadOptions(seed=SEED, input_paths=paths.pop("", ()), model_inputs=paths)
    runs: list[dict[str, LoadResult]] = []
    full = []
    advice = (
        "  needs  a rehearsal is kept beside its plan\n"
        "  try    `headrace rehearse` where that can be written, and keep"
        f" {findings.name} and {events_path.name} with the plan"
    )
    with folder_beside(path, "rehearsal", advice) as folder:
        unfinished = folder / events_path.name
        notices.print(
            f"rehearsing {before_s:g} s at lower rates, {duration_s:g} s at {_rates(rates)}:"
            " all slots at once, behind a real gateway",
            soft_wrap=True,
        )
        with child_server(path, "--no-auth", "--events", str(unfinished), *arguments) as server:
            for turn, rate in product(range(turns), PARTS):
                offered = {name: rate * rate_rps for name, rate_rps in rates.items()}
                part_s = (duration_s if rate == 1.0 else lower_s) / turns
                arrivals = arrivals_for("poisson", offered, part_s, SEED + turn)
                if not arrivals and rate < 1.0:
                    continue
                if rate == 1.0:
                    full.append(len(runs))
                span_us = round(part_s * 1e6)
                runs.append(
                    run_load_of_models(
                        server.url, arrivals, options, order=tuple(rates), span_us=span_us
                    )
                )
        header, logged = _whole_log(unfinished, path, runs)
        began_us = [min(result.started_at_us for result in run.values()) for run in runs]
        events = during(logged, began_us, full)
        stages = rehearsed_stages(plan, profiles, header, events)
        code = rehearsed_code(plan, header, events)
        at_full = [runs[index] for index in full]
        slos_us = {demand.model: demand.slo_us for demand in plan.demands}
        slos_us |= {claim.app.name: claim.app.slo_us for claim in plan.apps}
        share = {name: attained(at_full, name, slos_us[name]) for name in rates}
        outcomes = {
            name: [outcome for index in full for outcome in runs[index][name].outcomes]
            for name in rates
        }
        samples = {
            name: {k: v for index in full for k, v in runs[index][name].error_samples.items()}
            for name in rates
        }
        refused = refused_inputs(outcomes, samples)
        judged = {name: part for name, part in share.items() if name not in refused}
        found = Rehearsal(
            plan_sha256=sha256_file(path),
            offered_rps=rates,
            attainment=share,
            lateness=latest(at_full),
            not_sent=not_sent(at_full, slos_us),
            stages=stages,
            code=code,
            contradictions=(
                *contradictions(by_bucket(plan, profiles)[0], stages, rates, judged),
                *code_contradictions(plan, code),
            ),
            refused=tuple(refused.values()),
        )
        try:
            with EventLogWriter(unfinished, header) as writer:
                for event in with_seen(header, logged, runs):
                    writer.append(event)
            write_document(found, folder / findings.name)
            _take_their_place(folder, path)
        except (DocumentError, OSError) as error:
            reason = error.__cause__ or error
            raise DocumentError(
                f"{path.parent}: the rehearsal of {path.name} cannot be kept: {reason}\n{advice}"
            ) from error
    return found


def _take_their_place(folder: Path, plan: Path) -> None:
    """Findings and log go from this folder to where they are kept. They are never beside those of
    another rehearsal, not even of one that ends at the same time."""
    from headrace.catalog.whole_file import alone_in

    findings, events = rehearsal_paths(plan)
    with alone_in(plan.parent):
        findings.unlink(missing_ok=True)
        os.replace(folder / events.name, events)
        os.replace(folder / findings.name, findings)


def _whole_log(
    log: Path, plan: Path, runs: "Sequence[Mapping[str, LoadResult]]"
) -> "tuple[EventLogHeader, list[AnyEvent]]":
    """What the server has written, which gives a log up and serves on where it cannot be written.

    Raises:
        DocumentError: it was given up.
    """
    from headrace.catalog.event_log import read_event_log
    from headrace.domain.errors import DocumentError
    from headrace.load.seen import cut_short_us

    try:
        header, events = read_event_log(log, allow_cut_short=True)
        missing_us = cut_short_us(events, runs)
    except DocumentError:
        ends = "cannot be read"
    else:
        if missing_us is None:
            return header, events
        ends = f"ends {missing_us / 1e6:.1f} s before the last request that was answered"
    raise DocumentError(
        f"{plan}: the server's event log of the rehearsal {ends}; nothing is kept of it\n"
        f"  needs  a log of the whole rehearsal, in {plan.parent.absolute()}\n"
        "  try    `headrace rehearse` again; is the disk full?"
    )


def turns_of(duration_s: float, least_rps: float) -> int:
    """Into how many turns the time of each rate is divided.

    Args:
        least_rps: of the model with the fewest requests.

    >>> turns_of(6.0, 400.0), turns_of(6.0, 40.0), turns_of(20.0, 0.5)
    (3, 2, 1)
    """
    return max(1, min(TURNS, int(duration_s * least_rps / REQUESTS)))


def during(
    events: "Sequence[AnyEvent]", began_us: Sequence[int], chosen: Collection[int]
) -> "list[AnyEvent]":
    """The events of some of several runs, each of which begins when the one before has ended.

    Args:
        began_us: of all runs, in order.
        chosen: which of them.
    """
    return [event for event in events if bisect_right(began_us, event.at_us) - 1 in chosen]


def write_rehearsed_problem(path: Path, found: "Rehearsal", out: Path) -> None:
    """The plan's problem, with the times of its rehearsal; the profiles go beside it, into files
    of their own.

    Raises:
        DocumentError: something cannot be written there.
    """
    from msgspec.structs import replace

    from headrace.catalog.documents import plan_profiles, read_plan, sha256_file, write_document
    from headrace.catalog.problem_of_plan import problem_of, write_problem_file
    from headrace.domain.problem import ProfileRef
    from headrace.reporting.rehearsed_problem import rehearsed_app, rehearsed_profiles

    plan = read_plan(path)
    slower = rehearsed_profiles(plan, plan_profiles(plan, path), found)
    refs = []
    for ref in plan.profiles:
        profile, folder = slower[ref.model], (path.parent / ref.path).parent
        if profile.model_path is not None:
            model_path = str((folder / profile.model_path).absolute())
            profile = replace(profile, model_path=model_path)
        file = _free_beside(out, ref.model)
        write_document(profile, file)
        refs.append(ProfileRef(model=ref.model, path=file.name, sha256=sha256_file(file)))
    claims = tuple(replace(claim, app=rehearsed_app(claim.app, found)) for claim in plan.apps)
    loads = {demand.model: demand.weight for demand in plan.demands}
    loads |= {claim.app.name: claim.app.rate_rps for claim in claims}
    problem = problem_of(replace(plan, profiles=tuple(refs), apps=claims), loads, out.parent)
    asked = {demand.model: demand.rate_rps for demand in plan.demands}
    models = tuple(replace(entry, rate_rps=asked[entry.name or ""]) for entry in problem.models)
    write_problem_file(replace(problem, models=models), out)


def _free_beside(out: Path, model: str) -> Path:
    """Where a profile replaces none: plans name theirs by content, those made from what an earlier
    rehearsal wrote to `out` too."""
    stems = chain([f"{out.stem}.{model}"], (f"{out.stem}.{model}.{n}" for n in count(2)))
    files = (out.with_name(f"{stem}.profile.json") for stem in stems)
    return next(file for file in files if not file.exists())


def show(found: "Rehearsal", on: "Console" = console) -> None:
    """The table, and whatever the rehearsal contradicts."""
    from headrace.reporting.rehearsal import code_table, rehearsal_table
    from headrace.reporting.summary import sent_late

    on.print(rehearsal_table(found))
    if found.code:
        on.print(code_table(found.code))
    if found.lateness is not None:
        on.print(f"{sent_late(found.lateness)} at the full rate", soft_wrap=True)
    warn(found)


def warn(found: "Rehearsal") -> None:
    from headrace.reporting.rehearsal import unmeasured

    for sentence in unmeasured(found):
        labelled("warning: ", sentence, "bold yellow")
    for sentence in found.refused:
        labelled("the rehearsal says little: ", sentence, "bold yellow")
    for sentence in found.contradictions:
        labelled("the rehearsal contradicts the plan: ", sentence, "bold yellow")


def rehearsed_times(
    path: Path,
) -> "tuple[tuple[EventLogHeader, list[AnyEvent]] | None, Mapping[str, float]]":
    """For `simulate`: the event log beside the plan, and the findings' `levels`; (None, {}) where
    there is no rehearsal of this very plan."""
    from headrace.catalog.event_log import read_event_log
    from headrace.domain.errors import DocumentError
    from headrace.reporting.rehearsal import behind_line

    found = kept_rehearsal(path)
    if found is None:
        return None, {}
    _, events = rehearsal_paths(path)
    try:
        times = read_event_log(events, allow_cut_short=True)
    except DocumentError as error:
        _ignored(events, error)
        return None, {}
    notices.print(
        f"execution times: those of the rehearsal in {events} (--profile-times: the profile's)",
        soft_wrap=True,
    )
    if line := behind_line(times[1]):
        labelled("warning: ", line, "bold yellow")
    return times, found.levels


def _rates(rates_rps: dict[str, float]) -> str:
    return ", ".join(f"{value:.4g} requests/s of {name}" for name, value in rates_rps.items())


def rehearse_before_ready(
    plan_path: Path,
    policy: str | None,
    executor: str,
    apps: Sequence[Path],
    given: Sequence[str] = (),
) -> Mapping[str, float]:
    """Unless that was done; what it contradicts is said before anyone relies on the plan.

    Args:
        given: further arguments of the server.

    Returns:
        How many times its profile each stage took, by MODEL/PIPELINE/NUMBER.
    """
    from headrace.domain.errors import HeadraceError

    known = kept_rehearsal(plan_path)
    if known is not None:
        warn(known)
        return known.levels
    arguments = [f"--executor={executor}", *(f"--app={path}" for path in apps), *given]
    arguments += [f"--policy={policy}"] if policy else []
    try:
        # Standard output is for READY, which scripts wait for.
        known = run_rehearsal(plan_path, arguments)
        show(known, notices)
        return known.levels
    except (HeadraceError, OSError) as error:
        notices.print(f"not rehearsed: {error}", soft_wrap=True)
        return {}
