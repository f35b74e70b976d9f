"""Open Inference Protocol for apps: tensors of any length in the dimensions that are open, strings.

A string tensor (BYTES) is, in binary, each element's length as 4 bytes, little endian, and then its
bytes; in JSON a flat list of texts. Shapes were bounded by the signature; here all sizes are
compared with the request's own bytes before anything is converted.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from headrace.domain.elements import joined
from headrace.serving.core.signature import (
    FLOATS,
    Given,
    InvalidError,
    Signature,
    TensorLayout,
    as_texts,
    not_finite,
)
from headrace.serving.engine.inference import Answer, AppAnswer, Buffer
from headrace.serving.front.http_messages import Limits, Response
from headrace.serving.front.strings import as_objects
from headrace.serving.front.v2 import (
    ABSENT,
    HERE,
    Ask,
    BodyReader,
    GivenInput,
    ModelCodec,
    binary_size,
    no_data,
    wrong_size,
)
from headrace.serving.front.v2_answers import JsonValues, LongAnswer, Sent, filled, large_values
from headrace.serving.front.v2_tensors import read_json_tensor, sized


def codec_of(signature: Signature, limits: Limits | None = None) -> ModelCodec:
    return (AppCodec if signature.model.app else ModelCodec)(signature, limits)


class AppReader(BodyReader):
    """Each tensor as an array of its own shape."""

    __slots__ = ()

    def read(self, tensor: GivenInput, layout: TensorLayout, items: int) -> Buffer:
        size = None if tensor.parameters is None else binary_size(tensor.parameters)
        if layout.strings:
            return as_objects(tensor, self.strings(tensor, size))
        if size is None:
            return _from_json(tensor, layout)
        return array_of(tensor, layout, self.take(tensor, size), wrong_size)


class AppCodec(ModelCodec):
    """Reads requests for one app and writes its answers."""

    reader = AppReader

    def encode(self, ask: Ask, answer: Answer) -> Response | LongAnswer:
        """
        Raises:
            InvalidError: JSON was asked for, and a value is NaN, infinite, or no UTF-8, or it is
                too long.
        """
        assert isinstance(answer, AppAnswer), "an app's answers hold its tensors"
        outputs = []
        sent: list[Sent] = []
        most_bytes = self._limits.answer_json_bytes
        for index, binary in ask.wanted:
            spec, array = self._outputs[index], answer.tensors[index]
            described: dict[str, Any] = {
                "name": spec.name,
                "datatype": spec.datatype,
                "shape": list(array.shape),
            }
            if binary:
                data = to_binary(array)
                described["parameters"] = {"binary_data_size": data.nbytes}
                sent.append(data)
            else:
                values = _to_json(array, spec, most_bytes)
                described["data"] = HERE if isinstance(values, JsonValues) else values
                if isinstance(values, JsonValues):
                    sent.append(values)
            outputs.append(described)
        document: dict[str, Any] = {} if ask.id is None else {"id": ask.id}
        document |= {
            "model_name": self._name,
            "model_version": self._version,
            "outputs": outputs,
        }
        frame = msgspec.json.encode(document).split(bytes(HERE))
        return filled(frame, sent, None, most_bytes)


def _from_json(tensor: GivenInput, layout: TensorLayout) -> NDArray[Any]:
    if tensor.data is ABSENT:
        raise InvalidError(no_data(tensor))
    values = read_json_tensor(
        tensor.name, tensor.shape, tensor.data, sized(layout, tensor.shape), tensor.shape[0]
    )
    return values.view(layout.dtype).reshape(tensor.shape)


def array_of(
    tensor: Given,
    layout: TensorLayout,
    data: memoryview,
    wrong_size: Callable[[Given, int, int], str],
) -> NDArray[Any]:
    """A tensor's binary data, numbers, as an array of its own shape.

    Raises:
        InvalidError: in the words of `wrong_size`(tensor, size, needed).
    """
    own = sized(layout, tensor.shape)
    if data.nbytes != own.item_bytes * tensor.shape[0]:
        raise InvalidError(wrong_size(tensor, data.nbytes, own.item_bytes * tensor.shape[0]))
    return np.frombuffer(data, dtype=layout.dtype).reshape(tensor.shape)


def to_binary(array: NDArray[Any]) -> memoryview:
    if array.dtype == object:
        return joined(array.ravel().tolist())
    return memoryview(array.tobytes())


def _to_json(array: NDArray[Any], layout: TensorLayout, most_bytes: int) -> list[Any] | JsonValues:
    name = layout.name
    flat, listed = array.ravel(), partial(_listed, name=name)
    large = large_values(flat, listed, name, most_bytes)
    if layout.datatype in FLOATS and not np.isfinite(flat).all():
        raise not_finite(name)
    return large or listed(flat)


def _listed(array: NDArray[Any], name: str) -> list[Any]:
    if array.dtype == object:
        return as_texts(array, name)
    values: list[Any] = array.tolist()
    return values
