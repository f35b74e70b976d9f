"""What a model takes and gives, and the check of an inference against it.

The check goes tensor by tensor: the name, the data type and the shape first, and only then the
front reads the tensor's data, with its size known. So a request can take no memory that its own
bytes do not justify, and what a front reads needs no second check. What fails raises
`InvalidError`, with one sentence for the client.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, fields
from typing import Any, Literal, Protocol, TypeVar

import msgspec
import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from headrace.domain.elements import element_dtype, joined, raw, unpack
from headrace.domain.tensors import VARIES, TensorSpec
from headrace.serving.engine.inference import Answer, Buffer, ServedModel

DATATYPES = {
    "bool": "BOOL",
    "uint8": "UINT8",
    "uint16": "UINT16",
    "uint32": "UINT32",
    "uint64": "UINT64",
    "int8": "INT8",
    "int16": "INT16",
    "int32": "INT32",
    "int64": "INT64",
    "float16": "FP16",
    "float32": "FP32",
    "float64": "FP64",
    "bfloat16": "BF16",
    "bytes": "BYTES",
}
"""Our name -> the clients'."""
FLOATS = frozenset({"BF16", "FP16", "FP32", "FP64"})

MAX_TIMEOUT_US = 3_600_000_000
"""One hour."""
MAX_APP_TENSOR_BYTES = 1 << 31
"""Of an app's tensor; no request is larger. Its dimensions are bounded with it, also where another
one is 0: numpy cannot make an array of shape [0, 2**62]."""
MAX_STRINGS = 1 << 16
"""In one tensor: each becomes an object, which takes the gateway 0.3 us and 40 bytes or more."""


class GivenTensor(Protocol):
    """An input as a client describes it."""

    @property
    def name(self) -> str: ...

    @property
    def datatype(self) -> str: ...

    @property
    def shape(self) -> Sequence[int]:
        """With the dimension that counts items, where the model has one."""
        ...


Fault = Literal[
    "malformed",
    "too-large",
    "unknown-encoding",
    "not-representable",
    "unknown-model",
    "queue-full",
]
"""What is wrong with an inference, for protocols that tell these apart."""


class InvalidError(Exception):
    """The inference cannot be served as it stands; one sentence for the client."""

    def __init__(self, sentence: str, fault: Fault = "malformed") -> None:
        super().__init__(sentence)
        self.fault: Fault = fault


_MISSING: Buffer = bytearray()

Given = TypeVar("Given", bound=GivenTensor)


@dataclass(frozen=True, slots=True)
class TensorLayout:
    """A `TensorSpec` with everything that reading and writing need at hand."""

    index: int
    name: str
    datatype: str
    dtype: np.dtype[Any]
    item_shape: list[int]
    item_count: int
    item_bytes: int
    rank: int
    """Of what clients send and get."""
    batch_axis: int | None
    """Which of their dimensions counts items; None: none does."""
    strings: bool
    max_bytes: int
    """Of one string of a model."""
    as_taken: bool
    """Clients send it as the engine takes it: see `Signature.batch_first`."""

    def shape(self, items: int) -> list[int]:
        """What clients send and get of so many items."""
        if self.batch_axis is None:
            return self.item_shape
        return [*self.item_shape[: self.batch_axis], items, *self.item_shape[self.batch_axis :]]

    def batch_first(self, data: Buffer, items: int) -> Buffer:
        """What a client sent, as the engine takes it."""
        if not self.batch_axis or items == 1:
            return data
        sent = np.frombuffer(data, self.dtype).reshape(self.shape(items))
        return raw(np.ascontiguousarray(np.moveaxis(sent, self.batch_axis, 0)))

    def as_sent(self, data: memoryview, items: int) -> memoryview:
        """What the engine gave, as clients get it in binary."""
        if self.strings:
            return joined(unpack(self._as_filed(data, items)))
        if not self.batch_axis or items == 1:
            return data
        return raw(self._as_filed(data, items)).data

    def as_values(self, data: memoryview, items: int) -> list[Any]:
        """What the engine gave, one value after the other; strings as texts.

        Raises:
            InvalidError: a string is not UTF-8.
        """
        return self.listed(self.as_array(data, items))

    def as_array(self, data: memoryview, items: int) -> NDArray[Any]:
        """The same, before `listed`: flat, each element as it lies in memory."""
        return self._as_filed(data, items)

    def listed(self, array: NDArray[Any]) -> list[Any]:
        """A part of `as_array` as values.

        Raises:
            InvalidError: a string is not UTF-8.
        """
        if self.strings:
            return as_texts(unpack(array), self.name)
        if self.datatype == "BF16":
            array = array.astype(np.float32)
        values: list[Any] = array.tolist()
        return values

    def _as_filed(self, data: memoryview, items: int) -> NDArray[Any]:
        """One after the other, as clients get them."""
        given = np.frombuffer(data, self.dtype)
        if not self.batch_axis or items == 1:
            return given
        apart = given.reshape(items, *self.item_shape)
        return np.ascontiguousarray(np.moveaxis(apart, 0, self.batch_axis)).ravel()


