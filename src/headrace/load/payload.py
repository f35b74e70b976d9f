"""What a load run sends: Open Inference Protocol v2 requests, encoded once and reused."""

import math
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal, Protocol
from zipfile import BadZipFile

import msgspec
import numpy as np
import numpy.typing as npt

from headrace.catalog.array_files import why_unread
from headrace.domain.base import JSON_ERRORS
from headrace.domain.elements import joined
from headrace.domain.errors import DocumentError, ModelError
from headrace.serving.front.grpc.messages import message
from headrace.simulation.offered.sizes import SizeMix

MAX_INPUT_BYTES: Final = 1 << 30
JOIN_BYTES: Final = 1 << 16
"""Requests up to this size go out in one piece; larger ones share their tensor bytes."""

_DTYPES: Final = {
    "BOOL": np.dtype("?"),
    **{f"UINT{8 * size}": np.dtype(f"<u{size}") for size in (1, 2, 4, 8)},
    **{f"INT{8 * size}": np.dtype(f"<i{size}") for size in (1, 2, 4, 8)},
    **{f"FP{8 * size}": np.dtype(f"<f{size}") for size in (2, 4, 8)},
    "BF16": np.dtype("<f4"),
    "BYTES": np.dtype(object),
}
"""As what values of a data type are held. numpy has no BF16: they are narrowed when sent."""

RANDOM_TEXT: Final = "a few words of text"


class TensorInfo(msgspec.Struct, frozen=True, kw_only=True):
    """One input or output as the server's metadata has it."""

    name: str
    datatype: str
    shape: tuple[int, ...]
    """-1: any length."""


class ModelInfo(msgspec.Struct, frozen=True, kw_only=True):
    """GET /v2/models/NAME. Fields beyond these are other servers' own and are ignored."""

    name: str
    inputs: tuple[TensorInfo, ...]
    outputs: tuple[TensorInfo, ...] = ()


class _ConfigValue(msgspec.Struct, frozen=True):
    string_value: str = ""


class _ModelConfig(msgspec.Struct, frozen=True):
    parameters: dict[str, _ConfigValue] = msgspec.field(default_factory=dict)
    sequence_batching: dict[str, Any] | None = None


def decode_model_info(body: bytes) -> ModelInfo:
    """Read the model's metadata.

    Raises:
        ModelError: it is not what the protocol says.
    """
    try:
        info = msgspec.json.decode(body, type=ModelInfo)
    except JSON_ERRORS as error:
        raise ModelError(
            f"the server's metadata of the model is not understood: {error}"
        ) from error
    if not info.inputs:
        raise ModelError(f"model {info.name!r} has no inputs, says the server")
    return info


class _IndexEntry(msgspec.Struct, frozen=True):
    name: str


def decode_index(body: bytes) -> list[str]:
    """The models in the server's repository index.

    Raises:
        ModelError: it is not what the protocol says.
    """
    try:
        return [entry.name for entry in msgspec.json.decode(body, type=list[_IndexEntry])]
    except JSON_ERRORS as error:
        raise ModelError(f"the server's list of models is not understood: {error}") from error


def decode_slo_us(body: bytes) -> int | None:
    """The objective in the model's /config, where the server states one."""
    value = _parameter(body, "slo_us")
    return int(value) if value.isdecimal() and len(value) < 16 and int(value) > 0 else None


def decode_rate_rps(body: bytes, name: Literal["planned_rps", "rate_rps"]) -> float | None:
    """A rate in the model's /config, where the server states one."""
    try:
        value_rps = float(_parameter(body, name)[:32])
    except ValueError:
        return None
    return value_rps if 0 < value_rps < math.inf else None


def decode_sequences(body: bytes) -> bool:
    """Whether the model in the server's /config is asked in sequences."""
    return _config(body).sequence_batching is not None


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedSizes:
    """Of a model of several sizes, where its server states them in /config."""

    dimensions: tuple[str, ...]
    mix: SizeMix
    dims: dict[str, tuple[str, ...]]
    """Input -> of each of its dimensions its name, `#` where it counts items."""

    def at(self, info: ModelInfo, sizes: tuple[int, ...]) -> ModelInfo:
        """The model's inputs at these sizes; only the number of items is still open.

        Raises:
            DocumentError: they are not one for each dimension.
        """
        if len(sizes) != len(self.dimensions):
            raise DocumentError(
                f"load: sizes {'x'.join(map(str, sizes))!r} of model {info.name!r}, which has"
                f" {len(self.dimensions)}: {', '.join(self.dimensions)}"
            )
        known = dict(zip(self.dimensions, sizes, strict=True))
        inputs = (
            msgspec.structs.replace(
                tensor,
                shape=tuple(
                    known.get(name, size)
                    for name, size in zip(self.dims[tensor.name], tensor.shape, strict=True)
                ),
            )
            for tensor in info.inputs
        )
        return msgspec.structs.replace(info, inputs=tuple(inputs))


