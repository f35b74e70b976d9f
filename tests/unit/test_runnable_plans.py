"""A plan edited by hand that cannot run at all is refused, even where it is not verified first."""

from collections.abc import Callable

import pytest
from msgspec.structs import replace

from headrace.dispatch.topology import Topology
from headrace.domain.errors import PlanError
from headrace.domain.plan import Pipeline, Plan
from helpers.served import plan_by_hand, profile_by_hand

PROFILE = profile_by_hand(["h0", "y"], 4, 10_000, "cpu")
PLAN = plan_by_hand([1, 1], 4, 100_000, 10_000, "cpu", 1, None)


def with_pipelines(*pipelines: Pipeline) -> Plan:
    return replace(PLAN, deployments=(replace(PLAN.deployments[0], pipelines=pipelines),))


def with_second_stage(**changes: object) -> Pipeline:
    pipeline = PLAN.deployments[0].pipelines[0]
    return replace(pipeline, stages=(pipeline.stages[0], replace(pipeline.stages[1], **changes)))


def first_pipeline(**changes: object) -> Pipeline:
    return replace(PLAN.deployments[0].pipelines[0], **changes)


BROKEN: dict[str, tuple[Callable[[], Plan], str]] = {
    "no pipeline": (with_pipelines, "needs     a pipeline"),
    "no stage": (lambda: with_pipelines(first_pipeline(stages=())), "needs     a stage"),
    "no batch": (lambda: with_pipelines(first_pipeline(batch_size=0)), "has       0"),
    "no slot": (lambda: with_pipelines(with_second_stage(pool=())), "m/p/stage 1 cannot run"),
    "blocks that are not there": (
        lambda: with_pipelines(with_second_stage(end_block=9)),
        "has       [1, 9)",
    ),
    "blocks before the first": (
        lambda: with_pipelines(with_second_stage(first_block=-1)),
        "some of the model's 2 blocks",
    ),
    "no block": (lambda: with_pipelines(with_second_stage(first_block=2)), "has       [2, 2)"),
}


@pytest.mark.parametrize("case", BROKEN)
def test_a_plan_that_cannot_run_is_refused_with_what_it_lacks(case: str) -> None:
    plan, complaint = BROKEN[case]

    with pytest.raises(PlanError, match="headrace verify") as caught:
        Topology.from_plan(plan(), {"m": PROFILE})

    assert complaint in str(caught.value)
