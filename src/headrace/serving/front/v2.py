"""Open Inference Protocol (KServe v2): inference requests in, inference responses out.

Pure: bytes to `Ask`, `Answer` to `Response`. The core's `Signature` checks the tensors; here stand
JSON, binary data behind it, and which outputs are wanted in which form.
"""

import re
from collections.abc import Sequence
from typing import Any

import msgspec

from headrace.domain.base import JSON_ERRORS, MOST_PRIORITY
from headrace.serving.core.sequences import Step, step_of
from headrace.serving.core.signature import (
    MAX_TIMEOUT_US,
    CheckedInputs,
    InvalidError,
    Signature,
    TensorLayout,
    quoted,
    shape_text,
    within,
)
from headrace.serving.engine.inference import Answer, Buffer
from headrace.serving.front.http_messages import Limits, Response
from headrace.serving.front.strings import (
    from_json,
    half_character,
    in_rooms,
    split,
    texts_before,
    without_halves,
)
from headrace.serving.front.v2_answers import (
    LongAnswer,
    Sent,
    check_length,
    filled,
    number_bytes,
)
from headrace.serving.front.v2_tensors import read_json_tensor, write_json_tensor

MAX_ID_LENGTH = 256
_FRAMES_MAX = 256
"""Prepared answers per model; clients choose outputs, so their number needs a bound."""
_PLACE = re.compile(r"\(byte (\d+)\)$")
HERE = msgspec.Raw(b"\0")
"""Stands where a tensor's values will; no JSON has such a byte."""

ABSENT = msgspec.Raw(b"")


class InputParameters(msgspec.Struct, gc=False):
    binary_data_size: int | None = None
    shared_memory_region: msgspec.Raw = ABSENT


class GivenInput(msgspec.Struct, gc=False):
    name: str
    shape: list[int]
    datatype: str
    parameters: InputParameters | None = None
    data: msgspec.Raw = ABSENT


class _OutputParameters(msgspec.Struct, gc=False):
    binary_data: bool | None = None
    classification: msgspec.Raw = ABSENT
    shared_memory_region: msgspec.Raw = ABSENT


class _Output(msgspec.Struct, gc=False):
    name: str
    parameters: _OutputParameters | None = None


class _Parameters(msgspec.Struct, gc=False):
    timeout: int | None = None
    priority: int | None = None
    binary_data_output: bool | None = None
    sequence_id: int | str | None = None
    sequence_start: bool = False
    sequence_end: bool = False


class _Request(msgspec.Struct, gc=False):
    inputs: list[GivenInput]
    id: str | None = None
    parameters: _Parameters | None = None
    outputs: list[_Output] | None = None


_DECODER = msgspec.json.Decoder(_Request)
_NO_PARAMETERS = _Parameters()


class Ask(msgspec.Struct):
    """One inference request, checked; a `core.protocol.Asked`."""

    inputs: CheckedInputs
    timeout_us: int | None
    priority: int
    id: str | None
    wanted: tuple[tuple[int, bool], ...]
    """(index of the model's output, binary or JSON), in the order in which to answer."""
    step: Step | None


class BodyReader:
    """Reads the tensors of one request, in the order in which its JSON describes them."""

    __slots__ = ("at", "view")

    def __init__(self, view: memoryview, at: int) -> None:
        """`at`: where the JSON ends and binary data begin."""
        self.view = view
        self.at = at

    def read(self, tensor: GivenInput, layout: TensorLayout, items: int) -> Buffer:
        """The data of one tensor whose shape was checked; see `Signature.check`."""
        size = None if tensor.parameters is None else binary_size(tensor.parameters)
        if layout.strings:
            return in_rooms(tensor, layout, self.strings(tensor, size))
        if size is None:
            if tensor.data is ABSENT:
                raise InvalidError(no_data(tensor))
            return read_json_tensor(tensor.name, tensor.shape, tensor.data, layout, items)
        needed = items * layout.item_bytes
        if size != needed or tensor.data is not ABSENT:
            raise InvalidError(wrong_size(tensor, size, needed))
        end = self.at + size
        if end > len(self.view):
            raise InvalidError(
                f"input {quoted(tensor.name)}: the body ends {end - len(self.view)} bytes"
                f" before its {size} bytes of binary data do"
            )
        data = self.view[self.at : end]
        self.at = end
        return data

    def strings(self, tensor: GivenInput, size: int | None) -> list[bytes]:
        """Of a tensor whose binary data has `size` bytes; None: it stands in the JSON."""
        if size is None:
            if tensor.data is ABSENT:
                raise InvalidError(no_data(tensor))
            return from_json(tensor, tensor.data)
        return split(tensor, self.take(tensor, size))

    def take(self, tensor: GivenInput, size: int) -> memoryview:
        """The next bytes, of a tensor whose size its shape does not tell."""
        at, end = self.at, self.at + size
        if tensor.data is not ABSENT or size < 0 or end > len(self.view):
            raise InvalidError(wrong_size(tensor, size, max(0, len(self.view) - at), follow=True))
        self.at = end
        return self.view[at:end]


