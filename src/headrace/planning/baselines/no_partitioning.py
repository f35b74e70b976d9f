"""No-partitioning (PPipe, 7.1: NP): every request runs on one whole device, start to end.

The paper's baseline solves the same problem with at most one stage per pipeline and without
virtual GPUs. A device type that may not be used whole is used in its largest share.
"""

from msgspec.structs import replace

from headrace.domain.plan import PlanResult
from headrace.domain.problem import Problem
from headrace.planning.pooled.planner import plan_pooled


def plan_without_partitioning(problem: Problem) -> PlanResult:
    """The best plan of single stages on whole devices; `min_stages` is overridden."""
    options = replace(problem.options, planner="no-partitioning", min_stages=1, max_stages=1)
    result = plan_pooled(replace(on_whole_devices(problem), options=options))
    if result.plan is None:
        return result
    return replace(result, plan=replace(result.plan, cluster=problem.cluster))


def on_whole_devices(problem: Problem) -> Problem:
    """The problem without shares other than the largest of each device type."""
    types = tuple(
        replace(kind, shares=(max(kind.shares),)) for kind in problem.cluster.device_types
    )
    return replace(problem, cluster=replace(problem.cluster, device_types=types))
