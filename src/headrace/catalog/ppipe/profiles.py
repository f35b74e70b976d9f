"""Block profiles of PPipe's public artifact as our profiles (layout: `artifact`)."""

import re
from fractions import Fraction
from pathlib import Path

from headrace.catalog.source import decode_text, read_bounded
from headrace.domain.errors import DocumentError
from headrace.domain.profile import Block, BlockTimes, Profile, Provenance

_NOTES = (
    "block latencies of PPipe's public artifact (TensorRT, TF32), one engine per block",
    "one latency per block and batch size: p99 is p50",
    "a share of 1/k was measured with all k slices busy with the same model",
    "cut sizes are bytes per item in half precision; tensors and weights are not stated",
)


def read_artifact_profile(artifact: Path, model: str, *, date: str) -> Profile:
    """Every (GPU type, slice) that the artifact measured of `model`.

    Args:
        date: of the import, ISO 8601.

    Raises:
        DocumentError: a file is missing or its numbers are not a rectangle.
    """
    cuts = _cut_bytes(artifact, model)
    blocks = tuple(
        Block(name=f"block-{i}", node_count=0, weights_bytes=0, cut=(), cut_bytes=size)
        for i, size in enumerate([*cuts, 0])
    )
    times = _block_times(artifact, model)
    for entry in times:
        if len(entry.p50_us) != len(blocks):
            raise DocumentError(
                f"{artifact}: {model} has {len(entry.p50_us)} timed blocks on {entry.device},"
                f" but {len(cuts)} cuts"
            )
    return Profile(
        model=model,
        provenance=Provenance(kind="imported", date=date, notes=_NOTES),
        boundary="float16",
        inputs=(),
        outputs=(),
        blocks=blocks,
        block_times=times,
    )


def _block_times(artifact: Path, model: str) -> tuple[BlockTimes, ...]:
    folder = artifact / "data" / "models" / "block-timing-tf32"
    pattern = re.compile(rf"{re.escape(model)}-(?P<device>[A-Za-z0-9]+)-(?P<parts>[1-9]\d?)\.csv")
    found = []
    for path in sorted(folder.glob("*.csv")):
        named = pattern.fullmatch(path.name)
        if named is not None:
            # The planner raises what is below 1 us to 1; there is no such cell, but may be.
            rows = tuple(tuple(max(1, us) for us in row) for row in _integers(path))
            share = Fraction(1, int(named["parts"]))
            found.append(BlockTimes(device=named["device"], share=share, p50_us=rows, p99_us=rows))
    if not found:
        raise DocumentError(f"{folder}: has no block latencies of {model!r}")
    return tuple(found)


def _cut_bytes(artifact: Path, model: str) -> list[int]:
    folder = artifact / "data" / "prepartition_mappings" / model
    files = sorted(folder.glob("*trans-size*.csv"))
    if len(files) != 1:
        raise DocumentError(f"{folder}: needs one file of cut sizes, has {len(files)}")
    rows = _integers(files[0])
    if any(len(row) != 1 for row in rows):
        raise DocumentError(f"{files[0]}: expected one size per line")
    return [row[0] for row in rows]


def _integers(path: Path) -> list[list[int]]:
    lines = decode_text(path, read_bounded(path)).split()
    try:
        return [[int(cell) for cell in line.split(",")] for line in lines]
    except ValueError as error:
        raise DocumentError(f"{path}: expected whole numbers separated by commas") from error
