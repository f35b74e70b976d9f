"""A model's file, read with bounds and put into the one form that cutting works on.

That is an ONNX graph. A PyTorch export is read as one whose nodes call PyTorch (`pt2_model`).
Constant nodes become initialisers, nodes that no output needs are dropped, and every tensor is
known to be either static (it depends on weights only) or live data (it depends on an input).
"""

import errno
import hashlib
import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from google.protobuf.message import DecodeError  # type: ignore[import-untyped]
from onnx import numpy_helper

from headrace.catalog.needed import needed
from headrace.catalog.onnx_references import check_references
from headrace.catalog.onnx_types import dtype_name, type_name
from headrace.catalog.pt2_archive import is_archive
from headrace.catalog.pt2_calls import TORCH_DOMAIN
from headrace.catalog.pt2_model import read_pt2
from headrace.catalog.regular_file import open_regular
from headrace.catalog.weights_files import MAX_FILE_BYTES, ExternalWeights, identity
from headrace.domain.errors import ModelError
from headrace.domain.profile import ModelFormat
from headrace.domain.tensors import MAX_STRING_BYTES, TensorSpec

MAX_MODEL_BYTES = 2**31 - 1
"""Protobuf's own limit of one message."""

MAX_NODES = 200_000
"""Far above any real graph; each node is looked at many times."""

MAX_ITEM_COUNT = 2**28
"""Elements per item of one input; refused beyond, before anything is allocated."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenTensor:
    """A model input as the file declares it."""

    name: str
    dtype: str
    """numpy's name."""
    batch: int | None
    """The batch dimension; None: free, as it should be."""
    item_dims: tuple[int | None, ...]
    """The other dimensions; None: free."""
    batch_axis: int | None = 0
    """Where the file has the batch dimension; None: it has none, and all are `item_dims`."""
    symbols: tuple[str, ...] = ()
    """What the file calls each of `item_dims`; "" where it has no name."""
    batch_symbol: str = ""
    """What the file calls the batch dimension."""


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
    """Of the file, and of those that hold its weights where there are any."""
    weights: ExternalWeights | None
    """Where initialisers without data have it; None: all have their own."""
    inputs: tuple[OpenTensor, ...]
    outputs: tuple[str, ...]
    nodes: tuple[GraphNode, ...]
    initialisers: dict[str, Any]
    """Name -> TensorProto."""
    static: frozenset[str]
    """Tensors that depend on no input: initialisers and what derives only from them."""
    stated: Mapping[str, Any]
    """Of tensors inside, what the file states of them (ValueInfoProto): how ONNX Runtime fuses
    operators, and so where it rounds, depends on it."""
    stated_outputs: Mapping[str, Any] = field(default_factory=dict)
    """The same of the file's outputs."""
    max_string_bytes: int = MAX_STRING_BYTES
    """Of one string that enters or leaves."""
    batched: bool = True
    """False: it runs one request at a time (`onnx_batch`)."""
    output_axes: Mapping[str, int] = field(default_factory=dict)
    """Where the file has an output's batch dimension, if not first."""
    rooms: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    """Shapes of outputs that have room for the most that they may be (`onnx_rooms`)."""
    header: Any
    """ModelProto without its graph: versions, operator sets, local functions."""

    @property
    def format(self) -> ModelFormat:
        """What its nodes are, which says who can run it."""
        calls_torch = any(opset.domain == TORCH_DOMAIN for opset in self.header.opset_import)
        return "torch" if calls_torch else "onnx"

    @property
    def opset(self) -> int:
        """Version of ONNX's own operator set; 0: the file names none, and its latest is meant."""
        own = (o.version for o in self.header.opset_import if o.domain in ("", "ai.onnx"))
        return max(own, default=0)

    def dynamic_nodes(self) -> tuple[GraphNode, ...]:
        """Nodes that work on live data; the others are folded away before the first run."""
        return tuple(n for n in self.nodes if any(name not in self.static for name in n.writes))

    def spec(
        self, name: str, dtype: str, item_shape: tuple[int, ...], batch_axis: int = 0
    ) -> TensorSpec:
        """Of an input or output."""
        max_bytes = self.max_string_bytes if dtype == "bytes" else 0
        return TensorSpec(
            name=name,
            dtype=dtype,
            item_shape=item_shape,
            max_bytes=max_bytes,
            batch_axis=batch_axis,
        )

    def tensors(self) -> frozenset[str]:
        """Every name that the graph makes or takes."""
        made = {name for node in self.nodes for name in node.writes}
        return frozenset(made | {tensor.name for tensor in self.inputs} | set(self.initialisers))


