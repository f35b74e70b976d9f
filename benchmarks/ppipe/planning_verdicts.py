"""What planning must hold, one line each: target, measured, kept or missed."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from statistics import median

from benchmarks.ppipe.planning_rows import Row

KEEPS = 1 - 1e-6
"""Solvers stop at a relative 1e-6."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """One requirement, and how it came out."""

    what: str
    target: str
    measured: str
    held: bool


def verdicts(rows: Sequence[Row]) -> Iterator[Verdict]:
    """Of everything that `rows` has a say in."""
    artifact = [row for row in rows if row.rule == "artifact"]
    yield from _published(artifact)
    yield from _rules(rows)
    for rule in ("artifact", "free"):
        yield from _seconds(rule, [row for row in rows if row.rule == rule])
    yield from _largest(artifact)
    yield from _types(artifact)


def _published(rows: Sequence[Row]) -> Iterator[Verdict]:
    for plan_set, least_proven in (("maf19", 1.0), ("ablation", 16 / 18)):
        mine = [row for row in rows if row.plan_set == plan_set]
        if mine:
            kept = sum(row.ours >= (row.reference or 0.0) * KEEPS for row in mine)
            proven = sum(row.proven for row in mine)
            yield Verdict(
                what=f"{len(mine)} {plan_set} instances, rule artifact",
                target=f">= published on all, proven on >= {round(least_proven * len(mine))}",
                measured=f">= on {kept}, proven on {proven}",
                held=kept == len(mine) and proven >= least_proven * len(mine) - 1e-9,
            )


def _rules(rows: Sequence[Row]) -> Iterator[Verdict]:
    by_artifact = {row.name: row for row in rows if row.rule == "artifact"}
    ratios = [
        row.ours / by_artifact[row.name].ours
        for row in rows
        if row.rule == "free" and row.name in by_artifact
    ]
    if ratios:
        kept = sum(ratio >= KEEPS for ratio in ratios)
        yield Verdict(
            what=f"{len(ratios)} instances, rule free / rule artifact, packed and verified",
            target=">= 1 everywhere",
            measured=f">= 1 on {kept}; least {min(ratios):.4f}, median {median(ratios):.4f},"
            f" most {max(ratios):.4f}",
            held=kept == len(ratios),
        )


def _seconds(rule: str, rows: Sequence[Row]) -> Iterator[Verdict]:
    seconds = [row.cpu_s for row in rows if row.reference is not None]
    if seconds:
        yield Verdict(
            what=f"planning time, CPU s on one thread, rule {rule}, {len(seconds)} instances",
            target="median <= 0.1, most <= 10",
            measured=f"median {median(seconds):.3f}, most {max(seconds):.2f}",
            held=median(seconds) <= 0.1 and max(seconds) <= 10.0,
        )


def _largest(rows: Sequence[Row]) -> Iterator[Verdict]:
    mine = [row for row in rows if row.plan_set == "large" and row.name.startswith("100,000")]
    if mine:
        slowest, widest = max(row.cpu_s for row in mine), max(row.gap for row in mine)
        yield Verdict(
            what=f"100,000 GPUs, 2 types, rule artifact, {len(mine)} instances",
            target="<= 1 s, gap <= 0.1 %",
            measured=f"<= {slowest:.2f} s, gap <= {widest:.1e}",
            held=slowest <= 1.0 and widest <= 1e-3,
        )


def _types(rows: Sequence[Row]) -> Iterator[Verdict]:
    mine = [row for row in rows if row.plan_set == "types"]
    if mine:
        proven, slowest = sum(row.proven for row in mine), max(row.wall_s for row in mine)
        yield Verdict(
            what=f"3 and 4 types, 100 GPUs, up to 3 stages, {len(mine)} instances",
            target=">= 22 of 24 proven, each <= 30 s",
            measured=f"{proven} proven, most {slowest:.1f} s",
            held=proven >= len(mine) * 22 / 24 and slowest <= 31.0,
        )
