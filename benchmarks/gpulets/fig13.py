"""Plans with and without interference, simulated with the interference that is really there.

    HEADRACE_REFERENCE=FOLDER python -m benchmarks.gpulets.fig13
        [--only figure|margins] [--planners gpulet,gpulet+int,shares+int] [--every 54] [--seed 2]

Four GPUs, the synthetic profile and the artifact's linear model of a 2080 Ti (`setting`), which in
simulation is the truth.

figure   gpu-lets' Figure 13: five cases at the largest rates that `gpulet` plans (as the paper, it
         does not know of interference), and at the largest of `gpulet+int`; no margin. Violations
         (late or refused, of all requests) under even and under Poisson arrivals
margins  every n-th of the 1,023 scenarios, least devices, `--margin auto`: attainment of the model
         that attains least, Poisson at the rates asked for, with arrivals (`--seed`) that were not
         simulated when the margin was chosen; or the refusal. Fails if a plan that counts with
         interference keeps less than 99 %

A planner's name with `+int` is given the interference, one without is not.
"""

import argparse
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import mean
from time import process_time

import numpy as np
from benchmarks.gpulets.fig12 import CASES
from benchmarks.gpulets.scenarios import largest_multiple
from benchmarks.gpulets.setting import (
    MODELS,
    SLO_MS,
    VERDICTS,
    interference,
    problem,
    reference,
    verdicts,
)
from benchmarks.reference import absent
from msgspec.structs import replace

from headrace.domain.errors import InfeasibleError
from headrace.domain.plan import Plan
from headrace.domain.problem import Problem
from headrace.domain.request import Outcome
from headrace.metrics import outcomes
from headrace.planning import solve
from headrace.simulation.margin import choose_margin
from headrace.simulation.offered.arrivals import Arrival, merge, stream_rng
from headrace.simulation.offered.processes import process_named
from headrace.simulation.session import simulate
from headrace.verify import verify

PLANNERS = ("gpulet", "gpulet+int", "shares+int")
REQUESTS = 200_000
WANTED = 0.99
SHOWN = 1e-3
"""Of a multiple: how far below the largest one the figure's plans are made."""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", choices=("figure", "margins"))
    parser.add_argument("--planners", default=",".join(PLANNERS))
    parser.add_argument("--every", type=int, default=54, help="only every n-th scenario")
    parser.add_argument("--seed", type=int, default=2)
    asked = parser.parse_args()
    root = reference()
    if root is None:
        print(f"skipped: {absent(VERDICTS)}")
        return 0
    short = 0
    if asked.only != "margins":
        print_figure(root, asked.seed)
    if asked.only != "figure":
        known = [each.rates_rps for each in verdicts(root).values()][:: asked.every]
        short = sum(
            print_margins(root, planner, known, asked.seed) for planner in asked.planners.split(",")
        )
    return 1 if short else 0


def asked_of(
    root: Path, planner: str, rates_rps: Sequence[float], slo_ms: Mapping[str, float] = SLO_MS
) -> Problem:
    """The problem for a planner of PLANNERS."""
    name = planner.removesuffix("+int") if planner == "shares+int" else planner
    found = problem(root, rates_rps, name, slo_ms=slo_ms)
    return replace(found, interference=(interference(root),)) if "+int" in planner else found


def violations(
    root: Path, plan: Plan, profiles: Problem, seed: int, arrivals: str
) -> dict[str, list[Outcome]]:
    """Model -> how its requests ended, with the true interference, at the rates asked for."""
    rates = {each.model: each.rate_rps or 0.0 for each in plan.demands}
    duration_s = max(REQUESTS / sum(rates.values()), 2_000 / min(rates.values()))
    streams = [
        [
            Arrival(at_us=int(at_us), model=model)
            for at_us in process_named(arrivals)(rate, duration_s, stream_rng(seed, model))
        ]
        for model, rate in rates.items()
    ]
    header, events = simulate(
        plan,
        profiles.profiles,
        merge(streams),
        policy="reservation",
        seed=seed,
        interference=(interference(root),),
    )
    return outcomes(header, events)


