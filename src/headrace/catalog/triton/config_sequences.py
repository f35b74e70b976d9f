"""Triton's `sequence_batching`: states and control inputs, as options of `headrace profile`.

Here a step may run on any slot, so what only says how Triton gives sequences their slots is named.
An initial state from a file is refused: its bytes would have to be read as the file's author meant.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from headrace.domain.errors import DocumentError

_KINDS = {
    "CONTROL_SEQUENCE_START": "start",
    "CONTROL_SEQUENCE_END": "end",
    "CONTROL_SEQUENCE_READY": "ready",
    "CONTROL_SEQUENCE_CORRID": "id",
}
_PAIRS = ("fp32_false_true", "int32_false_true", "bool_false_true")
_NAMED = {
    "direct": "a step runs on any slot, with the state that the one before has left",
    "oldest": "a step runs on any slot, with the state that the one before has left",
    "max_sequence_idle_microseconds": "give it to `headrace serve --sequence-idle-s`",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigSequences:
    """What is carried over of it."""

    states: tuple[tuple[str, str], ...] = ()
    """(input, output)."""
    controls: tuple[tuple[str, str], ...] = ()
    """(input, `KIND` or `KIND:NO,YES`)."""

    @property
    def inputs(self) -> frozenset[str]:
        """Those that clients do not send."""
        return frozenset(name for name, _ in (*self.states, *self.controls))

    @property
    def outputs(self) -> frozenset[str]:
        """Those that clients do not get."""
        return frozenset(name for _, name in self.states)

    def options(self) -> Iterator[str]:
        """Of `headrace profile`."""
        for given, kept in self.states:
            yield from ("--state", f"{given}={kept}")
        for name, kind in self.controls:
            yield from ("--control", f"{name}={kind}")


def read_sequences(path: Path, message: Any) -> ConfigSequences:
    """
    Args:
        message: the whole ModelConfig.

    Raises:
        DocumentError: it asks for what is not served here.
    """
    if not message.HasField("sequence_batching"):
        return ConfigSequences()
    batching = message.sequence_batching
    where = f"{path}: sequence_batching"
    if not batching.state:
        raise DocumentError(
            f"{where}: declares no `state`: what the model keeps itself between requests, no ONNX"
            " model can"
        )
    if batching.iterative_sequence:
        raise DocumentError(f"{where}: iterative_sequence: a request is one step here")
    for state in batching.state:
        for initial in state.initial_state:
            if initial.HasField("data_file"):
                raise DocumentError(
                    f"{where}: state {state.input_name!a} begins with a file; leave it out and give"
                    f" the numbers to `headrace profile --initial-state"
                    f" {state.input_name!a}=FILE.npy`"
                )
    return ConfigSequences(
        states=tuple((state.input_name, state.output_name) for state in batching.state),
        controls=tuple(
            (given.name, _kind(where, given.name, control))
            for given in batching.control_input
            for control in given.control
        ),
    )


def not_carried(message: Any) -> Iterator[str]:
    """`FIELD: why not`."""
    for field, value in message.sequence_batching.ListFields():
        if field.name in _NAMED and (value or field.message_type is not None):
            yield f"sequence_batching.{field.name}: {_NAMED[field.name]}"


def _kind(where: str, name: str, control: Any) -> str:
    enum = control.DESCRIPTOR.fields_by_name["kind"].enum_type
    kind = _KINDS[enum.values_by_number[control.kind].name]
    if kind == "id":
        return kind
    pairs = [list(getattr(control, field)) for field in _PAIRS if getattr(control, field)]
    if len(pairs) != 1 or len(pairs[0]) != 2:
        raise DocumentError(
            f"{where}: control_input {name!a}: needs one of {', '.join(_PAIRS)}, of two values"
        )
    no, yes = (float(value) for value in pairs[0])
    return kind if (no, yes) == (0, 1) else f"{kind}:{no:g},{yes:g}"
