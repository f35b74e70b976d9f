"""`least-cost` against trying everything, wherever that finishes.

    python -m benchmarks.harpagon.exhaustive [--count 1131] [--limit-s 60]

Of the study's workloads, and of the same at a twentieth of the rate, where stacks of machines are
few enough to try them all.
"""

import argparse
import sys
import time
from dataclasses import replace

from benchmarks.harpagon.profiles import load
from benchmarks.harpagon.workloads import COUNT, Workload, workloads

from headrace.planning.apps.candidates import AppCase, ModuleCase
from headrace.planning.apps.exhaustive import AppTooLargeError, plan_exhaustively
from headrace.planning.apps.solve import plan_least_cost

SMALLER = 20.0
STACKS_HOPED = 4_000.0
"""Per module, by a rough count; past it, trying is not begun."""


def slower(workload: Workload) -> AppCase:
    """The same app at a fraction of the rate."""
    modules = tuple(
        ModuleCase.of(m.name, m.rate_rps / SMALLER, m.candidates) for m in workload.case.modules
    )
    return replace(workload.case, modules=modules)


def stacks_about(module: ModuleCase) -> float:
    """Stacks of machines: the product over candidates of how many of each may be whole."""
    count = 1.0
    for rate in module.rates_rps:
        count *= 1 + module.rate_rps // rate
    return count * len(module.candidates)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=COUNT)
    parser.add_argument("--limit-s", type=float, default=60.0, help="for each of both sets")
    asked = parser.parse_args()
    drawn = workloads(load(), asked.count)
    met = True
    for name, cases in (
        ("at the study's rates", [w.case for w in drawn]),
        ("at a twentieth", [slower(w) for w in drawn]),
    ):
        met &= compare(name, cases, asked.limit_s)
    sys.exit(0 if met else 1)


def compare(name: str, cases: list[AppCase], limit_s: float) -> bool:
    finished = equal = 0
    began = time.monotonic()
    for case in cases:
        if time.monotonic() - began > limit_s:
            break
        if any(stacks_about(module) > STACKS_HOPED for module in case.modules):
            continue
        try:
            tried = plan_exhaustively(case)
        except AppTooLargeError:
            continue
        finished += 1
        found = plan_least_cost(case)
        if tried is None or found is None:
            equal += tried is None and found is None
        else:
            cost = sum(schedule.cost for schedule in tried)
            equal += abs(found.cost - cost) <= 1e-9 * cost
    verdict = "met" if finished and equal == finished else "MISSED"
    print(
        f"{name}: exhaustive finishes on {finished} of {len(cases)};"
        f" least-cost equal on {equal} (target: all)  {verdict}"
    )
    return equal == finished


if __name__ == "__main__":
    main()
