"""A model at several sizes of its dynamic dimensions: which, and what crosses its cuts at each.

Everything that does not depend on the size is found once, at the largest: where the batch is, where
to cut, and that the blocks answer as the whole does. Then the model is run once at every point, and
between two of them if it can be, and the shapes of what crosses are compared. Per dimension,

    equal at all points                 fixed
    as long as a dynamic dimension d    d: known at any size
    otherwise                           known at the points alone (OTHERWISE)

The blocks' files leave all but the fixed ones free, so one file serves all sizes, and every size
is timed with the file that it is served by. Cost: a measurement (`ranges`) per point.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise, product
from math import prod
from typing import Any

import msgspec
from numpy.typing import NDArray

from headrace.catalog.onnx_graph import OnnxGraph, OpenTensor
from headrace.catalog.onnx_stage import plain_name, probe_model
from headrace.domain.elements import item_bytes
from headrace.domain.errors import ModelError
from headrace.domain.tensors import OTHERWISE, TensorSpec
from headrace.executors.base import held_together
from headrace.executors.onnx_session import first_line, open_session
from headrace.profiling.cut_model import CutModel
from headrace.profiling.item_shapes import free_names
from headrace.profiling.items import Arrays

MAX_POINTS = 64
"""Each is measured, and is a queue of its own in the dispatcher."""

Shapes = dict[str, tuple[int, ...]]
"""Input name -> item shape."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Points:
    """Where a model is measured."""

    dimensions: tuple[str, ...] = ()
    sizes: tuple[tuple[int, ...], ...] = ()
    """Smallest first; the last one is the largest in every dimension."""
    dims: Mapping[str, tuple[str, ...]]
    """Input -> of each of its item's dimensions, the dynamic one; "" for others."""

    def shapes(self, shapes: Shapes, sizes: Sequence[int]) -> Shapes:
        """All inputs' item shapes at these sizes; `shapes` are those at the largest."""
        by_name = dict(zip(self.dimensions, sizes, strict=True))
        return {
            name: tuple(
                by_name.get(dim, own)
                for own, dim in zip(shape, self.dims.get(name, ("",) * len(shape)), strict=True)
            )
            for name, shape in shapes.items()
        }


def split_shapes(graph: OnnxGraph, given: Mapping[str, tuple[int, ...]]) -> tuple[Shapes, Points]:
    """What `--shape` says: of inputs their item shape, of dynamic dimensions the sizes to measure.

    Where an input and a dimension have the same name, as many numbers as the input's item has
    dimensions are its shape, and any other count are sizes.

    Returns:
        The item shapes of inputs that are known by it, at the largest sizes; and all the points.

    Raises:
        ModelError: a name is neither an input nor a dimension, or an input stays open; or several
            sizes are asked for of a PyTorch export, whose sizes are fixed before it is cut.
    """
    inputs = {tensor.name: tensor for tensor in graph.inputs}
    known = {name for tensor in graph.inputs for name in free_names(tensor)}
    shapes = {
        name: shape
        for name, shape in given.items()
        if name in inputs and (name not in known or len(shape) == len(inputs[name].item_dims))
    }
    grid = {name: tuple(sorted(set(sizes))) for name, sizes in given.items() if name not in shapes}
    if grid and graph.format != "onnx":
        raise ModelError(
            f"{graph.path}: --shape {min(grid)}: a PyTorch export is served at one size\n"
            f"  try    --shape {min(inputs)}=..., its item's whole shape; for several sizes,"
            " export to ONNX (torch.onnx.export)"
        )
    for name, sizes in grid.items():
        if name not in known or not sizes or sizes[0] < 1:
            raise ModelError(
                f"{graph.path}: --shape {name}: there is no such input or dynamic dimension, or no"
                f" size of it; inputs: {', '.join(inputs)}; dynamic dimensions:"
                f" {', '.join(sorted(known)) or 'none that has a name'}"
            )
    if prod(map(len, grid.values())) > MAX_POINTS:
        raise ModelError(f"--shape: more than {MAX_POINTS} points to measure; name fewer sizes")
    largest = {name: sizes[-1] for name, sizes in grid.items()}
    dims = {}
    for tensor in graph.inputs:
        if not any(name in grid for name in free_names(tensor)):
            continue
        if tensor.name in shapes:
            raise ModelError(f"--shape {tensor.name}: its dimensions are named on their own too")
        dims[tensor.name], shapes[tensor.name] = _filled(graph, tensor, largest)
    points = sorted(product(*grid.values()), key=lambda sizes: (prod(sizes), sizes))
    return shapes, Points(dimensions=tuple(grid), sizes=tuple(points) if grid else (), dims=dims)


