"""Measures block ranges whole: which ranges, with which tensors, in which company."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headrace.domain.elements import element_dtype, in_rooms
from headrace.domain.tensors import TensorSpec
from headrace.executors.base import held_together
from headrace.profiling.cut_model import CutModel
from headrace.profiling.grid import filled, sizes_to_measure
from headrace.profiling.items import Arrays, tiled, write_anew
from headrace.profiling.machine import one_quiet_core
from headrace.profiling.options import StageMode
from headrace.profiling.timing import Timed, time_rounds

LEAST_GRID = 6
"""Fewer batch sizes are all measured: a line needs as many."""
LOOKS = 3

Range = tuple[int, int]
"""First block, and the index behind the last."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RangeTimes:
    """Batch latencies of one block range; shape (B,), microseconds."""

    p50_us: tuple[int, ...]
    p99_us: tuple[int, ...]
    repeats: int
    """Of the batch size that was timed least often."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """All ranges, and how much of the core the measurement had."""

    times: dict[Range, RangeTimes]
    core_share: float
    """Time on the timer over wall time; below 1 when other programs ran on the core."""
    sizes: tuple[int, ...]
    """Batch sizes that were measured; what others take lies on lines between them."""

    @property
    def repeats(self) -> int:
        """Of the range and batch size that was timed least often."""
        return min(times.repeats for times in self.times.values())


def ranges_to_measure(block_count: int, mode: StageMode) -> tuple[Range, ...]:
    """Every block, then the stages that `mode` asks for, each range once.

    >>> ranges_to_measure(3, "splits")
    ((0, 1), (1, 2), (2, 3), (0, 2), (1, 3), (0, 3))
    """
    n = block_count
    blocks = [(i, i + 1) for i in range(n)]
    match mode:
        case "none":
            stages: list[Range] = []
        case "splits":
            stages = [(0, k) for k in range(2, n)] + [(k, n) for k in range(1, n - 1)] + [(0, n)]
        case "all":
            stages = [(i, k) for i in range(n) for k in range(i + 2, n + 1)]
    return tuple(dict.fromkeys([*blocks, *stages]))


def measure_ranges(
    model: CutModel,
    ranges: Sequence[Range],
    max_batch: int,
    items: Arrays,
    budget_s: float,
    on_progress: Callable[[float], None],
    tolerance: float = 0.0,
) -> Measured:
    """Time every range at every batch size, on one core, with what really flows between blocks.

    Args:
        max_batch: B; batch sizes are 1..B.
        items: model inputs, shape [n >= 1, ...]; repeated to fill a batch.
        budget_s: seconds for all.
        on_progress: called with the fraction done, in [0, 1].
        tolerance: where above 0, batch sizes are left out whose latency lies on a line between
            others as nearly as that (`grid`), by a first look at the whole model.

    Raises:
        ModelError: a range cannot be run.
    """
    timer_ns = model.measurement.timer_ns
    flowing = model.run(tiled(items, max_batch))
    sizes = _sizes(model, max_batch, flowing, tolerance)
    groups = _groups(model, ranges)
    costs = [sum(end - first for first, end in group) for group in groups]
    measured: dict[Range, RangeTimes] = {}
    finished = fraction = 0.0

    def report(done: float) -> None:
        on_progress(finished + fraction * done)

    wall_ns = busy_ns = 0
    for group, cost in zip(groups, costs, strict=True):
        fraction = cost / sum(costs)
        tasks = _tasks(model, group, sizes, flowing)
        with one_quiet_core():
            wall_ns -= time.perf_counter_ns()
            busy_ns -= timer_ns()
            time_rounds(
                [task for row in tasks.values() for task in row],
                budget_s * fraction,
                core=timer_ns,
                on_progress=report,
            )
            wall_ns += time.perf_counter_ns()
            busy_ns += timer_ns()
        finished += fraction
        for key, row in tasks.items():
            measured[key] = RangeTimes(
                p50_us=filled(sizes, [task.p50_us for task in row], max_batch),
                p99_us=filled(sizes, [task.p99_us for task in row], max_batch, tolerance),
                repeats=min(len(task.samples_ns) for task in row),
            )
        del tasks, row  # and with them their sessions, before the next group opens its own
    return Measured(times=measured, core_share=min(1.0, busy_ns / wall_ns), sizes=sizes)


def _sizes(
    model: CutModel, max_batch: int, flowing: Sequence[Arrays], tolerance: float
) -> tuple[int, ...]:
    """Those to measure. A look is the shortest of a few runs: what disturbs only prolongs."""
    if tolerance <= 0 or max_batch < LEAST_GRID:
        return tuple(range(1, max_batch + 1))
    whole = (0, len(model.blocks))
    tasks = _tasks(model, [whole], range(1, max_batch + 1), flowing)[whole]
    timer_ns = model.measurement.timer_ns

    def took(size: int) -> float:
        task = tasks[size - 1]
        task.before()
        task.run()
        shortest_ns = 2**62
        for _ in range(LOOKS):
            task.before()
            before_ns = timer_ns()
            task.run()
            shortest_ns = min(shortest_ns, timer_ns() - before_ns)
        return max(1, shortest_ns)

    with one_quiet_core():
        return sizes_to_measure(took, max_batch, tolerance)


def _groups(model: CutModel, ranges: Sequence[Range]) -> list[list[Range]]:
    """Consecutive ranges whose weights fit into memory together: those of a group are open at once,
    and interleaved among themselves."""
    groups: list[list[Range]] = []
    held_bytes = 0
    for first, end in ranges:
        weights = sum(block.weights_bytes for block in model.blocks[first:end])
        if not groups or not held_together(held_bytes + weights):
            groups.append([])
            held_bytes = 0
        groups[-1].append((first, end))
        held_bytes += weights
    return groups


def _tasks(
    model: CutModel, group: Sequence[Range], sizes: Sequence[int], flowing: Sequence[Arrays]
) -> dict[Range, list[Timed]]:
    """Per range, one task for each batch size."""
    max_batch = sizes[-1]
    # Runs are bound to memory of ours, as a worker's are to its arena. One buffer per crossing is
    # enough, because one task runs at a time; batches are views of its beginning.
    buffers = [
        {spec.name: np.empty((max_batch, *spec.item_shape), element_dtype(spec)) for spec in specs}
        for specs in model.crossings
    ]
    tasks: dict[Range, list[Timed]] = {}
    lying = [as_they_lie(*crossing) for crossing in zip(model.crossings, flowing, strict=True)]
    for first, end in group:
        stage = model.open(first, end)
        given, read, written = lying[first], buffers[first], buffers[end]
        tasks[first, end] = [
            Timed(
                run=stage.bound(_first(size, read), _first(size, written)),
                before=partial(write_anew, _first(size, given), _first(size, read)),
            )
            for size in sizes
        ]
    return tasks


def _first(size: int, arrays: Arrays) -> dict[str, NDArray[Any]]:
    return {name: array[:size] for name, array in arrays.items()}


def as_they_lie(specs: Sequence[TensorSpec], arrays: Arrays) -> dict[str, NDArray[Any]]:
    """In a worker's memory: strings each in its room."""
    return {
        spec.name: in_rooms(arrays[spec.name], spec) if spec.dtype == "bytes" else arrays[spec.name]
        for spec in specs
    }
