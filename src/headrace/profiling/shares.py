"""What a part of a CPU core takes for a batch: as much longer as the part is smaller.

Slots that share a core are processes of equal weight, and the system's scheduler gives each that
is busy the same part of the core's time, in slices of a few milliseconds. So a batch takes 1 /
share as long when all of them are busy, and no longer than that; beside idle slots it ends sooner.
"""

from collections.abc import Sequence
from fractions import Fraction
from math import ceil

import msgspec

from headrace.domain.errors import ModelError
from headrace.domain.profile import BlockTimes, Bucket, Profile, StageTimes

MOST_PARTS = 64
WHOLE = Fraction(1)


def parse_shares(texts: Sequence[str]) -> tuple[Fraction, ...]:
    """Read shares as a person writes them, such as `1/2` or `1,1/2`.

    Raises:
        ModelError: one is not a part of a core.

    >>> parse_shares(["1,1/2", "1/4"])
    (Fraction(1, 1), Fraction(1, 2), Fraction(1, 4))
    """
    found = []
    for text in (part for entry in texts for part in entry.split(",")):
        try:
            share = Fraction(text.strip())
        except (ValueError, ZeroDivisionError):
            share = Fraction(0)
        if not 0 < share <= 1 or share.denominator > MOST_PARTS:
            raise ModelError(
                f"--shares {text!r}: needs parts of a core, 1/{MOST_PARTS} to 1, such as 1/2"
            )
        found.append(share)
    return tuple(dict.fromkeys(found))


def with_shares(profile: Profile, device: str, shares: Sequence[Fraction]) -> Profile:
    """Add times of these parts of `device`, which must have been measured whole.

    >>> from headrace.domain.profile import Block, Provenance
    >>> from headrace.domain.tensors import TensorSpec
    >>> y = TensorSpec(name="y", dtype="float32", item_shape=(1,))
    >>> whole = Profile(
    ...     model="m",
    ...     provenance=Provenance(kind="measured", date="2026-01-01"),
    ...     inputs=(y,),
    ...     outputs=(y,),
    ...     blocks=(Block(name="b", node_count=1, weights_bytes=1, cut=(y,), cut_bytes=4),),
    ...     block_times=(BlockTimes(device="cpu", share=WHOLE, p50_us=((9,),), p99_us=((11,),)),),
    ... )
    >>> with_shares(whole, "cpu", [Fraction(2, 3)]).times("cpu", Fraction(2, 3)).p50_us
    ((14,),)
    """
    wanted = [share for share in shares if profile.times(device, share) is None]
    if not wanted or profile.times(device, WHOLE) is None:
        return profile
    notes = tuple(
        f"{share} of a {device}: times of a whole one over {share}; the system divides a core"
        " evenly among its busy slots"
        for share in wanted
    )
    provenance = msgspec.structs.replace(
        profile.provenance, notes=(*profile.provenance.notes, *notes)
    )
    blocks, parts = _with_parts(profile, device, wanted)
    buckets = []
    for bucket in profile.buckets:
        own_blocks, own_parts = _with_parts(bucket, device, wanted)
        buckets.append(
            msgspec.structs.replace(bucket, block_times=own_blocks, stage_times=own_parts)
        )
    return msgspec.structs.replace(
        profile,
        provenance=provenance,
        block_times=blocks,
        stage_times=parts,
        buckets=tuple(buckets),
    )


def _with_parts(
    timed: Profile | Bucket, device: str, shares: Sequence[Fraction]
) -> tuple[tuple[BlockTimes, ...], tuple[StageTimes, ...]]:
    """Its times, and those of parts of the device."""
    whole = [t for t in timed.block_times if t.device == device and t.share == WHOLE]
    stages = [s for s in timed.stage_times if s.device == device and s.share == WHOLE]
    blocks = [_part_of_blocks(times, share) for share in shares for times in whole]
    parts = [_part_of_stage(stage, share) for share in shares for stage in stages]
    return (*timed.block_times, *blocks), (*timed.stage_times, *parts)


def _part_of_blocks(times: BlockTimes, share: Fraction) -> BlockTimes:
    return BlockTimes(
        device=times.device,
        share=share,
        p50_us=tuple(_slower(row, share) for row in times.p50_us),
        p99_us=tuple(_slower(row, share) for row in times.p99_us),
    )


def _part_of_stage(stage: StageTimes, share: Fraction) -> StageTimes:
    return msgspec.structs.replace(
        stage,
        share=share,
        p50_us=_slower(stage.p50_us, share),
        p99_us=_slower(stage.p99_us, share),
    )


def _slower(row_us: Sequence[int], share: Fraction) -> tuple[int, ...]:
    return tuple(ceil(value / share) for value in row_us)
