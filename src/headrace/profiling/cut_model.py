"""A model cut into blocks, each a model of its own, and the proof that it still answers alike.

Between two neighbouring cuts lies a block: the nodes that the tensors behind it need and the
tensors before it do not yet give (`catalog.onnx_stage`). So, with c_0 the model's inputs, c_n its
outputs and c_i what crosses cut i,

    c_i = block_i(c_{i-1})        i = 1 .. n

and blocks [i, k) are again a model, extracted with c_i as inputs and c_k as outputs. Whatever
crosses has the batch as its only free dimension, and travels at the boundary's precision: a cast to
float16 behind one block and back before the next is part of the blocks.

`check_split` runs that recurrence and compares c_n with the uncut file, run by the
runtime that it was exported for: the
largest relative error over random items and the user's, alone and in batches. An extraction that
forgets a node, or a cast that overflows, cannot pass. Cost: 2 runs of the model for each kind of
items.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headrace.catalog.onnx_batch import as_filed, filed_outputs, from_filed
from headrace.catalog.onnx_graph import OnnxGraph, read_model_bytes, whole_model
from headrace.catalog.onnx_stage import (
    HALF_SUFFIX,
    Boundary,
    extract_stage,
    weights_bytes,
    wire_spec,
)
from headrace.domain.elements import item_bytes
from headrace.domain.errors import ModelError
from headrace.domain.profile import Block
from headrace.domain.tensors import TensorSpec
from headrace.executors.base import Measurement, OpenedModel, held_together
from headrace.executors.onnx_session import first_line
from headrace.profiling.item_shapes import open_content
from headrace.profiling.items import Arrays, random_items, tiled
from headrace.profiling.observe import Observed, UsableCut, relative_error
from headrace.profiling.quantisation import quantisation
from headrace.profiling.repeatable import export_for_inference, random_operators

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
    """Per block; empty where they hold too much weight to be open at once."""
    measurement: Measurement
    """How they are opened and timed."""

    def open(self, first_block: int, end_block: int) -> OpenedModel:
        """Blocks [first_block, end_block), ready to run.

        Raises:
            ModelError: the backend refuses them.
        """
        if self.opened and end_block == first_block + 1:
            return self.opened[first_block]
        content = self.stage_bytes(first_block, end_block)
        try:
            return self.measurement.open(content, self.graph.weights)
        except ModelError as error:
            raise ModelError(f"{self.graph.path}: {error}") from error

    def stage_bytes(self, first_block: int, end_block: int) -> bytes:
        """Blocks [first_block, end_block) as an ONNX file's content."""
        inputs, outputs = self.crossings[first_block], self.crossings[end_block]
        content: bytes = extract_stage(self.graph, inputs, outputs).SerializeToString()
        return content

    def run(self, feeds: Arrays) -> list[dict[str, NDArray[Any]]]:
        """Everything that crosses: entry i enters block i; the last one leaves the model."""
        flowing = [dict(feeds)]
        for index, outputs in enumerate(self.crossings[1:]):
            names = [spec.name for spec in outputs]
            given = self.open(index, index + 1).run(names, flowing[-1])
            flowing.append(dict(zip(names, given, strict=True)))
        return flowing


def cut_model(
    graph: OnnxGraph,
    observed: Observed,
    cuts: Sequence[UsableCut],
    boundary: Boundary,
    measurement: Measurement,
) -> CutModel:
    """Cut the model, and open every block as it will be measured if all fit into memory together.

    Raises:
        ModelError: the backend refuses a block.
    """
    crossings = cut_crossings(graph, observed, cuts, boundary)
    stages = (extract_stage(graph, *around) for around in pairwise(crossings))
    model = CutModel(
        graph=graph,
        crossings=crossings,
        blocks=tuple(describe_block(i, stage, crossings[i + 1]) for i, stage in enumerate(stages)),
        opened=(),
        measurement=measurement,
    )
    if not held_together(sum(block.weights_bytes for block in model.blocks)):
        return model
    return replace(model, opened=tuple(model.open(i, i + 1) for i in range(len(model.blocks))))


def cut_crossings(
    graph: OnnxGraph, observed: Observed, cuts: Sequence[UsableCut], boundary: Boundary
) -> tuple[tuple[TensorSpec, ...], ...]:
    """Tensors as they travel: model inputs, then what crosses each cut, then model outputs."""
    return (
        observed.inputs,
        *(tuple(wire_spec(graph, spec, boundary) for spec in cut.tensors) for cut in cuts),
        observed.outputs,
    )


def cuts_named(
    graph: OnnxGraph, observed: Observed, names: Sequence[Sequence[str]], boundary: Boundary
) -> tuple[UsableCut, ...]:
    """The cuts that these tensors cross, in order.

    Args:
        names: as the tensors travel, per cut.

    Raises:
        ModelError: the model cannot be cut there, or not with the same tensors.
    """
    known = {
        tuple(wire_spec(graph, spec, boundary).name for spec in cut.tensors): cut
        for cut in observed.cuts
    }
    missing = [crossing for crossing in names if tuple(crossing) not in known]
    if missing:
        raise ModelError(
            f"{graph.path}: cannot be cut here where it was cut on another machine\n"
            f"  needs  a cut that {', '.join(missing[0])} crosses, and nothing else\n"
            f"  has    {len(known)} other cuts\n"
            "  try    the same model file, --cut-tensors and versions of libraries on both"
        )
    return tuple(known[tuple(crossing)] for crossing in names)