def decode_sizes(body: bytes, info: ModelInfo) -> ServedSizes | None:
    """The sizes in the model's /config, where the server states any."""
    dimensions = _parameter(body, "dimensions")
    if not dimensions:
        return None
    try:
        sizes = tuple(
            tuple(map(int, text.split("x"))) for text in _parameter(body, "sizes").split(",")
        )
        shares = tuple(map(float, _parameter(body, "size_shares").split(",")))
    except ValueError:
        return None
    if len(shares) != len(sizes) or not 0 < sum(shares) < math.inf or min(shares) < 0:
        return None
    dims = {
        tensor.name: tuple(_parameter(body, f"dims.{tensor.name}").split(","))
        for tensor in info.inputs
    }
    return ServedSizes(
        dimensions=tuple(dimensions.split(",")),
        mix=SizeMix(sizes=sizes, shares=tuple(share / sum(shares) for share in shares)),
        dims=dims,
    )


def _parameter(body: bytes, name: str) -> str:
    return _config(body).parameters.get(name, _ConfigValue()).string_value


def _config(body: bytes) -> _ModelConfig:
    try:
        return msgspec.json.decode(body, type=_ModelConfig)
    except JSON_ERRORS:
        return _ModelConfig()  # another server's own format: it states nothing that we know


def random_inputs(info: ModelInfo, items: int, rng: np.random.Generator) -> list[npt.NDArray[Any]]:
    """Inputs of the right shapes: normal floats, small whole numbers, a short text.

    Args:
        items: length of the batch dimension, where the model leaves it open.

    Raises:
        ModelError: a dimension other than the batch is open, or a data type is not numeric.
    """
    tensors: list[npt.NDArray[Any]] = []
    for tensor in info.inputs:
        dtype = _dtype(tensor)
        shape = _shape(tensor, items)
        if int(np.prod(shape, dtype=object)) * dtype.itemsize > MAX_INPUT_BYTES:
            raise ModelError(
                f"input {tensor.name!r}: shape {shape} exceeds {MAX_INPUT_BYTES} bytes"
            )
        if tensor.datatype == "BYTES":
            tensors.append(np.full(shape, RANDOM_TEXT, dtype=object))
        elif dtype.kind == "f":
            tensors.append(rng.standard_normal(shape, dtype=np.float32).astype(dtype))
        else:
            tensors.append(rng.integers(0, 2, size=shape).astype(dtype))
    return tensors


def example_files(paths: Iterable[Path]) -> list[Path]:
    """The files themselves, and every .npy and .npz of a folder in the order of their names.

    Raises:
        DocumentError: a folder cannot be read or has none.
    """
    found: list[Path] = []
    for path in paths:
        if not os.path.isdir(path):  # nor what cannot be looked at, of which reading it says why
            found.append(path)
            continue
        try:
            inside = sorted(file for file in path.iterdir() if file.suffix in (".npy", ".npz"))
        except OSError as error:
            raise DocumentError(f"{path}: cannot be read: {error}") from error
        if not inside:
            raise DocumentError(f"{path}: has no .npy or .npz file to send")
        found += inside
    return found


def file_input(path: Path, info: ModelInfo, items: int) -> list[npt.NDArray[Any]]:
    """The inputs from a .npy file, or from a .npz archive with one array per input, by name.

    Every array is one item, repeated `items` times, or a whole batch.

    Raises:
        DocumentError: the file cannot be read or does not fit the model.
    """
    arrays = _arrays(path)
    names = [tensor.name for tensor in info.inputs]
    if not isinstance(arrays, Mapping):
        if len(names) != 1:
            raise DocumentError(
                f"{path}: one array, but the model has several inputs: {', '.join(names)};"
                " give a .npz archive with an array for each, by name"
            )
        arrays = {names[0]: arrays}
    if missing := [name for name in names if name not in arrays]:
        raise DocumentError(
            f"{path}: has no array for input {', '.join(missing)}; it has: {', '.join(arrays)}"
        )
    found = [_fitting(path, tensor, arrays[tensor.name], items) for tensor in info.inputs]
    lengths = {
        array.shape[tensor.shape.index(-1)]
        for tensor, array in zip(info.inputs, found, strict=True)
        if tensor.shape.count(-1) == 1
    }
    if len(lengths) > 1:
        raise DocumentError(f"{path}: inputs of different numbers of items: {sorted(lengths)}")
    return found


