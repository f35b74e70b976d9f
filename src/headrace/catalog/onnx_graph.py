"""An ONNX model, read with bounds and put into the one form that cutting works on.

Constant nodes become initialisers, nodes that no output needs are dropped, and every tensor is
known to be either static (it depends on weights only) or live data (it depends on an input).
"""

import errno
import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from google.protobuf.message import DecodeError  # type: ignore[import-untyped]
from onnx import numpy_helper

from headrace.catalog.regular_file import open_regular
from headrace.domain.errors import ModelError

MAX_MODEL_BYTES = 2**31 - 1
"""Protobuf's own limit of one message."""

NUMBERS = "biuf"
"""numpy's kinds of the dtypes that can travel: bool, integers, floats."""

MAX_ITEM_COUNT = 2**28
"""Elements per item of one input; refused beyond, before anything is allocated."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenTensor:
    """A model input as the file declares it."""

    name: str
    dtype: str
    """numpy's name."""
    batch: int | None
    """First dimension; None: free, as it should be."""
    item_dims: tuple[int | None, ...]
    """The other dimensions; None: free."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GraphNode:
    """One operator; `reads` includes what its subgraphs take from outside."""

    proto: Any
    reads: tuple[str, ...]
    writes: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class OnnxGraph:
    """A normalised model. Nodes are in topological order."""

    path: Path
    sha256: str
    """Of the file."""
    inputs: tuple[OpenTensor, ...]
    outputs: tuple[str, ...]
    nodes: tuple[GraphNode, ...]
    initialisers: dict[str, Any]
    """Name -> TensorProto."""
    static: frozenset[str]
    """Tensors that depend on no input: initialisers and what derives only from them."""
    header: Any
    """ModelProto without its graph: versions, operator sets, local functions."""

    def dynamic_nodes(self) -> tuple[GraphNode, ...]:
        """Nodes that work on live data; the others are folded away before the first run."""
        return tuple(n for n in self.nodes if any(name not in self.static for name in n.writes))

    def tensors(self) -> frozenset[str]:
        """Every name that the graph makes or takes."""
        made = {name for node in self.nodes for name in node.writes}
        return frozenset(made | {tensor.name for tensor in self.inputs} | set(self.initialisers))


def load_graph(path: Path, max_bytes: int = MAX_MODEL_BYTES) -> OnnxGraph:
    """Read and normalise an ONNX file.

    Raises:
        ModelError: the file is absent, too large, not ONNX, or keeps weights outside of itself.
    """
    data = read_model_bytes(path, max_bytes)
    try:
        model = onnx.load_model_from_string(data)
    except DecodeError as error:
        raise ModelError(f"{path}: is not an ONNX model (it does not parse: {error})") from error
    graph = model.graph
    if not graph.node or not graph.output:
        raise ModelError(f"{path}: is not an ONNX model (it has no operators or no outputs)")
    initialisers = {tensor.name: tensor for tensor in graph.initializer}
    nodes = _nodes_without_constants(graph, initialisers)
    _refuse_external_data(path, initialisers)
    outputs = tuple(value.name for value in graph.output)
    nodes = _needed(nodes, outputs)
    inputs = tuple(_open_tensor(path, v) for v in graph.input if v.name not in initialisers)
    if not inputs:
        raise ModelError(f"{path}: the model has no input, so there is nothing to serve")
    header = onnx.ModelProto()
    header.ir_version = max(model.ir_version, 4)  # 4: initialisers need not be inputs too
    header.opset_import.extend(model.opset_import)
    header.functions.extend(model.functions)
    return OnnxGraph(
        path=path,
        sha256=hashlib.sha256(data).hexdigest(),
        inputs=inputs,
        outputs=outputs,
        nodes=nodes,
        initialisers=initialisers,
        static=_static_names(path, nodes, initialisers, {tensor.name for tensor in inputs}),
        header=header,
    )


def read_model_bytes(path: Path, max_bytes: int = MAX_MODEL_BYTES) -> bytes:
    """The file's content, refused before reading where it is larger than `max_bytes`.

    Raises:
        ModelError: the file is absent, unreadable, empty or too large.
    """
    try:
        with open_regular(path, max_bytes) as file:
            data = file.read(max_bytes + 1)
    except OSError as error:
        if error.errno in (errno.EISDIR, errno.EINVAL):
            raise ModelError(f"{path}: is not a file; give the path of an ONNX file") from error
        if error.errno == errno.EFBIG:
            raise ModelError(
                f"{path}: {error.strerror} (one ONNX file holds less than 2 GiB)"
            ) from error
        reason = error.strerror or error
        raise ModelError(f"{path}: cannot be read: {reason}; check the path") from error
    if not data:
        raise ModelError(f"{path}: is empty; fetch or export the model again")
    if len(data) > max_bytes:
        raise ModelError(f"{path}: grew beyond {max_bytes:,} bytes while it was read")
    return data


def dtype_name(elem_type: int) -> str | None:
    """numpy's name of an ONNX element type; None where numpy has no such type.

    >>> dtype_name(1), dtype_name(7), dtype_name(8)
    ('float32', 'int64', None)
    """
    try:
        dtype = np.dtype(onnx.helper.tensor_dtype_to_np_dtype(elem_type))
    except (KeyError, TypeError):
        return None
    return dtype.name if dtype.isbuiltin == 1 and dtype.kind in NUMBERS else None


def elem_type(dtype: str) -> int:
    """The ONNX element type of numpy's name: the inverse of `dtype_name`."""
    return int(onnx.helper.np_dtype_to_tensor_dtype(np.dtype(dtype)))


