"""Outputs whose size follows from a number that is computed from what the inputs hold.

`x[:, :longest]`, where `longest` is the most words of any text, is as long as `longest` says, and
noise may always say the same. So such numbers are found in the graph, and the model is run with
others in their place.

    content    is computed from the elements of an input; what Shape and Size say of it is not
    bound      an argument that says how large an operator's result is (`HOST_ARGUMENTS`)
    origin     of a bound that is content: what the arithmetic on shapes (`SHAPE_MATHS`) before the
               bound begins with

    ids -> Equal -> ReduceSum -> ReduceMax -> Reshape -> Slice -> y
                                 origin       bound

All origins change at once and alike, so that a window at a computed place, `x[p : p + 8]`, keeps
its length. Cost: a walk over the graph; two sessions and three runs where there is an origin.
"""

import logging
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headrace.catalog.onnx_batch import as_filed
from headrace.catalog.onnx_graph import GraphNode, OnnxGraph
from headrace.catalog.onnx_stage import filed_model
from headrace.catalog.onnx_types import array_dtype
from headrace.executors.onnx_session import first_line
from headrace.executors.table import reference
from headrace.executors.translated import HOST_ARGUMENTS, SHAPE_MATHS
from headrace.profiling.items import Arrays, tiled

logger = logging.getLogger(__name__)

_TELL_SIZES = {"Shape", "Size"}

Shapes = dict[str, tuple[int, ...]]
"""Output -> its shape, as the file has it."""


def shapes_by_content(graph: OnnxGraph, items: Arrays) -> tuple[list[Shapes], str | None]:
    """Shapes of the outputs for one item, with the origins' numbers halved and doubled; one of them
    or both are absent where the model has no origins or does not run so. And what was not found out
    where neither ran, and why.

    Args:
        items: input name -> items, shape [n >= 1, ...].
    """
    names = origins(graph)
    feeds = as_filed(graph, tiled(items, 1))
    inside = [name for name in names if name not in feeds]
    if not names:
        return [], None
    try:
        given = _values(graph, inside, feeds)
        kinds = {name: array_dtype(array) for name, array in given.items()}
        taken = {name: kind for name, kind in kinds.items() if kind is not None}
        session = _opened(graph, graph.outputs, taken)
    except Exception as error:  # ONNX Runtime's errors share no base of their own
        return [], _untried(names, error)
    before = feeds | {name: given[name] for name in taken}
    found, untried = [], None
    for changed in (_halved, _doubled):
        after = {n: changed(a) if n in names else a for n, a in before.items()}
        try:
            outputs = session.run(graph.outputs, after)
        except Exception as error:  # an index beyond the end, tensors that do not go together
            untried = _untried(names, error)
            logger.info("%s, once: %s", graph.path, untried)
            continue
        found.append({n: a.shape for n, a in zip(graph.outputs, outputs, strict=True)})
    return found, None if found else untried


def _untried(names: Sequence[str], error: Exception) -> str:
    more = f" and {len(names) - 1} more" if len(names) > 1 else ""
    return (
        f"whether outputs change in size with {names[0]!r}{more}, computed from what the inputs"
        f" hold, was not tried: {first_line(error)}"
    )


def origins(graph: OnnxGraph) -> tuple[str, ...]:
    """The tensors from which bounds that are content are computed; none of a PyTorch export, which
    has no such bounds."""
    if graph.format != "onnx":
        return ()
    content = {tensor.name for tensor in graph.inputs}
    makers: dict[str, GraphNode] = {}
    waiting: list[str] = []
    for node in graph.nodes:
        if node.proto.op_type in _TELL_SIZES or content.isdisjoint(node.reads):
            continue
        waiting.extend(name for name in _bounds(node) if name in content)
        content.update(node.writes)
        makers.update(dict.fromkeys(node.writes, node))
    found: dict[str, None] = {}
    walked: set[str] = set()
    while waiting:
        name = waiting.pop()
        if name in walked:
            continue
        walked.add(name)
        maker = makers.get(name)
        if maker is not None and maker.proto.op_type in SHAPE_MATHS:
            waiting.extend(read for read in maker.reads if read in content)
        else:
            found[name] = None
    return tuple(found)


def _bounds(node: GraphNode) -> Iterator[str]:
    positions = HOST_ARGUMENTS.get(node.proto.op_type, ())
    return (name for at, name in enumerate(node.proto.input) if at in positions)


def _values(graph: OnnxGraph, names: Sequence[str], feeds: Arrays) -> dict[str, NDArray[Any]]:
    """What tensors inside are. ONNX Runtime opens no model without an output."""
    if not names:
        return {}
    return dict(zip(names, _opened(graph, names, {}).run(names, feeds), strict=True))


def _opened(graph: OnnxGraph, names: Sequence[str], taken: dict[str, str]) -> Any:
    content = filed_model(graph, names, taken).SerializeToString()
    return reference(graph.format)(content, graph.weights)


def _halved(array: NDArray[Any]) -> NDArray[Any]:
    return array if array.dtype == object else np.asarray(array // 2, array.dtype)


def _doubled(array: NDArray[Any]) -> NDArray[Any]:
    """Where there is nothing, one."""
    return array if array.dtype == object else np.asarray(array * 2 + 1, array.dtype)
