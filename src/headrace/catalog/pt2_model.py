"""A PyTorch export as a graph of nodes that call PyTorch, in the form that ONNX files have.

The rest of Headrace cuts, checks, keeps and loads `ModelProto`s, and asks of a node only what it
reads and writes. So an export becomes one, of nodes of an operator set of its own (`pt2_calls`),
and its weights become references into the archive, whose entries are not compressed. The steps:

1. calls     of its subgraphs inlined, none overwrites a tensor, none is for nothing (`pt2_program`)
2. sizes     "size of dimension d of t" is asked of the model's input that has the same symbol, so
             that `pt2_sizes` can answer it from the batch

What an export promises of its inputs' sizes is kept: a dimension that was not exported as dynamic
has its one size, and a dynamic one its least and largest (`EXPECT`); a multiple of a `Dim` is one;
and what the export's branches found of sizes holds (`pt2_guards`).
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from io import BufferedReader
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import onnx
from onnx import numpy_helper

from headrace.catalog.needed import needed
from headrace.catalog.onnx_types import elem_type
from headrace.catalog.pt2_archive import Archive, Range, TensorMeta, decode, read_archive
from headrace.catalog.pt2_calls import (
    CALL,
    DTYPES,
    EXPECT,
    GUARDS,
    NUMBER_OPERATORS,
    SIZE,
    STRIDED,
    TORCH_DOMAIN,
    NotServedError,
    check_argument,
    check_trained,
    encoded,
    names_in,
    node_operator,
    unserved_type,
)
from headrace.catalog.pt2_guards import affine, check_guards
from headrace.catalog.pt2_program import (
    Call,
    Graph,
    Limits,
    Program,
    Signature,
    element_types,
    flattened,
    pure,
)
from headrace.domain.errors import ModelError

OPSET = 18
"""Of ONNX's own operators, which stand where a model is cut and where its batch is moved."""
SCHEMA_MAJOR = 8
MAX_DIM = 2**31 - 1
_SYM_SIZE = "torch.ops.aten.sym_size.int"


@dataclass(slots=True)
class _Build:
    """The model that is being made."""

    path: Path
    program: Program
    archive: Archive
    model: Any = field(default_factory=onnx.ModelProto)
    symbols: dict[str, tuple[str, int]] = field(default_factory=dict)
    """Symbol of a size -> the model's input that has it, and at which dimension."""


def read_pt2(path: Path, file: BufferedReader, max_nodes: int) -> Any:
    """An archive of `torch.export.save` as a `ModelProto` whose nodes call PyTorch.

    Weights are references into the file; `onnx_references` checks that they lie within it.

    Raises:
        ModelError: the archive is damaged, holds code, or what it computes is not served.
    """
    archive = read_archive(path, file)
    program = decode(path, archive.graph_json, Program, "its graph")
    if program.schema_version.major != SCHEMA_MAJOR:
        raise ModelError(
            f"{path}: was written in version {program.schema_version.major} of torch.export's"
            f" format, this reads version {SCHEMA_MAJOR}; export it with PyTorch 2.13"
        )
    count = len(program.graph_module.graph.nodes)
    if count > max_nodes:
        raise ModelError(f"{path}: has {count:,} operators, at most {max_nodes:,} are read")
    build = _Build(path, program, archive)
    try:
        return _built(build)
    except NotServedError as error:
        raise ModelError(f"{path}: cannot be served, it contains {error}") from error
    except (KeyError, TypeError, AttributeError, ValueError, IndexError, RecursionError) as error:
        raise ModelError(
            f"{path}: its graph contradicts itself ({type(error).__name__}: {str(error)[:100]});"
            " export the model again"
        ) from error


def _built(build: _Build) -> Any:
    graph, signature = build.program.graph_module.graph, build.program.graph_module.signature
    build.model.ir_version = 8
    build.model.opset_import.extend(
        [onnx.helper.make_opsetid("", OPSET), onnx.helper.make_opsetid(TORCH_DOMAIN, 1)]
    )
    build.model.graph.name = "exported"
    given = _declare_inputs(build, graph, signature)
    guards = build.program.guards_code
    check_guards(guards, {name: len(meta.sizes) for name, meta in given})
    for node in build.model.graph.node if guards else ():
        if node.op_type == EXPECT:
            # On each, since the graph will lack inputs that nothing reads.
            node.attribute.append(onnx.helper.make_attribute(GUARDS, guards))
    calls = flattened(graph.nodes)
    check_trained((argument.name, argument.arg) for call in calls for argument in call.arguments)
    outputs = _output_names(signature)
    kept = {name for value in graph.inputs for name in names_in(value)}
    calls, outputs = pure(calls, outputs, kept, element_types(graph))
    calls = needed(calls, outputs)
    for call in calls:
        _add_call(build, graph, call)
    _declare_outputs(build, outputs, {name for name, _ in given})
    return build.model