def tensor_bytes(tensor: Any) -> int:
    """Size of an initialiser, from its declared shape; reads no data."""
    dtype = dtype_name(tensor.data_type)
    itemsize = np.dtype(dtype).itemsize if dtype else 2 if tensor.data_type == 16 else 1
    count = 1
    for dim in tensor.dims:
        count *= dim
    return count * itemsize


def _open_tensor(path: Path, value: Any) -> OpenTensor:
    kind = value.type.tensor_type
    dtype = dtype_name(kind.elem_type)
    if not value.type.HasField("tensor_type") or dtype is None:
        raise ModelError(
            f"{path}: input {value.name!r} is not a tensor of numbers;"
            " serve such pre-processing outside the model"
        )
    dims = tuple(
        dim.dim_value if dim.HasField("dim_value") and dim.dim_value > 0 else None
        for dim in kind.shape.dim
    )
    if not dims:
        raise ModelError(
            f"{path}: input {value.name!r} is a scalar, but a batch needs a first dimension;"
            " export the model with a batch dimension"
        )
    return OpenTensor(name=value.name, dtype=dtype, batch=dims[0], item_dims=dims[1:])


def _refuse_external_data(path: Path, initialisers: dict[str, Any]) -> None:
    outside = onnx.TensorProto.EXTERNAL
    if any(tensor.data_location == outside for tensor in initialisers.values()):
        raise ModelError(
            f"{path}: keeps its weights in other files; save it as one file first:"
            " onnx.save(onnx.load(PATH), NEW_PATH, save_as_external_data=False)"
        )


def _nodes_without_constants(graph: Any, initialisers: dict[str, Any]) -> tuple[GraphNode, ...]:
    """All nodes but Constants, which join `initialisers`, so that both are handled alike."""
    nodes = []
    for proto in graph.node:
        tensor = _constant_value(proto) if proto.op_type == "Constant" else None
        if tensor is not None:
            tensor.name = proto.output[0]
            initialisers[tensor.name] = tensor
            continue
        reads = dict.fromkeys(name for name in proto.input if name)
        for attribute in proto.attribute:
            for subgraph in (attribute.g, *attribute.graphs):
                reads.update(dict.fromkeys(_outer_names(subgraph)))
        writes = tuple(name for name in proto.output if name)
        nodes.append(GraphNode(proto=proto, reads=tuple(reads), writes=writes))
    return tuple(nodes)


def _constant_value(proto: Any) -> Any:
    """A Constant node's value as a tensor; None for kinds that stay nodes (sparse, text)."""
    for attribute in proto.attribute:
        match attribute.name:
            case "value":
                return attribute.t
            case "value_float":
                return numpy_helper.from_array(np.array(attribute.f, np.float32))
            case "value_floats":
                return numpy_helper.from_array(np.array(attribute.floats, np.float32))
            case "value_int":
                return numpy_helper.from_array(np.array(attribute.i, np.int64))
            case "value_ints":
                return numpy_helper.from_array(np.array(attribute.ints, np.int64))
    return None


def _outer_names(subgraph: Any) -> Iterator[str]:
    """Names that a subgraph (of If, Loop, Scan) reads but does not make."""
    own = {value.name for value in subgraph.input} | {t.name for t in subgraph.initializer}
    for node in subgraph.node:
        yield from (name for name in node.input if name and name not in own)
        for attribute in node.attribute:
            for inner in (attribute.g, *attribute.graphs):
                yield from (name for name in _outer_names(inner) if name not in own)
        own.update(node.output)
    yield from (value.name for value in subgraph.output if value.name not in own)


def _needed(nodes: tuple[GraphNode, ...], outputs: tuple[str, ...]) -> tuple[GraphNode, ...]:
    """The nodes that some output depends on, in order."""
    wanted = set(outputs)
    kept = []
    for node in reversed(nodes):
        if not wanted.isdisjoint(node.writes):
            wanted.update(node.reads)
            kept.append(node)
    return tuple(reversed(kept))


def _static_names(
    path: Path, nodes: tuple[GraphNode, ...], initialisers: dict[str, Any], inputs: set[str]
) -> frozenset[str]:
    static = set(initialisers)
    known = static | inputs
    for node in nodes:
        for name in node.reads:
            if name not in known:
                raise ModelError(
                    f"{path}: operator {node.proto.op_type} reads {name!r} before anything makes"
                    " it; the file is damaged or not sorted, export the model again"
                )
        # A node that reads nothing (a sparse Constant) is static; random ones are not.
        if static.issuperset(node.reads) and not node.proto.op_type.startswith("Random"):
            static.update(node.writes)
        known.update(node.writes)
    return frozenset(static)
