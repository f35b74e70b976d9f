"""`headrace import triton`: a model repository as a problem file."""

import os
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from headrace.commands.output import console, next_step, note, print_json, quoted, wrote

if TYPE_CHECKING:
    from headrace.catalog.triton.problem import Imported
    from headrace.catalog.triton.repository import TritonModel


def import_triton(
    repository: Annotated[Path, typer.Argument(help="Folder of MODEL/config.pbtxt.")],
    out: Annotated[Path, typer.Option("--out", "-o", help="Problem file to write.")] = Path(
        "problem.yaml"
    ),
    model: Annotated[
        list[str] | None,
        typer.Option(
            help="Only this model or ensemble; repeatable (default: all; what is only a step of an"
            " ensemble is served within it)."
        ),
    ] = None,
    slo_ms: Annotated[
        list[str] | None,
        typer.Option(
            metavar="[MODEL=]MS",
            help="Objective, from arrival to answer, of one model or of all that have no"
            " default_timeout_microseconds.",
        ),
    ] = None,
    rate_rps: Annotated[
        list[str] | None,
        typer.Option(
            metavar="[MODEL=]RPS",
            help="Requests per second, of one model or of each; needed with ensembles (default: as"
            " many as possible).",
        ),
    ] = None,
    device: Annotated[
        str,
        typer.Option(
            metavar="TYPE[=COUNT]", help="Devices to plan for (default: the cores of this machine)."
        ),
    ] = "cpu",
    json: Annotated[bool, typer.Option("--json", help="Print what was found as JSON.")] = False,
) -> None:
    """Read a Triton model repository: a problem file, and what it cannot carry over.

    Models keep names and versions. Ensembles become apps, declared in a Python file beside the
    problem. Nothing is run or copied; the commands that profile the models are printed.

    [dim]headrace import triton models --slo-ms 100 -o problem.yaml[/dim]
    """
    from headrace.catalog.triton.problem import Wanted, import_repository, write_imported
    from headrace.catalog.triton.repository import read_repository
    from headrace.catalog.whole_file import check_writable

    check_writable(out, *(_read_below(repository) if os.path.exists(out) else ()))
    kind, count = _device(device)
    wanted = Wanted(
        device=kind,
        count=count,
        slo_ms=_by_model("--slo-ms", slo_ms),
        rate_rps=_by_model("--rate-rps", rate_rps),
    )
    asked = model or []
    imported = import_repository(read_repository(repository, asked), asked, wanted)
    app_file = out.with_name(f"{out.stem}_apps.py") if imported.app_file is not None else None
    changed = app_file is not None and _is_changed(app_file, imported)
    written = app_file.with_suffix(".new.py") if app_file is not None and changed else app_file
    write_imported(imported, out, written)
    found = _found(imported, out, app_file, kind)
    if json:
        print_json(found)
    else:
        _print(found)
        wrote(out, *filter(None, [written]))
    if changed:
        note(f"{app_file} is kept: it is not what this repository gives, which is in {written}")
    plan = out.with_name("plan.json")
    served = f"headrace serve {quoted(plan)}" + (f" --app {quoted(app_file)}" if app_file else "")
    next_step(f"{found['profile_commands'][0]}   (and the others printed above)")
    next_step(f"headrace plan {quoted(out)} -o {quoted(plan)}, then {served}")


def _read_below(repository: Path) -> Iterator[Path]:
    """Files that may be read: those in folders of models. Of a folder that cannot be read there
    are none, and `read_repository` says why."""
    for folder, _, names in os.walk(repository):
        if Path(folder) != repository:
            yield from (Path(folder, name) for name in names)


def _is_changed(app_file: Path, imported: "Imported") -> bool:
    """Whether somebody has written in the file, who would lose it."""
    from headrace.domain.errors import DocumentError

    try:
        return app_file.exists() and app_file.read_text("utf-8") != imported.app_file
    except (OSError, ValueError) as error:
        raise DocumentError(f"{app_file}: cannot be read: {error}") from error


def _by_model(option: str, given: list[str] | None) -> dict[str, float]:
    """Model -> number; "": of all others."""
    import math

    found: dict[str, float] = {}
    for text in given or ():
        name, _, number = text.rpartition("=")
        try:
            value = float(number)
        except ValueError:
            value = math.nan
        if not 0 < value < math.inf:
            raise typer.BadParameter(
                f"{option} {text!r}: expected a number above 0, or MODEL=NUMBER"
            )
        found[name] = value
    return found


def _device(text: str) -> tuple[str, int]:
    from headrace.domain.base import is_name

    kind, equals, count = text.partition("=")
    if not is_name(kind) or (equals and not (count.isdecimal() and 0 < int(count[:7]) <= 100_000)):
        raise typer.BadParameter(f"--device {text!r}: expected TYPE or TYPE=COUNT, such as cpu=4")
    return kind, int(count) if equals else len(os.sched_getaffinity(0))


def _found(imported: "Imported", out: Path, app_file: Path | None, device: str) -> dict[str, Any]:
    from headrace.catalog.triton.problem import profile_path

    entries = [*imported.problem.get("models", ()), *imported.problem.get("apps", ())]
    return {
        "problem": str(out),
        "app_file": None if app_file is None else str(app_file),
        "served": [
            {
                "name": model.name,
                "version": model.version,
                "slo_ms": entry["slo_ms"],
                "ensemble": model.path is None,
            }
            for model, entry in zip(imported.served, entries, strict=True)
        ],
        "profile_commands": [
            _profile_command(model, out.parent / profile_path(name), device)
            for name, model in imported.profiles.items()
        ],
        "not_carried_over": list(imported.not_carried),
    }


def _profile_command(model: "TritonModel", profile: Path, device: str) -> str:
    options = ["--name", model.name, "--device", device, *model.profile_options]
    return shlex.join(["headrace", "profile", str(model.path), *options, "-o", str(profile)])


def _print(found: dict[str, Any]) -> None:
    for served in found["served"]:
        kind = "ensemble" if served["ensemble"] else "model"
        console.print(
            f"{kind} {served['name']}, version {served['version']}: within {served['slo_ms']:g} ms",
        )
    for what in found["not_carried_over"]:
        console.print(f"not carried over: {what}", soft_wrap=True)
    for command in found["profile_commands"]:
        console.print(command, soft_wrap=True)
