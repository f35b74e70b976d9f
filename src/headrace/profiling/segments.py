"""How long each stretch between two neighbouring cuts takes, for choosing which cuts to keep.

Why segments are extracted and timed one by one: on PP-OCRv4's recogniser (212 cuts, 10 blocks,
one core, batch sizes 1 and 8) the longest block was 1.10 to 1.23 times the mean this way, in 2 s.
Times per operator from ONNX Runtime's profiler with optimisation off gave 1.22 to 1.45, because
they know nothing of fused operators and other layouts; differences of timed prefixes gave up to
1.9, because the noise of a long run drowns a short segment. Re-scaling the segments by measured
blocks changed nothing.
"""

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

from headrace.catalog.onnx_graph import OnnxGraph
from headrace.catalog.onnx_stage import extract_stage
from headrace.domain.tensors import TensorSpec
from headrace.executors.base import Measurement, OpenedModel
from headrace.profiling.items import Arrays, tiled
from headrace.profiling.observe import Observed, UsableCut
from headrace.profiling.prepartition import equal_blocks

MAX_SEGMENTS = 1024
"""Candidate cuts beyond this are thinned out evenly; blocks stay equal to about 1/1000."""
REPEATS = 5


def choose_cuts(
    graph: OnnxGraph,
    observed: Observed,
    block_count: int,
    items: Arrays,
    max_batch: int,
    measurement: Measurement,
    on_progress: Callable[[float], None] = lambda done: None,
) -> tuple[UsableCut, ...]:
    """The cuts that make `block_count` blocks of about equal run time, or all where fewer exist.

    Returns:
        At most block_count - 1 cuts, in order.
    """

    def measured(crossings: Sequence[Sequence[TensorSpec]]) -> list[float]:
        return segment_times(graph, crossings, items, max_batch, measurement, on_progress)

    return cuts_for_equal_blocks(observed, block_count, measured)


def cuts_for_equal_blocks(
    observed: Observed,
    block_count: int,
    times_of: Callable[[Sequence[Sequence[TensorSpec]]], Sequence[float]],
) -> tuple[UsableCut, ...]:
    """As `choose_cuts`, by any source of run times.

    Args:
        times_of: what crosses before, between and behind S segments -> their relative run times,
            shape (S,).
    """
    if block_count == 1:
        return ()
    cuts = _thinned(observed.cuts, MAX_SEGMENTS)
    if len(cuts) < block_count:
        return cuts
    crossings = [observed.inputs, *(cut.tensors for cut in cuts), observed.outputs]
    times = times_of(crossings)
    sizes = [*(sum(s.item_count for s in cut.tensors) for cut in cuts), 0]
    ends = equal_blocks(times, block_count, sizes)
    return tuple(cuts[end - 1] for end in ends[:-1])


def segment_times(
    graph: OnnxGraph,
    crossings: Sequence[Sequence[TensorSpec]],
    items: Arrays,
    max_batch: int,
    measurement: Measurement,
    on_progress: Callable[[float], None],
) -> list[float]:
    """Relative run time of each segment: its share at batch 1 plus its share at `max_batch`.

    Both, because early layers with their large feature maps fall out of the caches as the batch
    grows: blocks that are equal at batch 1 alone are not at batch 8.
    """
    feeds = tiled(items, max_batch)
    small: list[float] = []
    large: list[float] = []
    for index, (inputs, outputs) in enumerate(pairwise(crossings)):
        segment = measurement.open(
            extract_stage(graph, inputs, outputs).SerializeToString(), graph.weights
        )
        names = [spec.name for spec in outputs]
        first = {name: array[:1] for name, array in feeds.items()}
        small.append(_best_of(segment, names, first, measurement)[0])
        took, results = _best_of(segment, names, feeds, measurement)
        large.append(took)
        feeds = dict(zip(names, results, strict=True))
        on_progress((index + 1) / (len(crossings) - 1))
    return [a / sum(small) + b / sum(large) for a, b in zip(small, large, strict=True)]


def _best_of(
    segment: OpenedModel, names: list[str], feeds: Arrays, measurement: Measurement
) -> tuple[float, Sequence[Any]]:
    """Shortest of a few runs after a warm-up, and the outputs.

    Only the proportions count here, and they should be the same on a busy machine.
    """
    outputs = segment.run(names, feeds)
    shortest = 2**63
    for _ in range(REPEATS):
        before = measurement.timer_ns()
        segment.run(names, feeds)
        shortest = min(shortest, max(1, measurement.timer_ns() - before))
    return float(shortest), outputs


def _thinned(cuts: tuple[UsableCut, ...], most: int) -> tuple[UsableCut, ...]:
    step = -(-len(cuts) // most) if cuts else 1
    return cuts[::step]
