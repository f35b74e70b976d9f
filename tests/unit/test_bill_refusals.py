"""Refusals of apps on whole devices: what they name does when it is asked for, and barely."""

import pytest
from msgspec.structs import replace

from headrace.domain.problem import Problem
from headrace.planning import solve
from headrace.planning.apps.bill.refusal import DevicesFound, Refusal, Search
from headrace.planning.apps.candidates import app_case
from headrace.planning.common.deadline import Deadline
from headrace.planning.common.enough import Enough, least_enough, least_slos, with_devices
from helpers.apps import make_chain_problem, named_gpus, named_slo_ms, with_slo
from helpers.problems import make_cluster


def refusal_of(problem: Problem) -> str:
    result = solve(problem)
    assert result.plan is None
    assert result.refusal is not None
    return result.refusal


def test_the_devices_named_are_enough_where_modules_share_them_and_one_less_is_not() -> None:
    problem = make_chain_problem(slo_ms=180, gpus=1, rate_rps=50, calls=(1.0,) * 6)
    said = refusal_of(problem)
    enough = named_gpus(said)

    assert f"needs     {enough} of gpu" in said
    assert 1 < enough < 6
    assert solve(with_devices(problem, {"gpu": enough})).plan is not None
    assert solve(with_devices(problem, {"gpu": enough - 1})).plan is None


@pytest.mark.parametrize(("slo_ms", "gpus"), [(20, 12), (25, 12), (20, 60)])
def test_the_slo_named_is_that_of_full_machines_of_those_that_there_are(
    slo_ms: float, gpus: int
) -> None:
    """One machine alone ends within 2 d, and many that are taken as full sooner."""
    problem = make_chain_problem(slo_ms=slo_ms, gpus=gpus, rate_rps=150)
    said = refusal_of(problem)
    enough_ms = named_slo_ms(said)

    assert f"an SLO of app: {enough_ms:g} ms" in said.split("has  ")[0].split("needs  ")[1]
    assert enough_ms < 36
    assert solve(with_slo(problem, enough_ms)).plan is not None
    assert solve(with_slo(problem, enough_ms - 0.1)).plan is None


def test_an_slo_within_reach_of_more_devices_is_refused_with_their_number() -> None:
    problem = make_chain_problem(slo_ms=25, gpus=12, rate_rps=150)
    enough = named_gpus(refusal_of(problem))

    assert solve(with_devices(problem, {"gpu": enough})).plan is not None
    assert solve(with_devices(problem, {"gpu": enough - 1})).plan is None


def test_no_devices_are_named_for_an_slo_below_the_fastest_batches() -> None:
    said = refusal_of(make_chain_problem(slo_ms=24, gpus=12, rate_rps=150))

    assert "app 'app': no plan meets the SLO" in said
    assert "on every path, what the longest takes of gateway and app's code" in said
    assert "under `cluster.nodes`" not in said


def refused_by(search: Search, problem: Problem) -> str:
    """What is said where this search has found nothing, for certain."""
    return Refusal(
        problem=problem,
        cases=[app_case(problem, problem.apps[0])],
        search=search,
        limit=Deadline(1000.0),
        certain=True,
    ).text()


@pytest.mark.parametrize(("decided", "says"), [(True, "needs  "), (False, "enough ")])
def test_what_no_search_decides_is_not_said_to_be_needed(decided: bool, says: str) -> None:
    problem = make_chain_problem(slo_ms=180, gpus=1, rate_rps=50)

    def search(asked: Problem, limit: Deadline) -> DevicesFound:
        if asked.cluster.count("gpu") < 5:
            return DevicesFound(devices=None, certain=decided)
        return DevicesFound(devices={"gpu": 5}, certain=True)

    said = refused_by(search, problem)

    assert f"\n  {says}   5 of gpu\n" in said
    assert "try       5 of gpu under `cluster.nodes`, a longer SLO, or a lower rate" in said


def test_where_no_type_alone_helps_those_of_a_plan_are_named() -> None:
    problem = make_chain_problem(slo_ms=180, gpus=1, rate_rps=50)
    kinds = make_cluster({"n": {"gpu": 1, "cpu": 2}}, prices={"gpu": 1.0, "cpu": 0.1})
    (times,) = problem.profiles["ssd"].block_times
    profile = replace(problem.profiles["ssd"], block_times=(times, replace(times, device="cpu")))
    problem = replace(problem, cluster=kinds, profiles={"ssd": profile})

    def search(asked: Problem, limit: Deadline) -> DevicesFound:
        does = asked.cluster.count("gpu") >= 3 and asked.cluster.count("cpu") >= 4
        return DevicesFound(devices={"gpu": 3, "cpu": 4} if does else None, certain=True)

    said = refused_by(search, problem)

    assert "enough    3 of gpu and 4 of cpu" in said


def test_a_refusal_that_takes_a_search_is_found_only_if_it_is_asked_for() -> None:
    result = solve(make_chain_problem(slo_ms=20, gpus=12, rate_rps=150), advise=False)

    assert result.plan is None
    assert result.refusal is None
    assert result.refuse is not None
    assert "no plan meets the SLO" in result.refuse()


@pytest.mark.parametrize("least", [5, 6, 17, 100])
@pytest.mark.parametrize(("step", "growth"), [(1, 2.0), (1, 1.3), (4, 2.0), (1, 1000.0)])
def test_the_least_that_is_enough_is_found_to_within_a_step(
    least: int, step: int, growth: float
) -> None:
    found = least_enough(
        lambda value: value >= least, 4, most=100, limit=Deadline(60.0), step=step, growth=growth
    )

    assert found is not None
    assert least <= found.value < least + step
    assert found.certain


def test_what_is_undecided_leaves_the_least_uncertain() -> None:
    limit = Deadline(60.0)
    undecided = least_enough(lambda value: value >= 9 or None, 0, most=100, limit=limit)

    assert undecided == Enough(9, certain=False)
    assert least_enough(lambda value: False, 0, most=100, limit=limit) is None
    assert least_enough(lambda value: True, 0, most=100, limit=Deadline(0.0)) is None


def test_slos_grow_in_proportion_and_those_of_other_apps_stay() -> None:
    problem = make_chain_problem(slo_ms=100, gpus=1, rate_rps=50)
    (app,) = problem.apps
    apps = tuple(replace(app, name=name, slo_us=us) for name, us in (("a", 100_000), ("b", 50_000)))
    both = replace(problem, apps=(*apps, app))

    found = least_slos(
        both,
        ["a", "b"],
        lambda asked: asked.apps[1].slo_us >= 60_500,
        growth=2.0,
        most=4,
        step_us=1000,
        limit=Deadline(60.0),
    )

    assert found is not None
    longer, certain = found
    assert [each.slo_us for each in longer.apps] == [121_000, 61_000, 100_000]
    assert certain