class ModelCodec:
    """Reads requests for one model and writes its answers."""

    reader: type[BodyReader] = BodyReader

    def __init__(self, signature: Signature, limits: Limits | None = None) -> None:
        self.signature = signature
        self._name = signature.model.name
        self._version = signature.model.version
        self._limits = limits or Limits()
        self._outputs = signature.outputs
        self._fixed = not any(spec.strings for spec in signature.outputs)
        self._fixed &= not signature.model.rooms
        """Whether sizes of answers follow from their shapes."""
        self._to_measure = self._measurable()
        self._all_json = tuple((i, False) for i in range(len(signature.outputs)))
        self._all_binary = tuple((i, True) for i in range(len(signature.outputs)))
        self._frames: dict[tuple[Any, ...], list[bytes]] = {}
        """(items, sizes, wanted) -> see `_frame`."""

    def _measurable(self) -> frozenset[int]:
        """Outputs whose length in JSON follows from a request, where it could be too long."""
        model = self.signature.model
        varying = {index for index, _ in model.rooms}
        found = frozenset(
            i
            for i, spec in enumerate(self._outputs)
            if not (model.app or spec.strings or i in varying)
        )
        most_bytes = model.max_items * sum(_json_bytes(self._outputs[i]) for i in found)
        return found if most_bytes > self._limits.answer_json_bytes else frozenset()

    # -- requests -----------------------------------------------------------------------------

    def decode(self, body: bytes | bytearray | memoryview, json_length: bytes | None) -> Ask:
        """Read one request.

        Args:
            body: JSON, followed by binary tensors where `json_length` is given.
            json_length: the `Inference-Header-Content-Length` header; 0: there is no JSON, and the
                body is the only input.

        Raises:
            InvalidError: anything is missing, left over, or not as the model needs it.
        """
        view = memoryview(body)
        json_end = len(body) if json_length is None else _json_end(json_length, len(body))
        if json_end > self._limits.json_bytes:
            raise InvalidError(
                f"the JSON part has {json_end} bytes, the most is {self._limits.json_bytes};"
                " send large tensors as binary data",
                "too-large",
            )
        if not view:
            raise InvalidError("the body has no JSON; an inference request is needed")
        request = _decode_json(view[:json_end]) if json_end else self._bare(len(view))
        reader = self.reader(view, json_end)
        inputs = self.signature.check(request.inputs, reader.read)
        if reader.at != len(view):
            left = len(view) - reader.at
            raise InvalidError(f"the body has {left} bytes more than its tensors need")
        parameters = request.parameters or _NO_PARAMETERS
        step = step_of(
            self.signature.model,
            parameters.sequence_id,
            parameters.sequence_start,
            parameters.sequence_end,
        )
        if request.id is not None and len(request.id) > MAX_ID_LENGTH:
            raise InvalidError(f"the id is longer than {MAX_ID_LENGTH} characters")
        timeout_us, priority = parameters.timeout, parameters.priority
        if timeout_us is not None:
            within("timeout", timeout_us, 0, MAX_TIMEOUT_US, " microseconds")
        if priority is not None:
            within("priority", priority, 0, MOST_PRIORITY)
        wanted = self._wanted(request.outputs, bool(parameters.binary_data_output))
        if self._to_measure:
            json = [i for i, binary in wanted if not binary and i in self._to_measure]
            needed_bytes = inputs.items * sum(_json_bytes(inputs.outputs[i]) for i in json)
            check_length(needed_bytes, self._limits.answer_json_bytes, "malformed")
        return Ask(
            inputs=inputs,
            timeout_us=timeout_us or None,
            priority=priority or 0,
            id=request.id,
            wanted=wanted,
            step=step,
        )

    def _bare(self, size: int) -> _Request:
        """The request whose only input is so many bytes (Triton's raw binary request)."""
        model, layouts = self.signature.model, [*self.signature.inputs.values()]
        if len(layouts) != 1 or layouts[0].strings or model.app or model.buckets:
            raise InvalidError(
                f"the body has no JSON, from which model {self._name!r} could tell its inputs; only"
                " models of one input, of numbers and of one size, do without"
            )
        layout = layouts[0]
        items = size // layout.item_bytes if layout.item_bytes else 1
        tensor = GivenInput(
            layout.name, layout.shape(items), layout.datatype, InputParameters(size)
        )
        return _Request([tensor], parameters=_Parameters(binary_data_output=True))

    def _wanted(
        self, outputs: list[_Output] | None, binary_default: bool
    ) -> tuple[tuple[int, bool], ...]:
        if not outputs:
            return self._all_binary if binary_default else self._all_json
        wanted: list[tuple[int, bool]] = []
        if len(outputs) > len(self._outputs):
            raise InvalidError(f"asks for {len(outputs)} outputs; there are {len(self._outputs)}")
        for output in outputs:
            index = self.signature.output_index.get(output.name)
            if index is None or any(index == known for known, _ in wanted):
                needed = ", ".join(repr(name) for name in self.signature.output_index)
                raise InvalidError(
                    f"output {quoted(output.name)}: unknown or asked for twice;"
                    f" model {self._name!r} has {needed}"
                )
            binary = binary_default
            if output.parameters is not None:
                _refuse_extensions(output.name, output.parameters)
                if output.parameters.binary_data is not None:
                    binary = output.parameters.binary_data
            wanted.append((index, binary))
        return tuple(wanted)

    # -- answers ------------------------------------------------------------------------------

    def encode(self, ask: Ask, answer: Answer) -> Response | LongAnswer:
        """Write the answer as the request wanted it.

        Raises:
            InvalidError: JSON was asked for, and a value is NaN, infinite, or no UTF-8, or it is
                too long.
        """
        inputs, given = ask.inputs, answer.outputs
        items = inputs.items
        outputs = inputs.outputs if self._fixed else self.signature.answered(inputs, answer)
        most_bytes = self._limits.answer_json_bytes
        sent = [
            outputs[i].as_sent(given[i], items)
            if binary
            else write_json_tensor(outputs[i], given[i], items, most_bytes)
            for i, binary in ask.wanted
        ]
        key = (items, inputs.sizes, ask.wanted)
        frame = self._frames.get(key)
        if frame is None:
            frame = self._frame(ask, outputs, sent)
            if self._fixed and len(self._frames) < _FRAMES_MAX:
                self._frames[key] = frame
        return filled(frame, sent, ask.id, most_bytes)

    def _frame(
        self, ask: Ask, layouts: Sequence[TensorLayout], sent: Sequence[Sent]
    ) -> list[bytes]:
        """The answer's JSON, but for its id: what stands around the tensors that are part of it."""
        outputs = []
        for (index, _), data in zip(ask.wanted, sent, strict=True):
            spec = layouts[index]
            described: dict[str, Any] = {
                "name": spec.name,
                "datatype": spec.datatype,
                "shape": spec.shape(ask.inputs.items),
            }
            if isinstance(data, memoryview):
                described["parameters"] = {"binary_data_size": data.nbytes}
            else:
                described["data"] = HERE
            outputs.append(described)
        document = {
            "model_name": self._name,
            "model_version": self._version,
            "outputs": outputs,
        }
        return msgspec.json.encode(document).split(bytes(HERE))


