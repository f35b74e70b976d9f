"""No-partitioning (PPipe, 7.1: NP): every request runs on one slot, start to end.

The paper's baseline solves the same problem without cutting models. Like its PPipe, it may use
every legal share of a device here, not only whole devices, so that what the comparison shows is
the worth of cutting alone.
"""

from msgspec.structs import replace

from headrace.domain.plan import PlanResult
from headrace.domain.problem import Problem
from headrace.planning.pooled import plan_pooled


def plan_without_partitioning(problem: Problem) -> PlanResult:
    """The best plan in which every pipeline has a single stage; `min_stages` is overridden."""
    options = replace(problem.options, planner="no-partitioning", min_stages=1, max_stages=1)
    return plan_pooled(replace(problem, options=options))
