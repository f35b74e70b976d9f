"""Slots run what waits: plans hold for fewer requests than planned, which may take longer.

Every SLO is what a plan promises, to the microsecond. Requests come one at a time, or regularly at
a part of the planned rate.
"""

import numpy as np
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from headrace.domain.plan import Plan
from headrace.domain.problem import Bill, Problem
from headrace.metrics import run_report
from headrace.planning import solve
from headrace.simulation.apps.session import simulate_apps
from headrace.simulation.offered.arrivals import Arrival
from headrace.simulation.session import simulate
from headrace.verify import verify
from helpers.apps import make_chain_problem
from helpers.problems import with_uneven_times
from helpers.shared import shared_problem

SEEDS = st.integers(0, 10_000)


def planned(problem: Problem) -> Plan:
    plan = solve(problem).plan
    assume(plan is not None)
    assert plan is not None
    assert verify(plan, problem.profiles) == []
    return plan


def with_uneven_profiles(problem: Problem, seed: int) -> Problem:
    return replace(
        problem,
        profiles={name: with_uneven_times(p, seed) for name, p in problem.profiles.items()},
    )


def of_what_is_promised(problem: Problem) -> tuple[Problem, Plan]:
    """SLOs of models that leave nothing; and the plan for them."""
    plan = planned(problem)
    cycle_us = {slot.name: slot.duty_us or 0 for slot in plan.slots}
    promised_us = {
        deployment.model: max(
            cycle_us[pipeline.stages[0].pool[0]] + pipeline.latency_us
            for pipeline in deployment.pipelines
        )
        for deployment in plan.deployments
    }
    demands = tuple(replace(d, slo_us=promised_us[d.model]) for d in problem.demands)
    problem = replace(problem, demands=demands)
    return problem, planned(problem)


@pytest.mark.parametrize("planner", ["shares", "gpulet"])
@settings(
    max_examples=25,
    deadline=None,
    suppress_health_check=[HealthCheck.filter_too_much, HealthCheck.too_slow],
)
@given(seed=SEEDS, models=st.integers(1, 3), load=st.floats(0.05, 0.4))
def test_a_lone_request_of_each_model_is_in_time(
    planner: str, seed: int, models: int, load: float
) -> None:
    problem = shared_problem(planner, seed=seed, models=models, devices=1, load=load)
    problem, plan = of_what_is_promised(with_uneven_profiles(problem, seed))
    longest_us = max(demand.slo_us for demand in problem.demands)
    rng = np.random.default_rng(seed)
    arrivals = sorted(
        (
            Arrival(model=name, at_us=4 * number * longest_us + int(rng.integers(longest_us)))
            for name in problem.profiles
            for number in range(20)
        ),
        key=lambda arrival: arrival.at_us,
    )

    for policy in ("reservation", "duty-cycle"):
        log = simulate(plan, problem.profiles, arrivals, jitter=False, policy=policy)
        report = run_report("simulated", *log)
        assert {model.slo_attainment for model in report.models.values()} == {1.0}, policy


@pytest.mark.parametrize("bill", ["devices", "fraction"])
@settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    seed=SEEDS,
    modules=st.integers(1, 2),
    rate_rps=st.floats(5, 80),
    slo_ms=st.floats(100, 300),
    part=st.sampled_from([0.01, 0.37, 0.61, 0.83, 1.0]),
)
def test_an_app_keeps_its_worst_case_at_a_part_of_its_rate(
    bill: Bill, seed: int, modules: int, rate_rps: float, slo_ms: float, part: float
) -> None:
    problem = make_chain_problem(slo_ms=slo_ms, gpus=3, rate_rps=rate_rps, calls=(1.0,) * modules)
    problem = replace(problem, options=replace(problem.options, bill=bill))
    problem = with_uneven_profiles(problem, seed)
    (claim,) = planned(problem).apps
    app = replace(claim.app, slo_us=claim.worst_case_us)
    plan = planned(replace(problem, apps=(app,)))
    gap_us = 1e6 / (part * app.rate_rps)
    arrivals = [Arrival(model=app.name, at_us=round(number * gap_us)) for number in range(150)]

    session = simulate_apps(plan, problem.profiles, arrivals, jitter=False)

    assert session.report().models[app.name].slo_attainment == 1.0