def part_missed(found: Mapping[str, Sequence[Outcome]]) -> float:
    """Of all requests."""
    return float(np.mean([not each.in_time for ended in found.values() for each in ended]))


def least_attained(found: Mapping[str, Sequence[Outcome]]) -> float:
    return min(float(np.mean([each.in_time for each in ended])) for ended in found.values())


def print_figure(root: Path, seed: int) -> None:
    print("violations with the true interference, even / Poisson arrivals, no margin")
    print(f"{'case':<12}{'multiple':>9}" + "".join(f"{name:>24}" for name in PLANNERS[:2]))
    for name, case in CASES.items():
        slos = case.slos_ms[len(case.slos_ms) // 2]
        for limit in PLANNERS[:2]:
            multiple = (1 - SHOWN) * largest_multiple(root, limit, case.rates_rps, slo_ms=slos)
            rates = [rate * multiple for rate in case.rates_rps]
            cells = []
            for planner in PLANNERS[:2]:
                asked = asked_of(root, planner, rates, slos)
                plan = solve(asked).plan
                cells.append("not schedulable")
                if plan is not None:
                    parts = (
                        part_missed(violations(root, plan, asked, seed, arrivals))
                        for arrivals in ("uniform", "poisson")
                    )
                    cells[-1] = " / ".join(f"{part:.2%}" for part in parts)
            print(f"{name:<12}{multiple:>9.2f}" + "".join(f"{cell:>24}" for cell in cells))


@dataclass
class Tally:
    """What became of a planner's scenarios."""

    attained: list[float] = field(default_factory=list)
    devices: list[float] = field(default_factory=list)
    without_room: list[float] = field(default_factory=list)
    refused: int = 0
    cpu_s: list[float] = field(default_factory=list)


def print_margins(root: Path, planner: str, known: Sequence[tuple[float, ...]], seed: int) -> int:
    """Returns how many plans that count with interference keep less than WANTED."""
    tally = Tally()
    for rates in known:
        asked = asked_of(root, planner, rates)
        text = ", ".join(f"{rate:g} {m}" for m, rate in zip(MODELS, rates, strict=True) if rate)
        began_s = process_time()
        try:
            choice = choose_margin(asked, attainment=WANTED)
        except InfeasibleError as error:
            tally.cpu_s.append(process_time() - began_s)
            said = str(error).splitlines()
            tally.refused += 1
            print(f"  {planner}: {text}: refused: {'; '.join(line.strip() for line in said)}")
            continue
        tally.cpu_s.append(process_time() - began_s)
        assert not verify(choice.plan, asked.profiles)
        reached = least_attained(violations(root, choice.plan, asked, seed, "poisson"))
        options = choice.plan.options
        tally.attained.append(reached)
        tally.devices.append(choice.plan.objective)
        tally.without_room.append(choice.trials[0].plan.objective)
        print(
            f"  {planner}: {text}: {reached:.2%}, {choice.plan.objective:g} GPUs"
            f" ({choice.trials[0].plan.objective:g} without room), head-room"
            f" {options.rate_headroom:.0%}, margin {options.margin:.0%},"
            f" {len(choice.trials)} plans tried, {tally.cpu_s[-1]:.1f} s",
            flush=True,
        )
    kept = sum(reached >= WANTED for reached in tally.attained)
    least = min(tally.attained, default=0.0)
    with_room, without = mean(tally.devices or [0]), mean(tally.without_room or [0])
    print(
        f"{planner}: {len(known)} scenarios, {len(tally.attained)} planned, of which {kept} keep"
        f" {WANTED:.0%} (least {least:.2%}), {tally.refused} refused; GPUs {with_room:.2f}, without"
        f" room {without:.2f}; CPU {mean(tally.cpu_s):.1f} s on average",
        flush=True,
    )
    return len(tally.attained) - kept if "+int" in planner else 0


if __name__ == "__main__":
    sys.exit(main())
