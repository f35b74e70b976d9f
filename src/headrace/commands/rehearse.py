"""`headrace rehearse`: does a plan hold on this machine, with all its workers at once?"""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from headrace.commands.output import console, next_step, notices, print_json

if TYPE_CHECKING:
    from rich.console import Console

    from headrace.domain.events import AnyEvent, EventLogHeader
    from headrace.reporting.rehearsal import Rehearsal

DURATION_S = 3.0
SEED = 1_000_000
"""Other arrivals than those that are usually measured afterwards."""


def rehearse(
    plan: Annotated[Path, typer.Argument(help="Plan, as `headrace plan` writes it.")],
    duration_s: Annotated[
        float, typer.Option("--duration-s", min=0.1, help="How long to send requests.")
    ] = DURATION_S,
    load_factor: Annotated[
        float | None,
        typer.Option(
            "--load-factor",
            help="Offered / planned throughput of each model (default: what the problem asks for,"
            " or 0.8).",
            show_default=False,
        ),
    ] = None,
    app: Annotated[
        list[Path] | None,
        typer.Option(
            "--app", metavar="FILE.py", help="As for `headrace serve`.", show_default=False
        ),
    ] = None,
    input: Annotated[
        list[str] | None,
        typer.Option(
            "--input",
            metavar="[MODEL=]PATH",
            help="As for `headrace load`: real inputs instead of random values.",
            show_default=False,
        ),
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print the findings as JSON.")] = False,
) -> None:
    """Serve a plan for a few seconds, on a port of its own, and compare its times with the plan's.

    A profile times every stage alone on its core; here all slots run at once, behind a real
    gateway, at the rate that the plan is for. What was found is kept beside the plan:
    PLAN.rehearsal.json, and PLAN.rehearsal.events, which `headrace simulate` then takes its times
    from. `headrace serve` rehearses a plan that was not rehearsed yet.

    [dim]headrace rehearse plan.json[/dim]
    """
    arguments = [f"--app={path}" for path in app or ()]
    found = run_rehearsal(plan, arguments, duration_s, load_factor, input or [])
    if json:
        print_json(found)
    else:
        show(found)
    next_step(f"headrace simulate {plan}")


def rehearsal_paths(plan: Path) -> tuple[Path, Path]:
    """Where findings and event log of a plan's rehearsal are kept.

    >>> [path.name for path in rehearsal_paths(Path("plan.json"))]
    ['plan.rehearsal.json', 'plan.rehearsal.events']
    """
    return plan.with_suffix(".rehearsal.json"), plan.with_suffix(".rehearsal.events")


def kept_rehearsal(plan: Path) -> "Rehearsal | None":
    """The findings beside the plan, if they are of this very plan."""
    import msgspec

    from headrace.catalog.documents import sha256_file
    from headrace.reporting.rehearsal import Rehearsal

    findings, events = rehearsal_paths(plan)
    try:
        found = msgspec.json.decode(findings.read_bytes(), type=Rehearsal)
    except (OSError, msgspec.DecodeError):
        return None
    return found if events.exists() and found.plan_sha256 == sha256_file(plan) else None


def run_rehearsal(
    path: Path,
    arguments: Sequence[str],
    duration_s: float = DURATION_S,
    load_factor: float | None = None,
    inputs: Sequence[str] = (),
) -> "Rehearsal":
    """Serve the plan in a process of its own, send requests, compare, keep what was found.

    Args:
        arguments: of the server.

    Raises:
        HeadraceError: the server does not start, or there is nothing to send.
    """
    from headrace.catalog.documents import plan_profiles, read_plan, sha256_file, write_document
    from headrace.catalog.event_log import read_event_log
    from headrace.commands.load import input_paths
    from headrace.commands.offer import offered_rates, offers_of
    from headrace.load.child_server import child_server
    from headrace.load.generator import LoadOptions, run_load_of_models
    from headrace.reporting.rehearsal import Rehearsal, contradictions, rehearsed_stages
    from headrace.simulation.offered.arrivals import arrivals_for

    plan = read_plan(path)
    profiles = plan_profiles(plan, path)
    offers = offers_of(plan)
    rates = offered_rates(offers, rps=None, load_factor=load_factor, model=None, source="poisson")
    notices.print(
        f"rehearsing {duration_s:g} s at {_rates(rates)}: all slots at once, behind a real gateway",
        soft_wrap=True,
    )
    findings, events_path = rehearsal_paths(path)
    unfinished = events_path.with_suffix(".unfinished")
    paths = input_paths(list(inputs))
    options = LoadOptions(seed=SEED, input_paths=paths.pop("", ()), model_inputs=paths)
    arrivals = arrivals_for("poisson", rates, duration_s, SEED)
    try:
        with child_server(path, "--no-auth", "--events", str(unfinished), *arguments) as server:
            results = run_load_of_models(
                server.url, arrivals, options, span_us=round(duration_s * 1e6)
            )
        header, events = read_event_log(unfinished, allow_cut_short=True)
        os.replace(unfinished, events_path)
    finally:
        unfinished.unlink(missing_ok=True)
    stages = rehearsed_stages(plan, profiles, header, events)
    attained = {name: result.report().total.slo_attainment for name, result in results.items()}
    found = Rehearsal(
        plan_sha256=sha256_file(path),
        offered_rps=rates,
        attainment=attained,
        stages=stages,
        contradictions=contradictions(plan, stages, rates, attained),
    )
    write_document(found, findings)
    return found


def show(found: "Rehearsal", on: "Console" = console) -> None:
    """The table, and whatever the rehearsal contradicts."""
    from headrace.reporting.rehearsal import rehearsal_table

    on.print(rehearsal_table(found))
    warn(found)


def warn(found: "Rehearsal") -> None:
    for sentence in found.contradictions:
        notices.print("[bold yellow]the rehearsal contradicts the plan:[/bold yellow]", end=" ")
        notices.print(sentence, markup=False, soft_wrap=True)


def rehearsed_times(path: Path) -> "tuple[EventLogHeader, list[AnyEvent]] | None":
    """The event log beside the plan, for `simulate`; None where there is none of this very plan."""
    from headrace.catalog.event_log import read_event_log

    if kept_rehearsal(path) is None:
        return None
    _, events = rehearsal_paths(path)
    notices.print(
        f"execution times: those of the rehearsal in {events} (--profile-times: the profile's)",
        markup=False,
        soft_wrap=True,
    )
    return read_event_log(events, allow_cut_short=True)


def _rates(rates_rps: dict[str, float]) -> str:
    return ", ".join(f"{value:.4g} requests/s of {name}" for name, value in rates_rps.items())
