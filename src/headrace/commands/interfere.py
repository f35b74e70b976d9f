"""`headrace interfere`: what models cost each other that run side by side on one device."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from headrace.commands.ending import orderly_end
from headrace.commands.output import console, next_step, note, print_json, wrote
from headrace.commands.progress import counting

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from fractions import Fraction

    from headrace.domain.interference import Interference
    from headrace.domain.profile import Profile, Provenance
    from headrace.executors.base import Measurement
    from headrace.profiling.interference import Measurements, Place

_MOST_ROWS = 20


@orderly_end()
def interfere(
    profiles: Annotated[
        list[Path],
        typer.Argument(metavar="PROFILE...", help="Profiles of two models or more, with files."),
    ],
    device: Annotated[
        str,
        typer.Option(
            help="Device type of the document. cpu: two cores, one for each side; cuda: two parts"
            " of an NVIDIA GPU, by its multi-process service."
        ),
    ] = "cpu",
    share: Annotated[
        str,
        typer.Option(
            help="Part of the device that each side has: of a GPU at most 1/2; of a CPU what one"
            " core is in the profiles, such as 1/2 of two cores."
        ),
    ] = "1",
    batch_sizes: Annotated[
        str,
        typer.Option(
            metavar="1,4",
            help="Batch sizes to run beside each other, of each model as far as its profile goes.",
        ),
    ] = "1,4",
    budget_s: Annotated[
        float,
        typer.Option(
            help="Seconds for running; every pair of batches runs once whatever it takes."
        ),
    ] = 120.0,
    cover: Annotated[
        float | None,
        typer.Option(
            help="Predict so that this part of held-out runs is no slower, such as 0.95, for plans"
            " that promise; without it the middle.",
            min=0.5,
            max=0.999,
        ),
    ] = None,
    update_profiles: Annotated[
        bool,
        typer.Option(
            "--update-profiles",
            help="Write into the profiles what each model takes of the device, and how much slower"
            " it was beside others; the prediction may then use that. Plans of before name the"
            " profiles as they were: plan again.",
        ),
    ] = False,
    seed: Annotated[
        int, typer.Option(help="Of the order of runs, and of the pairs that are held out.")
    ] = 0,
    pairs: Annotated[
        Path | None, typer.Option(help="Also write what was measured, pair by pair.")
    ] = None,
    out: Annotated[
        Path, typer.Option("-o", "--out", help="Interference document to write.")
    ] = Path("interference.json"),
    json: Annotated[bool, typer.Option("--json", help="Print the report as JSON.")] = False,
) -> None:
    """Run models side by side and alone, and fit how much slower they make each other.

    [dim]headrace interfere a.profile.json b.profile.json -o cpu.interference.json[/dim]
    """
    from headrace.catalog.documents import read_profile, write_document
    from headrace.catalog.whole_file import check_distinct, check_writable
    from headrace.executors.table import measurement
    from headrace.profiling.interference import FORMS, WITHOUT_SENSITIVITY, document_of
    from headrace.profiling.pairs_file import write_pairs
    from headrace.profiling.shares import parse_shares
    from headrace.profiling.side_by_side import QUIET_PAIR_CORE_SHARE, measure_together

    how = measurement(device)
    sizes, [part] = parse_sizes(batch_sizes), parse_shares([share])
    targets = (out, *([pairs] if pairs else []))
    for target in targets:
        check_writable(target, *profiles)
    check_distinct(*targets)
    read = [read_profile(path) for path in profiles]
    _check_models([profile.model for profile in read])
    known = [
        _with_utilisation(profile, path, device, part)
        for profile, path in zip(read, profiles, strict=True)
    ]
    missing = left_out(known, device, part, sizes)
    for said in missing:
        note(said)
    with counting("side by side", 100, redraws_per_s=1.0) as drawn:
        found = measure_together(
            known, profiles, sizes, device, part, budget_s=budget_s, seed=seed, on_progress=drawn
        )
    notes = []
    if found.core_share < QUIET_PAIR_CORE_SHARE:
        notes.append(
            f"other programs used {1 - found.core_share:.0%} of the cores meanwhile; times are"
            " processor time and leave that out, but caches and memory were shared with them"
        )
    if pairs:
        write_pairs(found.pairs, pairs)
    models = [profile.model for profile in read]
    document, fitted = document_of(
        device,
        found.pairs,
        _provenance(how, part, found.rounds, cover, models, [*missing, *notes]),
        forms=tuple(FORMS) if update_profiles else WITHOUT_SENSITIVITY,
        cover=cover,
        seed=seed,
    )
    write_document(document, out)
    if update_profiles:
        for profile, path in zip(known, profiles, strict=True):
            write_document(with_beside(profile, device, part, fitted.beside), path)
    elif any(each is not before for each, before in zip(known, read, strict=True)):
        notes.append(
            "some profiles say nothing of what their models take of the device, which plans need;"
            " --update-profiles writes it, or `headrace profile` again"
        )
    if json:
        print_json(_summary(document, fitted.form, found.pairs, out))
    else:
        _print_tables(document, fitted.form, found.pairs)
    for said in notes:
        note(said)
    wrote(out)
    next_step(
        "headrace plan problem.yaml --planner shares"
        f"   (which names it: interference: [{out.name}])"
    )


def parse_sizes(text: str) -> tuple[int, ...]:
    """Batch sizes as a person writes them.

    >>> parse_sizes("4,1")
    (1, 4)
    """
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isdecimal() and 0 < int(part) <= 1024 for part in parts):
        raise typer.BadParameter(f"--batch-sizes {text!r}: expected sizes from 1, such as 1,4")
    return tuple(sorted({int(part) for part in parts}))


def left_out(
    profiles: "Sequence[Profile]", device: str, share: "Fraction", batch_sizes: "Sequence[int]"
) -> list[str]:
    """Which of the batch sizes are not run of which model, and why.

    Raises:
        ModelError: a profile has no times on the device.
    """
    from headrace.profiling.side_by_side import sizes_to_run

    told = []
    for profile in profiles:
        sizes = sizes_to_run(profile, device, share, batch_sizes)
        if left := [str(size) for size in batch_sizes if size not in sizes]:
            instead = "" if sizes[0] in batch_sizes else f"; it runs at {sizes[0]} instead"
            told.append(
                f"batch size {', '.join(left)} of {profile.model!r} is left out: its profile goes"
                f" to {profile.max_batch(device, share)}{instead}"
            )
    return told


def _check_models(models: "Sequence[str]") -> None:
    from headrace.domain.errors import ModelError

    if len(set(models)) < 2 or len(set(models)) < len(models):
        raise ModelError(
            f"interfere: needs profiles of at least 2 different models, got {', '.join(models)}"
        )


def _with_utilisation(profile: "Profile", path: Path, device: str, share: "Fraction") -> "Profile":
    from headrace.profiling.utilisation import with_utilisation

    if profile.utilised(device, share) is not None:
        return profile
    return with_utilisation(profile, path.parent, device)


def with_beside(
    profile: "Profile", device: str, share: "Fraction", beside: "Mapping[Place, float]"
) -> "Profile":
    """The profile with its measured slowdowns; between and beyond the measured batch sizes on the
    straight line and the nearest."""
    import msgspec
    import numpy as np

    mine = sorted(
        (size, value)
        for (model, part, size), value in beside.items()
        if (model, part) == (profile.model, share)
    )
    if not mine:
        return profile
    sizes, values = zip(*mine, strict=True)
    rows = [
        msgspec.structs.replace(
            used,
            beside=tuple(float(each) for each in np.interp(used.batch_sizes, sizes, values)),
        )
        if (used.device, used.share) == (device, share)
        else used
        for used in profile.utilisation
    ]
    return msgspec.structs.replace(profile, utilisation=tuple(rows))


def _provenance(
    how: "Measurement",
    share: "Fraction",
    rounds: int,
    cover: float | None,
    models: "Sequence[str]",
    notes: "Sequence[str]",
) -> "Provenance":
    from datetime import UTC, datetime

    from headrace.domain.profile import Provenance
    from headrace.profiling.machine import cpu_name, software_versions

    where = "two cores" if how.machine is None else f"two parts of {share}"
    told = [f"models side by side on {where}: {', '.join(models)}"]
    if cover is not None:
        told.append(
            f"raised so that {cover:.1%} of held-out runs are no slower than predicted; errors are"
            " stated of what was raised"
        )
    return Provenance(
        kind="measured",
        date=datetime.now(UTC).isoformat(timespec="seconds"),
        machine=cpu_name() if how.machine is None else how.machine(),
        software=software_versions(how.libraries),
        repeats=rounds,
        notes=(*told, *notes),
    )


def _print_tables(document: "Interference", form: str, measured: "Measurements") -> None:
    from rich import box
    from rich.markup import escape

    from headrace.profiling.interference import PAPER_ERRORS
    from headrace.reporting.readable import ReadableTable, figures

    table = ReadableTable(
        "model",
        figures("batch"),
        *("beside", figures("batch"), figures("slowdown")),
        title=escape(f"side by side on {document.device} ({document.provenance.machine})"),
        title_justify="left",
        box=box.SIMPLE_HEAD,
    )
    for each in sorted(measured, key=lambda each: -each.slowdown)[:_MOST_ROWS]:
        own, other = each.own, each.other
        table.add_row(
            *(own.model, str(own.batch_size), other.model, str(other.batch_size)),
            f"{each.slowdown:.3f}",
        )
    console.print(table)
    if len(measured) > _MOST_ROWS:
        console.print(f"the {_MOST_ROWS} that were slowed most, of {len(measured)}")
    sums = " + ".join(
        f"{coefficient:.4g}" if term == "1" else f"{coefficient:.4g} {term}"
        for term, coefficient in zip(document.features, document.coefficients, strict=True)
    )
    console.print(f"slowdown = max(1, {sums})   [{form}]", soft_wrap=True)
    held = document.hold_out
    assert held is not None, "stated by every fit"
    wanted = ", ".join(f"{part:.0%} within {error:.2%}" for error, part in PAPER_ERRORS)
    console.print(
        f"on pairs held out: 90 % within {held.error_p90:.2%}, 95 % within {held.error_p95:.2%},"
        f" 99 % within {held.error_p99:.2%} (gpu-lets: {wanted})",
        soft_wrap=True,
    )


def _summary(
    document: "Interference", form: str, measured: "Measurements", out: Path
) -> dict[str, object]:
    """What the tables say, for programs."""
    from dataclasses import asdict

    return {
        "interference": str(out),
        "device": document.device,
        "form": form,
        "terms": document.features,
        "coefficients": document.coefficients,
        "hold_out": document.hold_out,
        "provenance": document.provenance,
        "pairs": [asdict(each) for each in measured],
    }
