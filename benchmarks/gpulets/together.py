"""Apps, models and stages of models in one problem: price, proof and simulated worst cases.

    PYTHONPATH=tests python -m benchmarks.gpulets.together  # 40 problems of each sort, minutes
    PYTHONPATH=tests python -m benchmarks.gpulets.together --problems 5

Random problems on devices of two types that may be cut in halves. Sorts: `apps`, three models and
two apps of three modules; `stages`, two models of which no device holds one. Printed of each: what
is proven, the mean gap of the rest, CPU time, what verification finds, and how many plans answer
all requests in time, simulated at equal gaps at the planned rates without margin, and under Poisson
arrivals at 0.7 of them; for `apps` also the price against that of the same models and apps planned
in two problems, apps by `least-cost --bill devices`, each with all devices to itself.
"""

import argparse
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import mean, median

import numpy as np
from msgspec.structs import replace

from headrace.domain.app import App, Module
from headrace.domain.plan import Plan
from headrace.domain.problem import PlanOptions, Problem
from headrace.domain.profile import Profile
from headrace.metrics import run_report
from headrace.planning import solve
from headrace.simulation.apps.session import simulate_apps
from headrace.simulation.offered.arrivals import arrivals_for
from headrace.simulation.session import simulate
from headrace.verify import verify
from helpers.problems import make_problem, make_profile, whole_model_us
from helpers.together import SHARES, cluster_of, together_problem

SPEEDS = {"a": 1.0, "b": 0.6}
PRICES = {"a": 2.0, "b": 1.1}
REQUESTS = 200
"""Of what is asked least, in a simulation."""
POISSON_LOAD = 0.7


@dataclass(frozen=True, slots=True, kw_only=True)
class Planned:
    """One problem."""

    plan: Plan | None
    cpu_s: float
    violations: int
    uniform: float
    """The least attainment of a model or app."""
    poisson: float
    apart: float | None
    """Price of two problems, one of models and one of apps; None: one has no plan."""


def profile(name: str, rng: np.random.Generator, blocks: int = 1) -> Profile:
    return make_profile(
        name,
        blocks=blocks,
        devices=SPEEDS,
        max_batch=8,
        shares=SHARES,
        block_us=int(rng.integers(1_500, 8_000)) // blocks,
        fixed_fraction=float(rng.uniform(0.3, 0.8)),
        seed=int(rng.integers(1 << 30)),
    )


def apps(seed: int, load: float) -> Problem:
    """Three models and two apps; each model needs some `load` of a device, each app twice that."""
    rng = np.random.default_rng(seed)
    models = [profile(f"m{i}", rng) for i in range(3)]
    of_apps = [[profile(f"a{i}{j}", rng) for j in range(3)] for i in range(2)]
    us = {p.model: whole_model_us(p) for p in (*models, *of_apps[0], *of_apps[1])}
    alone = make_problem(
        models,
        cluster=cluster_of({"a": 6, "b": 6}, PRICES),
        slo_us={p.model: int(us[p.model] * rng.uniform(3, 9)) for p in models},
        rates={p.model: load * 1e6 / us[p.model] for p in models},
        options=PlanOptions(planner="shares", objective="least-cost", margin=0.0),
    )
    found = []
    for i, own in enumerate(of_apps):
        first, *behind = (p.model for p in own)
        found.append(
            App(
                name=f"app{i}",
                modules=tuple(Module(name=p.model, model=p.model) for p in own),
                edges=tuple((first, name) for name in behind),
                slo_us=int((us[first] + max(us[name] for name in behind)) * rng.uniform(2.2, 6)),
                rate_rps=2e6 * load / sum(us[p.model] for p in own),
            )
        )
    everything = (*models, *of_apps[0], *of_apps[1])
    refs = tuple(replace(alone.profile_refs[0], model=p.model) for p in everything)
    profiles = {p.model: p for p in everything}
    return replace(alone, apps=tuple(found), profiles=profiles, profile_refs=refs)