def load_graph(
    path: Path,
    max_bytes: int = MAX_MODEL_BYTES,
    batch_axes: Mapping[str, int | None] | None = None,
    max_string_bytes: int = MAX_STRING_BYTES,
) -> OnnxGraph:
    """Read and normalise an ONNX file or an archive of `torch.export.save`.

    Args:
        path: the file.
        max_bytes: of it, without the files that it refers to.
        batch_axes: where inputs have their batch dimension, None: they have none; of inputs that
            are not named it is the dimension that the file calls as the named ones, or is found.
        max_string_bytes: of one string that enters or leaves.

    Raises:
        ModelError: the file is absent, too large, not ONNX, refers to weights that are not in its
            folder, or lists an output twice; or an input has no such axis.
    """
    model, sha256, weights = _read(path, max_bytes)
    graph = model.graph
    if not graph.node or not graph.output:
        raise ModelError(f"{path}: is not an ONNX model (it has no operators or no outputs)")
    for value in graph.output:
        if value.type.WhichOneof("value") in ("sequence_type", "map_type", "optional_type"):
            raise ModelError(no_tensor(path, value.name))
    outputs = tuple(value.name for value in graph.output)
    if twice := [name for name, count in Counter(outputs).items() if count > 1]:
        raise ModelError(
            f"{path}: output {twice[0]!r} is listed twice; leave one out, or give it a name of its"
            " own behind an Identity operator"
        )
    initialisers = {tensor.name: tensor for tensor in graph.initializer}
    sparse = tuple(_sparse_constants(path, graph))
    nodes = sparse + _nodes_without_constants(graph, initialisers)
    nodes = tuple(needed(nodes, outputs))
    named = batch_axes or {}
    constants = initialisers.keys() | {node.writes[0] for node in sparse}
    values = [value for value in graph.input if value.name not in constants]
    inputs = _open_tensors(path, values, named)
    if not inputs:
        raise ModelError(f"{path}: the model has no input, so there is nothing to serve")
    header = onnx.ModelProto()
    header.ir_version = max(model.ir_version, 4)  # 4: initialisers need not be inputs too
    header.opset_import.extend(model.opset_import)
    header.functions.extend(model.functions)
    return OnnxGraph(
        path=path,
        sha256=sha256,
        weights=weights,
        max_string_bytes=max_string_bytes,
        inputs=inputs,
        outputs=outputs,
        nodes=nodes,
        initialisers=initialisers,
        static=static_names(path, nodes, initialisers, {tensor.name for tensor in inputs}),
        header=header,
        stated={value.name: value for value in graph.value_info},
        stated_outputs={value.name: value for value in graph.output},
    )


def whole_model(graph: OnnxGraph) -> bytes:
    """The model as its file has it, uncut: read and checked again.

    Raises:
        ModelError: it is not the file any more that `graph` was read from.
    """
    model, sha256, _ = _read(graph.path, MAX_MODEL_BYTES)
    if sha256 != graph.sha256:
        raise ModelError(f"{graph.path}: has changed since it was read; profile it again")
    content: bytes = model.SerializeToString()
    return content


def _read(path: Path, max_bytes: int) -> tuple[Any, str, ExternalWeights | None]:
    """A file's ModelProto, the hash of all its files, and where its weights are."""
    model, sha256 = _read_archive(path) or _read_onnx(path, max_bytes)
    count = sum(map(_count_nodes, (model.graph, *model.functions)))
    if count > MAX_NODES:
        raise ModelError(
            f"{path}: has {count:,} operators, at most {MAX_NODES:,} are read;"
            " export it without unrolling its loops"
        )
    weights = check_references(path, model)
    return model, weights.sha256(sha256) if weights else sha256, weights


