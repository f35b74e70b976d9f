"""The blocks of a cut model, each opened as a stage of its own, run one after the other."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headrace.catalog.onnx_graph import OnnxGraph
from headrace.catalog.onnx_stage import Boundary, extract_stage, weights_bytes, wire_spec
from headrace.domain.errors import ModelError
from headrace.domain.profile import Block, TensorSpec
from headrace.profiling.items import Arrays, random_items, tiled
from headrace.profiling.observe import Observed, UsableCut, relative_error
from headrace.profiling.session import open_session

TOLERANCE: dict[Boundary, float] = {"float32": 1e-4, "float16": 0.1}
"""Relative error to which a split model must agree with the whole one. At float16 a few 1e-3 are
normal; beyond 0.1 an activation has left the range of half precision and the answer is wrong."""
CHECKED_ITEMS = 8
"""Items of each kind (random, the user's) that the split check compares."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Chain:
    """A model cut into blocks."""

    graph: OnnxGraph
    crossings: tuple[tuple[TensorSpec, ...], ...]
    """Tensors as they travel: model inputs, then what crosses each cut, then model outputs."""
    blocks: tuple[Block, ...]
    sessions: tuple[Any, ...]
    """Per block."""

    def stage_bytes(self, first_block: int, end_block: int) -> bytes:
        """Blocks [first_block, end_block) as an ONNX file's content."""
        inputs, outputs = self.crossings[first_block], self.crossings[end_block]
        content: bytes = extract_stage(self.graph, inputs, outputs).SerializeToString()
        return content

    def run(self, feeds: Arrays) -> list[dict[str, NDArray[Any]]]:
        """Everything that crosses: entry i enters block i; the last one leaves the model."""
        flowing = [dict(feeds)]
        for session, outputs in zip(self.sessions, self.crossings[1:], strict=True):
            names = [spec.name for spec in outputs]
            flowing.append(dict(zip(names, session.run(names, flowing[-1]), strict=True)))
        return flowing


def cut_chain(
    graph: OnnxGraph, observed: Observed, cuts: Sequence[UsableCut], boundary: Boundary
) -> Chain:
    """Cut the model and open every block.

    Raises:
        ModelError: ONNX Runtime refuses a block.
    """
    crossings = cut_crossings(observed, cuts, boundary)
    blocks, sessions = [], []
    for index in range(len(crossings) - 1):
        stage = extract_stage(graph, crossings[index], crossings[index + 1])
        blocks.append(describe_block(index, stage, crossings[index + 1]))
        sessions.append(open_session(stage.SerializeToString(), shares_memory=True))
    return Chain(graph=graph, crossings=crossings, blocks=tuple(blocks), sessions=tuple(sessions))


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


def check_split(chain: Chain, examples: Arrays, rng: np.random.Generator) -> float:
    """Run the blocks one after the other and compare with the model's own file, run whole.

    Args:
        chain: the cut model.
        examples: the user's items, if any; they join random ones.
        rng: makes the random items.

    Returns:
        The largest relative error of any output: max |split - whole| / max |whole|.
    """
    inputs = chain.crossings[0]
    kinds: list[Mapping[str, NDArray[Any]]] = [random_items(inputs, CHECKED_ITEMS, rng)]
    if examples:
        kinds.append(examples)
    whole = open_session(chain.graph.path, shares_memory=True)
    names = [spec.name for spec in chain.crossings[-1]]
    fixed_batch = next((t.batch for t in chain.graph.inputs if t.batch is not None), None)
    worst = 0.0
    for items in kinds:
        count = min(CHECKED_ITEMS, len(next(iter(items.values()))))
        for feeds in _batches(items, count, fixed_batch):
            wanted = whole.run(names, feeds)
            got = chain.run(feeds)[-1]
            for name, array in zip(names, wanted, strict=True):
                worst = max(worst, relative_error(got[name], array))
    return worst


def require_agreement(chain: Chain, error: float, boundary: Boundary) -> None:
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
            f"{chain.graph.path}: cut into {len(chain.blocks)} blocks it answers differently\n"
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
