"""Layers executed from host memory are counted as the plan has them that ran the batches."""

from collections import defaultdict
from pathlib import Path

import pytest
from msgspec.structs import replace

from headrace.dispatch.protocols import BatchCounts
from headrace.serving.engine.plan_in_service import PlanInService
from headrace.serving.engine.served_plan import AcrossPlans, ServedPlan, ServiceOptions
from helpers.served_provisioned import provisioned


def counting(folder: Path, kind: str) -> tuple[PlanInService, AcrossPlans, dict[int, int]]:
    """A plan whose model leaves a layer on the host, for this kind of executor; and its batches."""
    served = provisioned(folder, models=1, room=1)
    [deployment] = served.plan.deployments
    assert deployment.start is not None
    start = replace(deployment.start, host=(0,), transfers=())
    plan = replace(served.plan, deployments=(replace(deployment, start=start),))
    counts = defaultdict[str, BatchCounts](BatchCounts)
    across = AcrossPlans(counts=counts)
    whole = ServedPlan(plan=plan, profiles=served.profiles, folders=served.folders)
    service = PlanInService(whole, ServiceOptions(executor=kind), across)
    return service, across, counts["m0"].batches


def test_what_ran_under_another_plan_is_not_counted_again(tmp_path: Path) -> None:
    service, across, batches = counting(tmp_path, "cuda")

    batches[1] = 1_000
    service.note_batches(ran_here=False)
    batches[1] += 2
    batches[4] += 1
    service.note_batches()
    service.note_batches()

    assert across.load_counts["m0"].host_layers == 3


@pytest.mark.parametrize("kind", ["auto", "torch", "emulated"])
def test_nothing_is_counted_where_models_are_opened_in_one_way_whatever_the_plan_leaves(
    tmp_path: Path, kind: str
) -> None:
    service, across, batches = counting(tmp_path, kind)

    batches[1] = 2
    service.note_batches()

    assert across.load_counts["m0"].host_layers == 0
