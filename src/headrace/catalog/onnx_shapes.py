"""Shapes and sizes of a graph's tensors, by ONNX shape inference with the item shapes fixed."""

from collections.abc import Iterable, Mapping

import onnx

from headrace.catalog.onnx_graph import OnnxGraph
from headrace.catalog.onnx_references import FOLDABLE_BYTES
from headrace.catalog.onnx_types import crosses_cuts, dtype_name, elem_type, tensor_bytes
from headrace.domain.tensors import TensorSpec


class NotBatched:
    """Marks a tensor that does not have the batch, and only the batch, as its first dimension."""


NOT_BATCHED = NotBatched()

Known = tuple[int | None, ...]
"""A shape as far as it is known."""

Inferred = dict[str, TensorSpec | NotBatched]
"""Name -> spec; a name that is absent could not be inferred."""


def infer_specs(
    graph: OnnxGraph, item_shapes: Mapping[str, tuple[int, ...]], names: Iterable[str]
) -> Inferred:
    """Infer tensors at batch sizes 1 and 2, and compare.

    Two concrete sizes tell more than one symbolic batch: a tensor that holds batch x heads as its
    first dimension infers cleanly at both, and is seen not to be cut-worthy.
    """
    single, double = (shapes_at(graph, item_shapes, batch) for batch in (1, 2))
    found: Inferred = {}
    for name in names:
        if name in single and name in double:
            found[name] = batched_spec(name, *single[name], double[name][1])
    return found


def batched_spec(
    name: str, dtype: str | None, single: tuple[int, ...], double: tuple[int, ...]
) -> TensorSpec | NotBatched:
    """A tensor's spec from its shapes at batch sizes 1 and 2.

    >>> batched_spec("a", "float32", (1, 8), (2, 8)).item_shape
    (8,)
    >>> batched_spec("a", "float32", (12, 8), (24, 8)) is NOT_BATCHED
    True
    """
    if dtype is None or not single or (single[0], double[:1]) != (1, (2,)):
        return NOT_BATCHED
    if single[1:] != double[1:] or 0 in single:
        return NOT_BATCHED
    return TensorSpec(name=name, dtype=dtype, item_shape=single[1:])


def shapes_at(
    graph: OnnxGraph, item_shapes: Mapping[str, tuple[int, ...]], batch: int
) -> dict[str, tuple[str | None, tuple[int, ...]]]:
    """Name -> (dtype, shape) of all tensors whose shape is fully known at this batch size; None
    where the type does not pass between stages."""
    inputs = {t.name: (elem_type(t.dtype), (batch, *item_shapes[t.name])) for t in graph.inputs}
    found: dict[str, tuple[str | None, tuple[int, ...]]] = {}
    for name, (kind, dims) in infer_shapes(graph, inputs).items():
        known = tuple(dim for dim in dims if dim is not None)
        if len(known) == len(dims):
            dtype = dtype_name(kind)
            found[name] = (dtype if crosses_cuts(dtype) else None, known)
    return found


def infer_shapes(
    graph: OnnxGraph, given: Mapping[str, tuple[int, Known]]
) -> dict[str, tuple[int, Known]]:
    """Name -> (ONNX's element type, shape) of all tensors whose rank is known.

    Args:
        given: the same of the inputs, and of tensors inside that are taken for inputs: what makes
            them is left out.
    """
    model = onnx.ModelProto()
    model.CopyFrom(graph.header)
    model.graph.name = "shapes"
    model.graph.node.extend(
        node.proto for node in graph.nodes if given.keys().isdisjoint(node.writes)
    )
    typed = onnx.helper.make_tensor_value_info
    for name, (kind, dims) in given.items():
        model.graph.input.append(typed(name, kind, dims))
    # Larger ones hold no shapes, and are left out: a model of 1 GB is not copied to infer a shape.
    for name, weights in graph.initialisers.items():
        if tensor_bytes(weights) <= FOLDABLE_BYTES:
            model.graph.initializer.append(weights)
        else:
            model.graph.input.append(typed(name, weights.data_type, weights.dims))
    model.graph.output.extend(onnx.ValueInfoProto(name=name) for name in graph.outputs)
    try:
        inferred = onnx.shape_inference.infer_shapes(model, data_prop=True)
    except (onnx.shape_inference.InferenceError, RuntimeError, ValueError):
        return {}
    found: dict[str, tuple[int, Known]] = {}
    for value in (*inferred.graph.input, *inferred.graph.value_info, *inferred.graph.output):
        kind = value.type.tensor_type
        if not kind.HasField("shape"):
            continue
        dims = tuple(d.dim_value if d.HasField("dim_value") else None for d in kind.shape.dim)
        found[value.name] = kind.elem_type, dims
    return found
