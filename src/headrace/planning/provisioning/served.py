"""Which layers of a model stay on the host when it is served again and again.

The soonest start of all may execute half of its layers from the host; but they stay there, and
every later batch reads them over the link once more. Of `exact` planners, the soonest start is
taken among those whose host layers cost at most some time each, and the limit with the least mean
time of a request decides: `cold_share` of them are starts.
"""

from dataclasses import replace

import numpy as np

from headrace.planning.provisioning.planners import StartPlanned, plan_start
from headrace.starts import HOST, Chain

LIMITS = 12
"""Of the limits that there are, one for each layer, so many are tried."""


def plan_served_start(planner: str, chain: Chain, cold_share: float) -> StartPlanned:
    """
    Raises:
        DocumentError: no such planner.
    """
    if not planner.startswith("exact"):
        return plan_start(planner, chain)
    more_us = np.maximum(0, chain.host_us - chain.inside_us)
    never_us = int(chain.load_us.sum() + chain.inside_us.sum() + chain.forward_us.sum())
    never_us += chain.count * chain.forward_copy_us + 1
    best, best_us, bound_us = None, 0.0, None
    limits = np.unique(more_us[chain.weighted])
    some = np.linspace(0, len(limits) - 1, min(LIMITS, len(limits))).astype(int)
    tried = limits[np.unique(some)]
    for limit in (-1, *tried.tolist()):
        banned = chain.weighted & (more_us > limit)
        start = plan_start(planner, replace(chain, host_us=chain.host_us + never_us * banned))
        from_host = chain.weighted & (np.array(start.choice.source) == HOST)
        warm_us = int(chain.inside_us.sum() + more_us[from_host].sum())
        mean_us = cold_share * start.total_us + (1 - cold_share) * warm_us
        if best is None or mean_us < best_us:
            best, best_us = start, mean_us
        bound_us = start.bound_us  # of the last one, which may leave all on the host
    assert best is not None
    return replace(best, bound_us=bound_us)
