"""What a block computes and moves, kernel by kernel: the graph's side of a roofline.

A kernel is what an accelerator launches as one: a heavy operator (convolution, matrix product,
reduction, copy) and the pointwise operators behind it, whose intermediate results never reach
memory. Operators that only rename a tensor cost nothing, and shapes are computed on the host.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from headrace.catalog.onnx_graph import GraphNode, OnnxGraph
from headrace.catalog.onnx_shapes import shapes_at
from headrace.catalog.onnx_stage import plain_name, probe_model
from headrace.catalog.onnx_types import tensor_bytes
from headrace.domain.errors import ModelError
from headrace.domain.tensors import TensorSpec
from headrace.executors.onnx_session import first_line, open_session
from headrace.profiling.items import input_specs, random_items
from headrace.profiling.operators import (
    EPILOGUES,
    HEAVY,
    PICKING,
    POINTWISE,
    RENAMING,
    UNCOUNTED,
    OperatorClass,
    Sizes,
    TensorSize,
    classify,
    flops,
)

_OUTSIDE = -1
_HALF_ITEMSIZE = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Quantity:
    """Some count of a batch; all of them grow by the same amount with each item."""

    one: int
    """At batch size 1."""
    two: int

    def at(self, batch_size: int) -> int:
        """
        >>> Quantity(one=5, two=7).at(4)
        11
        """
        return max(0, self.one + (self.two - self.one) * (batch_size - 1))


@dataclass(frozen=True, slots=True, kw_only=True)
class Kernel:
    """The work of one kernel."""

    kind: OperatorClass
    operators: tuple[str, ...]
    """ONNX operator types, in order."""
    is_half: bool
    """Computes at half precision, because the model's own weights and tensors are."""
    flops: Quantity
    moved_bytes: Quantity
    """Weights and tensors read, and tensors written for other kernels."""
    outputs: Quantity
    """Elements that its first operator makes: how much can run side by side."""