def _filled(
    graph: OnnxGraph, tensor: OpenTensor, largest: Mapping[str, int]
) -> tuple[tuple[str, ...], tuple[int, ...]]:
    dims, shape = [], []
    for name, size in zip(tensor.symbols, tensor.item_dims, strict=True):
        if size is None and name not in largest:
            raise ModelError(
                f"{graph.path}: input {tensor.name!r} has another free dimension,"
                f" {name or 'without a name'}; give --shape for it too, or export the model with"
                " names for its dynamic dimensions"
            )
        dims.append("" if size is not None else name)
        shape.append(largest[name] if size is None else size)
    return tuple(dims), tuple(shape)


def at_points(
    model: CutModel, points: Points, items_at: Callable[[tuple[int, ...]], Arrays]
) -> list[CutModel]:
    """The model as it is at each point, with files that leave the dynamic dimensions free.

    Args:
        model: cut at the largest sizes.
        items_at: sizes -> inputs, the batch first.

    Raises:
        ModelError: it does not run at one of them.
    """
    inputs = tuple(
        msgspec.structs.replace(spec, dims=points.dims.get(spec.name, ()))
        for spec in model.crossings[0]
    )
    between = tuple(max(1, size - 1 - i) for i, size in enumerate(points.sizes[-1]))
    sizes, seen = _shapes_at(model, inputs, points, between, items_at)
    names = points.dimensions
    models = []
    for index in range(len(points.sizes)):
        crossings = tuple(
            tuple(_at_point(spec, names, sizes, seen, index) for spec in specs)
            for specs in (inputs, *model.crossings[1:])
        )
        blocks = tuple(
            msgspec.structs.replace(block, cut=cut, cut_bytes=sum(map(item_bytes, cut)))
            for block, cut in zip(model.blocks, crossings[1:], strict=True)
        )
        models.append(replace(model, crossings=crossings, blocks=blocks, opened=()))
    if held_together(sum(block.weights_bytes for block in model.blocks)):
        count = len(model.blocks)
        opened = tuple(models[-1].open(i, i + 1) for i, _ in pairwise(range(count + 1)))
        models = [replace(each, opened=opened) for each in models]
    return models


def _shapes_at(
    model: CutModel,
    inputs: Sequence[TensorSpec],
    points: Points,
    between: tuple[int, ...],
    items_at: Callable[[tuple[int, ...]], Arrays],
) -> tuple[list[tuple[int, ...]], list[dict[str, tuple[int, ...]]]]:
    """The points, and `between` if the model runs there; and what crosses -> its item shape."""
    made = dict.fromkeys(plain_name(spec) for specs in model.crossings[1:] for spec in specs)
    names = [name for name in made if name not in {spec.name for spec in inputs}]
    probe = probe_model(model.graph, inputs, names).SerializeToString()
    session = open_session(probe, model.graph.weights, shares_memory=True)
    tried, found = [], []
    for sizes in dict.fromkeys((*points.sizes, between)):
        single = {name: array[:1] for name, array in items_at(sizes).items()}
        try:
            arrays: Sequence[NDArray[Any]] = session.run(names, single)
        except Exception as error:  # ONNX Runtime's errors share no base of their own
            if sizes not in points.sizes:
                continue
            at = ", ".join(f"{n}={s}" for n, s in zip(points.dimensions, sizes, strict=True))
            raise ModelError(
                f"{model.graph.path}: does not run at {at}: {first_line(error)}; check --shape"
            ) from error
        shapes = {name: array.shape[1:] for name, array in single.items()}
        tried.append(sizes)
        found.append(shapes | {n: a.shape[1:] for n, a in zip(names, arrays, strict=True)})
    return tried, found


def _at_point(
    spec: TensorSpec,
    names: Sequence[str],
    sizes: Sequence[tuple[int, ...]],
    seen: Sequence[Mapping[str, tuple[int, ...]]],
    index: int,
) -> TensorSpec:
    shapes = [shapes[plain_name(spec)] for shapes in seen]
    dims = spec.dims
    if not dims and len({len(shape) for shape in shapes}) == 1:
        dims = tuple(
            _followed([shape[axis] for shape in shapes], names, sizes)
            for axis in range(len(shapes[0]))
        )
    if len(dims) != len(shapes[index]):
        raise ModelError(f"tensor {spec.name!r} changes its number of dimensions with its sizes")
    return msgspec.structs.replace(spec, item_shape=shapes[index], dims=dims if any(dims) else ())


def _followed(
    lengths: Sequence[int], names: Sequence[str], sizes: Sequence[tuple[int, ...]]
) -> str:
    """Which dynamic dimension one of a tensor is as long as, at all points.

    >>> points = ((16, 3), (64, 3), (64, 9))
    >>> [_followed(x, "ab", points) for x in ([16, 64, 64], [5, 5, 5], [3, 3, 9], [8, 32, 32])]
    ['a', '', 'b', '?']
    """
    for at, name in enumerate(names):
        if list(lengths) == [point[at] for point in sizes] and len(set(lengths)) > 1:
            return name
    return "" if len(set(lengths)) == 1 else OTHERWISE
