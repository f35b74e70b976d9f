"""What no plan and no dispatcher can exceed on a problem's cluster.

1. The planner's own proof, with nothing kept for waiting: pipelines that take the whole SLO, full
   batches all the time, whole slots of whole devices. So no plan has a capacity of more than z0
   per weight of every model.
2. A model whose pipelines have the capacity C in all carries no more than a bucket of C tokens per
   second and the depth C x SLO admits (`carried`, with no time spent in other stages): f x C, where
   f hardly exceeds 1, and grows with C. It is measured on the session's own arrivals.
3. The planner's proof again, with each model's weight divided by f at AMPLE times the capacity z0
   per weight. A model of a smaller capacity has a smaller f, and one of a larger carries more
   than the bound at any rate, as long as AMPLE x z0 x f is not less than it.
"""

from collections.abc import Sequence
from statistics import fmean

from benchmarks.ppipe.carried import TOLERANCE, Session, admitted_rps
from msgspec.structs import replace

from headrace.domain.problem import Problem
from headrace.planning import solve

AMPLE = 1.1
PROOF_S = 600.0
"""Longer than a proof takes, so that nothing hangs on how busy the machine is."""


def any_plan_rps(problem: Problem, sessions: Sequence[Session]) -> float:
    """No plan of pooled pipelines carries more than this per weight, of every model, in the mean of
    the sessions."""
    bare_rps = _bound(problem, {})
    parts, enough_rps = {}, []
    for demand in problem.demands:
        capacity_rps = AMPLE * bare_rps * demand.weight
        carried_rps = fmean(
            admitted_rps(capacity_rps, demand.slo_us, demand.model, session) for session in sessions
        )
        # What was found is the lower of two rates, and the truth is between them.
        parts[demand.model] = carried_rps / capacity_rps + TOLERANCE
        enough_rps.append(carried_rps / demand.weight)
    bound = _bound(problem, parts)
    assert bound <= min(enough_rps), "AMPLE is not"
    return bound


def _bound(problem: Problem, parts: dict[str, float]) -> float:
    """Of the smallest capacity x part / weight."""
    options = replace(problem.options, margin=0.0, carried_parts=parts, time_limit_s=PROOF_S)
    bound = solve(replace(problem, options=options)).bound
    assert bound is not None, "pooled proves a bound where there is a plan"
    return bound
