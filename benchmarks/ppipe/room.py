"""What follows from a plan's rate and room alone, and how much more another plan could promise.

Of one model, let its pipelines work off C requests per second in all, and let a full batch of
pipeline p have s_p left of the SLO when it need not wait. Then W = sum of C_p s_p requests may
wait: the *room*. Poisson arrivals at the rate (1 - x) C move the number that waits like a Brownian
motion of drift -x and variance 1 per request of C, between 0 and the room, and what meets the upper
end is lost (Harrison, "Brownian Motion and Stochastic Flow Systems", 1985):

    lost / offered = x / (exp(2 x K) - 1),    K = W + WHOLE

so that (1 - x(W)) C is carried at 99 %. Nothing of the dispatcher is in it: it is what is lost
where no slot is idle while somebody waits. WHOLE is fitted to simulated sessions: requests are
whole, and one is in service where a fluid has none.

`any_plan_by_room` makes an estimate for all plans of it. x is convex, so the (C, W) that carry at
least as much as some promise lie on one side of its tangent C + credit x W, which is linear in the
pipelines: each counts for C_p (1 + credit x s_p). With rates multiplied so, the planner's proof
says what no plan promises more than. What is so valued is taken to carry in proportion, which near
the tangent is right to a thousandth: twice the rate has twice the room, and carries a little more.
"""

from collections.abc import Mapping
from dataclasses import replace
from math import expm1
from typing import NamedTuple, Self

import numpy as np
from benchmarks.ppipe.artifact import Hardware
from benchmarks.ppipe.carried import ATTAINMENT
from benchmarks.ppipe.fluid import pipeline_rps, spare_us

from headrace.domain.problem import Demand, Problem
from headrace.planning.common.allotments import Allotments, memory_limited
from headrace.planning.common.candidates import Pipelines, cost_tables, feasible_pipelines
from headrace.planning.common.deadline import Deadline
from headrace.planning.common.dominance import undominated
from headrace.planning.common.hardware import Hardware as Devices
from headrace.planning.common.master import Counting, Wanted
from headrace.planning.common.packing import fit_alone
from headrace.planning.pooled.exactly import search_exactly_pooled
from headrace.planning.pooled.search import search

WHOLE = 2.0
STEP = 0.05
"""Of the room, for slopes."""
TANGENTS = 4
"""Points at which a problem's plans are bounded; the least bound counts."""
PROOF_S = 60.0


class Promise(NamedTuple):
    """What one model's pipelines promise."""

    rate_rps: float
    room: float
    """Requests that may wait."""

    @classmethod
    def of(cls, hardware: Hardware) -> Self:
        """As the slots and links are simulated."""
        rates = [pipeline_rps(hardware, p) for p in range(len(hardware.batch))]
        spare = [spare_us(hardware, p) for p in range(len(hardware.batch))]
        room = sum(rate * us / 1e6 for rate, us in zip(rates, spare, strict=True))
        return cls(sum(rates), float(room))

    @property
    def carried_rps(self) -> float:
        return self.rate_rps * (1 - part_kept_free(self.room))

    @property
    def credit_per_us(self) -> float:
        """By how much of its rate a pipeline counts for more, per microsecond that it has to
        spare: what room is worth here, in rate."""
        slope = part_kept_free(self.room - STEP) - part_kept_free(self.room + STEP)
        kept = 1 - part_kept_free(self.room)
        return self.rate_rps * slope / (2 * STEP) / kept / 1e6

    @property
    def part(self) -> float:
        """Of rate x (1 + credit x time to spare), what is carried."""
        return self.carried_rps / (self.rate_rps + self.credit_per_us * 1e6 * self.room)


def part_kept_free(room: float) -> float:
    """x: how far below the capacity the load must be, so that 1 - ATTAINMENT of it is lost."""
    waiting = max(0.0, room) + WHOLE
    low, high = -0.5, 1.0
    while high - low > 1e-9:
        middle = (low + high) / 2
        product = 2 * middle * waiting
        lost = middle / expm1(product) if abs(product) > 1e-9 else 1 / (2 * waiting)
        low, high = (middle, high) if lost > 1 - ATTAINMENT else (low, middle)
    return low


def any_plan_by_room(problem: Problem, promises: Mapping[str, Promise]) -> float:
    """What no plan promises more than, by rate and room, of every model per weight.

    Args:
        promises: of some good plan, model by model; tangents are drawn there, and towards what the
            planner chooses with them.
    """
    least = np.inf
    for _ in range(TANGENTS):
        bound, chosen = _bounded(problem, promises)
        least = min(least, bound)
        promises = {
            model: Promise(*np.mean([promises[model], chosen[model]], axis=0).tolist())
            for model in promises
        }
    return least


def _bounded(problem: Problem, promises: Mapping[str, Promise]) -> tuple[float, dict[str, Promise]]:
    """The proof with tangents at these promises, and what the plan behind it promises."""
    devices = Devices.of(problem.cluster)
    columns = [_credited(problem, devices, each, promises[each.model]) for each in problem.demands]
    wanted = [
        replace(
            Wanted.of(demand, float(pipelines.rates_rps.min())),
            weight=demand.weight / promises[demand.model].part,
        )
        for demand, pipelines in zip(problem.demands, columns, strict=True)
    ]
    asked, deadline = Counting(devices, wanted, columns, "max-min"), Deadline(PROOF_S)
    found = search_exactly_pooled(asked, deadline) or search(asked, deadline)
    assert found.bound is not None, problem
    assert found.chosen is not None, problem
    chosen = {
        demand.model: _promised(promises[demand.model], demand, pipelines, allotments)
        for demand, pipelines, allotments in zip(
            problem.demands, columns, found.chosen.allotments, strict=True
        )
    }
    return found.bound, chosen


def _credited(problem: Problem, devices: Devices, demand: Demand, promise: Promise) -> Pipelines:
    """All pipelines within the SLO, their rates with credit for what they have to spare."""
    options = problem.options
    feasible = feasible_pipelines(
        cost_tables(problem, demand),
        demand.slo_us,
        min_stages=options.min_stages,
        max_stages=options.max_stages,
    )
    feasible = feasible.take(fit_alone(feasible, devices))
    factor = _factor(promise, demand, feasible)
    credited = replace(feasible, rates_rps=feasible.rates_rps * factor[:, None])
    return undominated(credited, memory_limited(credited, devices))


def _factor(promise: Promise, demand: Demand, pipelines: Pipelines) -> np.ndarray:
    return 1 + promise.credit_per_us * (demand.slo_us - pipelines.latency_us)


def _promised(
    promise: Promise, demand: Demand, pipelines: Pipelines, chosen: Allotments
) -> Promise:
    """Rate and room of chosen pipelines, without credit."""
    rows = chosen.pipeline
    rates = chosen.throughput_rps / _factor(promise, demand, pipelines)[rows]
    spare_s = (demand.slo_us - pipelines.latency_us[rows]) / 1e6
    return Promise(float(rates.sum()), float((rates * spare_s).sum()))
