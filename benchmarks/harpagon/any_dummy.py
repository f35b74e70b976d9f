"""Dummy load of any amount: how much cheaper than where it only fills machines, and how proven.

    python -m benchmarks.harpagon.any_dummy [--count 1131]

`least-cost-dummy` against `least-cost`, whose plans have the form of the paper's. Both as `headrace
plan` writes them: worst cases simulated first, head-room for modules that exceed theirs.
"""

import argparse
import time

import numpy as np
from benchmarks.harpagon.profiles import load
from benchmarks.harpagon.runs import Floats
from benchmarks.harpagon.uniform import kept_plan, planned
from benchmarks.harpagon.workloads import COUNT, Workload, workloads

from headrace.domain.plan import OPTIMAL_GAP, Plan
from headrace.domain.profile import Profile
from headrace.planning.apps.solve import solve_app
from headrace.simulation.apps.headroom import attained
from headrace.simulation.apps.worst_cases import slowest_calls
from headrace.verify import verify

PLANNER = "least-cost-dummy"
SEED = 2


def main() -> None:
    """Print costs, proofs, runtimes and what simulation says."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=COUNT)
    asked = parser.parse_args()
    library = load()
    every = workloads(library)
    places = np.linspace(0, len(every) - 1, min(asked.count, len(every)))
    some = [every[int(place)] for place in places]
    print(f"profiles: {library.origin}; {len(some)} of {len(every)} workloads")
    _print_proofs(some)
    _print_plans(some)


def _print_proofs(some: list[Workload]) -> None:
    gaps, seconds = [], []
    solve_app(some[0].case, PLANNER)  # Compiled, or loaded, before it is timed.
    for one in some:
        began = time.process_time()
        found = solve_app(one.case, PLANNER)
        seconds.append(time.process_time() - began)
        assert found is not None
        assert found.bound is not None
        gaps.append(1 - found.bound / found.cost)
    print(
        f"proven optimal: {np.mean(np.array(gaps) <= OPTIMAL_GAP):.1%};"
        f" gap at most {max(gaps):.4%};"
        f" CPU {1e3 * np.mean(seconds):.1f} ms on average, median {1e3 * np.median(seconds):.1f},"
        f" most {max(seconds):.2f} s"
    )


def _print_plans(some: list[Workload]) -> None:
    saved, violations, modules, over, reached = [], 0, 0, 0, []
    for one in some:
        _, profiles = planned(one, {})
        plain, plan = kept_plan(one).plan, kept_plan(one, PLANNER).plan
        assert plain is not None
        assert plan is not None
        saved.append(1 - plan.objective / plain.objective)
        violations += len(verify(plan, profiles))
        slowest = slowest_calls(plan, profiles).values()
        modules += len(slowest)
        over += sum(ratio > 1 for ratio in slowest)
        reached.append(_poisson(plain, plan, profiles))
    saving: Floats = np.array(saved)
    before, after = np.array(reached).T
    print(
        f"cheaper than least-cost on {np.mean(saving > OPTIMAL_GAP):.1%}, by {saving.mean():.2%} on"
        f" average, {saving.max():.1%} at most; dearer on {np.mean(saving < -OPTIMAL_GAP):.1%}\n"
        f"violations found by verify: {violations}; modules above their worst case: {over} of"
        f" {modules}\nPoisson arrivals without head-room: {after.mean():.2%} in time on average,"
        f" {before.mean():.2%} with least-cost"
    )


def _poisson(plain: Plan, plan: Plan, profiles: dict[str, Profile]) -> tuple[float, float]:
    return (
        attained(plain, profiles, "poisson", SEED),
        attained(plan, profiles, "poisson", SEED),
    )


if __name__ == "__main__":
    main()
