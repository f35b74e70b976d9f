"""Schedulability as in gpu-lets: the 1,023 scenarios (Figures 4 and 15), and Table 5's multiples.

    HEADRACE_REFERENCE=FOLDER python -m benchmarks.gpulets.scenarios
        [--planners gpulet,gpulet+int,sbp,self-tuning,ideal] [--every 1] [--only scenarios|table5]
        [--any-split]

Per planner: how many scenarios it plans on four GPUs, of those how many `verify` accepts (all of
them, or the run fails), devices used, and the CPU time of one scenario; beside them what the public
artifact answers for the same rates, and how many of its schedules are said to hold when they are
re-checked. Then the largest multiple of each of Table 5's mixes.
"""

import argparse
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import mean, median
from time import process_time

from benchmarks.gpulets.setting import (
    GPUS,
    MIXES,
    SLO_MS,
    VERDICTS,
    Verdicts,
    problem,
    reference,
    verdicts,
)
from benchmarks.reference import absent

from headrace.domain.plan import PlanResult
from headrace.planning import solve
from headrace.verify import verify

PLANNERS = ("gpulet", "gpulet+int", "sbp", "self-tuning", "ideal")

ARTIFACT = {"self-tuning": "selftuning"}
"""Planner -> the artifact's name, where it is another."""
KEPT = {"gpulet": 989, "gpulet+int": 561, "sbp": 582, "selftuning": 188}
"""Of the artifact's schedules, those that meet rates and SLOs when re-checked (its INDEX)."""
PUBLISHED = {
    "gpulet": (12, 6, 6),
    "gpulet+int": (11, 6, 6),
    "sbp": (1, 5, 1),
    "self-tuning": (10, 6, 8),
}
"""The artifact's largest whole multiples of Table 5's mixes."""
HALVINGS = 8
"""Of one whole step, in the search for the largest multiple."""


@dataclass
class Tally:
    """What one planner made of the scenarios."""

    feasible: set[str] = field(default_factory=set)
    broken: list[str] = field(default_factory=list)
    proven: int = 0
    devices: list[int] = field(default_factory=list)
    cpu_s: list[float] = field(default_factory=list)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--planners", default=",".join(PLANNERS))
    parser.add_argument("--every", type=int, default=1, help="only every n-th scenario")
    parser.add_argument("--only", choices=("scenarios", "table5"))
    parser.add_argument("--any-split", action="store_true", help="cut GPUs into any shares")
    asked = parser.parse_args()
    root = reference()
    if root is None:
        print(f"skipped: {absent(VERDICTS)}")
        return 0
    planners, broken = asked.planners.split(","), 0
    if asked.only != "table5":
        known = dict(list(verdicts(root).items())[:: asked.every])
        tallies = {name: run(root, name, known, any_split=asked.any_split) for name in planners}
        print_scenarios(tallies, known)
        broken = sum(len(tally.broken) for tally in tallies.values())
    if asked.only != "scenarios":
        print_table5(root, planners, any_split=asked.any_split)
    return 1 if broken else 0


def solved(
    root: Path,
    planner: str,
    rates_rps: Sequence[float],
    *,
    any_split: bool = False,
    slo_ms: Mapping[str, float] = SLO_MS,
) -> tuple[PlanResult, list[str], float]:
    """The answer, what `verify` finds wrong with its plan, and the CPU time of planning."""
    asked = problem(root, rates_rps, planner, any_split=any_split, slo_ms=slo_ms)
    began_s = process_time()
    result = solve(asked)
    spent_s = process_time() - began_s
    found = verify(result.plan, asked.profiles) if result.plan else []
    return result, [f"{each.check}: {each.where}: {each.what}" for each in found], spent_s


def run(
    root: Path, planner: str, known: Mapping[str, Verdicts], *, any_split: bool = False
) -> Tally:
    solved(root, planner, (50, 0, 0, 0, 0))  # What is imported or compiled once is not counted.
    tally = Tally()
    for scenario, verdict in known.items():
        result, wrong, spent_s = solved(root, planner, verdict.rates_rps, any_split=any_split)
        tally.cpu_s.append(spent_s)
        tally.proven += result.stopped in ("optimal", "infeasible")
        if result.plan is not None:
            tally.feasible.add(scenario)
            tally.devices.append(len({slot.device_index for slot in result.plan.slots}))
        if wrong:
            tally.broken.append(f"{scenario}: {wrong[0]}")
    return tally


def print_scenarios(tallies: Mapping[str, Tally], known: Mapping[str, Verdicts]) -> None:
    print(f"{len(known)} scenarios on {GPUS} GPUs")
    print(
        f"{'planner':<12}{'feasible':>9}{'verified':>9}{'artifact':>9}{'holds':>7}{'only us':>8}"
        f"{'only it':>8}{'GPUs':>6}{'proven':>7}{'CPU ms':>8}{'most':>8}"
    )
    for name, tally in tallies.items():
        theirs = ARTIFACT.get(name, name)
        said = {s for s, verdict in known.items() if verdict.schedulable.get(theirs)}
        has = any(theirs in verdict.schedulable for verdict in known.values())
        print(
            f"{name:<12}{len(tally.feasible):>9}{len(tally.feasible) - len(tally.broken):>9}"
            f"{len(said) if has else '-':>9}{KEPT.get(theirs, '-'):>7}"
            f"{len(tally.feasible - said) if has else '-':>8}"
            f"{len(said - tally.feasible) if has else '-':>8}"
            f"{mean(tally.devices or [0]):>6.2f}{tally.proven:>7}"
            f"{1e3 * median(tally.cpu_s):>8.1f}{1e3 * max(tally.cpu_s):>8.1f}"
        )
    for name, tally in tallies.items():
        for line in tally.broken[:3]:
            print(f"BROKEN {name} {line}")
    print(
        "artifact: verdicts of the public one; holds: of its schedules on all 1,023 those that keep"
        " rates and SLOs;\nGPUs: mean used where feasible; proven: plans with a proof, and refusals"
        " with one; CPU: median and most per scenario"
    )


def print_table5(root: Path, planners: Iterable[str], *, any_split: bool) -> None:
    print(f"\nTable 5, largest multiple on {GPUS} GPUs (artifact's whole ones)")
    print(f"{'planner':<12}" + "".join(f"{mix:>20}" for mix in MIXES))
    for name in planners:
        cells = []
        for at, base in enumerate(MIXES.values()):
            published = PUBLISHED.get(name)
            theirs = f" ({published[at]})" if published else ""
            most = largest_multiple(root, name, base, any_split=any_split)
            cells.append(f"{f'{most:.2f}{theirs}':>20}")
        print(f"{name:<12}{''.join(cells)}")


def largest_multiple(
    root: Path,
    planner: str,
    base: Sequence[float],
    *,
    any_split: bool = False,
    slo_ms: Mapping[str, float] = SLO_MS,
) -> float:
    """The multiple of these rates below which the planner refuses no whole one, and then none that
    halving steps find. Heuristics may carry more again at a larger one; that is not looked for."""

    def carried(multiple: float) -> bool:
        rates = [rate * multiple for rate in base]
        result, wrong, _ = solved(root, planner, rates, any_split=any_split, slo_ms=slo_ms)
        assert not wrong, wrong
        return result.plan is not None

    low = 0.0
    while carried(low + 1):
        low += 1
    high = low + 1
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        low, high = (middle, high) if carried(middle) else (low, middle)
    return low


if __name__ == "__main__":
    sys.exit(main())
