"""Whole numbers that a model takes beyond those of its items, as companions in a batch.

Made-up whole numbers are 0 and 1, which are places in any table. But one may also be a length, an
amount or a label, and what a batch does with the largest of them shows with larger ones only. So
each input is tried alone with the numbers of a ladder, one item at a time, as long as the model
runs and answers in the same shape; the last that it takes is used.

Tried on the machine's own processor, where ONNX's operators and PyTorch's say of a place that is
not there that it is not; operators of others may read what lies there, so a model with such is left
out. Cost: a run of one item for each number of each input, up to the first that is not taken.
"""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headrace.catalog.onnx_graph import OnnxGraph
from headrace.catalog.onnx_inner import every_node
from headrace.catalog.pt2_calls import TORCH_DOMAIN
from headrace.profiling.items import Arrays, is_measured

LADDER = (2, 7, 30, 100, 1000)
_CHECKED_DOMAINS = frozenset(["", "ai.onnx", "ai.onnx.ml", TORCH_DOMAIN])

Run = Callable[[Arrays, int], dict[str, NDArray[Any]] | str]
"""The outputs for the first items; or why the model does not run."""


def large_numbers(run: Run, graph: OnnxGraph, items: Arrays) -> dict[str, int]:
    """Input -> the largest number of the ladder that the model takes in it; inputs of other kinds,
    and those where it takes none, are absent.

    Args:
        items: input name -> items, shape [n >= 1, ...].
    """
    names = [name for name, array in items.items() if _counts(array)]
    if not names or not _checked(graph):
        return {}
    alone = run(items, 1)
    if isinstance(alone, str):
        return {}
    found: dict[str, int] = {}
    for name in names:
        for number in LADDER:
            other = run({**items, name: np.full_like(items[name], number)}, 1)
            if isinstance(other, str) or _shapes(other) != _shapes(alone):
                break
            found[name] = number
    return found


def _counts(array: NDArray[Any]) -> bool:
    return array.dtype.kind in "iu" and not is_measured(array)


def _checked(graph: OnnxGraph) -> bool:
    """Whether its operators say of a place in a table whether it is there."""
    own = {(function.domain, function.name) for function in graph.header.functions}
    return all(
        node.domain in _CHECKED_DOMAINS or (node.domain, node.op_type) in own
        for node in every_node(graph)
    )


def _shapes(outputs: Mapping[str, NDArray[Any]]) -> dict[str, tuple[int, ...]]:
    return {name: array.shape for name, array in outputs.items()}