def stages(seed: int) -> Problem:
    """A model of four blocks that no device holds, and a small one."""
    rng = np.random.default_rng(seed)
    large, small = profile("large", rng, blocks=4), profile("small", rng)
    least = max(block.weights_bytes for block in (*large.blocks, *small.blocks))
    memory = max(least, int(0.8 * sum(block.weights_bytes for block in large.blocks)))
    asked = {
        each.model: (
            int(whole_model_us(each) * rng.uniform(2.6, 8)),
            float(rng.uniform(0.2, 0.8) * 1e6 / whole_model_us(each)),
        )
        for each in (large, small)
    }
    return together_problem(
        [large, small], cluster_of({"a": 3, "b": 2}, PRICES, memory), models=asked
    )


def planned(problem: Problem) -> Planned:
    began = time.process_time()
    plan = solve(problem).plan
    cpu_s = time.process_time() - began
    if plan is None:
        return Planned(plan=None, cpu_s=cpu_s, violations=0, uniform=1.0, poisson=1.0, apart=None)
    return Planned(
        plan=plan,
        cpu_s=cpu_s,
        violations=len(verify(plan, problem.profiles)),
        uniform=attained(problem, plan, "uniform", 1.0),
        poisson=attained(problem, plan, "poisson", POISSON_LOAD),
        apart=_apart(problem) if problem.apps else None,
    )


def attained(problem: Problem, plan: Plan, arrivals: str, load: float) -> float:
    """The least of all models and apps, in virtual time."""
    rates = {demand.model: load * (demand.rate_rps or 0.0) for demand in problem.demands}
    rates |= {app.name: load * app.rate_rps for app in problem.apps}
    offered = arrivals_for(arrivals, rates, REQUESTS / min(rates.values()), 1)
    if problem.apps:
        report = simulate_apps(plan, problem.profiles, offered, jitter=False).report()
    else:
        header, events = simulate(
            plan, problem.profiles, offered, policy="reservation", jitter=False
        )
        report = run_report("simulated", header, events)
    return min(report.models[name].slo_attainment or 0.0 for name in rates)


def _apart(problem: Problem) -> float | None:
    options = replace(problem.options, planner="least-cost", bill="devices", max_stages=1)
    cluster = problem.cluster
    types = tuple(replace(kind, splits=()) for kind in cluster.device_types)  # cut as before
    problem = replace(problem, cluster=replace(cluster, device_types=types))
    prices = [
        solve(each).plan
        for each in (
            replace(problem, apps=()),
            replace(problem, demands=(), options=options),
        )
    ]
    known = [plan.cost_per_hour for plan in prices if plan is not None and plan.cost_per_hour]
    return sum(known) if len(known) == len(prices) else None


SORTS: dict[str, Callable[[int], Problem]] = {
    "apps, 0.3 of a device each": lambda seed: apps(seed, 0.3),
    "apps, 0.08 of a device each": lambda seed: apps(seed, 0.08),
    "stages": stages,
}


def show(name: str, found: Sequence[Planned]) -> None:
    plans = [each.plan for each in found if each.plan is not None]
    gaps = [plan.gap or 0.0 for plan in plans if plan.stopped != "optimal"]
    cpu = [each.cpu_s for each in found]
    print(
        f"{name}: {len(plans)} of {len(found)} planned, {len(plans) - len(gaps)} proven,"
        f" mean gap of the others {mean(gaps or [0.0]):.1%};"
        f" CPU median {median(cpu):.2f} s, most {max(cpu):.2f} s"
    )
    print(
        f"  violations {sum(each.violations for each in found)}; simulated, all in time at equal"
        f" gaps {sum(each.uniform == 1.0 for each in found if each.plan)} of {len(plans)}; under"
        f" Poisson at {POISSON_LOAD:g}, margin 0, >= 99 %"
        f" {sum(each.poisson >= 0.99 for each in found if each.plan)}, least"
        f" {min(each.poisson for each in found):.1%}"
    )
    ratios = [
        (each.plan.cost_per_hour or 0.0) / each.apart
        for each in found
        if each.plan is not None and each.apart
    ]
    if ratios:
        print(
            f"  price / that of two problems: mean {mean(ratios):.3f}, least {min(ratios):.3f},"
            f" most {max(ratios):.3f}, of {len(ratios)}"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--problems", type=int, default=40, help="of each sort")
    asked = parser.parse_args()
    solve(apps(1_000, 0.3))  # compiles
    for name, drawn in SORTS.items():
        show(name, [planned(drawn(seed)) for seed in range(asked.problems)])


if __name__ == "__main__":
    main()
