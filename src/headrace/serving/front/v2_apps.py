"""Open Inference Protocol for apps: tensors of any length in the dimensions that are open, strings.

A string tensor (BYTES) is, in binary, each element's length as 4 bytes, little endian, and then its
bytes; in JSON a flat list of texts. All sizes are compared with the request's own bytes before
anything is converted.
"""

import struct
from collections.abc import Sequence
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from headrace.serving.engine.inference import Answer, AppAnswer, Buffer, ServedModel
from headrace.serving.front.http_messages import Response
from headrace.serving.front.v2 import (
    ABSENT,
    VERSION,
    Ask,
    GivenInput,
    ModelCodec,
    with_tail,
    wrong_size,
)
from headrace.serving.front.v2_tensors import (
    JSON_ERRORS,
    RequestError,
    Tensor,
    check_bools,
    quoted,
    read_json_tensor,
    shape_text,
    sized,
)

_LENGTH = struct.Struct("<I")


def codec_of(model: ServedModel, json_bytes_max: int) -> ModelCodec:
    return (ModelCodec if model.batched else AppCodec)(model, json_bytes_max)


class AppCodec(ModelCodec):
    """Reads requests for one app and writes its answers."""

    def _read_inputs(
        self, given: list[GivenInput], view: memoryview, at: int
    ) -> tuple[int, tuple[Buffer, ...]]:
        """One item; each input as an array of its own shape."""
        if sorted(tensor.name for tensor in given) != sorted(self._inputs):
            raise RequestError(self._wrong_inputs(given))
        arrays: dict[int, NDArray[Any]] = {}
        for tensor in given:
            spec = self._inputs[tensor.name]
            self._check_open_shape(tensor, spec)
            size = tensor.parameters.binary_data_size if tensor.parameters else None
            if size is None:
                arrays[spec.index] = _from_json(tensor, spec)
                continue
            if tensor.data is not ABSENT or size < 0 or at + size > len(view):
                raise RequestError(wrong_size(tensor, size, max(0, len(view) - at)))
            arrays[spec.index] = _from_binary(tensor, spec, view[at : at + size])
            at += size
        if at != len(view):
            raise RequestError(f"the body has {len(view) - at} bytes more than its tensors need")
        return 1, tuple(arrays[index] for index in range(len(arrays)))

    def _check_open_shape(self, tensor: GivenInput, spec: Tensor) -> None:
        self._check_kind(tensor, spec)
        shape = tensor.shape
        if len(shape) != len(spec.item_shape) or any(
            got < 0 or want not in (-1, got)
            for want, got in zip(spec.item_shape, shape, strict=True)
        ):
            raise RequestError(
                f"input {quoted(tensor.name)}: needs shape {shape_text(spec.item_shape)}"
                f" (-1: any length), got {shape_text(shape)}"
            )

    def encode(self, ask: Ask, answer: Answer) -> Response:
        """
        Raises:
            RequestError: JSON was asked for, and a value is NaN or infinite.
        """
        assert isinstance(answer, AppAnswer), "an app's answers hold its tensors"
        outputs = []
        tail: list[memoryview] = []
        for index, binary in ask.wanted:
            spec, array = self._outputs[index], answer.tensors[index]
            described: dict[str, Any] = {
                "name": spec.name,
                "datatype": spec.datatype,
                "shape": list(array.shape),
            }
            if binary:
                data = _to_binary(array)
                described["parameters"] = {"binary_data_size": data.nbytes}
                tail.append(data)
            else:
                described["data"] = _to_json(array, spec.name)
            outputs.append(described)
        document: dict[str, Any] = {} if ask.id is None else {"id": ask.id}
        document |= {
            "model_name": self.model.name,
            "model_version": VERSION,
            "outputs": outputs,
        }
        text = msgspec.json.encode(document)
        return with_tail(text, tail) if tail else Response(200, text)


def _from_json(tensor: GivenInput, spec: Tensor) -> NDArray[Any]:
    if tensor.data is ABSENT:
        raise RequestError(
            f"input {quoted(tensor.name)}: has neither `data` nor a `binary_data_size`"
        )
    if spec.datatype == "BYTES":
        try:
            texts = msgspec.json.decode(bytes(tensor.data), type=list[str])
        except JSON_ERRORS as error:
            raise RequestError(f"input {quoted(tensor.name)}: `data`: {error}") from error
        return _strings(tensor, [text.encode() for text in texts])
    values = read_json_tensor(
        tensor.name, tensor.shape, tensor.data, sized(spec, tensor.shape), tensor.shape[0]
    )
    return values.reshape(tensor.shape)


def _from_binary(tensor: GivenInput, spec: Tensor, data: memoryview) -> NDArray[Any]:
    if spec.datatype == "BYTES":
        return _strings(tensor, _split(tensor.name, data))
    own = sized(spec, tensor.shape)
    if data.nbytes != own.item_bytes * tensor.shape[0]:
        raise RequestError(wrong_size(tensor, data.nbytes, own.item_bytes * tensor.shape[0]))
    if spec.datatype == "BOOL":
        check_bools(tensor.name, data)
    return np.frombuffer(data, dtype=spec.dtype).reshape(tensor.shape)


def _split(name: str, data: memoryview) -> list[bytes]:
    found, at = [], 0
    while at < len(data):
        end = at + _LENGTH.size
        length = _LENGTH.unpack_from(data, at)[0] if end <= len(data) else len(data)
        if end + length > len(data):
            raise RequestError(f"input {quoted(name)}: its last string is cut off")
        found.append(bytes(data[end : end + length]))
        at = end + length
    return found


def _strings(tensor: GivenInput, texts: Sequence[bytes]) -> NDArray[Any]:
    needed = 1
    for dim in tensor.shape:
        needed *= dim
    if len(texts) != needed:
        raise RequestError(
            f"input {quoted(tensor.name)}: shape {shape_text(tensor.shape)} needs {needed}"
            f" strings, got {len(texts)}"
        )
    return np.array([*texts, None], dtype=object)[:-1].reshape(tensor.shape)


def _to_binary(array: NDArray[Any]) -> memoryview:
    if array.dtype == object:
        return memoryview(b"".join(_LENGTH.pack(len(text)) + text for text in array.ravel()))
    return memoryview(array.tobytes())


def _to_json(array: NDArray[Any], name: str) -> list[Any]:
    if array.dtype == object:
        return [text.decode(errors="replace") for text in array.ravel()]
    if array.dtype.kind == "f" and not np.isfinite(array).all():
        raise RequestError(
            f"output {name!r} holds NaN or infinity, which JSON cannot carry; ask for binary data",
            422,
        )
    values: list[Any] = array.ravel().tolist()
    return values
