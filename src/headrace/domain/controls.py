"""Inputs of a model that keeps state which the server fills in: what a step is to its sequence."""

from collections.abc import Mapping, Sequence
from typing import Literal

from headrace.domain.base import Record
from headrace.domain.errors import ProfileError

ControlKind = Literal["start", "end", "ready", "id"]
"""start, end: whether the step is its sequence's first, or last; ready: that there is one, always
true; id: the sequence's own."""

MAX_INITIAL = 1 << 16
"""Numbers of one initial state; they are part of the profile."""


class Control(Record, frozen=True, kw_only=True):
    """One such input."""

    input: str
    kind: ControlKind
    no: float = 0.0
    yes: float = 1.0
    """What stands for false and for true, in every place of the input; not of an "id"."""


def check_controls(
    where: str,
    controls: Sequence[Control],
    initial: Mapping[str, Sequence[float]],
    states: Sequence[str],
    inputs: Mapping[str, tuple[str, int]],
) -> None:
    """
    Args:
        initial: of states, by input.
        states: inputs that are states.
        inputs: name -> type, and numbers of an item.

    Raises:
        ProfileError: a control or an initial state does not fit the model's inputs, or nothing is
            left to ask for.
    """
    named = [control.input for control in controls]
    for name in named:
        if name not in inputs or name in states or named.count(name) > 1:
            raise ProfileError(
                f"{where}: a control needs an input of its own, which is no state: {name!r}"
            )
    if controls and not states:
        raise ProfileError(f"{where}: controls tell a model that keeps state, and it declares none")
    if controls and len(named) + len(states) == len(inputs):
        raise ProfileError(f"{where}: every input is a state or a control; nothing is asked for")
    for control in controls:
        dtype = inputs[control.input][0]
        if control.kind == "id" and dtype.startswith("float"):
            raise ProfileError(f"{where}: an id does not fit into {control.input!r}, {dtype}")
        if control.kind != "id" and dtype == "bytes":
            raise ProfileError(f"{where}: {control.input!r} holds strings, and needs numbers")
    for name, values in initial.items():
        if name not in states:
            raise ProfileError(f"{where}: {name!r} is no state, so it has no initial one")
        dtype, count = inputs[name]
        if dtype in ("bytes", "bfloat16") or len(values) not in (1, count) or count > MAX_INITIAL:
            raise ProfileError(
                f"{where}: the initial state of {name!r} needs {count} numbers, or one for all, and"
                f" at most {MAX_INITIAL:,} are kept; it has {len(values)}"
            )
