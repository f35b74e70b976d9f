"""`headrace profile`: what a model costs, block by block."""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from headrace.commands.ending import orderly_end
from headrace.commands.output import console, next_step, note, notices, print_json, wrote
from headrace.commands.studies import RAY, AddressOption, check_cluster

if TYPE_CHECKING:
    from headrace.profiling.options import OnProgress


class Boundary(StrEnum):
    """Precision of float tensors between stages."""

    FLOAT32 = "float32"
    FLOAT16 = "float16"


class Stages(StrEnum):
    """Which stages to measure whole."""

    SPLITS = "splits"
    ALL = "all"
    NONE = "none"


_WIDE = 110
"""Columns of a terminal that fits tensor names."""

_REDRAW_S = 0.2
_STEPS = {
    "read": "reading",
    "cut": "cutting",
    "time": "timing",
    "parts": "parts",
    "layers": "layers",
}


@orderly_end()
def profile(
    model: Annotated[
        Path, typer.Argument(help="ONNX file, its weights inside or beside it; or .pt2 of PyTorch.")
    ],
    device: Annotated[
        str | None,
        typer.Option(
            help="What to measure on. cpu: one core is one slot; cuda: an NVIDIA GPU (default: cpu;"
            " with --cluster every kind of both that is there).",
            show_default=False,
        ),
    ] = None,
    blocks: Annotated[
        int, typer.Option(help="Cut into this many blocks of about equal run time.")
    ] = 10,
    max_batch: Annotated[int, typer.Option(help="Measure every batch size from 1 to this.")] = 8,
    shape: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=DIMS",
            help="Item shape of an input whose dimensions are free, without the batch:"
            " x=3,48,320. Without it common shapes are tried. Or the sizes to measure of a dynamic"
            " dimension, by its name in the file, the largest that is served among them:"
            " tokens=64,128,512; several make a grid.",
        ),
    ] = None,
    batch_axis: Annotated[
        list[str] | None,
        typer.Option(
            "--batch-axis",
            metavar="NAME=AXIS",
            help="Which dimension of an input or output, from 0, is the batch, where it is not"
            " found, or the model is to be batched although its items influence each other:"
            " state=1; or none, and the model is served one request per run: x=none.",
            show_default=False,
        ),
    ] = None,
    inputs: Annotated[
        list[str] | None,
        typer.Option(
            metavar="[NAME=]FILE.npy",
            help="Real items, shape (items, ...), to check the cuts and to measure with.",
        ),
    ] = None,
    state: Annotated[
        list[str] | None,
        typer.Option(
            "--state",
            metavar="INPUT=OUTPUT",
            help="Keep this state for clients, who ask in sequences: the output of one request is"
            " the input of the next, and zeros in the first. Repeatable.",
            show_default=False,
        ),
    ] = None,
    initial_state: Annotated[
        list[str] | None,
        typer.Option(
            "--initial-state",
            metavar="INPUT=FILE.npy",
            help="What a state is in the first request of a sequence, where not zeros: one item, or"
            " a number for all of it, state=-1. Repeatable.",
            show_default=False,
        ),
    ] = None,
    control: Annotated[
        list[str] | None,
        typer.Option(
            "--control",
            metavar="INPUT=KIND",
            help="An input that the server fills in of each request of a sequence: start, end,"
            " ready (1, else 0; others: begins=start:-1,1) or id. Repeatable.",
            show_default=False,
        ),
    ] = None,
    max_output: Annotated[
        list[str] | None,
        typer.Option(
            "--max-output",
            metavar="OUTPUT=N",
            help="The most that an output can have whose length depends on what is in the inputs,"
            " where the model does not say: boxes=300; 300x20 where two dimensions do. Repeatable.",
            show_default=False,
        ),
    ] = None,
    max_string_bytes: Annotated[
        int,
        typer.Option(
            help="Longest string that may enter or leave, in bytes, where the model has strings;"
            " each takes as much memory."
        ),
    ] = 4096,
    name: Annotated[str | None, typer.Option(help="Model name (default: the file's).")] = None,
    boundary: Annotated[
        Boundary, typer.Option(help="Precision between stages; float16 halves what is transferred.")
    ] = Boundary.FLOAT32,
    stages: Annotated[
        Stages,
        typer.Option(
            help="Also measure whole: splits = every prefix and suffix; all = every range;"
            " none = stages are sums of their blocks."
        ),
    ] = Stages.SPLITS,
    cut_tensors: Annotated[int, typer.Option(help="Most tensors that may cross a cut.")] = 1,
    budget_s: Annotated[
        float, typer.Option(help="Seconds for timing; more gives a better p99.")
    ] = 60.0,
    grid_tolerance: Annotated[
        float,
        typer.Option(
            help="Leave out batch sizes whose latency lies on a line between others within this, as"
            " 0.03; the profile says which were measured. 0: all are."
        ),
    ] = 0.0,
    shares: Annotated[
        list[str] | None,
        typer.Option(
            metavar="1/2,…",
            help="Parts of a core to offer besides whole ones, for problems with fewer cores than"
            " machines: a core's busy slots get equal parts of its time. Of a GPU: measured, each"
            " in a process that has it by NVIDIA's multi-process service.",
        ),
    ] = None,
    plot: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE.svg|FILE.png",
            help="Also draw latency and throughput over batch sizes and shares, as PNG where the"
            " file is named so, else as SVG; needs matplotlib"
            " (pip install 'headrace\\[plot]').",
            show_default=False,
        ),
    ] = None,
    cores: Annotated[
        str | None,
        typer.Option(
            metavar="1,2,…",
            help="Numbers of cores to measure on, for a device type with as many `cores` as the"
            " largest: k of n cores are its share k/n. Not with --shares.",
            show_default=False,
        ),
    ] = None,
    layers: Annotated[
        bool,
        typer.Option(
            "--layers",
            help="Also measure what starts are planned of (`headrace plan --provision`): of each"
            " layer the time to load it, to run it loaded, and to run it in place. Takes as long"
            " again, and on a CPU temporary files of the size of the weights.",
        ),
    ] = False,
    cluster: Annotated[
        str | None,
        typer.Option(
            "--cluster",
            metavar=RAY,
            help="Measure once on every kind of node of a Ray cluster, whose device types are those"
            " of `headrace nodes -o`. This machine will have the gateway, and measures that.",
            show_default=False,
        ),
    ] = None,
    address: AddressOption = None,
    cache: Annotated[
        bool, typer.Option("--cache/--no-cache", help="Take the result if measured before.")
    ] = True,
    out: Annotated[
        Path | None,
        typer.Option("-o", "--out", help="Profile to write (default: NAME.profile.json)."),
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print the summary as JSON.")] = False,
) -> None:
    """Cut a model into blocks, check that the cut model answers alike, and time it.

    [dim]headrace profile recogniser.onnx --device cpu --blocks 10 -o recogniser.profile.json[/dim]

    [dim]headrace profile recogniser.onnx --cluster ray -o recogniser.profile.json[/dim]
    """
    from headrace.catalog.documents import write_document
    from headrace.catalog.whole_file import check_distinct, check_writable
    from headrace.commands.profile_besides import step_s, with_besides
    from headrace.commands.profile_on_ray import profile_on_ray
    from headrace.commands.profile_values import (
        parse_batch_axis,
        parse_control,
        parse_initial_state,
        parse_max_output,
        parse_shape,
        parse_state,
    )
    from headrace.domain.errors import ModelError
    from headrace.executors.table import measurement
    from headrace.profiling.core_counts import parse_cores
    from headrace.profiling.device_parts import has_parts, refuse_undivided
    from headrace.profiling.layers import require_measurable
    from headrace.profiling.one_device import ProfileTask, profile_device
    from headrace.profiling.options import ProfileOptions
    from headrace.profiling.profiler import legal_name
    from headrace.profiling.shares import parse_shares
    from headrace.reporting.profile_plot import check_plots, plot_profile
    from headrace.reporting.profile_table import profile_report, profile_summary

    check_cluster(cluster, address)
    here = device or "cpu"
    parts, core_counts = parse_shares(shares or ()), parse_cores(cores)
    if parts and core_counts:
        raise ModelError("--cores: measures whole cores; leave out --shares, parts of one")
    divided = any(share < 1 for share in parts) and cluster is None
    if divided and measurement(here).machine is not None:
        refuse_undivided(here)
    target = out or Path(f"{name or legal_name(model.stem)}.profile.json")
    sources = (model, *(path for _, path in map(_example, inputs or ())))
    check_writable(target, *sources)
    if layers and cluster is None:
        require_measurable(measurement(here), "onnx")
    if plot is not None:
        check_writable(plot, *sources)
        check_distinct(target, plot)
        check_plots()
    options = ProfileOptions(
        device=here if cluster is None else "cpu",
        blocks=blocks,
        max_batch=max_batch,
        shapes=dict(parse_shape(text) for text in shape or ()),
        batch_axes=dict(parse_batch_axis(text) for text in batch_axis or ()),
        examples=dict(_example(text) for text in inputs or ()),
        states=dict(parse_state(text) for text in state or ()),
        initial_states=dict(parse_initial_state(text) for text in initial_state or ()),
        controls=tuple(parse_control(text) for text in control or ()),
        max_outputs=dict(parse_max_output(text) for text in max_output or ()),
        max_string_bytes=max_string_bytes,
        name=name,
        boundary=boundary.value,
        stages=stages.value,
        cut_tensors=cut_tensors,
        budget_s=budget_s,
        grid_tolerance=grid_tolerance,
        use_cache=cache,
        profile_folder=target.parent,
    )
    task = ProfileTask(options=options, shares=parts, core_counts=core_counts, layers=layers)
    told: set[str] = set()
    steps = ["cut", "time"]
    if divided and has_parts(here):
        steps.append("parts")
    if layers:
        steps.append("layers")
    if cluster is None:
        with _progress(told, [""], steps) as progress:
            measured = profile_device(model, task, progress(""))
        measured = with_besides(measured, here, step_s(budget_s), model_folder=target.parent)
    else:
        bars = partial(_progress, told, steps=steps)
        measured = profile_on_ray(model, task, device, address, bars)
    write_document(measured, target)
    if plot is not None:
        plot_profile(measured, measured.devices[0], plot)
    if json:
        print_json(profile_summary(measured, target))
    else:
        console.print(profile_report(measured, wide=console.width >= _WIDE))
    for said in measured.provenance.notes:
        if said not in told:
            note(said)
    wrote(target)
    if cluster is not None:
        next_step("headrace nodes -o cluster.yaml   (the cluster part of a problem)")
    else:
        next_step(
            "headrace plan problem.yaml -o plan.json   (`headrace schema problem`: its format)"
        )


