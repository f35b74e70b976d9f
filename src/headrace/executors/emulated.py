"""Hardware that is not here: how long a slot is held, and what it answers."""

import math
import random
from collections.abc import Sequence
from statistics import NormalDist

from headrace.domain.elements import raw
from headrace.executors.base import ONE_THREAD, ExecutorKind, StageToLoad, TensorMemory

_Z99 = NormalDist().inv_cdf(0.99)


class EmulatedStage:
    """A stage that takes as long as its profile says and answers with zeros.

    Times are log-normal with the profile's median and 99th percentile: latencies have a floor and
    a long tail. A profile without spread is followed exactly. One stage's sequence of times
    depends on its seed only.
    """

    def __init__(self, stage: StageToLoad, memory: TensorMemory) -> None:
        self._stage = stage
        self._memory = memory
        self._random = random.Random(stage.seed)

    def begin(self, size: int, output_offsets: Sequence[int]) -> int:
        """Write the answer and return how many microseconds the batch takes.

        Raises:
            ModelError: an output would leave the arena.
            IndexError: the stage was not profiled at this batch size.
        """
        for spec, offset in zip(self._stage.outputs, output_offsets, strict=True):
            # Never what an earlier request left there.
            raw(self._memory.tensor(spec, size, offset)).fill(0)
        return self._sample_us(size)

    def _sample_us(self, size: int) -> int:
        p50_us, p99_us = self._stage.p50_us[size - 1], self._stage.p99_us[size - 1]
        if p99_us == p50_us:
            return p50_us
        sigma = math.log(p99_us / p50_us) / _Z99
        return round(p50_us * math.exp(sigma * self._random.gauss(0.0, 1.0)))


EXECUTOR = ExecutorKind(
    # What no other kind serves comes to it anyway.
    device_types=(),
    slot_is="nothing",
    hold=EmulatedStage,
    environment=ONE_THREAD,
    reads_model=False,
    process_bytes=0,
    process_memory_per_weight=0,
)
