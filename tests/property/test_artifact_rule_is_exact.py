"""By the artifact's rule: the exact search against trying everything, and against HiGHS."""

from fractions import Fraction

import pytest
from benchmarks.ppipe.artifact.columns import (
    artifact_columns,
    artifact_pipelines,
    artifact_stock,
)
from benchmarks.ppipe.artifact.planner import plan_by_artifact_rule
from benchmarks.ppipe.artifact.repair import bound_and_repair
from msgspec.structs import replace

from headrace.catalog.ppipe.artifact import ReferencePlan
from headrace.catalog.ppipe.rule import evaluate
from headrace.domain.profile import Profile
from headrace.planning.common.deadline import Deadline
from headrace.planning.common.master import Wanted
from helpers.artifact_tasks import brute_force, by_highs, make_task
from helpers.lengthy import with_lengthy
from helpers.problems import HANG_S

HALVES = (Fraction(1), Fraction(1, 2))
THIRDS = (Fraction(1), Fraction(1, 3))
QUARTERS = tuple(Fraction(1, k) for k in (1, 2, 3, 4))


def assert_best(task: ReferencePlan, profiles: dict[str, Profile], best: float) -> None:
    answer = plan_by_artifact_rule(task, profiles, time_limit_s=HANG_S)

    assert answer.proven
    assert answer.objective == pytest.approx(best, rel=1e-6)
    assert answer.bound >= best * (1 - 1e-9)
    if answer.plan is not None:
        figures = evaluate(answer.plan, profiles)
        assert figures.faults == ()
        assert figures.objective == pytest.approx(best, rel=1e-6)


@pytest.mark.parametrize("seed", range(12))
def test_one_model_gets_the_most_that_any_set_of_templates_gives(seed: int) -> None:
    shares = HALVES if seed % 2 else THIRDS
    task, profiles = make_task(seed, models=1, devices={"a": 2, "b": 2}, shares=shares)

    assert_best(task, profiles, brute_force(task, profiles))


@pytest.mark.parametrize("seed", range(8))
def test_two_models_get_the_best_split_there_is(seed: int) -> None:
    task, profiles = make_task(seed, models=2, devices={"a": 2, "b": 3}, shares=HALVES, max_batch=1)

    assert_best(task, profiles, brute_force(task, profiles))


@pytest.mark.parametrize("seed", range(4))
def test_three_stages_use_every_template(seed: int) -> None:
    task, profiles = make_task(
        seed, models=1, devices={"a": 2, "b": 3}, shares=(Fraction(1),), max_stages=3
    )

    assert_best(task, profiles, brute_force(task, profiles))


@pytest.mark.parametrize("seed", with_lengthy(range(8), lengthy=[2, 4, 5, 6, 7]))
def test_larger_tasks_agree_with_the_whole_integer_program(seed: int) -> None:
    devices = {"a": 5, "b": 9} if seed % 2 else {"a": 2, "b": 3, "c": 4}
    models = 1 + seed % 3
    blocks = 2 if models == 3 else 4  # of three models with more, HiGHS proves nothing in time
    task, profiles = make_task(
        seed, models=models, devices=devices, shares=QUARTERS, blocks=blocks, max_batch=2
    )

    best, proven = by_highs(task, profiles, time_limit_s=HANG_S)

    assert proven
    assert_best(task, profiles, best)


def test_a_model_without_any_pipeline_has_no_plan() -> None:
    task, profiles = make_task(0, models=1, devices={"a": 1}, shares=HALVES)
    hopeless = replace(task.deployments[0], slo_us=10.0)
    task = replace(task, deployments=(hopeless,))

    answer = plan_by_artifact_rule(task, profiles, time_limit_s=HANG_S)

    assert answer.plan is None
    assert answer.bound == 0.0


def test_out_of_time_the_bound_is_that_of_the_relaxation() -> None:
    task, profiles = make_task(1, models=3, devices={"a": 20, "b": 60}, shares=QUARTERS, blocks=8)

    hurried = plan_by_artifact_rule(task, profiles, time_limit_s=1e-9)

    best = plan_by_artifact_rule(task, profiles, time_limit_s=HANG_S)
    assert best.proven
    assert hurried.bound >= best.objective
    assert hurried.objective <= best.objective


@pytest.mark.parametrize("seed", with_lengthy(range(3), lengthy=[0, 1]))
def test_a_hundred_thousand_devices_are_planned_next_to_the_bound(seed: int) -> None:
    devices = {"a": 25_000, "b": 75_000}
    task, profiles = make_task(seed, models=3, devices=devices, shares=QUARTERS, blocks=6)

    answer = plan_by_artifact_rule(task, profiles, time_limit_s=HANG_S)

    assert answer.plan is not None
    assert answer.bound <= answer.objective * 1.001
    figures = evaluate(answer.plan, profiles)
    assert figures.faults == ()
    assert figures.objective == pytest.approx(answer.objective, rel=1e-9)


@pytest.mark.parametrize("seed", range(6))
def test_bound_and_repair_enclose_what_the_search_proves(seed: int) -> None:
    task, profiles = make_task(
        seed, models=2, devices={"a": 5, "b": 9}, shares=QUARTERS, blocks=4, max_batch=2
    )
    wanted = [Wanted(weight=d.weight, least_rps=0.0) for d in task.deployments]
    columns = [
        artifact_columns(task, artifact_pipelines(task, d, profiles[d.model]))
        for d in task.deployments
    ]

    around = bound_and_repair(artifact_stock(task), wanted, columns, Deadline(HANG_S))

    best = plan_by_artifact_rule(task, profiles, time_limit_s=HANG_S)
    assert best.proven
    assert around.objective <= best.objective * (1 + 1e-6)
    assert around.bound >= best.objective * (1 - 1e-6)
