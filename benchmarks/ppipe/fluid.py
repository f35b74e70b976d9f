"""What a plan could carry if requests were a fluid: a mark to measure dispatchers by.

Every pipeline runs at the rate of its slowest stage without a pause, and may hold what it can work
off before a deadline. An estimate and no bound: slots that are idle at first take requests at once,
and other batch sizes than the planned ones may carry more.
"""

import numpy as np
from benchmarks.ppipe.artifact.hardware import Hardware, Ints
from benchmarks.ppipe.artifact.session import Outcome


def capacity_rps(hardware: Hardware) -> float:
    """What the slots and uplinks of artifact mode carry: the slowest stage of every pipeline."""
    return sum(pipeline_rps(hardware, pipeline) for pipeline in range(len(hardware.batch)))


def run_fluid(hardware: Hardware, at_us: Ints) -> Outcome:
    """Who would be answered in time; when exactly is not said, so `done_us` is the deadline."""
    rate_per_us = capacity_rps(hardware) / 1e6
    room = sum(
        pipeline_rps(hardware, pipeline) * spare_us(hardware, pipeline) / 1e6
        for pipeline in range(len(hardware.batch))
    )
    taken = np.zeros(len(at_us), np.bool_)
    waiting, last_us = 0.0, 0
    for i, now_us in enumerate(at_us.tolist()):
        waiting = max(0.0, waiting - (now_us - last_us) * rate_per_us)
        last_us = now_us
        if waiting + 1 <= room:
            waiting += 1
            taken[i] = True
    return Outcome(
        arrivals_us=at_us,
        started_us=np.full(len(at_us), -1, np.int64),
        done_us=np.where(taken, at_us + hardware.slo_us, -1),
        busy_us=np.zeros(len(hardware.link), np.int64),
        slo_us=hardware.slo_us,
    )


def pipeline_rps(hardware: Hardware, pipeline: int) -> float:
    """Of its slowest stage, with full batches."""
    batch = int(hardware.batch[pipeline])
    return min(stage_rps(hardware, stage, batch) for stage in _stages(hardware, pipeline))


def stage_rps(hardware: Hardware, stage: int, batch: int) -> float:
    slots = slice(hardware.slot_at[stage], hardware.slot_at[stage + 1])
    _, on_link = np.unique(hardware.link[slots], return_counts=True)
    inferred = on_link * batch * 1e6 / hardware.latency_us[stage, batch]
    item_us = hardware.item_transfer_us[stage]
    return float((np.minimum(inferred, 1e6 / item_us) if item_us else inferred).sum())


def spare_us(hardware: Hardware, pipeline: int) -> int:
    """How long a full batch may wait."""
    batch = int(hardware.batch[pipeline])
    path_us = sum(
        hardware.latency_us[stage, batch] + batch * hardware.item_transfer_us[stage]
        for stage in _stages(hardware, pipeline)
    )
    return max(0, int(hardware.slo_us - path_us))


def _stages(hardware: Hardware, pipeline: int) -> range:
    return range(hardware.stage_at[pipeline], hardware.stage_at[pipeline + 1])