@dataclass(frozen=True, slots=True)
class CutLayout(TensorLayout):
    """An output that lies in memory at larger sizes than clients get it."""

    computed: tuple[int, ...] = ()
    """Item shape."""

    def as_sent(self, data: memoryview, items: int) -> memoryview:
        return TensorLayout.as_sent(self, self._cut(data, items), items)

    def as_array(self, data: memoryview, items: int) -> NDArray[Any]:
        return TensorLayout.as_array(self, self._cut(data, items), items)

    def _cut(self, data: memoryview, items: int) -> memoryview:
        whole = np.frombuffer(data, self.dtype).reshape(items, *self.computed)
        cut = np.ascontiguousarray(whole[(slice(None), *map(slice, self.item_shape))])
        return raw(cut).data


def layout_of(index: int, spec: TensorSpec, batched: bool = True) -> TensorLayout:
    dtype = element_dtype(spec)
    return TensorLayout(
        index=index,
        name=spec.name,
        datatype=DATATYPES[spec.dtype],
        dtype=dtype,
        item_shape=list(spec.item_shape),
        item_count=spec.item_count,
        item_bytes=spec.item_count * dtype.itemsize,
        rank=len(spec.item_shape) + batched,
        batch_axis=spec.batch_axis if batched else None,
        strings=spec.dtype == "bytes",
        max_bytes=spec.max_bytes,
        as_taken=spec.dtype != "bool" and not (batched and spec.batch_axis),
    )


def cut_layout(layout: TensorLayout, computed: Sequence[int]) -> CutLayout:
    """`layout`, of an output that lies in memory at the item shape `computed`."""
    known = {field.name: getattr(layout, field.name) for field in fields(layout)}
    return CutLayout(**known, computed=tuple(computed))


class CheckedInputs(msgspec.Struct):
    """All inputs of one inference, as its model takes them; made by `Signature.check` only."""

    model: str
    items: int
    buffers: tuple[Buffer, ...]
    """In the model's order, C-contiguous."""
    outputs: Sequence[TensorLayout] = ()
    """What is sent of its answer."""
    sizes: tuple[int, ...] = ()
    """Of the dynamic dimensions, of a model of several sizes."""
    alone: tuple[int, ...] = ()
    """The same, where it is computed at sizes that are no bucket's."""