def _json_bytes(layout: TensorLayout) -> int:
    """Of one item in JSON, at most."""
    return layout.item_count * number_bytes(layout.dtype)


def _json_end(header: bytes, body_length: int) -> int:
    if not header.isdigit() or len(header) > 12:
        raise InvalidError(
            "Inference-Header-Content-Length must be a whole number,"
            f" got {quoted(header.decode('latin-1'))}"
        )
    length = int(header)
    if length > body_length:
        raise InvalidError(
            f"Inference-Header-Content-Length is {length}, but the body has {body_length} bytes"
        )
    return length


def _decode_json(text: memoryview) -> _Request:
    try:
        return _DECODER.decode(text)
    except msgspec.ValidationError as error:
        raise InvalidError(f"the inference request is not as it should be: {error}") from error
    except msgspec.DecodeError as error:
        raise InvalidError(_half_a_character(text) or malformed(error, text)) from error
    except UnicodeDecodeError as error:
        raise InvalidError("the JSON is not UTF-8") from error
    except RecursionError as error:
        raise InvalidError("the JSON is nested too deeply") from error


def _half_a_character(text: memoryview) -> str | None:
    """Of a request refused for a text in it: which one has a lone surrogate; None: none has."""
    whole = bytes(text)
    at = half_character(whole)
    if at is None:
        return None
    why = "has half a character (a lone surrogate); send whole characters"
    mended = without_halves(whole)
    try:
        inputs = _DECODER.decode(mended).inputs
    except JSON_ERRORS:
        inputs = []
    end = 0
    for tensor in inputs:
        data = bytes(tensor.data)
        start = mended.find(data, end) if data else end
        end = start + len(data)
        if start <= at < end:
            number = texts_before(data, at - start)
            return f"input {quoted(tensor.name)}: string {number} (from 0) {why}"
    return f"a text of the JSON (byte {at}) {why}"