def _example(text: str) -> tuple[str, Path]:
    name, _, path = text.rpartition("=")
    return name, Path(path)


@contextmanager
def _progress(
    told: set[str], places: Sequence[str], steps: Sequence[str]
) -> "Iterator[Callable[[str], OnProgress]]":
    """Show steps as bars, of each place its own, and notices as lines.

    Args:
        told: collects the notices, as they will stand in the profile.
        places: what is measured on; one of no name is this machine.
    """
    from rich.progress import BarColumn, TaskProgressColumn, TextColumn, TimeRemainingColumn
    from rich.progress import Progress as Bars

    from headrace.profiling.options import ProfileProgress

    columns = (
        TextColumn("{task.description:8}"),
        BarColumn(),
        TaskProgressColumn(),
        TimeRemainingColumn(),
    )
    # No refresh thread: it would hold the interpreter's lock while a run that is being timed
    # returns. Reports come between runs, and that is when the bars are drawn.
    with Bars(*columns, console=notices, transient=True, auto_refresh=False) as bars:
        tasks = {
            (place, step): bars.add_task(f"{place} {_STEPS[step]}".lstrip(), total=1.0)
            for place in places
            for step in steps
        }
        drawn_at_s = 0.0

        def report(place: str, progress: ProfileProgress) -> None:
            nonlocal drawn_at_s
            if progress.notice is not None:
                said = f"{place}: {progress.notice}" if place else progress.notice
                told.update((progress.notice, said))
                note(said)
            if (place, progress.step) in tasks:
                bars.update(tasks[place, progress.step], completed=progress.done)
            if time.monotonic() - drawn_at_s >= _REDRAW_S:
                bars.refresh()
                drawn_at_s = time.monotonic()

        yield lambda place: partial(report, place)
