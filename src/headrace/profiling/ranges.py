"""Measures block ranges whole: which ranges, with which tensors, in which company."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headrace.domain.errors import ModelError
from headrace.domain.profile import TensorSpec
from headrace.profiling.chain import Chain
from headrace.profiling.items import Arrays, tiled
from headrace.profiling.machine import one_quiet_core
from headrace.profiling.options import StageMode
from headrace.profiling.session import first_line, open_session
from headrace.profiling.timing import Timed, time_rounds

Range = tuple[int, int]
"""First block, and the index behind the last."""

HELD_WEIGHTS_BYTES = 2**30
"""Sessions open at a time hold at most this much weight (or one session, if that is larger).
Ranges that do not fit are measured in a later group, which interleaves among itself."""


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
    """Processor time over wall time; below 1 when other programs ran on the core."""


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
    chain: Chain,
    ranges: Sequence[Range],
    max_batch: int,
    items: Arrays,
    budget_s: float,
    on_progress: Callable[[float], None],
) -> Measured:
    """Time every range at every batch size, on one core, with what really flows between blocks.

    Args:
        chain: the cut model.
        ranges: what to measure.
        max_batch: B; batch sizes are 1..B.
        items: model inputs, shape [n >= 1, ...]; repeated to fill a batch.
        budget_s: seconds for all.
        on_progress: called with the fraction done, in [0, 1].

    Raises:
        ModelError: a range cannot be run.
    """
    flowing = chain.run(tiled(items, max_batch))
    groups = _groups(chain, ranges)
    costs = [sum(end - first for first, end in group) for group in groups]
    measured: dict[Range, RangeTimes] = {}
    finished = 0.0
    wall_ns = busy_ns = 0
    for group, cost in zip(groups, costs, strict=True):
        fraction = cost / sum(costs)
        tasks = _tasks(chain, group, max_batch, flowing)
        with one_quiet_core():
            # A session of one thread works on the thread that calls it: ours.
            wall_ns -= time.perf_counter_ns()
            busy_ns -= time.thread_time_ns()
            time_rounds(
                [task for row in tasks.values() for task in row],
                budget_s * fraction,
                on_progress=partial(_report, on_progress, finished, fraction),
            )
            wall_ns += time.perf_counter_ns()
            busy_ns += time.thread_time_ns()
        finished += fraction
        for key, row in tasks.items():
            measured[key] = RangeTimes(
                p50_us=tuple(task.p50_us for task in row),
                p99_us=tuple(task.p99_us for task in row),
                repeats=min(len(task.samples_ns) for task in row),
            )
    return Measured(times=measured, core_share=min(1.0, busy_ns / wall_ns))


def _report(
    on_progress: Callable[[float], None], finished: float, fraction: float, done: float
) -> None:
    on_progress(finished + fraction * done)


def _groups(chain: Chain, ranges: Sequence[Range]) -> list[list[Range]]:
    """Consecutive ranges whose weights fit into memory together."""
    groups: list[list[Range]] = []
    held_bytes = 0
    for first, end in ranges:
        weights = sum(block.weights_bytes for block in chain.blocks[first:end])
        if not groups or held_bytes + weights > HELD_WEIGHTS_BYTES:
            groups.append([])
            held_bytes = 0
        groups[-1].append((first, end))
        held_bytes += weights
    return groups


def _tasks(
    chain: Chain, group: Sequence[Range], max_batch: int, flowing: Sequence[Arrays]
) -> dict[Range, list[Timed]]:
    """Per range, one task for each batch size."""
    # Outputs are bound to memory of ours, as a worker binds them to its arena. One buffer per
    # crossing is enough, because one task runs at a time; batches are views of its beginning.
    buffers = [
        {spec.name: np.empty((max_batch, *spec.item_shape), spec.dtype) for spec in specs}
        for specs in chain.crossings
    ]
    tasks: dict[Range, list[Timed]] = {}
    for first, end in group:
        session = (
            chain.sessions[first]
            if end == first + 1
            else open_session(chain.stage_bytes(first, end), shares_memory=True)
        )
        inputs, outputs = chain.crossings[first], chain.crossings[end]
        tasks[first, end] = [
            Timed(run=_bound(session, size, (inputs, flowing[first]), (outputs, buffers[end])))
            for size in range(1, max_batch + 1)
        ]
    return tasks


def _bound(
    session: Any,
    size: int,
    inputs: tuple[Sequence[TensorSpec], Arrays],
    outputs: tuple[Sequence[TensorSpec], Arrays],
) -> Callable[[], None]:
    """A run of `size` items between bound memory."""
    binding = session.io_binding()
    held: list[NDArray[Any]] = []  # the binding knows addresses only
    for bind, (specs, arrays) in (
        (binding.bind_input, inputs),
        (binding.bind_output, outputs),
    ):
        for spec in specs:
            batch = arrays[spec.name][:size]
            assert batch.flags.c_contiguous
            bind(spec.name, "cpu", 0, batch.dtype, batch.shape, batch.ctypes.data)
            held.append(batch)
    return partial(_run, session, binding, held)


def _run(session: Any, binding: Any, held: Sequence[NDArray[Any]]) -> None:
    try:
        session.run_with_iobinding(binding)
    except Exception as error:  # ONNX Runtime's errors share no base of their own
        shapes = [array.shape for array in held]
        raise ModelError(f"a stage does not run with {shapes}: {first_line(error)}") from error
