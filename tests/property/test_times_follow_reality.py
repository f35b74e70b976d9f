"""Slots that run slower than profiled: what is admitted is answered in time all the same.

Theory: slots that take f times what is profiled carry 1 / f of what is planned. Offered twice the
plan, a dispatcher that knows f answers nearly that much in time and next to nothing late; one that
believes the profile admits what it cannot answer, near its deadline all of it.
"""

import itertools

import numpy as np
import pytest

from headrace.dispatch.dispatcher import Dispatcher
from headrace.dispatch.topology import StageTable, Topology
from headrace.domain.events import Answered, AnyEvent, Dispatched, Dropped
from headrace.simulation.clock import SimClock
from headrace.simulation.compiled import Offered, SessionOutcomes, offer, run
from headrace.simulation.driver import (
    Durations,
    JitteredDurations,
    SimDriver,
    Slower,
    exact_durations,
)
from headrace.simulation.session import replay
from helpers.sim import request
from helpers.topologies import (
    make_route,
    make_stage,
    make_topology,
    random_requests,
    random_topology,
)

STAGE_US = 7_400
SLO_US = 200_000
SECOND_US = 1_000_000


def plan(*, stages: int = 1, slots: int = 2, spread: float = 1.15) -> Topology:
    pools = [range(i * slots, (i + 1) * slots) for i in range(stages)]
    times = (STAGE_US, STAGE_US * 3 // 2)
    return make_topology(
        [
            make_route(
                *(
                    make_stage(list(p), times, p99_us=[round(us * spread) for us in times])
                    for p in pools
                )
            )
        ],
        slo_us=SLO_US,
    )


def capacity_rps(topology: Topology) -> float:
    stages = topology.models[0].routes[0].stages
    return min(1e6 * 2 * len(stage.slots) / stage.p50_us[-1] for stage in stages)


def slower(topology: Topology, factor: float, *, from_us: int = 0) -> Slower:
    stages = len(topology.models[0].routes[0].stages)
    return Slower(stages=(factor,) * stages, slots=(1.0,) * len(topology.slots), from_us=from_us)


def poisson(topology: Topology, factor: float, end_s: float, seed: int) -> Offered:
    rng = np.random.default_rng(seed)
    rate = factor * capacity_rps(topology)
    gaps_us = rng.exponential(1e6 / rate, size=round(rate * end_s))
    return offer(topology, np.cumsum(gaps_us).astype(np.int64))


def in_time_rps(offered: Offered, outcomes: SessionOutcomes, from_us: int, to_us: int) -> float:
    """Of requests that were answered in time in that span."""
    ended = outcomes.ended_at_us
    good = (ended >= from_us) & (ended < to_us) & (ended <= offered.deadline_at_us)
    return float(good.sum()) / (to_us - from_us) * 1e6


def late_share(offered: Offered, outcomes: SessionOutcomes, from_us: int) -> float:
    """Of what was answered after that instant."""
    answered = outcomes.ended_at_us >= from_us
    late = outcomes.ended_at_us > offered.deadline_at_us
    return float((answered & late).sum()) / max(1, int(answered.sum()))


def under_twice_the_load(policy: str, factor: float) -> tuple[float, float]:
    """(Goodput / what the slots carry, late / answered), from the second second on."""
    topology = plan()
    offered = poisson(topology, 2.0, 6.0, seed=1)
    outcomes = run(
        topology,
        policy,
        offered,
        rng=np.random.default_rng(2),
        slower=slower(topology, factor),
    )
    goodput = in_time_rps(offered, outcomes, SECOND_US, 6 * SECOND_US)
    return goodput / capacity_rps(topology) * factor, late_share(offered, outcomes, SECOND_US)


@pytest.mark.parametrize("policy", ["reservation", "batch-aware"])
@pytest.mark.parametrize("factor", [1.1, 1.3, 2.0])
def test_slower_slots_carry_what_they_can_under_twice_the_load(policy: str, factor: float) -> None:
    goodput, late = under_twice_the_load(policy, factor)
    assert goodput >= 0.9
    assert late <= 0.05


@pytest.mark.parametrize("factor", [1.1, 1.3, 2.0])
def test_the_reactive_baseline_carries_as_much_of_what_slower_slots_can(factor: float) -> None:
    """Less than all in any case: hurried by deadlines, it sends batches that are not full."""
    usual, _ = under_twice_the_load("reactive", 1.0)
    goodput, late = under_twice_the_load("reactive", factor)
    assert goodput >= 0.9 * usual
    assert late <= 0.1


@pytest.mark.parametrize("stages", [1, 3])
def test_slots_that_become_slower_in_the_middle_of_a_session_are_known_a_second_later(
    stages: int,
) -> None:
    topology = plan(stages=stages)
    offered = poisson(topology, 2.0, 9.0, seed=3)
    drift = slower(topology, 1.5, from_us=4 * SECOND_US)
    outcomes = run(topology, "reservation", offered, rng=np.random.default_rng(4), slower=drift)
    goodput = in_time_rps(offered, outcomes, 5 * SECOND_US, 9 * SECOND_US)
    assert goodput >= 0.9 * capacity_rps(topology) / 1.5
    assert late_share(offered, outcomes, 5 * SECOND_US) <= 0.05


def test_one_slow_slot_of_a_pool_costs_no_more_than_its_own_part() -> None:
    topology = plan(slots=4)
    offered = poisson(topology, 2.0, 6.0, seed=5)
    one = Slower(stages=(1.0,), slots=(3.0, 1.0, 1.0, 1.0))
    outcomes = run(topology, "reservation", offered, rng=np.random.default_rng(6), slower=one)
    left = (3 + 1 / 3) / 4
    goodput = in_time_rps(offered, outcomes, SECOND_US, 6 * SECOND_US)
    assert goodput >= 0.9 * capacity_rps(topology) * left
    assert late_share(offered, outcomes, SECOND_US) <= 0.05


@pytest.mark.parametrize("policy", ["reservation", "batch-aware", "reactive"])
def test_after_three_times_the_load_the_planned_load_is_answered_again(policy: str) -> None:
    topology = plan()
    peak = poisson(topology, 3.0, 15.0, seed=7).arrived_at_us
    peak = peak[peak < 15 * SECOND_US]
    calm = 15 * SECOND_US + poisson(topology, 0.7, 8.0, seed=8).arrived_at_us
    offered = offer(topology, np.concatenate([peak, calm]))
    outcomes = run(topology, policy, offered, rng=np.random.default_rng(9))
    after = offered.arrived_at_us >= 17 * SECOND_US
    good = (outcomes.ended_at_us >= 0) & (outcomes.ended_at_us <= offered.deadline_at_us)
    assert good[after].mean() >= 0.99


def test_what_was_slow_for_a_while_is_tried_again_though_it_refuses_everything() -> None:
    """From the profile's times 30 times as long nobody can be answered, and nothing is observed."""
    topology = plan(slots=1)
    offered = poisson(topology, 0.5, 20.0, seed=10)
    stall = Slower(stages=(30.0,), slots=(1.0,))
    blocked = run(topology, "reservation", offered, slower=stall)
    tried = blocked.ended_at_us >= 10 * SECOND_US
    assert tried.any()
    assert (blocked.reason >= 0).mean() > 0.9


class SlowFirst(Slower):
    """One slot takes 30 times as long, in the first second only."""

    def took_us(self, took_us: int, stage: int, slot: int, now_us: int) -> int:
        return took_us * 30 if slot == 0 and now_us < SECOND_US else took_us


def test_a_slot_that_was_slow_for_a_while_is_tried_again_though_its_pool_runs() -> None:
    """Its batches would all be late, so that they go to the other slot, which reports."""
    once = SlowFirst(stages=(1.0,), slots=(1.0, 1.0))
    simulated = Simulated(plan(), exact_durations, once)
    simulated.offer(0.9, 10.0, seed=18)
    simulated.clock.run()
    ends = [event for event in simulated.events if isinstance(event, Answered | Dropped)]
    after = [isinstance(event, Answered) for event in ends if event.at_us > 6 * SECOND_US]
    assert simulated.dispatcher.levels()[0].ratio < 1.5
    assert sum(after) >= 0.97 * len(after)


def test_python_and_the_loop_take_equally_longer() -> None:
    for seed in range(6):
        topology = random_topology(np.random.default_rng(seed))
        requests = random_requests(topology, np.random.default_rng(seed), count=200, load=1.5)
        stages = sum(len(route.stages) for model in topology.models for route in model.routes)
        by = Slower(
            stages=tuple(1.0 + 0.3 * i for i in range(stages)),
            slots=tuple(1.0 + 0.1 * i for i in range(len(topology.slots))),
            delay_us=250,
            from_us=requests[100].arrived_at_us,
        )
        simulated = Simulated(topology, exact_durations, by)
        replay(iter(requests), simulated.clock, simulated.dispatcher.on_arrival)
        simulated.clock.run()
        offered = Offered(
            **{
                name: np.array([getattr(request, name) for request in requests], dtype=np.int64)
                for name in ("arrived_at_us", "model", "deadline_at_us", "priority")
            }
        )
        log: list[AnyEvent] = []
        run(topology, "reservation", offered, slower=by, log=log)
        assert log == simulated.events
        assert max(simulated.ratios()) > 1


class Simulated:
    """A dispatcher over Python's driver, with the durations that a test wants."""

    def __init__(
        self, topology: Topology, durations: Durations, slower: Slower | None = None
    ) -> None:
        self.topology = topology
        self.clock = SimClock()
        self.events: list[AnyEvent] = []
        driver = SimDriver(topology, self.clock, durations, slower)
        self.dispatcher = Dispatcher(
            topology, "reservation", self.clock, driver, self.events.append
        )
        driver.reports = self.dispatcher

    def offer(self, load: float, end_s: float, seed: int) -> None:
        offered = poisson(self.topology, load, end_s, seed)
        instants = zip(offered.arrived_at_us.tolist(), offered.deadline_at_us.tolist(), strict=True)
        requests = [request(i, at, deadline) for i, (at, deadline) in enumerate(instants)]
        replay(iter(requests), self.clock, self.dispatcher.on_arrival)

    def ratios(self) -> set[float]:
        return {time.ratio for time in self.dispatcher.levels()}


def test_reports_that_say_what_the_profile_says_teach_nothing() -> None:
    simulated = Simulated(plan(stages=3), exact_durations)
    simulated.offer(2.0, 3.0, seed=11)
    simulated.clock.run()
    assert simulated.ratios() == {1.0}
    assert all(time.batches > 100 for time in simulated.dispatcher.levels())


@pytest.mark.parametrize("spread", [1.05, 1.15, 1.6, 2.5])
def test_the_jitter_that_was_profiled_teaches_no_level(spread: float) -> None:
    simulated = Simulated(plan(spread=spread), JitteredDurations(np.random.default_rng(13)))
    simulated.offer(1.0, 6.0, seed=14)
    simulated.clock.run()
    assert simulated.ratios() == {1.0}


def test_single_batches_that_take_long_teach_nothing() -> None:
    runs = itertools.count()

    def every_twentieth_hangs(stage: StageTable, batch_size: int) -> int:
        return stage.p50_us[batch_size - 1] * (1 if next(runs) % 20 else 10)

    simulated = Simulated(plan(slots=1), every_twentieth_hangs)
    simulated.offer(1.0, 6.0, seed=15)
    simulated.clock.run()
    assert simulated.ratios() == {1.0}


def test_a_batch_whose_slot_was_lost_teaches_nothing() -> None:
    simulated = Simulated(plan(slots=1), lambda stage, batch_size: SECOND_US)
    simulated.offer(1.0, 0.01, seed=16)
    simulated.clock.call_at(500_000, lambda: simulated.dispatcher.on_slot_lost(0))
    simulated.clock.run()
    (time,) = simulated.dispatcher.levels()
    assert (time.ratio, time.batches) == (1.0, 0)


def test_levels_that_are_known_before_count_from_the_first_batch_on() -> None:
    simulated = Simulated(plan(stages=2), exact_durations)
    simulated.dispatcher.assume({"m0/p0/1": 2.0, "nobody/p0/0": 3.0})
    simulated.offer(0.1, 0.1, seed=17)
    simulated.clock.run()
    first = next(event for event in simulated.events if isinstance(event, Dispatched))
    assert [hop.latency_us for hop in first.path] == [STAGE_US, 2 * STAGE_US]


def test_batches_that_wait_for_their_slot_move_when_its_level_does() -> None:
    simulated = Simulated(plan(slots=1), exact_durations)
    for number in range(8):
        simulated.dispatcher.on_arrival(request(number, 0, SLO_US))
    simulated.dispatcher.assume({"m0/p0/0": 1.5})
    simulated.dispatcher.on_arrival(request(8, 0, SLO_US))
    sent = [event for event in simulated.events if isinstance(event, Dispatched)]
    # One runs alone, as it was foreseen; three full batches wait, and the next is behind them.
    assert [len(event.requests) for event in sent] == [1, 2, 2, 2, 2]
    full_us = STAGE_US * 3 // 2
    assert sent[-1].path[0].start_at_us == STAGE_US + 3 * full_us * 3 // 2


def test_a_slot_that_is_gained_anew_starts_from_the_level_of_its_stage() -> None:
    topology = plan(slots=3)
    simulated = Simulated(topology, exact_durations, slower(topology, 2.0))
    simulated.offer(1.0, 1.0, seed=12)
    simulated.clock.run()
    simulated.dispatcher.on_slot_lost(1)
    simulated.dispatcher.on_slot_gained(1)
    renewed = simulated.dispatcher.levels()[1]
    assert renewed.batches == 0
    assert renewed.ratio == pytest.approx(2.0, rel=0.02)