class Signature:
    """One model's."""

    def __init__(self, model: ServedModel) -> None:
        self.model = model
        batched = model.batched
        self.inputs = {
            spec.name: layout_of(i, spec, batched) for i, spec in enumerate(model.inputs)
        }
        self.outputs = [layout_of(i, spec, batched) for i, spec in enumerate(model.outputs)]
        self.output_index = {spec.name: i for i, spec in enumerate(model.outputs)}

    def check(
        self, given: Sequence[Given], read: Callable[[Given, TensorLayout, int], Buffer]
    ) -> CheckedInputs:
        """
        Args:
            read: the data of one tensor, (as given, as the model has it, items): exactly
                items x item bytes. Called once per tensor, in the order given.

        Raises:
            InvalidError: an input is missing, given twice, or not as the model takes it.
        """
        if len(given) != len(self.inputs):
            raise InvalidError(self._wrong_inputs(given))
        items = 0
        buffers: list[Buffer] = [_MISSING] * len(given)
        for tensor in given:
            layout = self.inputs.get(tensor.name)
            if layout is None or buffers[layout.index] is not _MISSING:
                raise InvalidError(self._wrong_inputs(given))
            rows = self._rows(tensor, layout)
            if items and rows != items:
                raise InvalidError(f"the inputs differ in their number of items: {items}, {rows}")
            items = rows
            data = read(tensor, layout, items)
            if not layout.as_taken:
                data = self.batch_first(data, layout, items)
            buffers[layout.index] = data
        return CheckedInputs(self.model.name, items, tuple(buffers), self.outputs)

    def answered(self, inputs: CheckedInputs, answer: Answer) -> Sequence[TensorLayout]:
        """`inputs.outputs`, in the sizes that this answer has."""
        if not self.model.rooms:
            return inputs.outputs
        found = list(inputs.outputs)
        for index, at in self.model.rooms:
            spec = self.model.outputs[index]
            true = true_shape(spec, answer.outputs[at])
            layout = layout_of(index, replace(spec, item_shape=true), self.model.batched)
            found[index] = cut_layout(layout, spec.item_shape)
        return found

    @staticmethod
    def batch_first(data: Buffer, layout: TensorLayout, items: int) -> Buffer:
        """A tensor as the engine takes it."""
        return layout.batch_first(_bools(data) if layout.datatype == "BOOL" else data, items)

    def _rows(self, tensor: GivenTensor, layout: TensorLayout) -> int:
        """Number of items."""
        if tensor.datatype != layout.datatype:
            raise InvalidError(_wrong_datatype(tensor, layout))
        axis, items = layout.batch_axis, 1
        rest = list(tensor.shape)
        fits = len(rest) == layout.rank
        if fits and axis is not None:
            items = rest.pop(axis)
        if not fits or rest != layout.item_shape:
            needed = ", ".join("n" if dim < 0 else str(dim) for dim in layout.shape(-1))
            raise InvalidError(
                f"input {quoted(tensor.name)}: needs shape [{needed}],"
                f" got {shape_text(tensor.shape)}"
            )
        if not 1 <= items <= self.model.max_items:
            where = "the first dimension" if axis == 0 else f"dimension {axis}"
            raise InvalidError(
                f"input {quoted(tensor.name)}: {where} must lie in 1..{self.model.max_items},"
                f" got {shape_text([items])[1:-1]}{fewer_items(self.model)}"
            )
        return items

    def _wrong_inputs(self, given: Sequence[GivenTensor]) -> str:
        names = ", ".join(quoted(tensor.name) for tensor in given[:8]) or "none"
        more = f" and {len(given) - 8} more" if len(given) > 8 else ""
        needed = ", ".join(repr(name) for name in self.inputs)
        return (
            f"model {self.model.name!r} needs exactly the inputs {needed}, each once;"
            f" got {names}{more}"
        )


class AppSignature(Signature):
    """An app's: one item, each tensor an array of its own shape, of any length where that is -1."""

    def check(
        self, given: Sequence[Given], read: Callable[[Given, TensorLayout, int], Buffer]
    ) -> CheckedInputs:
        """As `Signature.check`; `read` gives an array of the tensor's own shape."""
        if sorted(tensor.name for tensor in given) != sorted(self.inputs):
            raise InvalidError(self._wrong_inputs(given))
        arrays: dict[int, Buffer] = {}
        for tensor in given:
            layout = self.inputs[tensor.name]
            if tensor.datatype != layout.datatype:
                raise InvalidError(_wrong_datatype(tensor, layout))
            shape = tensor.shape
            if len(shape) != len(layout.item_shape) or any(
                got < 0 or want not in (-1, got)
                for want, got in zip(layout.item_shape, shape, strict=True)
            ):
                raise InvalidError(
                    f"input {quoted(tensor.name)}: needs shape {shape_text(layout.item_shape)}"
                    f" (-1: any length), got {shape_text(shape)}"
                )
            _check_extent(tensor, layout)
            data = read(tensor, layout, 1)
            arrays[layout.index] = _bools(data) if layout.datatype == "BOOL" else data
        ordered = tuple(arrays[i] for i in range(len(arrays)))
        return CheckedInputs(self.model.name, 1, ordered, self.outputs)


