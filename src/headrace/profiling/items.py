"""Items to profile with: the user's own where given, random ones otherwise."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headrace.catalog.onnx_graph import OnnxGraph, OpenTensor
from headrace.domain.errors import ModelError
from headrace.domain.profile import TensorSpec

Arrays = Mapping[str, NDArray[Any]]
"""Tensor name -> array, the batch first."""

MAX_EXAMPLE_BYTES = 2**30


def read_examples(graph: OnnxGraph, paths: Mapping[str, Path]) -> dict[str, NDArray[Any]]:
    """Read the user's `.npy` files, one per model input, shape [items, ...].

    Args:
        graph: the model.
        paths: input name -> file; the empty name means the only input.

    Raises:
        ModelError: a file cannot be read or does not fit its input.
    """
    if not paths:
        return {}
    declared = {tensor.name: tensor for tensor in graph.inputs}
    only = graph.inputs[0].name if len(graph.inputs) == 1 else None
    named = {name or only: path for name, path in paths.items()}
    if named.keys() != declared.keys():
        raise ModelError(
            f"{graph.path}: example inputs are needed for all of {', '.join(declared)};"
            " give each as --inputs NAME=FILE.npy"
        )
    examples = {str(name): _read_npy(path) for name, path in named.items()}
    counts = {len(array) for array in examples.values()}
    if len(counts) != 1 or counts == {0}:
        raise ModelError(f"example inputs: every file needs the same number of items, got {counts}")
    for name, array in examples.items():
        _check_example(declared[name], array, named[name])
    return examples


def input_specs(graph: OnnxGraph, shapes: Mapping[str, tuple[int, ...]]) -> tuple[TensorSpec, ...]:
    """The model's inputs with their item shapes fixed."""
    return tuple(
        TensorSpec(name=tensor.name, dtype=tensor.dtype, item_shape=shapes[tensor.name])
        for tensor in graph.inputs
    )


def random_items(
    specs: Sequence[TensorSpec], count: int, rng: np.random.Generator
) -> dict[str, NDArray[Any]]:
    """Random items: normal floats; integers 0 and 1, which are legal ids of any vocabulary."""
    return {spec.name: _random(spec, count, rng) for spec in specs}


def tiled(items: Arrays, count: int) -> dict[str, NDArray[Any]]:
    """`count` items, repeating the given ones in turn."""
    return {
        name: np.ascontiguousarray(array[np.arange(count) % len(array)])
        for name, array in items.items()
    }


def _random(spec: TensorSpec, count: int, rng: np.random.Generator) -> NDArray[Any]:
    shape = (count, *spec.item_shape)
    dtype = np.dtype(spec.dtype)
    if dtype.kind == "f":
        return rng.standard_normal(shape, np.float32).astype(dtype)
    return rng.integers(0, 2, shape).astype(dtype)


def _read_npy(path: Path) -> NDArray[Any]:
    try:
        size_bytes = path.stat().st_size
        if size_bytes > MAX_EXAMPLE_BYTES:
            raise ModelError(
                f"{path}: is too large: {size_bytes:,} bytes, at most {MAX_EXAMPLE_BYTES:,};"
                " a few items are enough"
            )
        # Mapped first: numpy then checks the header's claim against the file before it allocates.
        mapped = np.load(path, mmap_mode="r", allow_pickle=False)
    except OSError as error:
        raise ModelError(f"{path}: cannot be read: {error.strerror or error}") from error
    except ValueError as error:
        raise ModelError(f"{path}: is not a .npy file of numbers: {error}") from error
    if not isinstance(mapped, np.ndarray):
        raise ModelError(f"{path}: holds several arrays; save one with numpy.save")
    return np.array(mapped)


def _check_example(tensor: OpenTensor, array: NDArray[Any], path: Path) -> None:
    item_shape = array.shape[1:]
    fits = len(item_shape) == len(tensor.item_dims) and all(
        known in (None, got) for known, got in zip(tensor.item_dims, item_shape, strict=True)
    )
    if array.dtype.name != tensor.dtype or not fits:
        wanted = ", ".join("?" if dim is None else str(dim) for dim in tensor.item_dims)
        raise ModelError(
            f"{path}: does not fit input {tensor.name!r}\n"
            f"  needs  {tensor.dtype} [items, {wanted}]\n"
            f"  has    {array.dtype.name} {list(array.shape)}"
        )
