"""Open Inference Protocol for apps: tensors of any length in the dimensions that are open, strings.

A string tensor (BYTES) is, in binary, each element's length as 4 bytes, little endian, and then its
bytes; in JSON a flat list of texts. Shapes were bounded by the signature; here all sizes are
compared with the request's own bytes before anything is converted.
"""

import math
import struct
from collections.abc import Sequence
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from headrace.serving.core.signature import (
    InvalidError,
    Signature,
    TensorLayout,
    quoted,
    shape_text,
)
from headrace.serving.engine.inference import Answer, AppAnswer, Buffer
from headrace.serving.front.http_messages import Response
from headrace.serving.front.v2 import (
    ABSENT,
    VERSION,
    Ask,
    BodyReader,
    GivenInput,
    ModelCodec,
    binary_size,
    no_data,
    with_tail,
    wrong_size,
)
from headrace.serving.front.v2_tensors import JSON_ERRORS, read_json_tensor, sized

_LENGTH = struct.Struct("<I")


def codec_of(signature: Signature, json_bytes_max: int) -> ModelCodec:
    return (ModelCodec if signature.model.batched else AppCodec)(signature, json_bytes_max)


class AppReader(BodyReader):
    """Each tensor as an array of its own shape."""

    __slots__ = ()

    def read(self, tensor: GivenInput, layout: TensorLayout, items: int) -> Buffer:
        size = None if tensor.parameters is None else binary_size(tensor.parameters)
        if size is None:
            return _from_json(tensor, layout)
        at, end = self.at, self.at + size
        if tensor.data is not ABSENT or size < 0 or end > len(self.view):
            raise InvalidError(wrong_size(tensor, size, max(0, len(self.view) - at)))
        self.at = end
        return _from_binary(tensor, layout, self.view[at:end])


class AppCodec(ModelCodec):
    """Reads requests for one app and writes its answers."""

    reader = AppReader

    def encode(self, ask: Ask, answer: Answer) -> Response:
        """
        Raises:
            InvalidError: JSON was asked for, and a value is NaN or infinite.
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
            "model_name": self._name,
            "model_version": VERSION,
            "outputs": outputs,
        }
        text = msgspec.json.encode(document)
        return with_tail(text, tail) if tail else Response(200, text)


def _from_json(tensor: GivenInput, layout: TensorLayout) -> NDArray[Any]:
    if tensor.data is ABSENT:
        raise InvalidError(no_data(tensor))
    if layout.datatype == "BYTES":
        try:
            texts = msgspec.json.decode(bytes(tensor.data), type=list[str])
        except JSON_ERRORS as error:
            raise InvalidError(f"input {quoted(tensor.name)}: `data`: {error}") from error
        return _strings(tensor, [text.encode() for text in texts])
    values = read_json_tensor(
        tensor.name, tensor.shape, tensor.data, sized(layout, tensor.shape), tensor.shape[0]
    )
    return values.reshape(tensor.shape)


def _from_binary(tensor: GivenInput, layout: TensorLayout, data: memoryview) -> NDArray[Any]:
    if layout.datatype == "BYTES":
        return _strings(tensor, _split(tensor, data))
    own = sized(layout, tensor.shape)
    if data.nbytes != own.item_bytes * tensor.shape[0]:
        raise InvalidError(wrong_size(tensor, data.nbytes, own.item_bytes * tensor.shape[0]))
    return np.frombuffer(data, dtype=layout.dtype).reshape(tensor.shape)


def _split(tensor: GivenInput, data: memoryview) -> list[bytes]:
    """At most one string more than the shape has."""
    found: list[bytes] = []
    at, needed = 0, math.prod(tensor.shape)
    while at < len(data) and len(found) <= needed:
        end = at + _LENGTH.size
        length = _LENGTH.unpack_from(data, at)[0] if end <= len(data) else len(data)
        if end + length > len(data):
            raise InvalidError(f"input {quoted(tensor.name)}: its last string is cut off")
        found.append(bytes(data[end : end + length]))
        at = end + length
    return found


def _strings(tensor: GivenInput, texts: Sequence[bytes]) -> NDArray[Any]:
    needed = math.prod(tensor.shape)
    if len(texts) != needed:
        got = len(texts) if len(texts) < needed else "more"
        raise InvalidError(
            f"input {quoted(tensor.name)}: shape {shape_text(tensor.shape)} needs {needed}"
            f" strings, got {got}"
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
        raise InvalidError(
            f"output {name!r} holds NaN or infinity, which JSON cannot carry; ask for binary data",
            "not-representable",
        )
    values: list[Any] = array.ravel().tolist()
    return values
