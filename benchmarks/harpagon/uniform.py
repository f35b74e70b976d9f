"""Plans of the study under calls at equal gaps: Theorem 1's own assumption.

Printed by `python -m benchmarks.harpagon.simulated --only uniform`.
"""

import dataclasses
import time
from collections.abc import Sequence

import numpy as np
from benchmarks.harpagon.possible import answered_at_most
from benchmarks.harpagon.verified import document
from benchmarks.harpagon.workloads import Workload
from msgspec.structs import replace

from headrace.dispatch.topology import Topology
from headrace.domain.plan import Plan, PlanResult
from headrace.domain.problem import PlanOptions
from headrace.domain.profile import Profile
from headrace.planning.apps.solve import solve_app
from headrace.simulation.apps.headroom import attained
from headrace.simulation.apps.worst_cases import keep_worst_cases, slowest_calls

OPTIONS = PlanOptions(planner="least-cost", objective="least-cost", margin=0.0, max_stages=1)
SEED = 1
SEARCHED_MACHINES, SEARCHED_REQUESTS = 2, 2_000
"""Up to so many, a search for a schedule that keeps the bound takes seconds."""

Found = tuple[PlanResult, dict[str, Profile]]


def print_uniform(some: Sequence[Workload]) -> None:
    plain = [planned(one, {}) for one in some]
    slowest = _print_slowest("by Theorem 1 alone", plain)
    for (result, profiles), ratios in zip(plain, slowest, strict=True):
        for name, ratio in ratios.items():
            if ratio > 1:
                assert result.plan is not None
                print(f"  {name}: {_possible(result.plan, profiles, name)}")
    kept = [(kept_plan(one), profiles) for one, (_, profiles) in zip(some, plain, strict=True)]
    _print_slowest("as planned", kept)
    costs = [
        after.plan.objective / before.plan.objective
        for (before, _), (after, _) in zip(plain, kept, strict=True)
        if before.plan is not None and after.plan is not None
    ]
    dearer = [cost for cost in costs if cost > 1]
    print(
        f"  head-room in {len(dearer)} of {len(costs)} plans; cost {max(costs) - 1:+.3%} at most,"
        f" {np.mean(costs) - 1:+.4%} on average"
    )
    reached = [
        attained(result.plan, profiles, "uniform", SEED)
        for result, profiles in kept
        if result.plan is not None
    ]
    print(
        f"uniform, whole apps: every request within the SLO in {sum(r == 1 for r in reached)} of"
        f" {len(reached)}; least attainment {min(reached):.4f}"
    )


def _print_slowest(what: str, results: Sequence[Found]) -> list[dict[str, float]]:
    began = time.perf_counter()
    slowest = [
        {} if result.plan is None else slowest_calls(result.plan, profiles)
        for result, profiles in results
    ]
    ratios = [ratio for of_plan in slowest for ratio in of_plan.values()]
    over = sum(ratio > 1 for ratio in ratios)
    plans = sum(any(ratio > 1 for ratio in of_plan.values()) for of_plan in slowest)
    print(
        f"uniform, {what}: {len(ratios)} modules of {len(results)} plans: slowest call / worst case"
        f" at most {max(ratios):.4f}, median {np.median(ratios):.4f}; above it: {over} modules of"
        f" {plans} plans | target 0  ({time.perf_counter() - began:.0f} s)"
    )
    return slowest


def planned(one: Workload, headroom: dict[str, float], planner: str = "least-cost") -> Found:
    """A plan on the study's candidates; `headroom` is of modules, by name."""
    raised = tuple(
        dataclasses.replace(
            module, rate_rps=module.rate_rps * (1 + headroom.get(f"{one.app}.{module.name}", 0.0))
        )
        for module in one.case.modules
    )
    case = dataclasses.replace(one.case, modules=raised)
    solution = solve_app(case, planner)
    if solution is None:
        return PlanResult(plan=None, stopped="infeasible", bound=None, runtime_s=0.0), {}
    options = replace(OPTIONS, planner=planner, module_headroom=headroom)
    asked = dataclasses.replace(one, case=case)
    plan, profiles = document(asked, solution.modules, solution.reading, planner, options)
    result = PlanResult(
        plan=plan, stopped=solution.stopped, bound=solution.bound, runtime_s=plan.runtime_s
    )
    return result, profiles


def kept_plan(one: Workload, planner: str = "least-cost") -> PlanResult:
    """What `headrace plan` does, on the study's candidates."""
    _, profiles = planned(one, {}, planner)
    return keep_worst_cases(lambda headroom: planned(one, headroom, planner)[0], profiles)


def _possible(plan: Plan, profiles: dict[str, Profile], name: str) -> str:
    module = next(i for i, d in enumerate(plan.deployments) if d.name == name)
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
