"""Inference requests and answers in the protocol's messages.

Pure: messages to `Ask`, `Answer` to bytes. The core's `Signature` checks the tensors; here stand
raw and typed contents, and which outputs are wanted. Answers carry raw contents, as Triton's do.
"""

from collections.abc import Sequence
from typing import Any

import msgspec
import numpy as np
from google.protobuf.message import DecodeError  # type: ignore[import-untyped]
from numpy.typing import NDArray

from headrace.domain.base import MOST_PRIORITY
from headrace.serving.core.sequences import Step, step_of
from headrace.serving.core.signature import (
    MAX_TIMEOUT_US,
    CheckedInputs,
    InvalidError,
    Signature,
    TensorLayout,
    quoted,
    within,
)
from headrace.serving.engine.inference import Answer, AppAnswer, Buffer, ServedModel
from headrace.serving.front.grpc.messages import message
from headrace.serving.front.grpc.wire import Parts, field_head
from headrace.serving.front.strings import as_objects, in_rooms, split
from headrace.serving.front.v2 import MAX_ID_LENGTH
from headrace.serving.front.v2_apps import array_of, to_binary

_Request = message("ModelInferRequest")
_Response = message("ModelInferResponse")
_HEADS_MAX = 256
"""Prepared answer heads per model; clients choose outputs, so their number needs a bound."""
_ID, _RAW_OUTPUT = 3, 6
"""Numbers of the answer's fields."""

_CONTENTS = {
    "BOOL": "bool_contents",
    "INT8": "int_contents",
    "INT16": "int_contents",
    "INT32": "int_contents",
    "INT64": "int64_contents",
    "UINT8": "uint_contents",
    "UINT16": "uint_contents",
    "UINT32": "uint_contents",
    "UINT64": "uint64_contents",
    "FP32": "fp32_contents",
    "FP64": "fp64_contents",
    "BYTES": "bytes_contents",
}
"""Where typed contents of a data type stand; FP16 and BF16 have raw contents only."""
FINAL_WANTED = "triton_enable_empty_final_response"
_FINAL = _Response()
_FINAL.parameters["triton_final_response"].bool_param = True
_FINAL_BYTES: bytes = _FINAL.SerializeToString()


class GivenInput(msgspec.Struct):
    """An input as a client describes it."""

    name: str
    datatype: str
    shape: list[int]
    raw: memoryview | None
    contents: Any
    """`InferTensorContents`, perhaps empty."""


class Ask(msgspec.Struct):
    """One inference request, checked; a `core.protocol.Asked`."""

    inputs: CheckedInputs
    timeout_us: int | None
    priority: int
    id: str
    wanted: tuple[int, ...]
    """Indices of the model's outputs, in the order in which to answer."""
    final: bool
    """Whether each answer is to say that it is a request's last."""
    step: Step | None


