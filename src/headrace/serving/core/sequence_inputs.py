"""What the server fills in of a model that keeps state: states at the start, and controls."""

from typing import TYPE_CHECKING, Any

import numpy as np

from headrace.domain.controls import Control
from headrace.domain.elements import element_dtype, pack, raw
from headrace.domain.tensors import TensorSpec
from headrace.serving.core.signature import InvalidError, quoted
from headrace.serving.engine.inference import Buffer, ServedModel

if TYPE_CHECKING:
    from headrace.serving.core.sequences import Step


def initial_states(model: ServedModel) -> tuple[Buffer, ...]:
    """The states of a sequence's first step, one for each of `model.states`: zeros, or what the
    profile says."""
    said = dict(model.initial_states)
    found = []
    for index, _ in model.states:
        spec = model.inputs[index]
        item: Any = np.zeros(spec.item_shape, element_dtype(spec))
        if spec.name in said:
            item[...] = np.resize(said[spec.name], spec.item_shape)
        found.append(raw(item).tobytes())
    return tuple(found)


class Controls:
    """Of one model. O(1) per step: but for ids, each is one of two arrays."""

    def __init__(self, model: ServedModel) -> None:
        index = {spec.name: i for i, spec in enumerate(model.inputs)}
        self._of = [
            (index[control.input], model.inputs[index[control.input]], control)
            for control in model.controls
        ]
        self._held = {
            (at, told): _filled(spec, control.yes if told else control.no)
            for at, spec, control in self._of
            if control.kind != "id"
            for told in (False, True)
        }

    def buffers(self, step: "Step") -> dict[int, Buffer]:
        """Input -> its item in this step.

        Raises:
            InvalidError: the sequence's name does not fit into its input.
        """
        return {
            at: _named(spec, step.sequence)
            if control.kind == "id"
            else self._held[at, _is_so(control, step)]
            for at, spec, control in self._of
        }


def _is_so(control: Control, step: "Step") -> bool:
    return {"start": step.start, "end": step.end}.get(control.kind, True)


def _filled(spec: TensorSpec, value: float) -> bytes:
    return np.full(spec.item_shape, value, element_dtype(spec)).tobytes()


def _named(spec: TensorSpec, sequence: int | str) -> bytes:
    try:
        if spec.dtype == "bytes":
            rooms = np.zeros(spec.item_shape, element_dtype(spec))
            pack([str(sequence).encode()] * rooms.size, rooms)
            return rooms.tobytes()
        if isinstance(sequence, str):
            raise InvalidError(
                f"sequence {quoted(sequence)}: this model takes whole numbers as a sequence_id"
            )
        return np.full(spec.item_shape, sequence, element_dtype(spec)).tobytes()
    except (OverflowError, ValueError) as error:
        raise InvalidError(
            f"sequence {quoted(str(sequence))}: the model's input {spec.name!r} has no room for it"
        ) from error