def describe_block(index: int, stage: Any, cut: tuple[TensorSpec, ...]) -> Block:
    """The record of a block that is the ONNX model `stage`; `cut` crosses behind it."""
    return Block(
        name=f"block{index}",
        node_count=len(stage.graph.node),
        weights_bytes=weights_bytes(stage),
        cut=cut,
        cut_bytes=sum(item_bytes(spec) for spec in cut),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class SplitCheck:
    """How far the blocks one after the other are from the model's own file, run whole."""

    error: float
    """The largest relative error of any output: max |split - whole| / max |whole|."""
    left_out: str | None
    """Why made-up items were not compared, but the user's alone; None: they were."""


def check_split(model: CutModel, examples: Arrays, rng: np.random.Generator) -> SplitCheck:
    """Run the blocks one after the other and compare with the model's own file, run whole.

    Args:
        examples: the user's items, if any; they join random ones, which have whole numbers and
            texts from them: some are legal in few values only, such as a sample rate. Floats may be
            so, too, such as a size or a threshold: where the model does not run with random ones,
            the user's count alone.

    Raises:
        ModelError: the model does not run with them.
    """
    inputs = model.crossings[0]
    made_up = random_items(inputs, CHECKED_ITEMS, rng)
    kinds: list[Mapping[str, NDArray[Any]]] = [made_up]
    if examples:
        for name, array in tiled(examples, CHECKED_ITEMS).items():
            if array.dtype.kind in "iubO":
                made_up[name] = array
        kinds.append(examples)
    names = [spec.name for spec in model.crossings[-1]]
    fixed_batch = next((t.batch for t in model.graph.inputs if t.batch is not None), None)
    batches = []
    for items in kinds:
        count = min(CHECKED_ITEMS, len(next(iter(items.values()))))
        batches.append(_batches(items, count, fixed_batch))
    worst, left_out = 0.0, None
    # First all of the whole model, then all of the blocks: both open may be too much for memory.
    for kind, answers in zip(batches, _run_whole(model.graph, names, batches), strict=True):
        if isinstance(answers, str):
            if kind is batches[-1]:
                raise ModelError(
                    f"{model.graph.path}: does not run with {answers}; give items that it takes, of"
                    " every input: --inputs NAME=FILE.npy"
                )
            left_out = answers
            continue
        for feeds, wanted in zip(kind, answers, strict=True):
            got = model.run(feeds)[-1]
            for name, array in zip(names, wanted, strict=True):
                worst = max(worst, relative_error(got[name], array))
    return SplitCheck(error=worst, left_out=left_out)


def _run_whole(
    graph: OnnxGraph, names: Sequence[str], kinds: Sequence[Sequence[Arrays]]
) -> list[list[list[NDArray[Any]]] | str]:
    """The answers of the model's own file, uncut, the batch first, to batches of several kinds; or
    of what shape they are, and why it does not run with them."""
    alone = graph.format == "onnx" and graph.weights is None
    content = read_model_bytes(graph.path) if alone else whole_model(graph)
    session = open_content(graph, content)
    filed = filed_outputs(graph)
    found: list[list[list[NDArray[Any]]] | str] = []
    for batches in kinds:
        answers = []
        for feeds in batches:
            given = as_filed(graph, feeds)
            try:
                outputs = session.run(list(filed), given)
                ours = from_filed(graph, dict(zip(filed, outputs, strict=True)))
            except Exception as error:  # ONNX Runtime's errors share no base of their own
                shapes = ", ".join(f"{name} {list(array.shape)}" for name, array in given.items())
                found.append(f"some {shapes}: {first_line(error)}")
                break
            answers.append([ours[name] for name in names])
        else:
            found.append(answers)
    return found


def agrees(model: CutModel, error: float, boundary: Boundary) -> bool:
    """Whether a split model answers as the whole one does.

    One whose activations are quantised must answer with the same integers: an error is a step of
    one of them, whose size says nothing of how many others there may be.
    """
    exact = ("quantised dynamically", "quantised")
    exactly = boundary == "float32" and quantisation(model.graph) in exact
    return error <= (0.0 if exactly else TOLERANCE[boundary])


def why_cuts_change(model: CutModel) -> str | None:
    """What in a model makes a cut change its answers without anything being wrong; None: nothing.

    In a quantised model what rounding changes at a cut of floats becomes a step of a whole integer
    in what follows; and one that is quantised dynamically takes its scales from its activations.
    Where weights alone are quantised, ONNX Runtime multiplies some of them as integers, with
    activations that it quantises, and others as floats; what else is in the graph decides which.
    It computes half precision in single on a processor, and rounds only where a tensor leaves.
    """
    if quantised := quantisation(model.graph):
        return quantised
    crossing = (spec for specs in model.crossings[1:-1] for spec in specs)
    half = any(spec.dtype == "float16" and HALF_SUFFIX not in spec.name for spec in crossing)
    return "in half precision (--boundary float16 would cut it)" if half else None


def require_agreement(model: CutModel, error: float, boundary: Boundary) -> None:
    """Refuse a split that changes the answers.

    Raises:
        ModelError: the error is above the tolerance.
    """
    if not agrees(model, error, boundary):
        tolerance = 0.0 if error <= TOLERANCE[boundary] else TOLERANCE[boundary]
        step = (
            "--blocks 1, which cuts nothing; and please report the model"
            if boundary == "float32"
            else "--boundary float32"
        )
        if random := random_operators(model.graph):
            step = export_for_inference(random)
        raise ModelError(
            f"{model.graph.path}: cut into {len(model.blocks)} blocks it answers differently\n"
            f"  needs  relative error <= {tolerance:g} with {boundary} between stages\n"
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
