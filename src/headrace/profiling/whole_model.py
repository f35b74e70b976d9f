"""What a whole model takes on another part of a device, and its blocks in proportion.

Where a model was measured block by block on one part of a device, on other parts its whole is
measured, and each block is stated to take as much of that as it takes of the whole on the first.
"""

from collections.abc import Callable, Sequence
from fractions import Fraction
from functools import partial

import numpy as np
from numpy.typing import NDArray

from headrace.domain.elements import element_dtype
from headrace.domain.profile import BlockTimes, Profile, StageTimes
from headrace.executors.base import OpenedModel
from headrace.profiling.items import random_items, write_anew
from headrace.profiling.timing import Clock, Timed, time_rounds

SEED = 0


def time_whole(
    profile: Profile,
    model: OpenedModel,
    max_batch: int,
    budget_s: float,
    timer_ns: Clock,
    on_progress: Callable[[float], None] = lambda done: None,
) -> list[Timed]:
    """Time all batch sizes from 1 on; entry b-1 is a batch of b.

    Args:
        profile: says what its inputs and outputs are.
        model: all of its blocks, open.
        budget_s: seconds to spend.
        timer_ns: as `Measurement.timer_ns`.
        on_progress: called with the fraction done, in [0, 1].

    Raises:
        ModelError: the model does not run.
    """
    rng = np.random.default_rng(SEED)
    tasks = [_task_of(profile, model, size, rng) for size in range(1, max_batch + 1)]
    time_rounds(tasks, budget_s, core=timer_ns, on_progress=on_progress)
    return tasks


def _task_of(profile: Profile, model: OpenedModel, size: int, rng: np.random.Generator) -> Timed:
    items = random_items(profile.inputs, size, rng)
    inputs = {name: np.empty_like(array, order="C") for name, array in items.items()}
    outputs = {
        spec.name: np.empty((size, *spec.item_shape), element_dtype(spec))
        for spec in profile.outputs
    }
    return Timed(run=model.bound(inputs, outputs), before=partial(write_anew, items, inputs))


def whole_stage(one: BlockTimes, whole: Sequence[Timed], share: Fraction) -> StageTimes:
    """
    Args:
        one: times of the blocks on some part of the device.
        whole: of the model on a share, as `time_whole`.
    """
    return StageTimes(
        device=one.device,
        share=share,
        first_block=0,
        end_block=len(one.p50_us),
        p50_us=tuple(each.p50_us for each in whole),
        p99_us=tuple(each.p99_us for each in whole),
    )


def blocks_in_proportion(one: BlockTimes, whole: Sequence[Timed], share: Fraction) -> BlockTimes:
    """Arguments as `whole_stage`."""

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
