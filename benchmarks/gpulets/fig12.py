"""gpu-lets' Figure 12: the most that each planner carries in five cases, and its gain over `sbp`.

    HEADRACE_REFERENCE=FOLDER python -m benchmarks.gpulets.fig12 [--planners sbp,gpulet,gpulet+int]

Two apps and Table 5's three mixes on four GPUs, synthetic profile. An app's modules are planned as
models: those of `game` (six LeNet and one ResNet50) run side by side, so each has all of its SLO;
`traffic` runs SSD first and then GoogLeNet and VGG16, so its SLO is divided, by the division (in
steps of a twentieth) with which the planner carries most.
"""

import argparse
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import mean
from typing import NamedTuple

from benchmarks.gpulets.scenarios import PLANNERS, largest_multiple
from benchmarks.gpulets.setting import MIXES, SLO_MS, VERDICTS, reference
from benchmarks.reference import absent

PAPER = "gpulet +106.0 %, gpulet+int +102.6 % over its own sbp"
GAME_MS, TRAFFIC_MS = 95.0, 136.0
DIVISIONS = [part / 20 for part in range(5, 16)]


class Case(NamedTuple):
    """Rates of the models for one unit, and each way to divide SLOs between them."""

    rates_rps: tuple[float, ...]
    slos_ms: tuple[Mapping[str, float], ...]


CASES = {
    "game": Case((300, 0, 50, 0, 0), ({**SLO_MS, "le": GAME_MS, "res": GAME_MS},)),
    "traffic": Case(
        (0, 50, 0, 50, 50),
        tuple(
            {
                **SLO_MS,
                "ssd": TRAFFIC_MS * first,
                "goo": TRAFFIC_MS * (1 - first),
                "vgg": TRAFFIC_MS * (1 - first),
            }
            for first in DIVISIONS
        ),
    ),
    **{name: Case(rates, (SLO_MS,)) for name, rates in MIXES.items()},
}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--planners", default=",".join(PLANNERS))
    asked = parser.parse_args()
    root = reference()
    if root is None:
        print(f"skipped: {absent(VERDICTS)}")
        return 0
    print_cases(root, asked.planners.split(","))
    return 0


def print_cases(root: Path, planners: Sequence[str]) -> None:
    """One row per planner: requests/s of all models, or of the app, and the gain over `sbp`."""
    print(f"{'planner':<12}" + "".join(f"{name:>17}" for name in CASES) + f"{'mean gain':>11}")
    base = [carried_rps(root, "sbp", name) for name in CASES]
    for planner in planners:
        found = [carried_rps(root, planner, name) for name in CASES]
        gains = [mine / theirs - 1 for mine, theirs in zip(found, base, strict=True)]
        cells = [f"{rps:,.0f} {gain:+.0%}" for rps, gain in zip(found, gains, strict=True)]
        row = "".join(f"{cell:>17}" for cell in cells)
        print(f"{planner:<12}{row}{mean(gains):>+11.1%}", flush=True)
    print(f"requests/s (apps: of the app), and gain over sbp; paper, on average: {PAPER}")


def carried_rps(root: Path, planner: str, name: str) -> float:
    """The most of this case: requests of the app, or of all its models, per second."""
    case = CASES[name]
    multiple = max(
        largest_multiple(root, planner, case.rates_rps, slo_ms=slo_ms) for slo_ms in case.slos_ms
    )
    if name in MIXES:
        return multiple * sum(case.rates_rps)
    return multiple * min(rate for rate in case.rates_rps if rate)


if __name__ == "__main__":
    sys.exit(main())
