"""A model cut into blocks, each a model of its own, and the proof that it still answers alike.

Between two neighbouring cuts lies a block: the nodes that the tensors behind it need and the
tensors before it do not yet give (`catalog.onnx_stage`). So, with c_0 the model's inputs, c_n its
outputs and c_i what crosses cut i,

    c_i = block_i(c_{i-1})        i = 1 .. n

and blocks [i, k) are again a model, extracted with c_i as inputs and c_k as outputs. Whatever
crosses has the batch as its only free dimension, and travels at the boundary's precision: a cast to
float16 behind one block and back before the next is part of the blocks.

`check_split` runs that recurrence and compares c_n with the uncut file, run by ONNX Runtime: the
largest relative error over random items and the user's, alone and in batches. An extraction that
forgets a node, or a cast that overflows, cannot pass. Cost: 2 runs of the model for each kind of
items.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headrace.catalog.onnx_graph import OnnxGraph
from headrace.catalog.onnx_stage import Boundary, extract_stage, weights_bytes, wire_spec
from headrace.domain.errors import ModelError
from headrace.domain.profile import Block, TensorSpec
from headrace.executors.base import Measurement, OpenedModel
from headrace.executors.onnx_session import open_session
from headrace.profiling.items import Arrays, random_items, tiled
from headrace.profiling.observe import Observed, UsableCut, relative_error

TOLERANCE: dict[Boundary, float] = {"float32": 1e-4, "float16": 0.1}
"""Relative error to which a split model must agree with the whole one. At float16 a few 1e-3 are
normal; beyond 0.1 an activation has left the range of half precision and the answer is wrong."""
CHECKED_ITEMS = 8
"""Items of each kind (random, the user's) that the split check compares."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CutModel:
    """A model cut into blocks."""

    graph: OnnxGraph
    crossings: tuple[tuple[TensorSpec, ...], ...]
    """Tensors as they travel: model inputs, then what crosses each cut, then model outputs."""
    blocks: tuple[Block, ...]
    opened: tuple[OpenedModel, ...]
    """Per block."""
    measurement: Measurement
    """How they were opened, and are timed."""

    def stage_bytes(self, first_block: int, end_block: int) -> bytes:
        """Blocks [first_block, end_block) as an ONNX file's content."""
        inputs, outputs = self.crossings[first_block], self.crossings[end_block]
        content: bytes = extract_stage(self.graph, inputs, outputs).SerializeToString()
        return content

    def run(self, feeds: Arrays) -> list[dict[str, NDArray[Any]]]:
        """Everything that crosses: entry i enters block i; the last one leaves the model."""
        flowing = [dict(feeds)]
        for block, outputs in zip(self.opened, self.crossings[1:], strict=True):
            names = [spec.name for spec in outputs]
            flowing.append(dict(zip(names, block.run(names, flowing[-1]), strict=True)))
        return flowing


def cut_model(
    graph: OnnxGraph,
    observed: Observed,
    cuts: Sequence[UsableCut],
    boundary: Boundary,
    measurement: Measurement,
) -> CutModel:
    """Cut the model and open every block as it will be measured.

    Raises:
        ModelError: the backend refuses a block.
    """
    crossings = cut_crossings(observed, cuts, boundary)
    blocks, opened = [], []
    for index in range(len(crossings) - 1):
        stage = extract_stage(graph, crossings[index], crossings[index + 1])
        blocks.append(describe_block(index, stage, crossings[index + 1]))
        opened.append(measurement.open(stage.SerializeToString()))
    return CutModel(
        graph=graph,
        crossings=crossings,
        blocks=tuple(blocks),
        opened=tuple(opened),
        measurement=measurement,
    )


def cut_crossings(
    observed: Observed, cuts: Sequence[UsableCut], boundary: Boundary
) -> tuple[tuple[TensorSpec, ...], ...]:
    """Tensors as they travel: model inputs, then what crosses each cut, then model outputs."""
    return (
        observed.inputs,
        *(tuple(wire_spec(spec, boundary) for spec in cut.tensors) for cut in cuts),
        observed.outputs,
    )


def describe_block(index: int, stage: Any, cut: tuple[TensorSpec, ...]) -> Block:
    """A block's record.

    Args:
        index: its place in the model.
        stage: the block as an ONNX model.
        cut: what crosses behind it.
    """
    return Block(
        name=f"block{index}",
        node_count=len(stage.graph.node),
        weights_bytes=weights_bytes(stage),
        cut=cut,
        cut_bytes=sum(item_bytes(spec) for spec in cut),
    )


def item_bytes(spec: TensorSpec) -> int:
    """Bytes of one item of this tensor."""
    return spec.item_count * np.dtype(spec.dtype).itemsize


def check_split(model: CutModel, examples: Arrays, rng: np.random.Generator) -> float:
    """Run the blocks one after the other and compare with the model's own file, run whole.

    Args:
        model: it, cut.
        examples: the user's items, if any; they join random ones.
        rng: makes the random items.

    Returns:
        The largest relative error of any output: max |split - whole| / max |whole|.
    """
    inputs = model.crossings[0]
    kinds: list[Mapping[str, NDArray[Any]]] = [random_items(inputs, CHECKED_ITEMS, rng)]
    if examples:
        kinds.append(examples)
    whole = open_session(model.graph.path, shares_memory=True)
    names = [spec.name for spec in model.crossings[-1]]
    fixed_batch = next((t.batch for t in model.graph.inputs if t.batch is not None), None)
    worst = 0.0
    for items in kinds:
        count = min(CHECKED_ITEMS, len(next(iter(items.values()))))
        for feeds in _batches(items, count, fixed_batch):
            wanted = whole.run(names, feeds)
            got = model.run(feeds)[-1]
            for name, array in zip(names, wanted, strict=True):
                worst = max(worst, relative_error(got[name], array))
    return worst


def require_agreement(model: CutModel, error: float, boundary: Boundary) -> None:
    """Refuse a split that changes the answers.

    Raises:
        ModelError: the error is above the tolerance.
    """
    needed = TOLERANCE[boundary]
    if not error <= needed:
        step = (
            "--blocks 1, which cuts nothing; and please report the model"
            if boundary == "float32"
            else "--boundary float32"
        )
        raise ModelError(
            f"{model.graph.path}: cut into {len(model.blocks)} blocks it answers differently\n"
            f"  needs  relative error <= {needed:g} with {boundary} between stages\n"
            f"  has    {error:.3g}\n"
            f"  try    {step}"
        )


def _batches(items: Arrays, count: int, fixed_batch: int | None) -> list[dict[str, NDArray[Any]]]:
    """The first item alone and the others together; or batches of the only legal size."""
    if fixed_batch is not None:
        return [tiled(items, fixed_batch)]
    alone = {name: array[:1] for name, array in items.items()}
    others = {name: array[1:count] for name, array in items.items()}
    return [alone, others] if count > 1 else [alone]
