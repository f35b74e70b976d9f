"""The price of whole devices: sharing them against the plans of least cost in proportion to load.

    python -m benchmarks.harpagon.bill              # all 1,131 workloads, some seconds
    python -m benchmarks.harpagon.bill --sample 150 --verify
    python -m benchmarks.harpagon.bill --simulate 30

Printed: what is paid for the devices of `least-cost` by the fraction, and by the bill, on the same
workloads; what is proven; the bound that holds for every plan, shared however often; CPU time; and
with --verify what `headrace.verify` finds wrong with the plans, written down as documents; with
--simulate how many of that many plans whose modules share devices answer every request in time."""

import argparse
import time
from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil

import numpy as np
from benchmarks.harpagon.profiles import load
from benchmarks.harpagon.shared import print_shared, written
from benchmarks.harpagon.workloads import COUNT, Workload, workloads

from headrace.planning.apps.bill.bound import least_bill
from headrace.planning.apps.bill.case import BillCase
from headrace.planning.apps.bill.search import LeastBill, least_devices_bill
from headrace.planning.apps.solve import plan_least_cost
from headrace.planning.common.deadline import Deadline
from headrace.verify import verify

LIMIT_S = 10.0
SAME = 1e-6


@dataclass(frozen=True, slots=True, kw_only=True)
class Compared:
    """One workload, planned both ways."""

    workload: Workload
    fraction: float
    """Least cost in proportion to load."""
    today: float
    """Price of the devices that this takes."""
    found: LeastBill
    relaxed: float
    apart: float
    """The least bill if every device had one module."""
    cpu_s: float

    @property
    def bill(self) -> float:
        """At most today's, whose plan is kept where nothing is cheaper."""
        return min(self.found.bill, self.today)


def main() -> None:
    """Print every figure beside its target."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sample", type=int, default=COUNT, help="workloads, evenly chosen")
    parser.add_argument("--synthetic", action="store_true")
    parser.add_argument("--verify", action="store_true", help="write plans down and verify them")
    parser.add_argument("--simulate", type=int, default=0, help="so many of the sharing plans")
    parser.add_argument("--policy", help="to simulate under; default: the plan's own")
    asked = parser.parse_args()
    library = load(synthetic=asked.synthetic)
    every = workloads(library)
    places = np.linspace(0, len(every) - 1, min(asked.sample, len(every)))
    some = [every[int(place)] for place in places]
    print(f"profiles: {library.origin}; {len(some)} of {len(every)} workloads")
    compare(some[0])  # loads compiled code
    compared = [compare(one) for one in some]
    _print(compared)
    if asked.verify:
        broken = sum(bool(_violations(one)) for one in compared)
        print(f"plans that fail verification: {broken} | target 0")
    if asked.simulate:
        found = [(one.workload, one.found) for one in compared]
        print_shared(found, lambda one: compare(one).found, asked.simulate, asked.policy)


def compare(workload: Workload) -> Compared:
    """Plan one workload both ways; the time is that of the second."""
    fraction = plan_least_cost(workload.case)
    assert fraction is not None, "every workload has a plan"
    today = sum(
        max(1, ceil(entry.machines - 1e-9)) * entry.candidate.price
        for module in fraction.modules
        for entry in module.entries
    )
    began = time.thread_time()
    case = BillCase.of([workload.case])
    found = least_devices_bill(case, today * (1 + SAME), Deadline(LIMIT_S))
    cpu_s = time.thread_time() - began
    apart = least_devices_bill(case, today * (1 + SAME), Deadline(LIMIT_S), sharing=False)
    return Compared(
        workload=workload,
        fraction=fraction.cost,
        today=today,
        found=found,
        relaxed=least_bill(case),
        apart=min(apart.bill, today),
        cpu_s=cpu_s,
    )


def _print(compared: Sequence[Compared]) -> None:
    today = np.array([one.today for one in compared])
    bill = np.array([one.bill for one in compared])
    fraction = np.array([one.fraction for one in compared])
    apart = np.array([one.apart for one in compared])
    relaxed = np.array([one.relaxed for one in compared])
    gap = np.array([max(0.0, 1 - one.found.bound / one.bill) for one in compared])
    cpu_ms = np.array([1e3 * one.cpu_s for one in compared])
    ratio = bill / today
    print(
        "devices of least-cost by the fraction / that fraction: mean"
        f" {np.mean(today / fraction):.3f}, median {np.median(today / fraction):.3f}\n"
        f"devices by the bill / those: mean {ratio.mean():.4f} | target <= 0.75; median"
        f" {np.median(ratio):.3f}, least {ratio.min():.3f}; dearer: {np.sum(ratio > 1 + SAME)}"
        f" | target 0; cheaper: {np.mean(ratio < 1 - SAME):.1%}\n"
        f"  without sharing: mean {np.mean(apart / today):.4f}; sharing saves a further"
        f" {np.mean(1 - bill / apart):.1%} on average, most {np.max(1 - bill / apart):.1%}\n"
        f"  all of them together: {bill.sum() / today.sum():.4f}\n"
        f"gap to the proven bound: mean {gap.mean():.2%} | target <= 2 %, most {gap.max():.2%};"
        f" proven {np.mean(gap <= SAME):.1%}\n"
        f"  to the relaxation, which holds however devices are shared: mean"
        f" {np.mean(1 - relaxed / bill):.1%}, none in"
        f" {np.mean(relaxed >= bill * (1 - SAME)):.1%};"
        f" the relaxation / today's: {np.mean(relaxed / today):.4f}\n"
        f"CPU: mean {cpu_ms.mean():.1f} ms | target <= 100 ms, most {cpu_ms.max():.0f} ms"
        " | target <= 10,000 ms"
    )
    for app in sorted({one.workload.app for one in compared}):
        own = np.array([one.workload.app == app for one in compared])
        print(f"  {app}: {ratio[own].mean():.3f}")


def _violations(one: Compared) -> list[str]:
    plan = written(one.workload, one.found)
    if plan is None:
        return []  # today's plan, which `verified` looks at
    found = verify(*plan)
    for violation in found[:3]:
        print(f"  {one.workload.app} {one.workload.rate_rps}: {violation}")
    return [str(violation) for violation in found]


if __name__ == "__main__":
    main()
