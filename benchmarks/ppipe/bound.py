"""What no plan and no dispatcher can exceed on a problem's cluster.

The fluid limit of the planner's own rows, with nothing kept for waiting: fractional devices and
slots, every pipeline that fits the whole SLO, full batches all the time. In a session of T seconds
nobody is answered after T + SLO, so at most (T + SLO) / T times the limit per second is; and 99 %
of the load is to be answered.
"""

from benchmarks.ppipe.carried import ATTAINMENT
from msgspec.structs import replace

from headrace.domain.problem import Problem
from headrace.planning.common.hardware import Hardware
from headrace.planning.common.master import Counting, Wanted
from headrace.planning.common.models import model_of
from headrace.planning.pooled.relaxation import relax

TIME_LIMIT_S = 60.0


def any_plan_rps(problem: Problem, seconds: float) -> float:
    """No plan of pooled pipelines carries more than this per weight, of every model."""
    asked = replace(
        problem, options=replace(problem.options, margin=0.0, model_margins={}, carried_parts={})
    )
    hardware = Hardware.of(asked.cluster)
    models = [model_of(asked, hardware, demand) for demand in asked.demands]
    counting = Counting(
        hardware=hardware,
        wanted=[Wanted(weight=model.demand.weight, least_rps=0.0) for model in models],
        columns=[model.pipelines for model in models],
        goal="max-min",
    )
    relaxed = relax(counting, time_limit_s=TIME_LIMIT_S)
    assert relaxed is not None, "every model has a pipeline"
    longest_s = max(demand.slo_us for demand in asked.demands) / 1e6
    return relaxed.bound * (seconds + longest_s) / seconds / ATTAINMENT