def _count_nodes(graph: Any) -> int:
    """Operators of a graph or function, those of inner graphs too; stops soon behind MAX_NODES.

    Protobuf bounds how deep graphs lie in each other.
    """
    count = len(graph.node)
    for node in graph.node:
        if count > MAX_NODES:
            break
        for attribute in node.attribute:
            if attribute.type in (onnx.AttributeProto.GRAPH, onnx.AttributeProto.GRAPHS):
                count += sum(map(_count_nodes, (attribute.g, *attribute.graphs)))
    return count


def _read_onnx(path: Path, max_bytes: int) -> tuple[Any, str]:
    data = read_model_bytes(path, max_bytes)
    try:
        model = onnx.load_model_from_string(data)
    except DecodeError as error:
        raise ModelError(
            f"{path}: is not an ONNX model (it does not parse: {error}), nor an archive of"
            " torch.export.save"
        ) from error
    return model, hashlib.sha256(data).hexdigest()


def _read_archive(path: Path) -> tuple[Any, str] | None:
    """The model of a PyTorch export, and the hash of its file; None: it is none."""
    try:
        file = open_regular(path, MAX_FILE_BYTES)
    except OSError:
        return None  # `_read_onnx` says why
    with file:
        if not is_archive(file.peek(4)):
            return None
        before = identity(path.name, file)
        model = read_pt2(path, file, MAX_NODES)
        file.seek(0)
        sha256 = hashlib.file_digest(file, "sha256").hexdigest()
        if identity(path.name, file) != before:
            raise ModelError(f"{path}: changed while it was read; profile it again")
    return model, sha256


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
                f"{path}: {error.strerror} (one ONNX file holds less than 2 GiB; export larger"
                " models with their weights beside them: external_data=True)"
            ) from error
        reason = error.strerror or error
        raise ModelError(f"{path}: cannot be read: {reason}; check the path") from error
    if not data:
        raise ModelError(f"{path}: is empty; fetch or export the model again")
    if len(data) > max_bytes:
        raise ModelError(f"{path}: grew beyond {max_bytes:,} bytes while it was read")
    return data


def no_tensor(path: Path, output: str) -> str:
    """The refusal of an output that is a list or a map."""
    return (
        f"{path}: output {output!r} is a list or a map, which cannot be served; export a tensor"
        " instead: options={'zipmap': False} of skl2onnx, zipmap=False of onnxmltools"
    )


def _open_tensors(
    path: Path, values: Sequence[Any], named: Mapping[str, int | None]
) -> tuple[OpenTensor, ...]:
    """Where one input has its batch, others have what is called alike, behind a first dimension of
    1: a recurrent model's `x ['N', 'T', 4]` and `state [1, 'N', 3]`."""
    called = _called(values, named)
    inputs = tuple(_open_tensor(path, value, named, called) for value in values)
    found = called or {tensor.batch_symbol for tensor in inputs if tensor.batch is None} - {""}
    if len(found) != 1:
        return inputs
    return tuple(
        _open_tensor(path, value, named, frozenset(found)) if tensor.batch == 1 else tensor
        for value, tensor in zip(values, inputs, strict=True)
    )


def _called(values: Sequence[Any], named: Mapping[str, int | None]) -> frozenset[str]:
    """What the file calls the batch of the inputs where the user says which dimension it is."""
    found = set()
    for value in values:
        dims, axis = value.type.tensor_type.shape.dim, named.get(value.name)
        if axis is not None and 0 <= axis < len(dims):
            found.add(dims[axis].dim_param)
    return frozenset(found - {""})


