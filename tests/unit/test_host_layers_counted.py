"""Layers executed from host memory are counted as the plan has them that ran the batches."""

from collections import defaultdict
from pathlib import Path

from msgspec.structs import replace

from headrace.dispatch.protocols import BatchCounts
from headrace.serving.engine.load_counts import LoadCounts
from headrace.serving.engine.plan_in_service import PlanInService
from headrace.serving.engine.served_plan import AcrossPlans, ServedPlan, ServiceOptions
from helpers.served_provisioned import provisioned


def test_what_ran_under_another_plan_is_not_counted_again(tmp_path: Path) -> None:
    served = provisioned(tmp_path, models=1, room=1)
    [deployment] = served.plan.deployments
    assert deployment.start is not None
    start = replace(deployment.start, host=(0,), transfers=())
    plan = replace(served.plan, deployments=(replace(deployment, start=start),))
    counts = defaultdict[str, BatchCounts](BatchCounts)
    loads = defaultdict[str, LoadCounts](LoadCounts)
    service = PlanInService(
        ServedPlan(plan=plan, profiles=served.profiles, folders=served.folders),
        ServiceOptions(),
        AcrossPlans(counts=counts, load_counts=loads),
    )

    counts["m0"].batches[1] = 1_000
    service.note_batches(ran_here=False)
    counts["m0"].batches[1] += 2
    counts["m0"].batches[4] += 1
    service.note_batches()
    service.note_batches()

    assert loads["m0"].host_layers == 3