def _declare_inputs(
    build: _Build, graph: Graph, signature: Signature
) -> list[tuple[str, TensorMeta]]:
    """Add inputs, weights and what is expected of inputs; returns the model's own inputs."""
    given = []
    for spec in signature.input_specs:
        ((kind, value),) = spec.items()
        match kind:
            case "user_input" if "as_tensor" in value["arg"]:
                name = value["arg"]["as_tensor"]["name"]
                given.append((name, graph.tensor_values[name]))
            case "user_input" | "constant_input":
                argument = str(value)[:60]
                if kind == "user_input" and "as_none" not in value["arg"]:
                    raise NotServedError(f"an input that is no tensor ({argument})")
            case "parameter" | "buffer" | "tensor_constant":
                key = {"tensor_constant": "tensor_constant_name"}.get(kind, f"{kind}_name")
                _add_weights(build, value["arg"]["name"], value[key])
            case _:
                raise NotServedError(f"an input of the kind {kind[:50]!r}")
    for name, meta in given:
        for dim, size in enumerate(meta.sizes):
            if "as_expr" in size:
                build.symbols.setdefault(size["as_expr"]["expr_str"], (name, dim))
    for name, meta in given:
        _add_input(build, name, meta)
    return given


def _add_input(build: _Build, name: str, meta: TensorMeta) -> None:
    """An input, and a node that compares its sizes with those exported; both have its name."""
    dtype = DTYPES.get(meta.dtype)
    if dtype is None:
        raise NotServedError(f"input {name[:50]!r} of {unserved_type(meta.dtype)}")
    wanted = [_wanted(build, size) for size in meta.sizes]
    dims = [
        size.least if size.fixed else _dim_name(build, meta, position)
        for position, size in enumerate(wanted)
    ]
    info = onnx.helper.make_tensor_value_info(name, elem_type(dtype), dims)
    build.model.graph.input.append(info)
    _add_node(
        build,
        EXPECT,
        [name],
        [_expected(name)],
        least=[size.least for size in wanted],
        most=[size.most for size in wanted],
        factors=[size.factor for size in wanted],
        offsets=[size.offset for size in wanted],
    )


def _dim_name(build: _Build, meta: TensorMeta, position: int) -> str:
    """By its place in the first input that has its symbol: alike in all."""
    _, first = build.symbols.get(meta.sizes[position]["as_expr"]["expr_str"], ("", position))
    return f"dim{first}"


@dataclass(frozen=True, slots=True)
class _Wanted:
    """Which sizes a dimension may have: least..most, factor * n + offset."""

    least: int
    most: int
    fixed: bool = False
    factor: int = 1
    offset: int = 0


def _wanted(build: _Build, size: Any) -> _Wanted:
    if "as_int" in size:
        fixed = _bounded(size["as_int"])
        return _Wanted(fixed, fixed, fixed=True)
    found = affine(size["as_expr"]["expr_str"])
    if found is None:
        return _Wanted(0, MAX_DIM)
    factor, symbol, offset = found
    limits = build.program.range_constraints.get(symbol, Limits())
    low, high = limits.min_val or 0, limits.max_val or MAX_DIM
    # PyTorch states 2 where it looked at sizes other than 0 and 1 alone.
    least = factor * low + offset if low > 2 else 0
    return _Wanted(least, min(factor * high + offset, MAX_DIM), factor=factor, offset=offset)


def _expected(name: str) -> str:
    return f"{name}::expected"


def _bounded(value: Any) -> int:
    if not isinstance(value, int) or not 0 <= value <= MAX_DIM:
        raise NotServedError(f"a size of {str(value)[:40]}")
    return value


def _add_weights(build: _Build, name: str, key: str) -> None:
    payload, at = build.archive.weights.get(key) or build.archive.constants[key]
    meta = payload.tensor_meta
    assert meta is not None  # `read_archive` refuses those
    dtype = DTYPES.get(meta.dtype)
    if dtype is None:
        raise NotServedError(f"weights {key[:50]!r} of {unserved_type(meta.dtype)}")
    if meta.layout != 7:
        raise NotServedError(f"weights {key[:50]!r}, which are not dense (torch.Tensor.to_dense)")
    kind = onnx.TensorProto.BFLOAT16 if dtype == "bfloat16" else elem_type(dtype)
    item = 2 if dtype == "bfloat16" else np.dtype(dtype).itemsize
    sizes = [_bounded(size.get("as_int")) for size in meta.sizes]
    strides = [_bounded(stride.get("as_int")) for stride in meta.strides]
    offset = _bounded(meta.storage_offset.get("as_int", 0))
    reach = offset + sum((n - 1) * s for n, s in zip(sizes, strides, strict=True)) + 1
    if 0 not in sizes and reach * item > at.length:
        raise ModelError(
            f"{build.path}: weights {key[:100]!r} need {reach * item:,} bytes, but {at.length:,}"
            " are in it; fetch or export the model again"
        )
    count = int(np.prod(sizes, dtype=object)) if sizes else 1
    if _contiguous(sizes, strides):
        _add_initialiser(build, name, kind, sizes, Range(at.offset + offset * item, count * item))
        return
    storage = f"{name}::storage"
    whole = at.length // item
    _add_initialiser(build, storage, kind, [whole], Range(at.offset, whole * item))
    _add_node(build, STRIDED, [storage], [name], size=sizes, stride=strides, offset=offset)


