"""How far the sum of a stage's blocks is from the stage measured whole."""

import statistics

from headrace.domain.base import Record
from headrace.domain.profile import Profile


class SumRatios(Record, frozen=True, kw_only=True):
    """Sum of the blocks' p50 over the stage's p50, over all stages and batch sizes."""

    median: float
    worst: float
    """The one furthest from 1, in either direction."""
    count: int


def sum_ratios(profile: Profile) -> SumRatios | None:
    """Compare sums with measured stages; None where no stage was measured whole."""
    ratios = []
    for stage in profile.stage_times:
        times = profile.times(stage.device, stage.share)
        if times is None:
            continue
        rows = times.p50_us[stage.first_block : stage.end_block]
        ratios += [
            sum(row[index] for row in rows) / whole
            for index, whole in enumerate(stage.p50_us)
            if index < times.max_batch
        ]
    if not ratios:
        return None
    worst = max(ratios, key=lambda ratio: max(ratio, 1 / ratio))
    return SumRatios(median=statistics.median(ratios), worst=worst, count=len(ratios))