def _arrays(path: Path) -> npt.NDArray[Any] | Mapping[str, npt.NDArray[Any]]:
    try:
        if path.stat().st_size > MAX_INPUT_BYTES:
            raise DocumentError(f"{path}: larger than {MAX_INPUT_BYTES} bytes")
        loaded = np.load(path, allow_pickle=False)
        if isinstance(loaded, np.ndarray):
            return loaded
        with loaded as archive:
            sizes = sum(entry.file_size for entry in archive.zip.infolist())
            if sizes > MAX_INPUT_BYTES:
                raise DocumentError(f"{path}: its arrays are larger than {MAX_INPUT_BYTES} bytes")
            return {name: archive[name] for name in archive.files}
    except (OSError, ValueError, EOFError, BadZipFile) as error:
        raise DocumentError(
            f"{path}: cannot be read as .npy or .npz arrays: {why_unread(error)}"
        ) from error


def _fitting(
    path: Path, tensor: TensorInfo, array: npt.NDArray[Any], items: int
) -> npt.NDArray[Any]:
    if tensor.datatype == "BYTES" and array.dtype.kind in "US":
        array = array.astype("U").astype(object)
    elif tensor.datatype == "BF16" and array.dtype == np.dtype("V2"):
        # So numpy reads what a library for BF16 has written.
        array = (array.view("<u2").astype("<u4") << 16).view("<f4")
    elif array.dtype.newbyteorder("<") != _dtype(tensor):
        raise DocumentError(
            f"{path}: input {tensor.name!r}: expected {tensor.datatype} ({_dtype(tensor)}),"
            f" got {array.dtype}"
        )
    if array.ndim == len(tensor.shape) - 1:
        axis = tensor.shape.index(-1) if -1 in tensor.shape else 0
        array = np.repeat(np.expand_dims(array, axis), items, axis=axis)
    if array.ndim != len(tensor.shape) or any(
        want not in (-1, got) for want, got in zip(tensor.shape, array.shape, strict=True)
    ):
        raise DocumentError(
            f"{path}: input {tensor.name!r}: expected shape {list(tensor.shape)}, or of a model"
            f" one item of it, without the batch dimension; got {list(array.shape)}"
        )
    return np.asarray(array, dtype=_dtype(tensor), order="C")


class RequestEncoder:
    """Builds infer requests that differ only in timeout and priority.

    The tensors' bytes are encoded once. The few variants of what stands before them are kept.
    """

    def __init__(
        self,
        headers: bytes,
        info: ModelInfo,
        tensors: Sequence[npt.NDArray[Any]],
        *,
        binary: bool,
        first_sequence: int | None = None,
    ) -> None:
        """`headers`: of every request to this server, each with its end of line. `first_sequence`:
        number of the first; each request is a whole sequence then."""
        self._sequence = first_sequence
        self._binary = binary
        path = info.name.encode()
        self._head = b"POST /v2/models/%b/infer HTTP/1.1\r\n%b" % (path, headers)
        described: list[dict[str, Any]] = [
            {"name": tensor.name, "datatype": tensor.datatype, "shape": list(array.shape)}
            for tensor, array in zip(info.inputs, tensors, strict=True)
        ]
        self._raw = b""
        for entry, tensor, array in zip(described, info.inputs, tensors, strict=True):
            data = _wire(tensor, array)
            if binary:
                entry["parameters"] = {"binary_data_size": len(data)}
                self._raw += data
            else:
                entry["data"] = array.ravel().tolist()
        # Parameters stand first and the rest never changes: the rest is shared by all variants.
        self._rest = b',"inputs":' + msgspec.json.encode(described) + b"}"
        self._variants: dict[tuple[int | None, int], tuple[bytes, ...]] = {}

    def parts(self, timeout_us: int | None, priority: int) -> tuple[bytes, ...]:
        """The whole request in one or more pieces."""
        if self._sequence is not None:
            self._sequence += 1
            return self._encode(timeout_us, priority)
        key = (timeout_us, priority)
        found = self._variants.get(key)
        if found is None:
            if len(self._variants) >= 4096:
                self._variants.clear()
            found = self._variants[key] = self._encode(timeout_us, priority)
        return found

    def _encode(self, timeout_us: int | None, priority: int) -> tuple[bytes, ...]:
        parameters: dict[str, Any] = {}
        if timeout_us is not None:
            parameters["timeout"] = timeout_us
        if priority:
            parameters["priority"] = priority
        if self._binary:
            parameters["binary_data_output"] = True
        if self._sequence is not None:
            whole = {"sequence_start": True, "sequence_end": True}
            parameters |= {"sequence_id": self._sequence, **whole}
        first = b'{"parameters":' + msgspec.json.encode(parameters)
        json_bytes = len(first) + len(self._rest)
        if self._binary:
            kind = b"Content-Type: application/octet-stream\r\n"
            kind += b"Inference-Header-Content-Length: %d\r\n" % json_bytes
        else:
            kind = b"Content-Type: application/json\r\n"
        length = b"Content-Length: %d\r\n\r\n" % (json_bytes + len(self._raw))
        pieces = (self._head + kind + length + first, self._rest, self._raw)
        if sum(map(len, pieces)) <= JOIN_BYTES:
            return (b"".join(pieces),)
        return tuple(piece for piece in pieces if piece)


