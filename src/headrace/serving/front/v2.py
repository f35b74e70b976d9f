"""Open Inference Protocol (KServe v2): inference requests in, inference responses out.

Pure: bytes to `Ask`, `Answer` to `Response`. Sizes are compared with what the model's tensors
need before anything is converted, so a request can take no memory that its own bytes do not
justify.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np

from headrace.serving.engine.inference import Answer, Buffer, ServedModel
from headrace.serving.front.http_messages import BINARY, Response
from headrace.serving.front.v2_tensors import (
    RequestError,
    Tensor,
    check_bools,
    quoted,
    read_json_tensor,
    shape_text,
    tensor_of,
)

MAX_TIMEOUT_US = 3_600_000_000
"""One hour."""
MAX_PRIORITY = 1_000_000
MAX_ID_LENGTH = 256
_HEADS_MAX = 256
"""Prepared answer heads per model; clients choose outputs, so their number needs a bound."""

VERSION = "1"
"""The only version that any model has: another plan is another server."""

ABSENT = msgspec.Raw(b"")


class _InputParameters(msgspec.Struct, gc=False):
    binary_data_size: int | None = None
    shared_memory_region: msgspec.Raw = ABSENT


class GivenInput(msgspec.Struct, gc=False):
    name: str
    shape: list[int]
    datatype: str
    parameters: _InputParameters | None = None
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
    sequence_id: msgspec.Raw = ABSENT


class _Request(msgspec.Struct, gc=False):
    inputs: list[GivenInput]
    id: str | None = None
    parameters: _Parameters | None = None
    outputs: list[_Output] | None = None


_DECODER = msgspec.json.Decoder(_Request)
_NO_PARAMETERS = _Parameters()


@dataclass(slots=True)
class Ask:
    """One inference request, checked."""

    items: int
    inputs: tuple[Buffer, ...]
    timeout_us: int | None
    priority: int
    id: str | None
    wanted: tuple[tuple[int, bool], ...]
    """(index of the model's output, binary or JSON), in the order in which to answer."""


class ModelCodec:
    """Reads requests for one model and writes its answers."""

    def __init__(self, model: ServedModel, json_bytes_max: int = 16 << 20) -> None:
        self.model = model
        self._json_bytes_max = json_bytes_max
        self._inputs = {spec.name: tensor_of(i, spec) for i, spec in enumerate(model.inputs)}
        self._outputs = [tensor_of(i, spec) for i, spec in enumerate(model.outputs)]
        self._output_index = {spec.name: i for i, spec in enumerate(model.outputs)}
        self._all_json = tuple((i, False) for i in range(len(model.outputs)))
        self._all_binary = tuple((i, True) for i in range(len(model.outputs)))
        self._heads: dict[tuple[int, tuple[tuple[int, bool], ...]], bytes] = {}
        """(items, wanted) -> the JSON of an all-binary answer, but for its id."""

    # -- requests -----------------------------------------------------------------------------

    def decode(self, body: bytes | bytearray, json_length: bytes | None) -> Ask:
        """Read one request.

        Args:
            body: JSON, followed by binary tensors where `json_length` is given.
            json_length: the `Inference-Header-Content-Length` header.

        Raises:
            RequestError: anything is missing, left over, or not as the model needs it.
        """
        view = memoryview(body)
        json_end = len(body) if json_length is None else _json_end(json_length, len(body))
        if json_end > self._json_bytes_max:
            raise RequestError(
                f"the JSON part has {json_end} bytes, the most is {self._json_bytes_max};"
                " send large tensors as binary data",
                413,
            )
        if json_end == 0:
            raise RequestError("the body has no JSON; an inference request is needed")
        request = _decode_json(view[:json_end])
        items, inputs = self._read_inputs(request.inputs, view, json_end)
        parameters = request.parameters or _NO_PARAMETERS
        if parameters.sequence_id is not ABSENT:
            raise RequestError("parameter 'sequence_id': sequences are not served here")
        if request.id is not None and len(request.id) > MAX_ID_LENGTH:
            raise RequestError(f"the id is longer than {MAX_ID_LENGTH} characters")
        return Ask(
            items=items,
            inputs=inputs,
            timeout_us=_within("timeout", parameters.timeout, 1, MAX_TIMEOUT_US, " microseconds"),
            priority=_within("priority", parameters.priority, 0, MAX_PRIORITY) or 0,
            id=request.id,
            wanted=self._wanted(request.outputs, bool(parameters.binary_data_output)),
        )

    def _read_inputs(
        self, given: list[GivenInput], view: memoryview, at: int
    ) -> tuple[int, tuple[Buffer, ...]]:
        if len(given) != len(self._inputs):
            raise RequestError(self._wrong_inputs(given))
        items = 0
        buffers: list[Buffer | None] = [None] * len(given)
        for tensor in given:
            spec = self._inputs.get(tensor.name)
            if spec is None or buffers[spec.index] is not None:
                raise RequestError(self._wrong_inputs(given))
            rows = self._check_shape(tensor, spec)
            if items and rows != items:
                raise RequestError(f"the inputs differ in their first dimension: {items}, {rows}")
            items = rows
            size = tensor.parameters.binary_data_size if tensor.parameters else None
            if size is None:
                if tensor.data is ABSENT:
                    raise RequestError(
                        f"input {quoted(tensor.name)}: has neither `data` nor a `binary_data_size`"
                    )
                buffers[spec.index] = read_json_tensor(
                    tensor.name, tensor.shape, tensor.data, spec, items
                )
                continue
            needed = items * spec.item_bytes
            if size != needed or tensor.data is not ABSENT:
                raise RequestError(wrong_size(tensor, size, needed))
            if at + size > len(view):
                raise RequestError(
                    f"input {quoted(tensor.name)}: the body ends {at + size - len(view)} bytes"
                    f" before its {size} bytes of binary data do"
                )
            data = view[at : at + size]
            if spec.datatype == "BOOL":
                check_bools(tensor.name, data)
            buffers[spec.index] = data
            at += size
        if at != len(view):
            raise RequestError(f"the body has {len(view) - at} bytes more than its tensors need")
        return items, tuple(buffer for buffer in buffers if buffer is not None)

    def _check_shape(self, tensor: GivenInput, spec: Tensor) -> int:
        """Number of items."""
        self._check_kind(tensor, spec)
        shape = tensor.shape
        if len(shape) != spec.rank or shape[1:] != spec.item_shape:
            needed = ", ".join(["n", *map(str, spec.item_shape)])
            raise RequestError(
                f"input {quoted(tensor.name)}: needs shape [{needed}], got {shape_text(shape)}"
            )
        if not 1 <= shape[0] <= self.model.max_items:
            raise RequestError(
                f"input {quoted(tensor.name)}: the first dimension must lie in"
                f" 1..{self.model.max_items}, got {shape_text(shape[:1])[1:-1]}"
            )
        return shape[0]

    def _check_kind(self, tensor: GivenInput, spec: Tensor) -> None:
        parameters = tensor.parameters
        if parameters is not None and parameters.shared_memory_region is not ABSENT:
            raise RequestError("shared memory is not served here; send the tensor in the request")
        if tensor.datatype != spec.datatype:
            raise RequestError(
                f"input {quoted(tensor.name)}: needs datatype {spec.datatype},"
                f" got {quoted(tensor.datatype)}"
            )

    def _wrong_inputs(self, given: list[GivenInput]) -> str:
        names = ", ".join(quoted(tensor.name) for tensor in given[:8]) or "none"
        more = f" and {len(given) - 8} more" if len(given) > 8 else ""
        needed = ", ".join(repr(name) for name in self._inputs)
        return (
            f"model {self.model.name!r} needs exactly the inputs {needed}, each once;"
            f" got {names}{more}"
        )

    def _wanted(
        self, outputs: list[_Output] | None, binary_default: bool
    ) -> tuple[tuple[int, bool], ...]:
        if not outputs:
            return self._all_binary if binary_default else self._all_json
        wanted: list[tuple[int, bool]] = []
        if len(outputs) > len(self._outputs):
            raise RequestError(f"asks for {len(outputs)} outputs; there are {len(self._outputs)}")
        for output in outputs:
            index = self._output_index.get(output.name)
            if index is None or any(index == known for known, _ in wanted):
                needed = ", ".join(repr(name) for name in self._output_index)
                raise RequestError(
                    f"output {quoted(output.name)}: unknown or asked for twice;"
                    f" model {self.model.name!r} has {needed}"
                )
            binary = binary_default
            if output.parameters is not None:
                _refuse_extensions(output.name, output.parameters)
                if output.parameters.binary_data is not None:
                    binary = output.parameters.binary_data
            wanted.append((index, binary))
        return tuple(wanted)

    # -- answers ------------------------------------------------------------------------------

    def encode(self, ask: Ask, answer: Answer) -> Response:
        """Write the answer as the request wanted it.

        Raises:
            RequestError: JSON was asked for, and a value is NaN or infinite.
        """
        if not all(binary for _, binary in ask.wanted):
            return self._encode_mixed(ask, answer)
        key = (ask.items, ask.wanted)
        text = self._heads.get(key)
        if text is None:
            text = msgspec.json.encode(self._document(ask, answer))
            if len(self._heads) < _HEADS_MAX:
                self._heads[key] = text
        if ask.id is not None:
            text = b'{"id":' + msgspec.json.encode(ask.id) + b"," + text[1:]
        return with_tail(text, [answer.outputs[index] for index, _ in ask.wanted])

    def _encode_mixed(self, ask: Ask, answer: Answer) -> Response:
        document = self._document(ask, answer)
        if ask.id is not None:
            document["id"] = ask.id
        for described, (index, binary) in zip(document["outputs"], ask.wanted, strict=True):
            if not binary:
                spec = self._outputs[index]
                values = np.frombuffer(answer.outputs[index], dtype=spec.dtype)
                if values.dtype.kind == "f" and not np.isfinite(values).all():
                    raise RequestError(
                        f"output {spec.name!r} holds NaN or infinity, which JSON cannot carry;"
                        " ask for binary data",
                        422,
                    )
                described["data"] = values.tolist()
        text = msgspec.json.encode(document)
        tail = [answer.outputs[index] for index, binary in ask.wanted if binary]
        return with_tail(text, tail) if tail else Response(200, text)

    def _document(self, ask: Ask, answer: Answer) -> dict[str, Any]:
        outputs = []
        for index, binary in ask.wanted:
            spec = self._outputs[index]
            described: dict[str, Any] = {
                "name": spec.name,
                "datatype": spec.datatype,
                "shape": [ask.items, *spec.item_shape],
            }
            if binary:
                described["parameters"] = {"binary_data_size": answer.outputs[index].nbytes}
            outputs.append(described)
        return {"model_name": self.model.name, "model_version": VERSION, "outputs": outputs}


def with_tail(text: bytes, tail: Sequence[memoryview]) -> Response:
    header = b"Inference-Header-Content-Length: %d\r\n" % len(text)
    return Response(200, text, content_type=BINARY, headers=header, tail=tail)


def _json_end(header: bytes, body_length: int) -> int:
    if not header.isdigit() or len(header) > 12:
        raise RequestError(
            "Inference-Header-Content-Length must be a whole number,"
            f" got {quoted(header.decode('latin-1'))}"
        )
    length = int(header)
    if length > body_length:
        raise RequestError(
            f"Inference-Header-Content-Length is {length}, but the body has {body_length} bytes"
        )
    return length


def _decode_json(text: memoryview) -> _Request:
    try:
        return _DECODER.decode(text)
    except msgspec.ValidationError as error:
        raise RequestError(f"the inference request is not as it should be: {error}") from error
    except msgspec.DecodeError as error:
        raise RequestError(str(error)) from error
    except UnicodeDecodeError as error:
        raise RequestError("the JSON is not UTF-8") from error
    except RecursionError as error:
        raise RequestError("the JSON is nested too deeply") from error


def _within(what: str, value: int | None, least: int, most: int, unit: str = "") -> int | None:
    if value is not None and not least <= value <= most:
        shown = value if abs(value) < 1 << 64 else "a larger number"
        raise RequestError(f"parameter {what!r} must lie in {least}..{most}{unit}, got {shown}")
    return value


def _refuse_extensions(name: str, parameters: _OutputParameters) -> None:
    if parameters.classification is not ABSENT:
        raise RequestError(f"output {quoted(name)}: classification is not served here")
    if parameters.shared_memory_region is not ABSENT:
        raise RequestError("shared memory is not served here; take the tensor from the answer")


def wrong_size(tensor: GivenInput, size: int, needed: int) -> str:
    where = f"input {quoted(tensor.name)}: "
    if tensor.data is not ABSENT:
        return f"{where}has both `data` and a `binary_data_size`; send one of them"
    shown = size if abs(size) < 1 << 64 else "a larger number"
    return f"{where}binary_data_size is {shown}, shape {shape_text(tensor.shape)} needs {needed}"