def _open_tensor(
    path: Path, value: Any, named: Mapping[str, int | None], called: frozenset[str]
) -> OpenTensor:
    kind = value.type.tensor_type
    dtype = dtype_name(kind.elem_type)
    if not value.type.HasField("tensor_type") or dtype is None:
        what = type_name(kind.elem_type) if value.type.HasField("tensor_type") else ""
        raise ModelError(
            f"{path}: input {value.name!r} is not a tensor of numbers or strings"
            f"{what and f' that is served ({what})'}; serve such pre-processing outside the model"
        )
    if any(dim.HasField("dim_value") and dim.dim_value == 0 for dim in kind.shape.dim):
        stated = [dim.dim_param or dim.dim_value for dim in kind.shape.dim]
        raise ModelError(
            f"{path}: input {value.name!r} is {stated}: with a dimension of 0 it holds nothing, and"
            " no request fits; export it with its size there, or free (dynamic_axes,"
            " dynamic_shapes)"
        )
    dims = tuple(
        dim.dim_value if dim.HasField("dim_value") and dim.dim_value > 0 else None
        for dim in kind.shape.dim
    )
    count = math.prod(dim or 1 for dim in dims)
    if count > MAX_ITEM_COUNT:
        raise ModelError(
            f"{path}: input {value.name!r} has {count:,} elements, at most {MAX_ITEM_COUNT:,} are"
            " served"
        )
    symbols = tuple(dim.dim_param for dim in kind.shape.dim)
    alike = [axis for axis, symbol in enumerate(symbols) if symbol in called]
    likely = alike[0] if len(alike) == 1 else _likely_axis(dims, symbols)
    axis = named.get(value.name, likely)
    if axis is None:
        return OpenTensor(
            name=value.name,
            dtype=dtype,
            batch=1,
            item_dims=dims,
            batch_axis=None,
            symbols=symbols,
        )
    if not 0 <= axis < len(dims):
        raise ModelError(
            f"{path}: input {value.name!r} has {len(dims)} dimensions, so --batch-axis"
            f" {value.name}={axis} names none of them"
        )
    others = (*dims[:axis], *dims[axis + 1 :])
    return OpenTensor(
        name=value.name,
        dtype=dtype,
        batch=dims[axis],
        item_dims=others,
        batch_axis=axis,
        symbols=(*symbols[:axis], *symbols[axis + 1 :]),
        batch_symbol=symbols[axis],
    )


def _likely_axis(dims: tuple[int | None, ...], symbols: Sequence[str]) -> int | None:
    """Which dimension is the batch, from how the file declares them; None: none.

    A free one that is called so; else the first, where it is free or 1; else the only free one.

    >>> _likely_axis((2, None, 128), ["", "batch", ""]), _likely_axis((3, 224, 224), ["", "", ""])
    (1, None)
    """
    free = [axis for axis, dim in enumerate(dims) if dim is None]
    called = [axis for axis in free if "batch" in symbols[axis].lower()]
    if len(called) == 1:
        return called[0]
    if dims and dims[0] in (None, 1):
        return 0
    return free[0] if len(free) == 1 else None


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


def _sparse_constants(path: Path, graph: Any) -> Iterator[GraphNode]:
    """Sparse initialisers as sparse Constants, which are nodes as others.

    Raises:
        ModelError: one has its values in another file.
    """
    for tensor in graph.sparse_initializer:
        name = tensor.values.name
        parts = (tensor.values, tensor.indices)
        if any(part.data_location == onnx.TensorProto.EXTERNAL for part in parts):
            raise ModelError(
                f"{path}: sparse weights {name!r} are in another file, which is not served; save"
                " the model with them inside (onnx.save), or dense"
            )
        proto = onnx.helper.make_node("Constant", [], [name], sparse_value=tensor)
        yield GraphNode(proto=proto, reads=(), writes=(name,))


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
    own |= {tensor.values.name for tensor in subgraph.sparse_initializer}
    for node in subgraph.node:
        yield from (name for name in node.input if name and name not in own)
        for attribute in node.attribute:
            for inner in (attribute.g, *attribute.graphs):
                yield from (name for name in _outer_names(inner) if name not in own)
        own.update(node.output)
    yield from (value.name for value in subgraph.output if value.name not in own)


def static_names(
    path: Path, nodes: tuple[GraphNode, ...], initialisers: dict[str, Any], inputs: set[str]
) -> frozenset[str]:
    """Tensors that depend on no input.

    Raises:
        ModelError: the nodes are not in topological order.
    """
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