class MessageEncoder:
    """Builds the same requests as gRPC's messages, the tensors' bytes as raw contents."""

    def __init__(
        self,
        head: bytes,
        info: ModelInfo,
        tensors: Sequence[npt.NDArray[Any]],
        *,
        first_sequence: int | None = None,
    ) -> None:
        """`head`: of every call, as the connection sends it. `first_sequence`: as of
        `RequestEncoder`."""
        self._head = head
        self._sequence = first_sequence
        request = message("ModelInferRequest")(model_name=info.name)
        for tensor, array in zip(info.inputs, tensors, strict=True):
            request.inputs.add(name=tensor.name, datatype=tensor.datatype, shape=array.shape)
            request.raw_input_contents.append(_wire(tensor, array))
        self._rest: bytes = request.SerializeToString()
        self._variants: dict[tuple[int | None, int], bytes] = {}

    def parts(self, timeout_us: int | None, priority: int) -> tuple[bytes, ...]:
        """The header block, and the message in pieces."""
        if self._sequence is not None:
            self._sequence += 1
            return (self._head, self._first(timeout_us, priority), self._rest)
        first = self._variants.get((timeout_us, priority))
        if first is None:
            if len(self._variants) >= 4096:
                self._variants.clear()
            first = self._variants[timeout_us, priority] = self._first(timeout_us, priority)
        # Messages behind each other are one message with the fields of both.
        return (self._head, first, self._rest)

    def _first(self, timeout_us: int | None, priority: int) -> bytes:
        request = message("ModelInferRequest")()
        if timeout_us is not None:
            request.parameters["timeout"].int64_param = timeout_us
        if priority:
            request.parameters["priority"].int64_param = priority
        if self._sequence is not None:
            request.parameters["sequence_id"].int64_param = self._sequence
            request.parameters["sequence_start"].bool_param = True
            request.parameters["sequence_end"].bool_param = True
        encoded: bytes = request.SerializeToString()
        return encoded


class Encoder(Protocol):
    """Builds requests that differ only in timeout and priority."""

    def parts(self, timeout_us: int | None, priority: int) -> tuple[bytes, ...]:
        """The whole request in one or more pieces, as `SentRequest` takes it."""
        ...


def _wire(tensor: TensorInfo, array: npt.NDArray[Any]) -> bytes:
    """Numbers as they lie in memory, strings each behind its length."""
    if tensor.datatype == "BYTES":
        return bytes(joined([text.encode() for text in array.ravel()]))
    if tensor.datatype == "BF16":
        return _upper_halves(array).tobytes()
    return array.tobytes()


def _upper_halves(array: npt.NDArray[np.float32]) -> npt.NDArray[np.uint16]:
    """The nearest BF16 of each number; of two as near, the even one."""
    bits = array.view("<u4")
    nearest = (bits + np.uint32(0x7FFF) + (bits >> 16 & 1)) >> 16
    # Of NaN, rounding could leave infinity.
    return np.where(np.isnan(array), np.uint32(0x7FC0), nearest).astype("<u2")


def _dtype(tensor: TensorInfo) -> np.dtype[Any]:
    dtype = _DTYPES.get(tensor.datatype)
    if dtype is None:
        raise ModelError(
            f"input {tensor.name!r}: data type {tensor.datatype} cannot be sent;"
            f" known: {', '.join(_DTYPES)}"
        )
    return dtype


def _shape(tensor: TensorInfo, items: int) -> tuple[int, ...]:
    if tensor.shape.count(-1) > 1:
        raise ModelError(
            f"input {tensor.name!r}: shape {list(tensor.shape)} leaves more than the batch open;"
            " give an example with --input FILE.npy, to `headrace load` or `headrace rehearse`;"
            " what `headrace rehearse` keeps beside a plan is what `headrace serve` asks for"
        )
    return tuple(items if dim < 0 else dim for dim in tensor.shape)
