"""The fewest late requests of a small instance, by one who knows what will arrive.

A schedule says of every item of the requests that are served at which depth it goes through, and
when each stage of that depth begins:

1. a stage takes its time without a break; the stages of an item follow each other, not always at
   once; none begins before the request's arrival, none ends after its deadline;
2. stages that run at one instant are at most as many as places (which then suffice: stages are
   intervals);
3. the j-th place of a request runs stage j of whatever depth its items have, one item at a time; so
   the depth changes between two items.

Items of one request are alike, so those that begin a stage of a depth are only counted: with
x[i,d,j,t] in {0, 1} whether request i begins stage j of depth d at t, and y[i] whether it is
served,

    sum over d, t of x[i,d,0,t] = items[i] y[i]
    sum over t' <= t + ticks[d,j] of x[i,d,j+1,t']  <=  sum over t' <= t of x[i,d,j,t']    for all t
    sum over t of x[i,d,j+1,t] = sum over t of x[i,d,j,t]

and 2 and 3 count the stages that have begun and are not over. Whole ticks suffice, since all times
are whole. The number of requests without y is least: an integer program.

It leaves free which place a stage runs on and who owns it, so that it is a bound for policies, and
not always one that a dispatcher could reach by knowing the future.
"""

from dataclasses import dataclass
from math import floor

import numpy as np
from benchmarks.accordion.small_instances import PLACES, Instance, Request

from headrace.planning.common.candidates import Ints
from headrace.planning.common.solver import LinearModel


@dataclass(frozen=True, slots=True)
class Fewest:
    """Late requests: no schedule has fewer than `bound`; `proven`: one has as many."""

    bound: int
    proven: bool


def fewest_late(instance: Instance, known: int, time_limit_s: float) -> Fewest:
    """
    Args:
        known: late requests of some schedule.

    Raises:
        RuntimeError: the solver says that there is no such schedule.
    """
    if known == 0:
        return Fewest(0, True)
    requests = instance.requests
    model = LinearModel(maximise=True)
    served = model.add_columns(len(requests), gain=1.0, upper=1.0, integer=True)
    end = max(each.deadline_at for each in requests)
    busy = model.add_rows(end, upper=float(PLACES))
    for number, request in enumerate(requests):
        _add_request(model, request, instance, int(served[number]), busy)
    found = model.solve(time_limit_s=time_limit_s)
    if found.status == "infeasible":
        raise RuntimeError("the program must allow to drop everything")
    most = len(requests) if found.bound is None else floor(found.bound + 1e-6)
    bound = max(0, len(requests) - most)
    return Fewest(bound, found.status == "optimal" or bound >= known)


def _add_request(
    model: LinearModel, request: Request, instance: Instance, served: int, busy: Ints
) -> None:
    span = request.deadline_at - request.arrived_at
    items = model.add_rows(1, lower=0.0, upper=0.0)
    model.add_entries(items, served, -float(request.items))
    deepest = max(len(depth) for depth in instance.models[request.model])
    on_place = [model.add_rows(span, upper=1.0) for _ in range(deepest)]
    for depth in instance.models[request.model]:
        before, longer = None, 0
        for stage, ticks in enumerate(depth):
            begins = model.add_columns(span, upper=1.0, integer=True)
            # What would not be over by the deadline, with the stages after it, does not begin.
            last = span - sum(depth[stage:])
            barred = begins[max(0, last + 1) :]
            none = model.add_rows(len(barred), upper=0.0)
            model.add_entries(none, barred, 1.0)
            at = np.arange(span)
            for since in range(ticks):
                now = at[since:]
                model.add_entries(on_place[stage][now], begins[now - since], 1.0)
                model.add_entries(busy[request.arrived_at + now], begins[now - since], 1.0)
            if before is None:
                model.add_entries(items, begins, 1.0)
            else:
                _follow(model, before, begins, longer)
            before, longer = begins, ticks


def _follow(model: LinearModel, before: Ints, begins: Ints, ticks: int) -> None:
    """A stage begins as often as the one before it, each time at least `ticks` later."""
    span = len(begins)
    rows = model.add_rows(span, upper=0.0)
    for t in range(span):
        model.add_entries(rows[t], begins[: t + 1], 1.0)
        if t >= ticks:
            model.add_entries(rows[t], before[: t + 1 - ticks], -1.0)
    same = model.add_rows(1, lower=0.0, upper=0.0)
    model.add_entries(same, begins, 1.0)
    model.add_entries(same, before, -1.0)
