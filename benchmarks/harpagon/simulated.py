"""Plans of apps under simulated arrivals: is Theorem 1 kept, and what does a tail cost?

    python -m benchmarks.harpagon.simulated              # all 1,131 workloads, some minutes
    python -m benchmarks.harpagon.simulated --sample 150

uniform  every module of every least-cost plan, calls at equal gaps: no call may take longer than
         Theorem 1 says. First plans by the formula alone and, where a call takes longer, whether
         any dispatcher could do better (`possible`); then as `headrace plan` writes them, with
         head-room for such modules. Last whole apps, where calls of later modules come in the
         clusters in which batches end: no request may miss its SLO.
tail     attainment under Poisson and bursty arrivals without head-room; and with head-room chosen
         by simulation (`headrace plan --arrivals poisson`), measured with arrivals of another seed.
"""

import argparse
import dataclasses
import time
from collections.abc import Sequence

import numpy as np
from benchmarks.harpagon.profiles import Library, load
from benchmarks.harpagon.runs import Floats
from benchmarks.harpagon.uniform import OPTIONS, planned, print_uniform
from benchmarks.harpagon.verified import document
from benchmarks.harpagon.workloads import COUNT, Workload, workload, workloads
from msgspec.structs import replace

from headrace.domain.plan import Plan
from headrace.domain.profile import Profile
from headrace.planning.apps.solve import plan_least_cost
from headrace.planning.common.candidates import budget_us
from headrace.simulation.apps.headroom import Headroom, attained, choose_headroom

PROCESSES = ("poisson", "gamma:2", "mmpp:2")
CHOSEN_WITH, MEASURED_WITH = 1, 2
"""Seeds."""
WANTED = 0.99


def main() -> None:
    """Print every figure beside its target."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sample", type=int, default=COUNT, help="workloads, evenly chosen")
    parser.add_argument("--synthetic", action="store_true")
    parser.add_argument("--only", choices=("uniform", "tail"))
    parser.add_argument("--bursty", action="store_true", help="also head-room for bursty arrivals")
    asked = parser.parse_args()
    library = load(synthetic=asked.synthetic)
    every = workloads(library)
    # By places rather than by a step, which might pick one app only: apps come in turn.
    places = np.linspace(0, len(every) - 1, min(asked.sample, len(every)))
    some = [every[int(place)] for place in places]
    print(f"profiles: {library.origin}; {len(some)} of {len(every)} workloads")
    if asked.only != "tail":
        print_uniform(some)
    if asked.only != "uniform":
        _print_without_room(some)
        _print_with_room(some, "poisson", library)
        if asked.bursty:
            for process in PROCESSES[1:]:
                _print_with_room(some, process, library)


def _print_without_room(some: Sequence[Workload]) -> None:
    results = [planned(one, {}) for one in some]
    documents = [(found.plan, named) for found, named in results if found.plan is not None]
    for process in PROCESSES:
        reached = np.array([attained(*one, process, MEASURED_WITH) for one in documents])
        print(f"{process}, no head-room: {_summary(reached)}")


def _print_with_room(some: Sequence[Workload], process: str, library: Library) -> None:
    began = time.perf_counter()
    chosen = [with_room(one, process, library) for one in some]
    took_s = time.perf_counter() - began
    kept = [
        0.0 if room is None else attained(room.plan, profiles, process, MEASURED_WITH)
        for room, profiles in chosen
    ]
    rooms = [room for room, _ in chosen if room is not None]
    premium = np.array([room.premium for room in rooms])
    options = [room.plan.options for room in rooms]
    print(
        f"{process}, head-room by simulation: {_summary(np.array(kept))} | target >= {WANTED:.0%}"
        f" on >= 95 %\n"
        f"  premium: mean {premium.mean():.1%}, median {np.median(premium):.1%},"
        f" p90 {np.percentile(premium, 90):.1%}, most {premium.max():.1%}\n"
        f"  rate head-room: mean {np.mean([o.rate_headroom for o in options]):.1%}; margin: mean"
        f" {np.mean([o.margin for o in options]):.1%}; none of either:"
        f" {np.mean([r.premium == 0 for r in rooms]):.0%} of the workloads\n"
        f"  without a plan: {len(some) - len(rooms)}; {np.mean([r.tried for r in rooms]):.1f}"
        f" plans simulated and {took_s / len(some):.2f} s per workload"
    )


def with_room(
    one: Workload, process: str, library: Library
) -> tuple[Headroom | None, dict[str, Profile]]:
    """What `headrace plan --arrivals` does, on the study's candidates."""
    profiles: dict[str, Profile] = {}

    def planning(headroom: float, margin: float) -> Plan | None:
        larger = workload(library, one.app, one.rate_rps * (1 + headroom), one.slo_us)
        case = dataclasses.replace(larger.case, budget_us=budget_us(one.slo_us, margin))
        solution = plan_least_cost(case)
        if solution is None:
            return None
        options = replace(OPTIONS, margin=margin, rate_headroom=headroom)
        asked = dataclasses.replace(one, case=case)
        plan, named = document(asked, solution.modules, "remaining", "least-cost", options)
        profiles.update(named)
        return plan

    room = choose_headroom(planning, profiles, arrivals=process, seed=CHOSEN_WITH)
    return room, profiles


def _summary(reached: Floats) -> str:
    return (
        f">= {WANTED:.0%} on {np.mean(reached >= WANTED):.1%} of {len(reached)} workloads; mean"
        f" {reached.mean():.2%}, p5 {np.percentile(reached, 5):.2%}, least {reached.min():.2%}"
    )


if __name__ == "__main__":
    main()