class KernelGraph:
    """A model at fixed item shapes, ready to be counted block by block."""

    def __init__(self, graph: OnnxGraph, item_shapes: Mapping[str, tuple[int, ...]]) -> None:
        """
        Raises:
            ModelError: a tensor's shape can neither be inferred nor observed.
        """
        self._graph = graph
        self._nodes = graph.dynamic_nodes()
        self._shape_tensors = _shape_tensors(graph, self._nodes)
        self._readers: dict[str, set[int]] = defaultdict(set)
        for node in self._nodes:
            for name in node.reads:
                self._readers[name].add(id(node))
        for name in graph.outputs:
            self._readers[name].add(_OUTSIDE)
        self._one, self._two = (self._sizes(item_shapes, batch) for batch in (1, 2))

    def block_nodes(
        self, inputs: Sequence[TensorSpec], outputs: Sequence[TensorSpec]
    ) -> tuple[GraphNode, ...]:
        """The nodes between two cuts, as extraction takes them: backwards from the outputs."""
        starts = {plain_name(spec) for spec in inputs}
        needed = {plain_name(spec) for spec in outputs} - starts
        kept = []
        for node in reversed(self._nodes):
            if not needed.isdisjoint(node.writes):
                needed.update(name for name in node.reads if name not in starts)
                kept.append(node)
        return tuple(reversed(kept))

    def kernels(self, nodes: Sequence[GraphNode]) -> tuple[Kernel, ...]:
        """The kernels of a block, whose nodes stand in topological order, in order.

        What another block reads, this one writes.
        """
        return tuple(
            self._kernel(group)
            for group in self._grouped(nodes)
            if any(node.proto.op_type not in RENAMING for node in group)
        )

    def uncounted(self) -> tuple[str, ...]:
        """Operator types of the model that count as copies for want of a rule."""
        types = {node.proto.op_type for node in self._nodes}
        foreign = {n.proto.op_type for n in self._nodes if n.proto.domain not in ("", "ai.onnx")}
        return tuple(sorted((types & UNCOUNTED) | foreign))

    def _grouped(self, nodes: Sequence[GraphNode]) -> list[list[GraphNode]]:
        """Nodes by kernel. Joining the latest producer can never close a circle."""
        groups: list[list[GraphNode]] = []
        made_by: dict[str, int] = {}
        for node in nodes:
            if self._shape_tensors.issuperset(node.writes):
                continue
            makers = [made_by[name] for name in node.reads if name in made_by]
            index = max(makers, default=_OUTSIDE)
            if index == _OUTSIDE or not _joins(node, groups[index]):
                index = len(groups)
                groups.append([])
            groups[index].append(node)
            made_by.update(dict.fromkeys(node.writes, index))
        return groups

    def _kernel(self, group: list[GraphNode]) -> Kernel:
        own = {id(node) for node in group}
        made = {name for node in group for name in node.writes}
        moved = dict.fromkeys(
            name
            for node in group
            for name in node.reads
            if name not in made and name not in self._shape_tensors
        )
        moved.update(dict.fromkeys(name for name in made if self._readers[name] - own))
        picked = {
            node.reads[0]: node.writes[0]
            for node in group
            if node.proto.op_type in PICKING and node.reads[0] not in made
        }
        heavy = next((n for n in group if n.proto.op_type not in POINTWISE | RENAMING), group[0])
        first = heavy.writes[0]
        widest = max(self._one[n].itemsize for n in (*heavy.reads, first) if n in self._one)
        return Kernel(
            kind=classify(heavy.proto, self._one),
            operators=tuple(node.proto.op_type for node in group),
            is_half=widest == _HALF_ITEMSIZE,
            flops=Quantity(
                one=sum(flops(node.proto, self._one) for node in group),
                two=sum(flops(node.proto, self._two) for node in group),
            ),
            moved_bytes=Quantity(
                one=_moved_bytes(self._one, moved, picked),
                two=_moved_bytes(self._two, moved, picked),
            ),
            outputs=Quantity(one=_count(self._one, first), two=_count(self._two, first)),
        )

    def _sizes(self, item_shapes: Mapping[str, tuple[int, ...]], batch: int) -> Sizes:
        found = {
            name: TensorSize(np.dtype(dtype).itemsize, shape)
            for name, (dtype, shape) in shapes_at(self._graph, item_shapes, batch).items()
            if dtype is not None
        }
        for name, tensor in self._graph.initialisers.items():
            count = int(np.prod(tensor.dims, dtype=np.int64))
            found[name] = TensorSize(tensor_bytes(tensor) // max(1, count), tuple(tensor.dims))
        unknown = [
            name
            for node in self._nodes
            for name in node.writes
            if name not in found and name not in self._shape_tensors
        ]
        return found | _observed_sizes(self._graph, item_shapes, batch, unknown)


def _joins(node: GraphNode, group: Sequence[GraphNode]) -> bool:
    """Whether a node runs inside the kernel that makes its latest input."""
    kind = node.proto.op_type
    if kind in RENAMING:
        return True
    others = {other.proto.op_type for other in group}
    if others.isdisjoint(HEAVY):
        return kind in POINTWISE and others <= POINTWISE | RENAMING
    return kind in EPILOGUES


def _moved_bytes(sizes: Sizes, names: Iterable[str], picked: Mapping[str, str]) -> int:
    """
    Args:
        picked: of these, those of which no more is read than is written -> what is written.
    """
    total = 0
    for name in names:
        if name in sizes:
            part = sizes.get(picked[name], sizes[name]) if name in picked else sizes[name]
            total += min(part.bytes, sizes[name].bytes)
    return total


def _count(sizes: Sizes, name: str) -> int:
    return sizes[name].elements if name in sizes else 0


def _shape_tensors(graph: OnnxGraph, nodes: Sequence[GraphNode]) -> frozenset[str]:
    """What derives from shapes and constants alone: a few integers, computed on the host."""
    found: set[str] = set()
    for node in nodes:
        live = [name for name in node.reads if name not in graph.static]
        if node.proto.op_type in ("Shape", "Size") or (live and found.issuperset(live)):
            found.update(node.writes)
    return frozenset(found)


def _observed_sizes(
    graph: OnnxGraph, item_shapes: Mapping[str, tuple[int, ...]], batch: int, names: Sequence[str]
) -> dict[str, TensorSize]:
    """Run the model once for the tensors whose shape inference does not know."""
    if not names:
        return {}
    specs = input_specs(graph, item_shapes)
    probe = probe_model(graph, specs, names).SerializeToString()
    session = open_session(probe, graph.weights, shares_memory=True)
    items = random_items(specs, batch, np.random.default_rng(0))
    try:
        arrays = session.run(list(names), items)
    except Exception as error:  # ONNX Runtime's errors share no base of their own
        raise ModelError(
            f"{graph.path}: the shape of {names[0]!r} can neither be inferred nor observed at"
            f" batch size {batch}: {first_line(error)}; check --shape"
        ) from error
    return {
        name: TensorSize(array.dtype.itemsize, array.shape)
        for name, array in zip(names, arrays, strict=True)
        if isinstance(array, np.ndarray)
    }
