"""Which item shape to profile a model at, where the file leaves dimensions free."""

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headrace.catalog.onnx_batch import as_filed
from headrace.catalog.onnx_graph import MAX_ITEM_COUNT, OnnxGraph, OpenTensor
from headrace.catalog.onnx_stage import filed_model
from headrace.domain.errors import ModelError
from headrace.executors.base import OpenedModel
from headrace.executors.onnx_session import first_line
from headrace.executors.table import reference
from headrace.profiling.batch_hint import batch_hint
from headrace.profiling.items import input_specs, random_items

Shapes = dict[str, tuple[int, ...]]
"""Input name -> item shape."""

IMAGE_SIZES = ((224, 224), (320, 320), (640, 640), (48, 320), (32, 320), (32, 100), (28, 28))
"""Height and width: classifiers, detectors, text recognisers, digits."""
SEQUENCE_LENGTH = 128
CHANNELS = 3


def choose_shapes(
    graph: OnnxGraph, wanted: Mapping[str, tuple[int, ...]], examples: Mapping[str, NDArray[Any]]
) -> tuple[Shapes, str | None]:
    """Fix all free item dimensions: as the user says, as the examples are, or by trial.

    Args:
        wanted: input name -> item shape, from the user; need not name every input.
        examples: input name -> items, from the user; may be empty.

    Returns:
        The item shape of each input, and a notice where it was found by trial.

    Raises:
        ModelError: a shape does not fit, or the model accepts none of the common ones.
    """
    fixed = {tensor.name: tensor for tensor in graph.inputs}
    for name in wanted:
        if name not in fixed:
            raise ModelError(f"{graph.path}: has no input {name!r}; its inputs: {', '.join(fixed)}")
    for name, array in examples.items():
        if name in wanted and wanted[name] != array.shape[1:]:
            raise ModelError(
                f"input {name!r}: --shape says {wanted[name]}, its examples are {array.shape[1:]}"
            )
    given: Shapes = {name: tuple(array.shape[1:]) for name, array in examples.items()} | dict(
        wanted
    )
    for name, shape in given.items():
        _check_fit(graph, fixed[name], shape)
    open_names = [
        tensor.name
        for tensor in graph.inputs
        if tensor.name not in given and None in tensor.item_dims
    ]
    if not open_names:
        return {tensor.name: _filled(tensor, given, ()) for tensor in graph.inputs}, None
    return _by_trial(graph, given, open_names)


def _by_trial(graph: OnnxGraph, given: Shapes, open_names: list[str]) -> tuple[Shapes, str]:
    refusals: dict[str, str] = {}
    session = open_whole(graph)
    for size in IMAGE_SIZES:
        shapes = {tensor.name: _filled(tensor, given, size) for tensor in graph.inputs}
        text = ", ".join(f"{name}={_text(shapes[name])}" for name in open_names)
        if text in refusals or any(math.prod(s) > MAX_ITEM_COUNT for s in shapes.values()):
            continue
        refusal = _refusal(session, graph, shapes)
        if refusal is None:
            hint = f"--shape {open_names[0]}={','.join(map(str, shapes[open_names[0]]))}"
            return shapes, f"the model leaves its item shape free; took {text} (others: {hint})"
        refusals[text] = refusal
    dims = next(tensor.item_dims for tensor in graph.inputs if tensor.name == open_names[0])
    hint = ",".join("?" if dim is None else str(dim) for dim in dims)
    batch = batch_hint(graph)
    tried = "\n".join(f"  {text}: {refusal}" for text, refusal in refusals.items())
    raise ModelError(
        f"{graph.path}: leaves item dimensions free and accepts none of the common shapes\n"
        f"{tried}\n  try  --shape {open_names[0]}={hint} with the sizes that you serve for every ?"
        + (f"\n   or  {batch}" if batch else "")
    )


def open_whole(graph: OnnxGraph) -> OpenedModel:
    """The model as its file has it, to find out what it takes and answers.

    Raises:
        ModelError: what runs it cannot open it.
    """
    return open_content(graph, filed_model(graph, graph.outputs).SerializeToString())


def open_content(graph: OnnxGraph, content: bytes) -> OpenedModel:
    """What was made of a model's file, or is its own content, to find out what it answers.

    Raises:
        ModelError: what runs it cannot open it.
    """
    try:
        return reference(graph.format)(content, graph.weights)
    except ModelError as error:
        advice = (
            "an export with operators and an opset that the installed version knows, or a newer"
            " version of it"
        )
        if "Failed to construct locale" in str(error):
            advice = (
                "an export with a locale that this machine has (`locale -a`), such as C.UTF-8:"
                " docs/how-to/serve-a-text-model.md"
            )
        raise ModelError(f"{graph.path}: {error}\n  try    {advice}") from error


def _refusal(session: OpenedModel, graph: OnnxGraph, shapes: Shapes) -> str | None:
    """Why the model does not run at these shapes; None: it does."""
    specs = input_specs(graph, shapes)
    rng = np.random.default_rng(0)
    try:
        session.run(list(graph.outputs), as_filed(graph, random_items(specs, 1, rng)))
    except Exception as error:  # ONNX Runtime's errors share no base of their own
        return first_line(error)
    return None


def _filled(tensor: OpenTensor, given: Shapes, size: tuple[int, ...]) -> tuple[int, ...]:
    """The item shape of one input: as given, else its known dimensions and common free ones."""
    if tensor.name in given:
        return given[tensor.name]
    defaults = _common_dims(tensor.item_dims, size)
    return tuple(
        default if known is None else known
        for known, default in zip(tensor.item_dims, defaults, strict=True)
    )


def _common_dims(dims: tuple[int | None, ...], size: tuple[int, ...]) -> tuple[int, ...]:
    if len(dims) != 3 or not size:
        return (SEQUENCE_LENGTH,) * len(dims)
    # Channels last where the file says so; otherwise channels first, as exporters do.
    return (*size, CHANNELS) if dims[2] in (1, 3) else (CHANNELS, *size)


def free_names(tensor: OpenTensor) -> list[str]:
    """What the file calls the free dimensions of an item, where it has a name for them."""
    pairs = zip(tensor.symbols, tensor.item_dims, strict=True) if tensor.symbols else ()
    return [name for name, size in pairs if name and size is None]


def _check_fit(graph: OnnxGraph, tensor: OpenTensor, shape: tuple[int, ...]) -> None:
    fits = len(shape) == len(tensor.item_dims) and all(
        known in (None, dim) and dim > 0 for known, dim in zip(tensor.item_dims, shape, strict=True)
    )
    if not fits:
        wanted = _text(tuple("?" if dim is None else dim for dim in tensor.item_dims))
        both = ""
        is_dimension = any(tensor.name in free_names(each) for each in graph.inputs)
        if is_dimension and len(shape) == len(tensor.item_dims):
            both = (
                f"\n  note   a dynamic dimension is called {tensor.name} too: {len(shape)} numbers"
                " are the input's shape, and any other count are the dimension's sizes"
            )
        raise ModelError(
            f"input {tensor.name!r}: an item is {wanted or 'one number'} (? is free),"
            f" --shape says {_text(shape)}; leave the batch dimension out{both}"
        )
    if math.prod(shape) > MAX_ITEM_COUNT:
        raise ModelError(
            f"input {tensor.name!r}: an item of {_text(shape)} has {math.prod(shape):,} elements,"
            f" at most {MAX_ITEM_COUNT:,}"
        )


def _text(shape: tuple[int | str, ...]) -> str:
    return "x".join(map(str, shape))
