"""What options of `headrace profile` say, read from their texts."""

from pathlib import Path
from typing import get_args

import typer

from headrace.catalog.array_files import why_unread
from headrace.domain.controls import MAX_INITIAL, Control, ControlKind


def parse_shape(text: str) -> tuple[str, tuple[int, ...]]:
    """`NAME=3,48,320` or `NAME=3x48x320`."""
    name, equals, dims = text.rpartition("=")
    parts = dims.replace("x", ",").split(",") if dims else []
    if not equals or not name or not all(part.strip().isdecimal() for part in parts):
        raise typer.BadParameter(f"--shape {text!r}: expected NAME=DIMS, such as x=3,48,320")
    return name, tuple(int(part) for part in parts)


def parse_batch_axis(text: str) -> tuple[str, int | None]:
    """`NAME=1` or `NAME=none`."""
    name, _, axis = text.rpartition("=")
    if not name or not (axis == "none" or (axis.isdecimal() and len(axis) < 4)):
        raise typer.BadParameter(f"--batch-axis {text!r}: expected NAME=AXIS, such as state=1")
    return name, None if axis == "none" else int(axis)


def parse_state(text: str) -> tuple[str, str]:
    """`state=next_state`."""
    given, _, kept = text.partition("=")
    if not given or not kept:
        raise typer.BadParameter(f"--state {text!r}: expected INPUT=OUTPUT, such as state=stateN")
    return given, kept


def parse_max_output(text: str) -> tuple[str, tuple[int, ...]]:
    """`boxes=300` or `masks=300x20`."""
    name, _, lengths = text.rpartition("=")
    parts = lengths.split("x")
    if not name or not all(part.isdecimal() and len(part) < 12 for part in parts):
        raise typer.BadParameter(f"--max-output {text!r}: expected OUTPUT=N, such as boxes=300")
    return name, tuple(map(int, parts))


def parse_initial_state(text: str) -> tuple[str, tuple[float, ...]]:
    """`state=-1`, or `state=FILE.npy`, whose numbers are taken in order."""
    import numpy as np

    name, _, value = text.partition("=")
    if not name or not value:
        raise typer.BadParameter(f"--initial-state {text!r}: expected INPUT=FILE.npy or a number")
    if not value.endswith(".npy"):
        try:
            return name, (float(value),)
        except ValueError as error:
            raise typer.BadParameter(
                f"--initial-state {text!r}: {value!r} is neither a number nor a .npy file"
            ) from error
    try:
        array = np.load(Path(value), mmap_mode="r", allow_pickle=False)
    except (OSError, ValueError) as error:
        raise typer.BadParameter(
            f"--initial-state {text!r}: cannot be read: {why_unread(error)}"
        ) from error
    if array.size > MAX_INITIAL or array.dtype.kind not in "biuf":
        raise typer.BadParameter(
            f"--initial-state {text!r}: has {array.size:,} elements of {array.dtype}; at most"
            f" {MAX_INITIAL:,} numbers are kept"
        )
    return name, tuple(float(number) for number in array.ravel())


def parse_control(text: str) -> Control:
    """`begins=start`, `begins=start:-1,1` or `who=id`."""
    name, _, said = text.rpartition("=")
    kind, _, numbers = said.partition(":")
    no, _, yes = (numbers or "0,1").partition(",")
    kinds: tuple[ControlKind, ...] = get_args(ControlKind)
    known = next((each for each in kinds if each == kind), None)
    try:
        if name and known is not None and not (numbers and kind == "id"):
            return Control(input=name, kind=known, no=float(no), yes=float(yes))
    except ValueError:
        pass
    raise typer.BadParameter(
        f"--control {text!r}: expected INPUT=KIND, KIND one of {', '.join(kinds)}, such as"
        " begins=start or begins=start:-1,1"
    )