def _contiguous(sizes: Sequence[int], strides: Sequence[int]) -> bool:
    wanted = 1
    for size, stride in zip(reversed(sizes), reversed(strides), strict=True):
        if size != 1 and stride != wanted:
            return False
        wanted *= size
    return True


def _add_initialiser(build: _Build, name: str, kind: int, dims: list[int], at: Range) -> None:
    tensor = build.model.graph.initializer.add(name=name, data_type=kind, dims=dims)
    tensor.data_location = onnx.TensorProto.EXTERNAL
    stated = (("location", build.path.name), ("offset", at.offset), ("length", at.length))
    for key, value in stated:
        tensor.external_data.add(key=key, value=str(value))


def _output_names(signature: Signature) -> list[str]:
    names = []
    for spec in signature.output_specs:
        ((kind, value),) = spec.items()
        if kind.endswith("_mutation"):
            raise NotServedError(
                "a buffer or input that it changes as it runs; call model.eval() before"
                " torch.export.export, or return the state as an output"
            )
        if kind != "user_output" or "as_tensor" not in value["arg"]:
            if kind == "user_output" and "as_none" in value["arg"]:
                continue
            raise NotServedError(f"an output that is no tensor ({str(spec)[:80]})")
        names.append(value["arg"]["as_tensor"]["name"])
    return names


def _add_call(build: _Build, graph: Graph, call: Call) -> None:
    if call.target == _SYM_SIZE:
        _add_size(build, graph, call)
        return
    name = call.target if call.target in NUMBER_OPERATORS else node_operator(call.target)
    reads: dict[str, int] = {}
    inputs = {tensor.name for tensor in build.model.graph.input}

    def position(value: str) -> int:
        return reads.setdefault(_expected(value) if value in inputs else value, len(reads))

    arguments: list[Any] = []
    named: dict[str, Any] = {}
    for argument in call.arguments:
        if argument.name == "memory_format" and "zeros" in name:
            continue  # zeros are the same in any order, and not all take one
        value = encoded(argument.arg, position)
        check_argument(argument.name, value)
        if argument.kind == 1 and not named:
            arguments.append(value)
        else:
            named[argument.name] = value
    content = msgspec.json.encode({"args": arguments, "kwargs": named})
    _add_node(build, name, list(reads), call.writes, **{CALL: content})


def _add_size(build: _Build, graph: Graph, call: Call) -> None:
    """The size of a dimension: a constant, or that of the model's input with the same symbol."""
    (tensor,) = call.reads
    dim = call.arguments[1].arg["as_int"]
    size = graph.tensor_values[tensor].sizes[dim] if tensor in graph.tensor_values else {}
    (written,) = call.writes
    if "as_int" in size:
        constant = numpy_helper.from_array(np.array(_bounded(size["as_int"]), np.int64), written)
        build.model.graph.initializer.append(constant)
        return
    tensor, dim = build.symbols.get(size.get("as_expr", {}).get("expr_str", ""), (tensor, dim))
    _add_node(build, SIZE, [tensor], [written], dim=dim)


def _declare_outputs(build: _Build, outputs: Sequence[str], given: set[str]) -> None:
    """Outputs under their names; one that is an input or stands twice is copied under another."""
    made = {name for node in build.model.graph.node for name in node.output}
    declared: set[str] = set()
    for number, name in enumerate(outputs):
        if name in given or name in declared or name not in made:
            copy = f"output_{number}"
            read = _expected(name) if name in given else name
            build.model.graph.node.append(onnx.helper.make_node("Identity", [read], [copy]))
            name = copy
        declared.add(name)
        build.model.graph.output.append(onnx.ValueInfoProto(name=name))


def _add_node(
    build: _Build, kind: str, reads: Sequence[str], writes: Sequence[str], **attributes: Any
) -> None:
    node = onnx.helper.make_node(kind, list(reads), list(writes), domain=TORCH_DOMAIN)
    for key, value in attributes.items():
        if isinstance(value, list):
            # Of an empty list nobody can tell the type.
            kind_of = onnx.AttributeProto.INTS
            node.attribute.append(onnx.AttributeProto(name=key, ints=value, type=kind_of))
        else:
            node.attribute.append(onnx.helper.make_attribute(key, value))
    build.model.graph.node.append(node)
