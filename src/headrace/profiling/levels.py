"""A profile at the level at which a machine really ran its stages."""

from collections.abc import Callable
from fractions import Fraction
from typing import NamedTuple

from msgspec.structs import replace

from headrace.domain.profile import BlockTimes, Profile, StageTimes


class Level(NamedTuple):
    """Of times that were taken, as multiples of the median that the profile has."""

    p50: float
    p99: float


LevelOf = Callable[[str, Fraction], Level | None]
"""(device type, share) -> the level there; None: as it was."""
AS_IT_WAS = Level(1.0, 1.0)


def at_levels(profile: Profile, level_of: LevelOf) -> Profile:
    """The profile with its times as multiples of what they were.

    A time never becomes shorter: neighbours that happened to rest will not always.
    """

    def level(times: BlockTimes | StageTimes) -> Level:
        return level_of(times.device, times.share) or AS_IT_WAS

    return replace(
        profile,
        block_times=tuple(_blocks(times, level(times)) for times in profile.block_times),
        stage_times=tuple(_stage(times, level(times)) for times in profile.stage_times),
    )


def _blocks(times: BlockTimes, level: Level) -> BlockTimes:
    rows = [_rows(*pair, level) for pair in zip(times.p50_us, times.p99_us, strict=True)]
    return replace(
        times, p50_us=tuple(p50 for p50, _ in rows), p99_us=tuple(p99 for _, p99 in rows)
    )


def _stage(times: StageTimes, level: Level) -> StageTimes:
    p50_us, p99_us = _rows(times.p50_us, times.p99_us, level)
    return replace(times, p50_us=p50_us, p99_us=p99_us)


def _rows(
    p50_us: tuple[int, ...], p99_us: tuple[int, ...], level: Level
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """By batch size: medians at the level of medians, and p99 at that of p99, or as they were."""
    medians = tuple(round(us * max(1.0, level.p50)) for us in p50_us)
    slowest = tuple(
        max(median, p99, round(us * level.p99))
        for us, p99, median in zip(p50_us, p99_us, medians, strict=True)
    )
    return medians, slowest
