"""Rates that rise and fall, in virtual time: plans follow them, and every request ends once."""

from collections.abc import Mapping

import numpy as np
from benchmarks.gpulets.reorganisation import ReorganisedRun, simulate_reorganisation
from msgspec.structs import replace

from headrace.domain.events import Answered, Arrived, Dropped
from headrace.domain.plan import Plan
from headrace.domain.problem import Problem
from headrace.planning import solve
from headrace.serving.changes.plan_watch import ReplanRule, Watch, planned_loads, watch_of
from headrace.serving.changes.rate_estimate import RateEstimate
from headrace.simulation.offered.arrivals import Arrival, merge, poisson
from helpers.shared import shared_problem

RULE = ReplanRule(period_s=2.0, headroom=0.5)
READY_AFTER_S = 1.0
LOADS = (0.1, 0.5, 0.1)
"""Of two devices, by a rough count; each for so many seconds:"""
EACH_S = 16.0


def problem_for(load: float) -> Problem:
    return shared_problem("shares", seed=5, models=3, devices=2, load=load)


def planned(rates_rps: Mapping[str, float]) -> Plan | None:
    problem = problem_for(LOADS[0])
    demands = tuple(replace(d, rate_rps=rates_rps[d.model]) for d in problem.demands)
    return solve(replace(problem, demands=demands)).plan


def rates_at(load: float) -> dict[str, float]:
    return {demand.model: demand.rate_rps or 0.0 for demand in problem_for(load).demands}


def wave() -> list[Arrival]:
    """Low, high, low again."""
    rng = np.random.default_rng(3)
    streams = []
    for number, load in enumerate(LOADS):
        for model, rate_rps in rates_at(load).items():
            for each in poisson(model, rate_rps, EACH_S, rng):
                at_us = each.at_us + round(number * EACH_S * 1e6)
                streams.append([Arrival(at_us=at_us, model=model)])
    return sorted(merge(streams), key=lambda arrival: arrival.at_us)


def run(arrivals: list[Arrival], period_s: float = RULE.period_s) -> ReorganisedRun:
    first = planned({model: 1.5 * rate for model, rate in rates_at(LOADS[0]).items()})
    assert first is not None
    estimate, chosen = RateEstimate(), planned_loads(first)
    watches: dict[int, Watch] = {}

    def decide(plan: Plan, counts: Mapping[str, int], elapsed_s: float) -> Plan | None:
        watch = watches.setdefault(id(plan), watch_of(plan, chosen, {}, RULE, estimate))
        loads = watch(counts, elapsed_s)
        return None if loads is None else planned(loads)

    return simulate_reorganisation(
        first,
        problem_for(LOADS[0]).profiles,
        arrivals,
        decide,
        period_us=round(period_s * 1e6),
        ready_after_us=round(READY_AFTER_S * 1e6),
    )


def capacity_rps(plan: Plan) -> float:
    return sum(deployment.throughput_rps for deployment in plan.deployments)


def test_plans_follow_the_load_up_and_down_and_no_request_is_lost() -> None:
    arrivals = wave()
    found = run(arrivals)
    events = [event for log in found.epochs for event in log.events]
    arrived = [event.request for event in events if isinstance(event, Arrived)]
    ended = [event.request for event in events if isinstance(event, Answered | Dropped)]
    assert sorted(arrived) == sorted(ended) == list(range(len(arrivals)))
    assert len(found.epochs) == len(found.changes) >= 3
    carried = [capacity_rps(change.plan) for change in found.changes]
    assert max(carried) > 2 * carried[0]
    assert carried[-1] < max(carried) / 2


def test_a_plan_comes_into_service_when_it_is_ready_and_periods_go_on_meanwhile() -> None:
    found = run(wave())
    assert found.changes[0].began_at_us == 0
    for before, change in zip(found.changes, found.changes[1:], strict=False):
        assert change.began_at_us - change.decided_at_us == READY_AFTER_S * 1e6
        # Nothing took longer than a period, so decisions fall on multiples of it.
        assert change.decided_at_us % round(RULE.period_s * 1e6) == 0
        assert before.done_at_us is not None
        assert before.done_at_us <= change.decided_at_us


def test_a_period_that_would_end_while_plans_change_lasts_until_that_is_over() -> None:
    found = run(wave(), period_s=READY_AFTER_S / 4)
    assert len(found.changes) >= 3
    for before, change in zip(found.changes, found.changes[1:], strict=False):
        assert before.done_at_us is not None
        assert change.decided_at_us >= before.done_at_us
