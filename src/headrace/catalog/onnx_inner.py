"""All operators of a model: its own, those of inner graphs (If, Loop) and of its functions."""

from collections.abc import Iterator
from itertools import chain
from typing import Any

from headrace.catalog.onnx_graph import OnnxGraph


def every_node(graph: OnnxGraph) -> Iterator[Any]:
    """As NodeProto, in no order."""
    functions = (function.node for function in graph.header.functions)
    for node in chain((node.proto for node in graph.nodes), *functions):
        yield from _with_inner(node)


def _with_inner(node: Any) -> Iterator[Any]:
    yield node
    for attribute in node.attribute:
        for inner in (attribute.g, *attribute.graphs):
            for each in inner.node:
                yield from _with_inner(each)
