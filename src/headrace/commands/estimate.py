"""`headrace estimate`: what a model would cost on devices one does not own."""

from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from headrace.commands.output import console, next_step, note, print_json, wrote

if TYPE_CHECKING:
    from headrace.domain.profile import BlockTimes, Profile


def estimate(
    model: Annotated[Path, typer.Argument(help="ONNX file; weights inside, batch dimension free.")],
    device: Annotated[
        list[str],
        typer.Option(help="L4, T4, P4, V100, A10, A100, H100, H200 or cpu; may be repeated."),
    ],
    blocks: Annotated[
        int, typer.Option(help="Cut into this many blocks of about equal estimated time.")
    ] = 10,
    max_batch: Annotated[int, typer.Option(help="Estimate every batch size from 1 to this.")] = 8,
    shares: Annotated[
        str, typer.Option(help="Shares of a device to estimate, such as 1,1/2,1/4.")
    ] = "1",
    shape: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=DIMS",
            help="Item shape of an input whose dimensions are free: x=3,48,320.",
        ),
    ] = None,
    like: Annotated[
        Path | None,
        typer.Option(help="Profile of this model to extend: its cuts are taken, its timings kept."),
    ] = None,
    calibrate: Annotated[
        Path | None,
        typer.Option(
            help="Measured profile of this model: how its blocks differ from the roofline there"
            " carries over."
        ),
    ] = None,
    name: Annotated[str | None, typer.Option(help="Model name (default: the file's).")] = None,
    cut_tensors: Annotated[int, typer.Option(help="Most tensors that may cross a cut.")] = 1,
    out: Annotated[
        Path | None,
        typer.Option("-o", "--out", help="Profile to write (default: NAME.estimate.json)."),
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print the estimate as JSON.")] = False,
) -> None:
    """Estimate a profile for devices you do not own, from operators and public figures.

    Every estimate states its error bar: enough to see whether a GPU is worth renting, not to
    promise an SLO. Measure before you serve.

    [dim]headrace estimate model.onnx --device L4 --like model.profile.json -o mixed.json[/dim]
    """
    from headrace.catalog.documents import read_profile, write_document
    from headrace.catalog.whole_file import check_writable
    from headrace.commands.profile_values import parse_shape
    from headrace.profiling.estimate import EstimateOptions, estimate_model
    from headrace.profiling.profiler import legal_name

    target = out or Path(f"{name or legal_name(model.stem)}.estimate.json")
    check_writable(target, *filter(None, (model, like, calibrate)))
    options = EstimateOptions(
        devices=tuple(device),
        blocks=blocks,
        max_batch=max_batch,
        shares=_shares(shares),
        shapes=dict(parse_shape(text) for text in shape or ()),
        name=name,
        cut_tensors=cut_tensors,
        like=read_profile(like) if like else None,
        calibrate=read_profile(calibrate) if calibrate else None,
        profile_folder=target.parent,
    )
    estimated = estimate_model(model, options)
    write_document(estimated, target)
    if json:
        print_json(
            {
                "profile": str(target),
                "model": estimated.model,
                "provenance": estimated.provenance,
                "block_times": estimated.block_times,
                "whole": [_whole(times) for times in estimated.block_times],
            }
        )
    else:
        _print_table(estimated)
    for said in estimated.provenance.notes:
        note(said)
    wrote(target)
    next_step("headrace plan problem.yaml -o plan.json   (`headrace schema problem`: its format)")


def _shares(text: str) -> tuple[Fraction, ...]:
    try:
        return tuple(Fraction(part.strip()) for part in text.split(","))
    except (ValueError, ZeroDivisionError) as error:
        raise typer.BadParameter(f"--shares {text!r}: expected fractions, as in 1,1/2") from error


def _print_table(estimated: "Profile") -> None:
    from rich import box

    from headrace.reporting.readable import ReadableTable, figures

    error = estimated.provenance.error_fraction or 0.0
    numbers = (
        "share",
        "batch 1, ms\np50 / p99",
        "largest batch, ms\np50 / p99",
        "at most\nitems/s",
    )
    table = ReadableTable(
        "device",
        *map(figures, numbers),
        title=f"{estimated.model}, {len(estimated.blocks)} blocks, estimates +-{error:.0%}",
        title_justify="left",
        box=box.SIMPLE_HEAD,
    )
    for whole in map(_whole, estimated.block_times):
        p50_us, p99_us = whole.p50_us, whole.p99_us
        cells = [f"{p50_us[b] / 1000:.2f} / {p99_us[b] / 1000:.2f}" for b in (0, -1)]
        table.add_row(whole.device, str(whole.share), *cells, f"{whole.most_items_per_s:.0f}")
    console.print(table)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Whole:
    """All blocks together on a device type, by batch size."""

    device: str
    share: Fraction
    p50_us: tuple[int, ...]
    p99_us: tuple[int, ...]
    most_items_per_s: float
    """At the batch size that carries most."""


def _whole(times: "BlockTimes") -> _Whole:
    p50_us, p99_us = (
        tuple(sum(column) for column in zip(*rows, strict=True))
        for rows in (times.p50_us, times.p99_us)
    )
    return _Whole(
        device=times.device,
        share=times.share,
        p50_us=p50_us,
        p99_us=p99_us,
        most_items_per_s=max(size * 1e6 / took_us for size, took_us in enumerate(p50_us, start=1)),
    )
