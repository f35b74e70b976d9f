"""Models with long batches on few devices: is there a plan in time, and is a heuristic's better?

    python -m benchmarks.gpulets.long_batches [--problems 24] [--seed 1] [--time-limit-s 20]

Three to eight models, batches of up to 16 to 256 items, on 2 to 12 devices that nobody cuts, so
that parts are batch sizes to the power of the models on them; SLOs from 6 to 240 times a batch of
one. Half ask for the least devices, half for the largest multiple of one rate. Peers are heuristics
with the same time: gpu-lets' Algorithm 1, squishy bin packing, and Algorithm 1 over all splits.
They are asked for the least devices, or whether they carry 1.001 times what the plan carries. Every
plan is verified.
"""

import argparse
import random
import sys
from collections.abc import Iterable, Sequence
from fractions import Fraction
from time import perf_counter

from msgspec.structs import replace

from headrace.domain.cluster import Cluster, DeviceType, Node
from headrace.domain.plan import PlanResult
from headrace.domain.problem import Demand, Objective, PlanOptions, Problem, ProfileRef
from headrace.domain.profile import Block, BlockTimes, Profile, Provenance
from headrace.domain.tensors import TensorSpec
from headrace.domain.utilisation import Utilisation
from headrace.planning import solve
from headrace.verify import verify

PEERS = ("gpulet", "sbp", "ideal")


ABOVE = 1.001
"""Times what a plan carries: what a better one must."""
LITTLE_RPS = 0.1
"""What one must carry where there was none."""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--problems", type=int, default=24)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--time-limit-s", type=float, default=20.0)
    asked = parser.parse_args()
    rng = random.Random(asked.seed)
    return compare((random_problem(rng, asked.time_limit_s) for _ in range(asked.problems)), PEERS)


def compare(problems: Iterable[Problem], peers: Sequence[str]) -> int:
    """Print what becomes of each; 0: `shares` has a plan of all that a peer has one of, and none
    that a peer betters."""
    without = behind = 0
    print(
        f"{'objective':<14}{'models':>7}{'devices':>8}{'batch':>6}{'shares':>9}{'gap %':>8}{'s':>6}"
    )
    for problem in problems:
        began_s = perf_counter()
        ours = _held(problem, solve(problem))
        spent_s = perf_counter() - began_s
        reached = None if ours.plan is None else ours.plan.objective
        missing = reached is None and ours.stopped != "infeasible"
        better = [planner for planner in peers if _is_better(problem, planner, reached)]
        without, behind = without + missing, behind + bool(better)
        gap = None if ours.plan is None or ours.plan.gap is None else 100 * ours.plan.gap
        batches = max(len(p.block_times[0].p50_us[0]) for p in problem.profiles.values())
        print(
            f"{problem.options.objective:<14}{len(problem.demands):>7}"
            f"{problem.cluster.count('gpu'):>8}{batches:>6}{_number(reached):>9}"
            f"{_number(gap):>8}{spent_s:>6.1f}"
            + ("  no plan" if missing else "")
            + (f"  {', '.join(better)} better" if better else ""),
            flush=True,
        )
    print(f"{without} without a plan, {behind} behind a heuristic   target 0 and 0")
    return 0 if not without and not behind else 1


def _number(value: float | None) -> str:
    return "none" if value is None else f"{value:.2f}"


def _is_better(problem: Problem, planner: str, reached: float | None) -> bool:
    """Whether a heuristic has a better plan than one that reaches that, or any if none is."""
    most = problem.options.objective == "max-min"
    rate_rps = LITTLE_RPS if reached is None else ABOVE * reached
    demands = [replace(d, rate_rps=rate_rps if most else d.rate_rps) for d in problem.demands]
    options = replace(problem.options, planner=planner, objective="least-devices")
    asked = replace(problem, demands=tuple(demands), options=options)
    plan = _held(asked, solve(asked)).plan
    return plan is not None and (most or reached is None or plan.objective < reached)


def _held(problem: Problem, result: PlanResult) -> PlanResult:
    wrong = verify(result.plan, problem.profiles) if result.plan else []
    if wrong:
        sys.exit(f"BROKEN {wrong[0].where}: {wrong[0].what}")
    return result


def random_problem(rng: random.Random, time_limit_s: float) -> Problem:
    models, devices = rng.choice([3, 4, 5, 6, 8]), rng.choice([2, 3, 4, 6, 8, 12])
    most = rng.choice([16, 64, 128, 256])
    objective: Objective = rng.choice(["max-min", "least-devices"])
    profiles, demands = [], []
    for number in range(models):
        fixed_us, item_us = rng.uniform(200, 4_000), rng.uniform(100, 3_000)
        power = rng.uniform(0.7, 1.0)
        row = tuple(round(fixed_us + item_us * size**power) for size in range(1, most + 1))
        rate = rng.uniform(0.05, 0.5) * devices / models * 1e6 / (item_us + fixed_us / 4)
        slo_us = 1.2 * rng.choice([5, 10, 50, 200]) * (fixed_us + item_us)
        times = BlockTimes(device="gpu", share=Fraction(1), p50_us=(row,), p99_us=(row,))
        profiles.append(profile_of(f"m{number}", [times]))
        demands.append(
            Demand(
                model=f"m{number}",
                slo_us=round(slo_us),
                rate_rps=rate if objective == "least-devices" else None,
            )
        )
    options = PlanOptions(
        planner="shares", objective=objective, margin=0.1, time_limit_s=time_limit_s
    )
    return problem_of(DeviceType(name="gpu"), devices, profiles, demands, options)


def problem_of(
    kind: DeviceType,
    devices: int,
    profiles: Sequence[Profile],
    demands: Sequence[Demand],
    options: PlanOptions,
) -> Problem:
    return Problem(
        cluster=Cluster(
            device_types=(kind,), nodes=(Node(name="n", devices={kind.name: devices}),)
        ),
        demands=tuple(demands),
        profiles={profile.model: profile for profile in profiles},
        profile_refs=tuple(
            ProfileRef(model=p.model, path=f"{p.model}.json", sha256="0" * 64) for p in profiles
        ),
        options=options,
    )


def profile_of(
    name: str, times: Sequence[BlockTimes], utilisation: Sequence[Utilisation] = ()
) -> Profile:
    """Of a model of one block."""
    tensor = TensorSpec(name="x", dtype="float32", item_shape=(1,))
    return Profile(
        model=name,
        provenance=Provenance(kind="synthetic", date="2026-11-26"),
        inputs=(tensor,),
        outputs=(tensor,),
        blocks=(Block(name="all", node_count=1, weights_bytes=0, cut=(tensor,), cut_bytes=4),),
        block_times=tuple(times),
        utilisation=tuple(utilisation),
    )


if __name__ == "__main__":
    sys.exit(main())
