"""The most queries that places can answer in time, whoever gives them: a linear program.

Time is cut into intervals. A query whose span, arrival to deadline, is rounded outwards to their
bounds gets x[i, t] of the places' time in interval t. With y[i], the part of it that is in time,

    sum over t of x[i, t] = work[i] y[i],   x[i, t] <= depth x length[t],
    sum over i of x[i, t] <= places x length[t],   0 <= y[i] <= 1

the sum of y is largest. `work` is the time of the query's items in all stages, at the depth where
that is least, which nothing undercuts; queries may be served in parts, on all of their places at
once, and arrivals are known. So no schedule answers more in time, and often none as many.
"""

import numpy as np
from benchmarks.accordion.simulated import alone_us
from benchmarks.accordion.streams import QueryStream

from headrace.dispatch.topology import Topology
from headrace.planning.common.solver import LinearModel

STEP_US = 2_000_000
LIMIT_S = 300.0


def most_in_time(topology: Topology, stream: QueryStream, slo_us: int) -> float:
    """Part of the queries that could be in time alone; all have that SLO.

    Raises:
        RuntimeError: the solver needs longer than LIMIT_S.
    """
    asked = np.flatnonzero(alone_us(topology, stream) <= slo_us)
    places = len(topology.slots)
    work_us = least_work_us(topology, stream)[asked]
    depth = np.array([len(model.routes[-1].stages) for model in topology.models])
    first = stream.arrived_at_us[asked] // STEP_US
    end = -(-(stream.arrived_at_us[asked] + slo_us) // STEP_US)
    model = LinearModel(maximise=True)
    served = model.add_columns(len(asked), gain=1.0, upper=1.0)
    room = model.add_rows(int(end.max()), upper=float(places * STEP_US))
    whole = model.add_rows(len(asked), lower=0.0, upper=0.0)
    model.add_entries(whole, served, -work_us)
    for i, query in enumerate(asked):
        at = np.arange(first[i], end[i])
        most = float(depth[stream.model[query]] * STEP_US)
        given = model.add_columns(len(at), upper=most)
        model.add_entries(room[at], given, 1.0)
        model.add_entries(whole[i], given, 1.0)
    found = model.solve(time_limit_s=LIMIT_S, relaxed=True)
    if found.status != "optimal" or found.objective is None:
        raise RuntimeError(f"the bound is not found within {LIMIT_S:g} s; make STEP_US larger")
    return found.objective / len(asked)


def least_work_us(
    topology: Topology, stream: QueryStream
) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    """Of each query: the time of its items in all stages, at the depth where that is least."""
    each = np.array(
        [
            min(sum(stage.p50_us[0] for stage in route.stages) for route in model.routes)
            for model in topology.models
        ],
        dtype=float,
    )
    return each[stream.model] * stream.items
