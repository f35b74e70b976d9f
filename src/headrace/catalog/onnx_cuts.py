"""Where an ONNX graph can be cut: places that few tensors cross."""

from collections.abc import Sequence
from dataclasses import dataclass

from headrace.catalog.onnx_graph import GraphNode, OnnxGraph


@dataclass(frozen=True, slots=True, kw_only=True)
class Cut:
    """A place between two nodes, and the live tensors that cross it."""

    position: int
    """How many dynamic nodes stand before it."""
    tensors: tuple[str, ...]


def find_cuts(graph: OnnxGraph, max_tensors: int = 1) -> tuple[Cut, ...]:
    """Walk the nodes in order, keep the set of live tensors, and keep the places where it is small.

    A tensor is live from where it is made to its last use; model outputs are live to the end.
    Static tensors never count: each stage carries the weights that it needs. For a single tensor
    the answer does not depend on which topological order the file happens to have, because each
    other node either leads to that tensor or follows from it.

    Where a tensor is quantised, its integers cross and not the numbers that they stand for:
    ONNX Runtime computes an operator together with the dequantisations before it and the
    quantisation behind it, in integers, and would round elsewhere if these were parted from it.

    Returns:
        Cuts that at most `max_tensors` cross, in order, none at the very start or end.
    """
    nodes = graph.dynamic_nodes()
    inseparable = _quantised_around(nodes)
    last_use = {name: index for index, node in enumerate(nodes) for name in node.reads}
    last_use.update(dict.fromkeys(graph.outputs, len(nodes)))
    live = dict.fromkeys(tensor.name for tensor in graph.inputs if tensor.name in last_use)
    cuts = []
    for index, node in enumerate(nodes[:-1]):
        for name in node.writes:
            if last_use.get(name, -1) > index:
                live[name] = None
        for name in node.reads:
            if last_use[name] == index:
                live.pop(name, None)
        if len(live) <= max_tensors and inseparable.isdisjoint(live):
            cuts.append(Cut(position=index + 1, tensors=tuple(live)))
    return tuple(cuts)


def _quantised_around(nodes: Sequence[GraphNode]) -> frozenset[str]:
    """What lies between an operator and a DequantizeLinear before it or a QuantizeLinear behind it,
    and, of such an operator, what is on its other side but no integer."""
    made = {n for node in nodes if _is_a(node, "DequantizeLinear") for n in node.writes}
    read = {node.reads[0] for node in nodes if _is_a(node, "QuantizeLinear")}
    behind = {n for node in nodes if not made.isdisjoint(node.reads) for n in node.writes}
    before = {n for node in nodes if not read.isdisjoint(node.writes) for n in node.reads}
    integers = {n for node in nodes if _is_a(node, "QuantizeLinear") for n in node.writes}
    return frozenset((made | read | behind | before) - integers)


def _is_a(node: GraphNode, kind: str) -> bool:
    return bool(node.proto.op_type == kind)
