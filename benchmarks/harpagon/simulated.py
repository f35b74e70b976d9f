"""Plans of apps under simulated arrivals: is Theorem 1 kept, and what does a tail cost?

    python -m benchmarks.harpagon.simulated              # all 1,131 workloads, some minutes
    python -m benchmarks.harpagon.simulated --sample 150

uniform  every module of every least-cost plan, calls at equal gaps: no call may take longer than
         Theorem 1 says. Where one does, whether any dispatcher could have kept it (`possible`), and
         what 1 % of head-room does about it. Then whole apps, where calls of later modules come in
         the clusters in which batches end: no request may miss its SLO.
tail     attainment under Poisson and bursty arrivals without head-room; and with head-room chosen
         by simulation (`headrace plan --arrivals poisson`), measured with arrivals of another seed.
"""

import argparse
import dataclasses
import time
from collections.abc import Sequence

import numpy as np
from benchmarks.harpagon.possible import answered_at_most
from benchmarks.harpagon.profiles import Library, load
from benchmarks.harpagon.runs import Floats, run_planner
from benchmarks.harpagon.verified import document
from benchmarks.harpagon.workloads import COUNT, Workload, workload, workloads

from headrace.dispatch.topology import Topology
from headrace.domain.plan import Plan
from headrace.domain.problem import PlanOptions
from headrace.domain.profile import Profile
from headrace.planning.apps.solve import plan_least_cost
from headrace.planning.candidates import budget_us
from headrace.simulation.compiled import Offered, run
from headrace.simulation.headroom import Headroom, attained, choose_headroom

PROCESSES = ("poisson", "gamma:2", "mmpp:2")
CHOSEN_WITH, MEASURED_WITH = 1, 2
"""Seeds."""
WANTED = 0.99
SEARCHED_MACHINES, SEARCHED_REQUESTS = 2, 2_000
"""Up to so many, a search for a schedule that keeps the bound takes seconds."""

Documents = list[tuple[Plan, dict[str, Profile]]]


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
    found = run_planner("least-cost", some).modules
    documents = [
        document(one, modules, "remaining", "least-cost")
        for one, modules in zip(some, found, strict=True)
        if modules is not None
    ]
    if asked.only != "tail":
        _print_uniform(some, documents, library)
    if asked.only != "uniform":
        _print_without_room(documents)
        _print_with_room(some, "poisson", library)
        if asked.bursty:
            for process in PROCESSES[1:]:
                _print_with_room(some, process, library)


# -- uniform --------------------------------------------------------------------------------------


def _print_uniform(some: Sequence[Workload], documents: Documents, library: Library) -> None:
    began = time.perf_counter()
    worst = [beyond_bound(plan, profiles) for plan, profiles in documents]
    modules = [ratio for ratios in worst for ratio in ratios]
    over = sum(ratio > 1 for ratio in modules)
    plans = sum(any(ratio > 1 for ratio in ratios) for ratios in worst)
    print(
        f"uniform, {len(modules)} modules of {len(documents)} plans: worst case / bound at most"
        f" {max(modules):.4f}, median {np.median(modules):.4f}; above it: {over} modules of"
        f" {plans} plans | target 0  ({time.perf_counter() - began:.0f} s)"
    )
    for (plan, profiles), ratios in zip(documents, worst, strict=True):
        for module, ratio in enumerate(ratios):
            if ratio > 1:
                print(f"  {plan.deployments[module].name}: {_possible(plan, profiles, module)}")
    cured = [
        _with_one_percent(one, library)
        for one, ratios in zip(some, worst, strict=True)
        if max(ratios) > 1
    ]
    if cured:
        print(
            f"  the same {len(cured)} with 1 % head-room: worst case / bound at most"
            f" {max(ratio for ratio, _ in cured):.4f}, cost"
            f" {np.mean([cost for _, cost in cured]) - 1:+.2%} on average"
        )
    reached = [attained(*document, "uniform", CHOSEN_WITH) for document in documents]
    print(
        f"uniform, whole apps: every request within the SLO in {sum(r == 1 for r in reached)} of"
        f" {len(reached)}; least attainment {min(reached):.4f}"
    )


def _possible(plan: Plan, profiles: dict[str, Profile], module: int) -> str:
    deployment = plan.deployments[module]
    machines = [
        route.stages[0].p50_us
        for route in Topology.from_plan(plan, profiles).models[module].routes
        for _ in route.stages[0].slots
    ]
    if len(machines) > SEARCHED_MACHINES:
        return f"{len(machines)} machines, not searched"
    answered = answered_at_most(
        machines, deployment.rate_rps or 0.0, deployment.worst_case_us or 0, SEARCHED_REQUESTS
    )
    if answered == SEARCHED_REQUESTS:
        return f"another dispatcher could answer {answered} requests within the bound"
    return f"no dispatcher can answer more than the first {answered} requests within the bound"


def _with_one_percent(one: Workload, library: Library) -> tuple[float, float]:
    """(worst case / bound, cost / cost without) of the plan for 1 % more load."""
    larger = workload(library, one.app, one.rate_rps * 1.01, one.slo_us)
    plain, roomy = plan_least_cost(one.case), plan_least_cost(larger.case)
    assert plain is not None
    assert roomy is not None
    asked = dataclasses.replace(one, case=larger.case)
    plan, profiles = document(asked, roomy.modules, "remaining", "least-cost")
    return max(beyond_bound(plan, profiles)), roomy.cost / plain.cost


def beyond_bound(plan: Plan, profiles: dict[str, Profile]) -> list[float]:
    """Per module, its slowest call under uniform arrivals / its bound; inf: a call was dropped."""
    topology = Topology.from_plan(plan, profiles)
    ratios = []
    for index, deployment in enumerate(plan.deployments):
        rate_rps, bound_us = deployment.rate_rps or 0.0, deployment.worst_case_us or 0
        count = int(min(20_000, max(2_000, 20 * rate_rps)))
        at_us = np.round(np.arange(count) * 1e6 / rate_rps).astype(np.int64)
        offered = Offered(
            arrived_at_us=at_us,
            model=np.full(count, index),
            deadline_at_us=at_us + bound_us,
            priority=np.zeros(count, dtype=np.int64),
        )
        ended_at_us = run(topology, "batch-aware", offered).ended_at_us
        slowest = float((ended_at_us - at_us).max()) / bound_us
        ratios.append(float("inf") if (ended_at_us < 0).any() else slowest)
    return ratios


# -- tails ----------------------------------------------------------------------------------------


def _print_without_room(documents: Documents) -> None:
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
    print(
        f"{process}, head-room by simulation: {_summary(np.array(kept))} | target >= {WANTED:.0%}"
        f" on >= 95 %\n"
        f"  premium: mean {premium.mean():.1%}, median {np.median(premium):.1%},"
        f" p90 {np.percentile(premium, 90):.1%}, most {premium.max():.1%}\n"
        f"  rate head-room: mean {np.mean([r.rate_headroom for r in rooms]):.1%}; margin: mean"
        f" {np.mean([r.margin for r in rooms]):.1%}; none of either:"
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
        options = PlanOptions(
            planner="least-cost",
            objective="least-cost",
            margin=margin,
            rate_headroom=headroom,
            max_stages=1,
        )
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