class MessageCodec:
    """Reads requests for one model and writes its answers."""

    def __init__(self, signature: Signature) -> None:
        self.signature = signature
        self._all = tuple(range(len(signature.outputs)))
        self._heads: dict[tuple[Any, ...], bytes] = {}
        """(items, sizes, wanted) -> the answer without id and contents."""

    # -- requests -----------------------------------------------------------------------------

    def decode(self, parts: Parts, call_timeout_us: int | None) -> Ask:
        """Read one request.

        Args:
            call_timeout_us: what gRPC's own deadline leaves. It may shorten the objective, and
                never stretches it: clients give calls a generous limit as a matter of habit.

        Raises:
            InvalidError: anything is missing, left over, or not as the model needs it.
        """
        request = _parse(parts)
        model = self.signature.model
        if request.model_version not in ("", model.version):
            sentence = f"model {model.name!r} has version {model.version} only"
            raise InvalidError(sentence, "unknown-model")
        if len(request.id) > MAX_ID_LENGTH:
            raise InvalidError(f"the id is longer than {MAX_ID_LENGTH} characters")
        timeout_us, priority, final, step = None, None, False, None
        if parts.has_parameters:
            parameters = request.parameters
            step = _step(model, parameters)
            timeout_us = _whole(parameters, "timeout")
            priority = _whole(parameters, "priority")
            final = FINAL_WANTED in parameters and parameters[FINAL_WANTED].bool_param
            if timeout_us is not None:
                within("timeout", timeout_us, 0, MAX_TIMEOUT_US, " microseconds")
            if priority is not None:
                within("priority", priority, 0, MOST_PRIORITY)
        else:
            step_of(model, None, False, False)
        timeout_us = timeout_us or None
        inputs = self.signature.check(_given(request, parts.raw), self.read)
        if call_timeout_us is not None and call_timeout_us < (timeout_us or model.slo_us):
            timeout_us = max(1, call_timeout_us)
        wanted = self._wanted(request.outputs) if request.outputs else self._all
        return Ask(inputs, timeout_us, priority or 0, request.id, wanted, final, step)

    def step_of(self, parts: Parts) -> Step | None:
        """Which step the request is, even where `decode` refuses it; None: it does not say."""
        try:
            return _step(self.signature.model, _parse(parts).parameters)
        except InvalidError:
            return None

    def read(self, tensor: GivenInput, layout: TensorLayout, items: int) -> Buffer:
        """The data of one tensor whose shape was checked; see `Signature.check`."""
        if layout.strings:
            return in_rooms(tensor, layout, _strings(tensor))
        if tensor.raw is None:
            return _typed(tensor, layout, items * layout.item_count)
        needed = items * layout.item_bytes
        if len(tensor.raw) != needed:
            raise InvalidError(_wrong_size(tensor, len(tensor.raw), needed))
        return tensor.raw

    def _wanted(self, outputs: Any) -> tuple[int, ...]:
        known = self.signature.output_index
        if len(outputs) > len(known):
            raise InvalidError(f"asks for {len(outputs)} outputs; there are {len(known)}")
        wanted: list[int] = []
        for output in outputs:
            index = known.get(output.name)
            if index is None or index in wanted:
                needed = ", ".join(map(repr, known))
                raise InvalidError(
                    f"output {quoted(output.name)}: unknown or asked for twice;"
                    f" model {self.signature.model.name!r} has {needed}"
                )
            if "classification" in output.parameters:
                raise InvalidError(f"output {quoted(output.name)}: classification is not served")
            if "shared_memory_region" in output.parameters:
                raise InvalidError("shared memory is not served here; take the answer's tensor")
            wanted.append(index)
        return tuple(wanted)

    # -- answers ------------------------------------------------------------------------------

    def encode(self, ask: Ask, answer: Answer) -> list[bytes | memoryview]:
        """The answer's message, in pieces."""
        items = ask.inputs.items
        specs = self.signature.answered(ask.inputs, answer)
        key = (items, ask.inputs.sizes, ask.wanted)
        head = self._heads.get(key)
        if head is None:
            head = self._head(ask.wanted, [spec.shape(items) for spec in specs])
            if len(self._heads) < _HEADS_MAX and not self.signature.model.rooms:
                self._heads[key] = head
        outputs = [specs[index].as_sent(answer.outputs[index], items) for index in ask.wanted]
        return _pieces(ask, head, outputs)

    def _head(self, wanted: Sequence[int], shapes: Sequence[Sequence[int]]) -> bytes:
        model = self.signature.model
        response = _Response(model_name=model.name, model_version=model.version)
        for index in wanted:
            spec = self.signature.outputs[index]
            response.outputs.add(name=spec.name, datatype=spec.datatype, shape=shapes[index])
        written: bytes = response.SerializeToString()
        return written


class AppMessageCodec(MessageCodec):
    """Each tensor is an array of its own shape."""

    def read(self, tensor: GivenInput, layout: TensorLayout, items: int) -> Buffer:
        if layout.strings:
            return as_objects(tensor, _strings(tensor))
        if tensor.raw is not None:
            return array_of(tensor, layout, tensor.raw, _wrong_size)
        needed = 1
        for dim in tensor.shape:
            needed *= dim
        return _typed(tensor, layout, needed).reshape(tensor.shape)

    def encode(self, ask: Ask, answer: Answer) -> list[bytes | memoryview]:
        assert isinstance(answer, AppAnswer), "an app's answers hold its tensors"
        head = self._head(ask.wanted, [array.shape for array in answer.tensors])
        return _pieces(ask, head, [to_binary(answer.tensors[index]) for index in ask.wanted])


