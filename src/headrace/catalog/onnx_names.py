"""Other names for the tensors of ONNX nodes."""

from collections.abc import Mapping
from typing import Any


def rename(proto: Any, names: Mapping[str, str]) -> None:
    """Give the tensors that a node reads and writes their new names, in place.

    Also in subgraphs, which read names from outside; ONNX lets none hide another.
    """
    proto.input[:] = [names.get(name, name) for name in proto.input]
    proto.output[:] = [names.get(name, name) for name in proto.output]
    for attribute in proto.attribute:
        for subgraph in (attribute.g, *attribute.graphs):
            for inner in subgraph.node:
                rename(inner, names)
            for value in subgraph.output:
                value.name = names.get(value.name, value.name)
