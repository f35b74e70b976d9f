"""A synthetic model of several sizes: longer texts take longer, and inputs and outputs follow."""

from collections.abc import Sequence

from msgspec.structs import replace

from headrace.domain.profile import BlockTimes, Bucket, Profile
from headrace.domain.tensors import TensorSpec
from helpers.problems import make_profile

TEXT = TensorSpec(name="ids", dtype="int64", item_shape=(256,), dims=("tokens",))
STATES = TensorSpec(name="states", dtype="float32", item_shape=(256, 2), dims=("tokens", ""))
POOLED = TensorSpec(name="pooled", dtype="float32", item_shape=(2,))


def sized_profile(
    model: str = "text", sizes: Sequence[int] = (16, 64, 256), **options: object
) -> Profile:
    """`make_profile` at the largest size; at others times are in proportion."""
    largest = make_profile(model, devices={"a": 1.0}, **options)  # type: ignore[arg-type]
    at = {"tokens": sizes[-1]}
    blocks = [replace(block, cut=(STATES.at(at),)) for block in largest.blocks]
    blocks[-1] = replace(blocks[-1], cut=(STATES.at(at), POOLED))
    buckets = []
    for size in sizes[:-1]:
        own = {"tokens": size}
        buckets.append(
            Bucket(
                sizes=(size,),
                inputs=(TEXT.at(own),),
                outputs=(STATES.at(own), POOLED),
                cuts=tuple(tuple(spec.at(own) for spec in block.cut) for block in blocks),
                cut_bytes=tuple(block.cut_bytes * size // sizes[-1] for block in blocks),
                block_times=tuple(_shorter(t, size, sizes[-1]) for t in largest.block_times),
            )
        )
    return replace(
        largest,
        inputs=(TEXT.at(at),),
        outputs=(STATES.at(at), POOLED),
        blocks=tuple(blocks),
        dimensions=("tokens",),
        sizes=(sizes[-1],),
        buckets=tuple(buckets),
    )


def _shorter(times: BlockTimes, size: int, largest: int) -> BlockTimes:
    def scaled(rows: tuple[tuple[int, ...], ...]) -> tuple[tuple[int, ...], ...]:
        return tuple(tuple(max(1, us * size // largest) for us in row) for row in rows)

    return replace(times, p50_us=scaled(times.p50_us), p99_us=scaled(times.p99_us))
