"""`--margin auto` for stated rates: the fewest devices that stand Poisson arrivals, or a reason."""

import re

import pytest
from msgspec.structs import replace

from headrace.domain.errors import InfeasibleError
from headrace.domain.problem import Problem
from headrace.planning import solve
from headrace.simulation.margin import choose_margin
from headrace.simulation.trials import Choice, Workload, offered_mix
from headrace.verify import verify
from helpers.problems import make_problem, make_profile
from helpers.shared import shared_problem

UNSEEN = 77
"""A seed of arrivals that no choice is made with."""


def two_models(planner: str, seed: int) -> Problem:
    return shared_problem(planner, seed=seed, models=2, devices=2, load=0.75)


@pytest.fixture(scope="module")
def roomy() -> Choice:
    """One device would do at even gaps."""
    return choose_margin(two_models("shares", 7))


def test_the_fewest_devices_that_attain_are_taken(roomy: Choice) -> None:
    assert roomy.trials[0].plan.objective == 1
    assert roomy.trials[0].attainment < 0.99
    assert roomy.best.plan.objective == 2
    assert all(trial.attainment < 0.99 for trial in roomy.trials if trial is not roomy.best)
    problem = two_models("shares", 7)
    assert verify(roomy.plan, problem.profiles) == []
    assert Workload.of(roomy.plan, problem.profiles).attainment(1.0, UNSEEN) >= 0.99
    assert "cheapest" in roomy.plan.options.margin_reason


def test_what_is_offered_are_the_rates_asked_for(roomy: Choice) -> None:
    asked = {demand.model: demand.rate_rps for demand in two_models("shares", 7).demands}
    assert offered_mix(roomy.plan) == asked
    assert {demand.model: demand.rate_rps for demand in roomy.plan.demands} == asked


@pytest.mark.parametrize("planner", ["shares", "gpulet", "gpulet+int"])
def test_head_room_is_carried_and_verified(planner: str) -> None:
    problem = shared_problem(planner, seed=4, models=2, devices=3, load=0.4)
    asked = replace(problem, options=replace(problem.options, rate_headroom=0.2))
    plan = solve(asked).plan
    assert plan is not None
    assert verify(plan, problem.profiles) == []
    assert plan.demands == problem.demands
    for demand, deployment in zip(plan.demands, plan.deployments, strict=True):
        assert deployment.throughput_rps >= 1.2 * (demand.rate_rps or 0.0)
    boasting = replace(plan, options=replace(plan.options, rate_headroom=50.0))
    assert {"rates"} <= {found.check for found in verify(boasting, problem.profiles)}


def test_head_room_on_no_rate_changes_nothing_of_what_is_said() -> None:
    problem = make_problem([make_profile("m", devices={"cpu": 1.0})], nodes={"n": {"cpu": 1}})
    asked = replace(problem, options=replace(problem.options, rate_headroom=0.2))
    plan, with_room = solve(problem).plan, solve(asked).plan
    assert plan is not None
    assert with_room is not None
    assert with_room.binding == plan.binding


def test_models_that_slow_each_other_do_so_in_the_trials() -> None:
    problem = two_models("gpulet+int", 4)
    plan = choose_margin(problem).plan
    deaf = replace(plan, interference=())
    assert Workload.of(plan, problem.profiles).beside is not None
    assert Workload.of(deaf, problem.profiles).beside is None


def test_where_no_room_is_enough_it_says_which_rates_are_carried() -> None:
    problem = two_models("shares", 5)
    with pytest.raises(InfeasibleError) as refused:
        choose_margin(problem)
    said = str(refused.value)
    assert said.startswith("--margin auto: no plan keeps 0.99")
    factor = float(re.findall(r"rates of (\S+) times", said)[0])
    assert 0.5 < factor < 1
    less = tuple(replace(d, rate_rps=factor * (d.rate_rps or 0.0)) for d in problem.demands)
    assert choose_margin(replace(problem, demands=less)).best.attainment >= 0.99
