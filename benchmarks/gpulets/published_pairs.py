"""Public measurements of models that ran side by side on one GPU."""

import csv
import json
from fractions import Fraction
from pathlib import Path

from benchmarks.reference import reference_path

from headrace.profiling.interference import Side, SideBySide

PERCENT = 100


def profiles_folder() -> Path | None:
    """None where it is absent."""
    return reference_path("profiles")


def a100_pairs(folder: Path) -> list[SideBySide]:
    """Three models beside five, seven batch sizes each, five shares (0909wlgur/Gpulet).

    The share of the other model is not stated; it has what is left of the GPU, since the columns
    are those of gpu-lets, whose GPUs are cut in two.

    Args:
        folder: `profiles` of the reference data.
    """
    source = folder / "gpulet_0909wlgur"
    alone_s = {_place(row): float(row[6]) for row in _rows(source / "inference.csv")}
    used = {_place(row): (float(row[6]), float(row[4])) for row in _rows(source / "mem_util.csv")}

    def side(model: str, batch_size: int, percent: int) -> Side:
        l2, dram = used[model, batch_size, percent]
        return _side(model, batch_size, percent, l2, dram)

    pairs = []
    for row in _rows(source / "interference.csv"):
        own = _place(row)
        pairs.append(
            SideBySide(
                own=side(*own),
                other=side(row[3], int(row[4]), PERCENT - own[2]),
                slowdown=float(row[8]) / alone_s[own],
            )
        )
    return pairs


def v100_pairs(folder: Path) -> list[SideBySide]:
    """Six pairs of four models, five batch sizes each, five cuts, both directions (iGniter)."""
    stated: dict[tuple[str, str], dict[str, dict[str, float]]] = {}
    together = []
    for line in (folder / "igniter" / "gpulet.config").read_text(encoding="utf-8").splitlines():
        for model, kinds in json.loads(line).items():
            if model == "interference":
                together += kinds.get("latency", [])
                continue
            stated |= {(model, kind): table for kind, table in kinds.items()}

    def figure(kind: str, model: str, batch_size: int, percent: int) -> float:
        return stated[model, kind][str(batch_size)][str(percent)]

    pairs = []
    for first, second, size, other_size, percent, *took_ms in together:
        own = first, size, percent
        other = second, other_size, PERCENT - percent
        sides = [
            _side(*place, figure("l2cache", *place), figure("dram", *place))
            for place in (own, other)
        ]
        for (a, b), place, ms in zip((sides, sides[::-1]), (own, other), took_ms, strict=True):
            pairs.append(SideBySide(own=a, other=b, slowdown=ms / figure("latency", *place)))
    return pairs


def _side(
    model: str, batch_size: int, percent: int, l2_percent: float, dram_percent: float
) -> Side:
    return Side(
        model=model,
        batch_size=batch_size,
        share=Fraction(percent, PERCENT),
        l2=l2_percent / PERCENT,
        dram=dram_percent / PERCENT,
    )


def _place(row: list[str]) -> tuple[str, int, int]:
    """Model, batch size, share in percent."""
    return row[0], int(row[1]), int(row[2])


def _rows(path: Path) -> list[list[str]]:
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.reader(file))