def true_shape(spec: TensorSpec, told: memoryview) -> tuple[int, ...]:
    """Of an output with room for more, as the run told it; never more than there is room for."""
    sizes = np.frombuffer(told, np.int64).tolist()
    return tuple(
        min(max(0, size), room) if name == VARIES else room
        for size, room, name in zip(sizes, spec.item_shape, spec.dims, strict=True)
    )


def signature_of(model: ServedModel) -> Signature:
    return (AppSignature if model.app else Signature)(model)


def fewer_items(model: ServedModel) -> str:
    """What to do about a request of too many."""
    if model.malleable:
        return "; send fewer items at a time, or plan with more `--max-items`"
    return ""


def within(what: str, value: int, least: int, most: int, unit: str = "") -> None:
    """
    Raises:
        InvalidError: a parameter of an inference does not lie in its range.
    """
    if not least <= value <= most:
        shown = value if abs(value) < 1 << 64 else "a larger number"
        raise InvalidError(f"parameter {what!r} must lie in {least}..{most}{unit}, got {shown}")


def quoted(text: str) -> str:
    """A client's text in an error message: short, and free of control characters."""
    return ascii(text if len(text) <= 64 else text[:61] + "...")


def shape_text(dims: Sequence[int]) -> str:
    shown = [str(dim) if abs(dim) < 1 << 64 else "..." for dim in dims[:8]]
    return "[" + ", ".join(shown + (["..."] if len(dims) > 8 else [])) + "]"


def _wrong_datatype(tensor: GivenTensor, layout: TensorLayout) -> str:
    return (
        f"input {quoted(tensor.name)}: needs datatype {layout.datatype},"
        f" got {quoted(tensor.datatype)}"
    )


def _check_extent(tensor: GivenTensor, layout: TensorLayout) -> None:
    """Bounds what the shape could hold, were no dimension 0; in whole numbers of any size."""
    extent = 1
    for dim in tensor.shape:
        extent *= max(1, dim)
    strings = layout.datatype == "BYTES"
    most = MAX_STRINGS if strings else MAX_APP_TENSOR_BYTES // layout.dtype.itemsize
    if extent > most:
        raise InvalidError(
            f"input {quoted(tensor.name)}: shape {shape_text(tensor.shape)} is too large; its"
            f" dimensions may multiply to {most} {'strings' if strings else 'elements'} at most"
        )


def _bools(data: Buffer) -> Buffer:
    """Any byte but 0 is true, as Triton has it; executors and apps get 0 and 1 alone."""
    held = data if isinstance(data, np.ndarray) else np.frombuffer(data, dtype=np.uint8)
    plain = held.view(np.uint8)
    return data if not plain.size or int(plain.max()) <= 1 else plain != 0


def as_texts(strings: Iterable[bytes], output: str) -> list[str]:
    """An output's strings, to be written as JSON.

    Raises:
        InvalidError: one is not UTF-8.
    """
    try:
        return [string.decode() for string in strings]
    except UnicodeDecodeError as error:
        raise not_utf8(output) from error


def not_utf8(output: str) -> InvalidError:
    """The refusal to write an output's strings as JSON."""
    return _not_representable(output, "bytes that are not UTF-8")


def not_finite(output: str) -> InvalidError:
    """The refusal to write an output as JSON."""
    return _not_representable(output, "NaN or infinity")


def _not_representable(output: str, held: str) -> InvalidError:
    return InvalidError(
        f"output {output!r} holds {held}, which JSON cannot carry; ask for binary data",
        "not-representable",
    )
