"""`headrace rehearse`: does a plan hold on this machine, with all its workers at once?"""

import shlex
from collections.abc import Mapping, Sequence
from itertools import chain, count
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from headrace.commands.ending import orderly_end
from headrace.commands.kept_rehearsal import check_not_kept, kept_rehearsal
from headrace.commands.output import (
    console,
    labelled,
    next_step,
    notices,
    print_json,
    quoted,
)
from headrace.commands.rehearsing import DURATION_S, LONGEST_S, REQUESTS, run_rehearsal

if TYPE_CHECKING:
    from rich.console import Console

    from headrace.reporting.rehearsal import Rehearsal


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
        from headrace.reporting.rehearsal import rehearsal_summary

        print_json(rehearsal_summary(found))
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
