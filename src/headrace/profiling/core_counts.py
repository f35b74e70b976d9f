"""What a model takes on several cores of one CPU device, with as many threads.

The profile's own times are those of one core. Where `--cores 1,2` asks for more, they become those
of a share 1/n of a device of n cores (n the largest number), and the whole model is measured with k
threads on k cores for each other number k: share k/n. Its blocks are stated there in proportion to
what they take on one core.

Wall time, since a run is on several threads: on a machine with other work it is longer than alone,
and the profile says so.
"""

import os
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from fractions import Fraction
from functools import partial
from pathlib import Path

import msgspec
import numpy as np
from numpy.typing import NDArray

from headrace.catalog.stage_files import model_format, stage_path, stage_weights
from headrace.domain.elements import element_dtype
from headrace.domain.errors import ModelError
from headrace.domain.profile import BlockTimes, Profile, StageTimes
from headrace.executors.base import OpenedModel
from headrace.executors.table import measurement
from headrace.profiling.items import random_items, write_anew
from headrace.profiling.timing import Timed, time_rounds

MOST_CORES = 64
SEED = 0


def parse_cores(text: str | None) -> tuple[int, ...]:
    """Read numbers of cores, such as `1,2`; ascending.

    Raises:
        ModelError: one is not a number of cores, or 1 is missing.

    >>> parse_cores("2,1"), parse_cores(None)
    ((1, 2), ())
    """
    if text is None:
        return ()
    parts = [part.strip() for part in text.split(",")]
    counts = sorted({int(part) for part in parts if part.isdecimal()})
    legal = all(part.isdecimal() for part in parts) and counts[:1] == [1]
    if not legal or counts[-1] > MOST_CORES:
        raise ModelError(
            f"--cores {text!r}: needs numbers of cores from 1 on, at most {MOST_CORES}, such as 1,2"
        )
    here = len(os.sched_getaffinity(0))
    if counts[-1] > here:
        raise ModelError(f"--cores {text!r}: needs {counts[-1]} cores, and {here} are here")
    return tuple(counts)


def with_cores(
    profile: Profile, folder: Path, device: str, counts: Sequence[int], budget_s: float
) -> Profile:
    """The profile of a device with as many cores as the largest of `counts`.

    Args:
        folder: what the profile's paths are relative to.
        budget_s: to measure in, for all numbers of cores above one.

    Raises:
        ModelError: the model cannot be opened, has several sizes, or the device is no CPU.
    """
    if len(counts) < 2:
        return profile
    open_model = measurement(device, model_format(profile, folder)).open_threads
    if open_model is None or profile.dimensions:
        why = "is no CPU" if open_model is None else "a model of several sizes"
        raise ModelError(f"--cores: measures models of one size on CPU cores; {device!r} {why}")
    most, blocks = counts[-1], len(profile.blocks)
    content = stage_path(profile, folder, 0, blocks).read_bytes()
    weights = stage_weights(profile, folder)
    [one] = [times for times in profile.block_times if times.device == device]
    measured = {}
    for count in counts[1:]:
        with on_cores(count):
            model = open_model(content, weights, count)
            measured[count] = _timed(profile, model, one.max_batch, budget_s / (len(counts) - 1))
    shares = {count: Fraction(count, most) for count in counts}
    alone = [msgspec.structs.replace(one, share=shares[1])]
    stages = [msgspec.structs.replace(each, share=shares[1]) for each in profile.stage_times]
    for count, times in measured.items():
        alone.append(_blocks(one, times, shares[count]))
        stages.append(
            StageTimes(
                device=device,
                share=shares[count],
                first_block=0,
                end_block=blocks,
                p50_us=tuple(each.p50_us for each in times),
                p99_us=tuple(each.p99_us for each in times),
            )
        )
    note = f"shares of a {device} of {most} cores; several cores by wall time of the whole model"
    provenance = msgspec.structs.replace(
        profile.provenance, notes=(*profile.provenance.notes, note)
    )
    return msgspec.structs.replace(
        profile, block_times=tuple(alone), stage_times=tuple(stages), provenance=provenance
    )


@contextmanager
def on_cores(count: int) -> Iterator[None]:
    """Keep this process, and threads that it starts meanwhile, on so many cores."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, sorted(before)[:count])
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def _timed(profile: Profile, model: OpenedModel, most: int, budget_s: float) -> list[Timed]:
    """Entry b-1: a batch of b."""
    rng = np.random.default_rng(SEED)
    tasks = [_task_of(profile, model, size, rng) for size in range(1, most + 1)]
    time_rounds(tasks, budget_s, core=time.perf_counter_ns)
    return tasks


def _task_of(profile: Profile, model: OpenedModel, size: int, rng: np.random.Generator) -> Timed:
    items = random_items(profile.inputs, size, rng)
    inputs = {name: np.empty_like(array, order="C") for name, array in items.items()}
    outputs = {
        spec.name: np.empty((size, *spec.item_shape), element_dtype(spec))
        for spec in profile.outputs
    }
    return Timed(run=model.bound(inputs, outputs), before=partial(write_anew, items, inputs))


def _blocks(one: BlockTimes, whole: Sequence[Timed], share: Fraction) -> BlockTimes:
    def scaled(rows: tuple[tuple[int, ...], ...], totals_us: Sequence[int]) -> NDArray[np.int64]:
        table = np.array(rows, dtype=np.float64)
        parts: NDArray[np.int64] = np.rint(table * np.array(totals_us) / table.sum(axis=0)).astype(
            np.int64
        )
        parts[parts < 1] = 1
        return parts

    p50 = scaled(one.p50_us, [each.p50_us for each in whole])
    p99 = np.maximum(p50, scaled(one.p99_us, [each.p99_us for each in whole]))
    # A larger batch takes no less, whatever was measured.
    p50, p99 = (np.maximum.accumulate(table, axis=1) for table in (p50, p99))
    return BlockTimes(
        device=one.device,
        share=share,
        p50_us=tuple(tuple(row) for row in p50.tolist()),
        p99_us=tuple(tuple(row) for row in p99.tolist()),
    )
