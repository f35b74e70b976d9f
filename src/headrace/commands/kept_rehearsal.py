"""A plan's rehearsal, as it is kept beside the plan: what was found, and the server's event log."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from headrace.commands.output import labelled, notices

if TYPE_CHECKING:
    from headrace.domain.events import AnyEvent, EventLogHeader
    from headrace.reporting.rehearsal import Rehearsal


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


def keep_rehearsal(folder: Path, plan: Path) -> None:
    """Findings and log go from this folder to where they are kept. They are never beside those of
    another rehearsal, not even of one that ends at the same time."""
    from headrace.catalog.whole_file import alone_in

    findings, events = rehearsal_paths(plan)
    with alone_in(plan.parent):
        findings.unlink(missing_ok=True)
        os.replace(folder / events.name, events)
        os.replace(folder / findings.name, findings)


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