def malformed(error: Exception, text: memoryview) -> str:
    """What is wrong with a text that is no JSON, and of usual mistakes what helps."""
    said = str(error)
    begins = bytes(text[:3])
    if begins == b"\xef\xbb\xbf" or b"\0" in begins or begins[:2] in (b"\xff\xfe", b"\xfe\xff"):
        return f"{said}; send UTF-8 without a byte order mark"
    found = _PLACE.search(said)
    at = int(found[1]) if found else 0
    if bytes(text[at : at + 9]).lstrip(b"-").startswith((b"NaN", b"Inf")):
        return f"{said}; JSON has no NaN and no infinity, which binary data can carry"
    if "trailing characters" in said and b"binary_data_size" in bytes(text[:at]):
        return f"{said}; binary data behind it needs the header Inference-Header-Content-Length"
    return said


def _refuse_extensions(name: str, parameters: _OutputParameters) -> None:
    if parameters.classification is not ABSENT:
        raise InvalidError(f"output {quoted(name)}: classification is not served here")
    if parameters.shared_memory_region is not ABSENT:
        raise InvalidError("shared memory is not served here; take the tensor from the answer")


def binary_size(parameters: InputParameters) -> int | None:
    """Of the binary data behind the JSON; None: the data stand in the JSON."""
    if parameters.shared_memory_region is not ABSENT:
        raise InvalidError("shared memory is not served here; send the tensor in the request")
    return parameters.binary_data_size


def no_data(tensor: GivenInput) -> str:
    return f"input {quoted(tensor.name)}: has neither `data` nor a `binary_data_size`"


def wrong_size(tensor: GivenInput, size: int, needed: int, *, follow: bool = False) -> str:
    """
    Args:
        needed: bytes of such a shape.
        follow: there are so many bytes, and how many are needed the shape does not tell.
    """
    where = f"input {quoted(tensor.name)}: "
    if tensor.data is not ABSENT:
        return f"{where}has both `data` and a `binary_data_size`; send one of them"
    shown = size if abs(size) < 1 << 64 else "a larger number"
    if follow:
        return f"{where}binary_data_size is {shown}, and {needed} bytes follow"
    return f"{where}binary_data_size is {shown}, shape {shape_text(tensor.shape)} needs {needed}"
