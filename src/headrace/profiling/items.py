"""Items to profile with: the user's own where given, random ones otherwise."""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headrace.catalog.array_files import why_unread
from headrace.catalog.onnx_graph import OnnxGraph, OpenTensor
from headrace.catalog.onnx_types import array_dtype
from headrace.domain.elements import element_dtype
from headrace.domain.errors import ModelError
from headrace.domain.tensors import TensorSpec

Arrays = Mapping[str, NDArray[Any]]
"""Tensor name -> array, the batch first."""

MAX_EXAMPLE_BYTES = 2**30
RANDOM_WORDS = 12
"""Of a made-up text."""


def read_examples(graph: OnnxGraph, paths: Mapping[str, Path]) -> dict[str, NDArray[Any]]:
    """Read the user's `.npy` files, one per model input, shape [items, ...].

    Args:
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
        examples[name] = _checked(graph, declared[name], array, named[name])
    return examples


def input_specs(graph: OnnxGraph, shapes: Mapping[str, tuple[int, ...]]) -> tuple[TensorSpec, ...]:
    """The model's inputs with their item shapes fixed."""
    return tuple(
        graph.spec(tensor.name, tensor.dtype, shapes[tensor.name], tensor.batch_axis or 0)
        for tensor in graph.inputs
    )


def random_items(
    specs: Sequence[TensorSpec],
    count: int,
    rng: np.random.Generator,
    words: Sequence[str] = (),
) -> dict[str, NDArray[Any]]:
    """Random items: normal floats; integers 0 and 1, which are legal ids of any vocabulary; a few
    words of text, every other one of `words`."""
    found: dict[str, NDArray[Any]] = {}
    for spec in specs:
        shape, dtype = (count, *spec.item_shape), element_dtype(spec)
        if spec.dtype == "bytes":
            found[spec.name] = _random_texts(spec, shape, rng, words)
        elif spec.dtype == "bfloat16" or dtype.kind == "f":
            found[spec.name] = rng.standard_normal(shape, np.float32).astype(dtype)
        else:
            found[spec.name] = rng.integers(0, 2, shape).astype(dtype)
    return found


def _random_texts(
    spec: TensorSpec, shape: tuple[int, ...], rng: np.random.Generator, words: Sequence[str]
) -> NDArray[Any]:
    letters = rng.integers(ord("a"), ord("z") + 1, (math.prod(shape), RANDOM_WORDS, 5))
    made_up = [["".join(map(chr, word)) for word in text] for text in letters]
    if words:
        for text in made_up:
            text[::2] = [words[at] for at in rng.integers(0, len(words), len(text[::2]))]
    texts = [" ".join(text) for text in made_up]
    found = np.empty(len(texts), dtype=object)
    found[:] = [text[: spec.max_bytes] for text in texts]
    return found.reshape(shape)


def is_measured(array: NDArray[Any]) -> bool:
    """Sound or pictures; longer integers may be places in a table, or say how large something is to
    be."""
    return array.dtype.kind == "f" or array.dtype.name in _MEASURED


_MEASURED = frozenset(["uint8", "int8", "uint16", "int16", "bfloat16"])


def tiled(items: Arrays, count: int) -> dict[str, NDArray[Any]]:
    """`count` items, repeating the given ones in turn."""
    return {
        name: np.ascontiguousarray(array[np.arange(count) % len(array)])
        for name, array in items.items()
    }


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
        raise ModelError(f"{path}: is not a .npy file of numbers: {why_unread(error)}") from error
    if not isinstance(mapped, np.ndarray):
        raise ModelError(f"{path}: holds several arrays; save one with numpy.save")
    return np.array(mapped)


def _checked(graph: OnnxGraph, tensor: OpenTensor, array: NDArray[Any], path: Path) -> NDArray[Any]:
    """The items; texts of a .npy file as `str` objects."""
    if tensor.dtype == "bytes" and array.dtype.kind in "US":
        array = _texts(array, graph.max_string_bytes, path)
    item_shape = array.shape[1:]
    fits = len(item_shape) == len(tensor.item_dims) and all(
        known in (None, got) for known, got in zip(tensor.item_dims, item_shape, strict=True)
    )
    if array_dtype(array) != tensor.dtype or not fits:
        wanted = ", ".join("?" if dim is None else str(dim) for dim in tensor.item_dims)
        raise ModelError(
            f"{path}: does not fit input {tensor.name!r}\n"
            f"  needs  {tensor.dtype} [items, {wanted}]\n"
            f"  has    {array.dtype.name} {list(array.shape)}"
        )
    return array


def _texts(array: NDArray[Any], most_bytes: int, path: Path) -> NDArray[Any]:
    try:
        texts = [t if isinstance(t, str) else t.decode() for t in array.ravel().tolist()]
    except UnicodeDecodeError as error:
        raise ModelError(f"{path}: holds text that is not UTF-8: {error.reason}") from error
    longest = max((len(text.encode()) for text in texts), default=0)
    if longest > most_bytes:
        raise ModelError(
            f"{path}: its longest text has {longest:,} bytes, and {most_bytes:,} are allowed;"
            f" --max-string-bytes {longest}"
        )
    found = np.empty(len(texts), dtype=object)
    found[:] = texts
    return found.reshape(array.shape)


def write_anew(arrays: Arrays, into: Arrays) -> None:
    """What a run reads, as whoever is before a slot writes it for each batch.

    What a run has read itself lies in the caches: a second run on large inputs, with little work,
    takes about two thirds as long.
    """
    for name, array in arrays.items():
        into[name][...] = array
