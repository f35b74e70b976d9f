"""`headrace trace`: an event log as a picture."""

from pathlib import Path
from typing import Annotated

import typer

from headrace.commands.output import console, next_step, print_json


def trace(
    events: Annotated[
        list[Path],
        typer.Argument(
            help="Event log, as `headrace simulate --events` and `headrace serve --events`"
            " write it; of a server that changed its plan, all its logs in order."
        ),
    ],
    out: Annotated[
        Path | None,
        typer.Option("--out", "-o", help="Trace to write (default: EVENTS.trace.json)."),
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Say what was written as JSON.")] = False,
) -> None:
    """Draw what every slot and link did, beside what was reserved for it.

    The trace opens in https://ui.perfetto.dev and in chrome://tracing: a group per node with
    two rows per slot (ran, reserved), one for its copy stream where models were loaded, and two
    per direction of its link, and a group per model with a span per request, its slack in the
    details, and a mark per drop; a mark per eviction.

    [dim]headrace trace run.events --out run.trace.json[/dim]
    """
    from headrace.catalog.event_log import read_event_log
    from headrace.catalog.whole_file import check_writable, whole_file
    from headrace.domain.epochs import EpochLog, check_one_run, joined
    from headrace.reporting.timeline import write_timeline

    target = out if out is not None else Path(f"{events[0]}.trace.json")
    check_writable(target, *events)
    # The log of a server that was killed is the one that is wanted most.
    logs = [EpochLog(*read_event_log(path, allow_cut_short=True)) for path in events]
    check_one_run([str(path) for path in events], logs)
    header, log = joined(logs)
    with whole_file(target) as file:
        count = write_timeline(header, log, file)
    if json:
        print_json({"trace": str(target), "events": len(log), "trace_events": count})
    else:
        said = f"{target}: {count:,} trace events from {len(log):,} events"
        console.print(said, soft_wrap=True)
        next_step(f"open {target} in https://ui.perfetto.dev or chrome://tracing")
