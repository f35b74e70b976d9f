"""What a dispatcher learns of times, report by report."""

import pytest

from headrace.dispatch.kernel import drift as drift_of_kernel
from headrace.dispatch.kernel.layout import ONE, State
from headrace.dispatch.kernel.tables import Store
from headrace.dispatch.policies import POLICIES
from headrace.dispatch.topology import StageTable
from headrace.domain.events import Answered, Dropped, Ran
from headrace.simulation.driver import exact_durations
from helpers.malleable import equal_depths, items_of
from helpers.sim import Sim, request
from helpers.states import CalledFromPython, callable_state
from helpers.topologies import make_route, make_stage, make_topology

drift = CalledFromPython(drift_of_kernel)
SPREAD = ONE // 8


@pytest.fixture
def state() -> State:
    topology = make_topology([make_route(make_stage([0], [1_000], p99_us=[1_125]))])
    return callable_state(Store(topology, POLICIES["reservation"], queue_max=10).state)


def test_a_level_within_a_quarter_of_the_spread_of_one_is_one() -> None:
    for sign in (1, -1):
        assert drift.within_bounds(ONE + sign * SPREAD // 4, SPREAD) == ONE
        off = ONE + sign * (SPREAD // 4 + 1)
        assert drift.within_bounds(off, SPREAD) == off
    assert drift.within_bounds(100 * ONE, SPREAD) == 32 * ONE
    assert drift.within_bounds(1, SPREAD) == ONE // 2


def test_no_single_report_says_how_much_slower_a_slot_is(state: State) -> None:
    found, ratios = 0, [2 * ONE, 5 * ONE, 2 * ONE, 2 * ONE, 2 * ONE, 2 * ONE]
    while not found:
        found = drift.level_after(state.learned[0], ONE, SPREAD, ratios.pop(0))
    assert found == 2 * ONE


@pytest.mark.parametrize(("deadline_at_us", "runs"), [(256, 2), (252, 1)])
def test_what_may_yet_be_in_time_on_a_slot_that_became_slower_is_run(
    deadline_at_us: int, runs: int
) -> None:
    # The second batch, promised to end at 200, will end at 300: 45 before that is within its slack.
    topology = make_topology([make_route(make_stage([0], [100], p99_us=[130]))])
    sim = Sim(topology, durations=lambda *_: 150)
    (name,) = [each.stage for each in sim.dispatcher.levels()]
    sim.clock.call_at(50, lambda: sim.dispatcher.assume({name: 1.5}))
    sim.run([request(0, 0, 1_000), request(1, 0, deadline_at_us)])
    assert sum(isinstance(e, Ran) for e in sim.events) == runs
    assert sum(isinstance(e, Dropped) for e in sim.events) == 2 - runs


def test_a_model_with_a_short_objective_is_tried_again_after_some_of_its_own() -> None:
    # What interrupted batches have taught: no request has 200 us x 32 left of its 5 ms.
    sim = Sim(make_topology([make_route(make_stage([0], [200]))], slo_us=5_000))
    (name,) = [each.stage for each in sim.dispatcher.levels()]
    sim.dispatcher.assume({name: 32.0})
    arrivals = range(0, 400_000, 4_000)
    sim.run([request(number, at, at + 5_000) for number, at in enumerate(arrivals)])
    first = min(e.at_us for e in sim.events if isinstance(e, Answered))
    assert first < 20 * 5_000
    assert sum(isinstance(e, Dropped) for e in sim.events) < 25


def test_what_was_learned_before_a_pause_refuses_nobody_of_the_burst_behind_it() -> None:
    sim = Sim(make_topology([make_route(make_stage([0], [2_400]))], slo_us=60_000))
    (name,) = [each.stage for each in sim.dispatcher.levels()]
    sim.dispatcher.assume({name: 32.0})
    at_us = 30_000_000
    sim.run([request(number, at_us, at_us + 60_000) for number in range(8)])
    assert sum(isinstance(e, Answered) for e in sim.events) == 8


def test_a_model_that_waits_for_its_turn_keeps_what_it_knows() -> None:
    # The other's batch has the slot for a quarter of a second: 50 objectives, but nothing idles.
    routes = [[make_route(make_stage([0], [us]))] for us in (200, 250_000)]
    sim = Sim(make_topology(*routes, slo_us=[5_000, 900_000]))
    (name, _) = [each.stage for each in sim.dispatcher.levels()]
    sim.dispatcher.assume({name: 32.0})
    ours = [request(1 + i, at, at + 5_000) for i, at in enumerate(range(100_000, 200_000, 10_000))]
    sim.run([request(0, 0, 900_000, model=1), *ours])
    assert sum(isinstance(e, Dropped) for e in sim.events) == len(ours)
    assert sim.dispatcher.levels()[0].ratio == 32.0


@pytest.mark.parametrize("policy", ["malleable", "accordion", "accordion-all"])
def test_a_malleable_model_is_tried_again_after_a_slow_second(policy: str) -> None:
    slow_until_us, slo_us = 1_000_000, 60_000

    def durations(stage: StageTable, batch_size: int) -> int:
        slower = 20 if sim.clock.now_us() < slow_until_us else 1
        return slower * exact_durations(stage, batch_size)

    sim = Sim(equal_depths(10_000, 2, 1, depths=1), policy=policy, durations=durations)
    arrivals = range(0, 8_000_000, 100_000)
    requests = [items_of(number, at, at + slo_us, 1) for number, at in enumerate(arrivals)]
    events = sim.run_items(requests)
    answered = {e.request for e in events if isinstance(e, Answered)}
    recovered_us = slow_until_us + 5_000_000
    assert answered >= {number for number, at in enumerate(arrivals) if at >= recovered_us}
