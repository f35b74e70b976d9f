"""What no plan and no dispatcher can exceed on a problem's cluster.

The planner's own proof, with nothing kept for waiting: pipelines that take the whole SLO, full
batches all the time, whole slots of whole devices. In a session of T seconds nobody is answered
after T + SLO, so at most (T + SLO) / T times that bound per second is; and 99 % of the load is to
be answered.
"""

from benchmarks.ppipe.carried import ATTAINMENT
from msgspec.structs import replace

from headrace.domain.problem import Problem
from headrace.planning import solve


def any_plan_rps(problem: Problem, seconds: float) -> float:
    """No plan of pooled pipelines carries more than this per weight, of every model."""
    options = replace(problem.options, margin=0.0)
    bound = solve(replace(problem, options=options)).bound
    assert bound is not None, "pooled proves a bound where there is a plan"
    longest_s = max(demand.slo_us for demand in problem.demands) / 1e6
    return bound * (seconds + longest_s) / seconds / ATTAINMENT
