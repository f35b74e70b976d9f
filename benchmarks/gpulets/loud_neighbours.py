"""Models that slow their neighbours: is there a plan in time, and is the heuristic's better?

    python -m benchmarks.gpulets.loud_neighbours [--problems 48] [--seed 1] [--time-limit-s 15]

Two to seven models, batches of up to 4 to 128 items, on one to five devices that may be cut, in
the paper's ways or any; what a model takes of caches and memory is drawn, and slows its neighbours
by the paper's linear model. Half ask for the least devices, half for the largest multiple of one
rate. The peer is gpu-lets' Algorithm 1 with interference (`gpulet+int`), asked as `long_batches`
says. Every plan is verified. "no plan" is one that is neither found nor excluded.
"""

import argparse
import random
import sys
from fractions import Fraction

from benchmarks.gpulets.long_batches import compare, problem_of, profile_of
from msgspec.structs import replace

from headrace.domain.cluster import DeviceType
from headrace.domain.interference import Interference
from headrace.domain.problem import Demand, Objective, PlanOptions, Problem
from headrace.domain.profile import BlockTimes, Profile, Provenance
from headrace.domain.utilisation import Utilisation

PEERS = ("gpulet+int",)
SHARES = tuple(Fraction(n, 10) for n in (10, 8, 6, 5, 4, 2))
SPLITS = (
    (Fraction(1),),
    (Fraction(1, 2), Fraction(1, 2)),
    (Fraction(3, 5), Fraction(2, 5)),
    (Fraction(4, 5), Fraction(1, 5)),
)
INTERFERENCE = Interference(
    device="gpu",
    coefficients=(0.9, 0.1, 0.7, 0.35, 0.1),
    provenance=Provenance(kind="synthetic", date="2026-11-26"),
)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--problems", type=int, default=48)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--time-limit-s", type=float, default=15.0)
    asked = parser.parse_args()
    rng = random.Random(asked.seed)
    return compare((random_problem(rng, asked.time_limit_s) for _ in range(asked.problems)), PEERS)


def random_problem(rng: random.Random, time_limit_s: float) -> Problem:
    models, devices, most = rng.randint(2, 7), rng.randint(1, 5), rng.choice([4, 16, 64, 128])
    objective: Objective = rng.choice(["max-min", "least-devices"])
    splits = rng.choice([(), SPLITS])
    profiles, demands = [], []
    for number in range(models):
        fixed_us, item_us = rng.uniform(200, 4_000), rng.uniform(100, 3_000)
        profiles.append(_profile(f"m{number}", rng, fixed_us, item_us, most))
        rate = rng.uniform(0.03, 0.3) * devices / models * 1e6 / (item_us + fixed_us / 4)
        demands.append(
            Demand(
                model=f"m{number}",
                slo_us=round(rng.uniform(4, 60) * (fixed_us + item_us)),
                rate_rps=rate if objective == "least-devices" else None,
            )
        )
    options = PlanOptions(
        planner="shares", objective=objective, margin=0.1, time_limit_s=time_limit_s
    )
    kind = DeviceType(name="gpu", shares=SHARES, splits=splits)
    problem = problem_of(kind, devices, profiles, demands, options)
    return replace(problem, interference=(INTERFERENCE,))


def _profile(name: str, rng: random.Random, fixed_us: float, item_us: float, most: int) -> Profile:
    """The smaller the share, the longer a batch; launches less than arithmetic."""
    largest, power = rng.randint(1, most), rng.uniform(0.7, 1.0)
    l2, dram = rng.uniform(0, 0.9), rng.uniform(0, 0.9)
    times, used = [], []
    for share in SHARES:
        part = float(share)
        row = tuple(
            round(fixed_us / part**0.3 + item_us * size**power / part)
            for size in range(1, largest + 1)
        )
        times.append(BlockTimes(device="gpu", share=share, p50_us=(row,), p99_us=(row,)))
        sizes = (1, largest) if largest > 1 else (1,)
        used.append(
            Utilisation(
                device="gpu",
                share=share,
                batch_sizes=sizes,
                l2=(l2 * part / 2, l2 * part)[-len(sizes) :],
                dram=(dram * part / 2, dram * part)[-len(sizes) :],
            )
        )
    return profile_of(name, times, used)


if __name__ == "__main__":
    sys.exit(main())
