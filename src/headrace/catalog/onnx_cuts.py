"""Where an ONNX graph can be cut: places that few tensors cross."""

from dataclasses import dataclass

from headrace.catalog.onnx_graph import OnnxGraph


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

    Returns:
        Cuts that at most `max_tensors` cross, in order, none at the very start or end.
    """
    nodes = graph.dynamic_nodes()
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
        if len(live) <= max_tensors:
            cuts.append(Cut(position=index + 1, tensors=tuple(live)))
    return tuple(cuts)