def codec_of(signature: Signature) -> MessageCodec:
    return (AppMessageCodec if signature.model.app else MessageCodec)(signature)


def _parse(parts: Parts) -> Any:
    try:
        return _Request.FromString(bytes(parts.head))
    except DecodeError as error:
        raise InvalidError("the message is no ModelInferRequest") from error


def _given(request: Any, raw: list[memoryview]) -> list[GivenInput]:
    inputs = request.inputs
    if raw and len(raw) != len(inputs):
        raise InvalidError(
            f"{len(inputs)} inputs and {len(raw)} raw_input_contents; each input needs one"
        )
    given = []
    for number, tensor in enumerate(inputs):
        if tensor.parameters and "shared_memory_region" in tensor.parameters:
            raise InvalidError("shared memory is not served here; send the tensor in the request")
        if raw and tensor.HasField("contents"):
            raise InvalidError(
                f"input {quoted(tensor.name)}: has both `contents` and raw_input_contents; send one"
            )
        given.append(
            GivenInput(
                tensor.name,
                tensor.datatype,
                list(tensor.shape),
                raw[number] if raw else None,
                tensor.contents,
            )
        )
    return given


def _strings(tensor: GivenInput) -> list[bytes]:
    if tensor.raw is None:
        return list(tensor.contents.bytes_contents)
    return split(tensor, tensor.raw)


def _typed(tensor: GivenInput, layout: TensorLayout, needed: int) -> NDArray[Any]:
    """Typed contents as an array of `needed` elements."""
    where = f"input {quoted(tensor.name)}: "
    name = _CONTENTS.get(layout.datatype)
    if name is None:
        raise InvalidError(f"{where}{layout.datatype} has no typed contents; send it raw")
    values = getattr(tensor.contents, name)
    if len(values) != needed:
        raise InvalidError(f"{where}its shape needs {needed} {name}, got {len(values)}")
    if layout.dtype.kind in "iu" and needed:
        limits = np.iinfo(layout.dtype)
        if not (limits.min <= min(values) and max(values) <= limits.max):
            raise InvalidError(f"{where}a number does not fit into {layout.datatype}")
    return np.array(values, dtype=layout.dtype)


def _step(model: ServedModel, parameters: Any) -> Step | None:
    sequence = None
    if "sequence_id" in parameters:
        given = parameters["sequence_id"]
        which = given.WhichOneof("parameter_choice")
        if which not in ("int64_param", "uint64_param", "string_param"):
            raise InvalidError("parameter 'sequence_id' must be a whole number or a text")
        sequence = getattr(given, which)
    start, end = (_truth(parameters, name) for name in ("sequence_start", "sequence_end"))
    return step_of(model, sequence, start, end)


def _truth(parameters: Any, name: str) -> bool:
    if name not in parameters:
        return False
    if parameters[name].WhichOneof("parameter_choice") != "bool_param":
        raise InvalidError(f"parameter {name!r} must be true or false")
    return bool(parameters[name].bool_param)


def _whole(parameters: Any, name: str) -> int | None:
    if name not in parameters:
        return None
    given = parameters[name]
    which = given.WhichOneof("parameter_choice")
    if which not in ("int64_param", "uint64_param"):
        raise InvalidError(f"parameter {name!r} must be a whole number")
    value: int = getattr(given, which)
    return value


def _pieces(ask: Ask, head: bytes, outputs: Sequence[memoryview]) -> list[bytes | memoryview]:
    if ask.id:
        name = ask.id.encode()
        head += field_head(_ID, len(name)) + name
    if ask.final:
        head += _FINAL_BYTES
    pieces: list[bytes | memoryview] = [head]
    for output in outputs:
        pieces.append(field_head(_RAW_OUTPUT, output.nbytes))
        pieces.append(output)
    return pieces


def _wrong_size(tensor: GivenInput, size: int, needed: int) -> str:
    return f"input {quoted(tensor.name)}: raw contents have {size} bytes, its shape needs {needed}"
