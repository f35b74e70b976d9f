"""Simulated time laid onto a server's log: as loaded, as slow and as quick by turns."""

import dataclasses

import numpy as np
import numpy.typing as npt
import pytest

from headrace.dispatch.kernel.layout import Ints
from headrace.dispatch.topology import Topology
from headrace.domain.events import (
    Answered,
    AnyEvent,
    Arrived,
    Dispatched,
    EventLogHeader,
    Ran,
    Seen,
)
from headrace.load.result import LoadResult, RequestResult
from headrace.load.seen import cut_short_us, with_seen
from headrace.metrics import run_report
from headrace.simulation.left_out import left_out
from headrace.simulation.measured import Like, measured_durations
from headrace.simulation.moments import Moments
from headrace.simulation.offered.arrivals import Arrival
from headrace.simulation.served_gateway import LEAST_REQUESTS
from headrace.simulation.session import simulate
from helpers.problems import make_plan, make_problem, make_profile
from helpers.topologies import make_route, make_stage, make_topology

SECOND_US = 1_000_000
LIGHT_US, FULL_US = 10_000, 2_500
"""Gaps of the log: four seconds light, then four seconds full."""
LOG_US = np.concatenate(
    [np.arange(0, 4 * SECOND_US, LIGHT_US), np.arange(4 * SECOND_US, 8 * SECOND_US, FULL_US)]
)


@pytest.mark.parametrize(
    ("gap_us", "in_full"), [(LIGHT_US, 0.0), (4_000, 0.5), (FULL_US, 1.0), (500, 1.0)]
)
def test_moments_are_of_stretches_as_loaded(gap_us: int, in_full: float) -> None:
    """4,000 us between requests are half way: 250 per second of 100 and 400."""
    at_us = np.arange(0, 100 * SECOND_US, gap_us)
    moments = Moments(LOG_US, at_us, np.random.default_rng(1))
    found = moments.all_at(at_us)

    assert np.mean(found >= 4 * SECOND_US) == pytest.approx(in_full, abs=0.08)
    assert [moments.at(int(t)) for t in at_us[:200]] == found[:200].tolist()


def test_bursts_of_apps_are_laid_onto_bursts() -> None:
    """One second in four has twenty requests instead of four. A window of thirty is three to four
    seconds; of thirty calls, where each request makes seven, it is half a second."""
    rng = np.random.default_rng(1)

    def bursty_us() -> Ints:
        counts = np.where(rng.random(60) < 0.25, 20, 4)
        return np.concatenate(
            [second * SECOND_US + np.arange(n) * SECOND_US // n for second, n in enumerate(counts)]
        )

    def bursting(at_us: Ints, of_us: Ints) -> npt.NDArray[np.bool_]:
        counts: Ints = np.bincount(of_us // SECOND_US, minlength=62)
        found: npt.NDArray[np.bool_] = counts[at_us // SECOND_US] == 20
        return found

    log_at_us, at_us = bursty_us(), bursty_us()
    rightly = {}
    for calls_each in (1.0, 7.0):
        found = Moments(log_at_us, at_us, np.random.default_rng(2), calls_each).all_at(at_us)
        ours, theirs = bursting(at_us, at_us), bursting(found, log_at_us)
        rightly[calls_each] = np.mean([np.mean(theirs[ours]), np.mean(~theirs[~ours])])

    assert rightly[7.0] > 0.9 > rightly[1.0] > 0.8


def test_a_lull_behind_a_burst_is_laid_onto_one_behind_a_burst() -> None:
    """What a burst left is still to be done when it is over."""
    burst, quiet, seconds = 20, 4, 60

    def offered_us(every: int) -> Ints:
        counts = [burst if second % every == 0 else quiet for second in range(seconds)]
        return np.concatenate(
            [second * SECOND_US + np.arange(n) * SECOND_US // n for second, n in enumerate(counts)]
        )

    at_us = offered_us(every=5)
    found = Moments(offered_us(every=6), at_us, np.random.default_rng(4), 7.0).all_at(at_us)
    behind = (at_us % (5 * SECOND_US)) // (SECOND_US // 2) == 2
    found_behind = (found % (6 * SECOND_US)) // (SECOND_US // 2)

    assert np.mean((found_behind[behind] >= 1) & (found_behind[behind] <= 3)) > 0.8


def test_what_comes_after_the_last_arrival_has_a_moment_too() -> None:
    moments = Moments(LOG_US, np.array([0, SECOND_US]), np.random.default_rng(0))
    assert 0 <= moments.at(100 * SECOND_US) <= 8 * SECOND_US


def test_stalls_of_the_log_are_stalls_of_the_simulation() -> None:
    """Half of each second every batch takes ten times as long; so do those that follow it."""
    topology = make_topology([make_route(make_stage([0], [1_000]))])
    events: list[AnyEvent] = []
    at_us = 0
    for batch in range(2_000):
        took_us = 10_000 if at_us % SECOND_US < SECOND_US // 2 else 1_000
        events.append(Dispatched(at_us, batch, 0, 0, 0, (batch,), ()))
        events.append(Ran(at_us + took_us, batch, 0, 0, at_us))
        at_us += 10_000
    header = topology.event_log_header("live", "reservation")
    log_at_us, ours_us = np.arange(0, at_us, 10_000), np.arange(0, 30 * SECOND_US, 10_000)
    moments = Moments(log_at_us, ours_us, np.random.default_rng(2))
    now_us = 0
    durations = measured_durations(
        topology, header, events, np.random.default_rng(3), Like(moments, lambda: now_us)
    )
    took = []
    for time_us in ours_us.tolist():
        now_us = time_us
        took.append(durations.span(topology.models[0].routes[0].stages[0], 1).whole_us)
        durations.note(Ran(now_us, 0, 0, 0, now_us))
    slow = np.array(took) == 10_000

    assert slow.mean() == pytest.approx(0.5, abs=0.1)
    assert np.mean(slow[1:][slow[:-1]]) > 0.9


# -- what clients saw -----------------------------------------------------------------------------


BEFORE_US, IN_US, EARLY_US, BACK_US = 400, 300, 2_000, 700


def served_log(topology: Topology) -> tuple[EventLogHeader, list[AnyEvent], LoadResult]:
    """Requests with ways there and back, of which the log says nothing else."""
    events: list[AnyEvent] = []
    results = []
    slo_us = topology.models[0].slo_us
    for number in range(LEAST_REQUESTS):
        scheduled_us = SECOND_US + 50_000 * number
        sent_us = scheduled_us + BEFORE_US
        told_us = sent_us + slo_us - EARLY_US
        events.append(Arrived(sent_us + IN_US, number, 0, told_us))
        events.append(Answered(sent_us + 9_000 - BACK_US, number, batch=number))
        results.append(
            RequestResult(
                scheduled_at_us=scheduled_us,
                deadline_at_us=scheduled_us + slo_us,
                sent_at_us=sent_us,
                ended_at_us=sent_us + 9_000,
                status=200,
                reason="",
                body_bytes=1,
            )
        )
    load = LoadResult(
        model="m",
        started_at_us=SECOND_US,
        span_us=None,
        requests=tuple(results),
        lateness=None,
        connections=1,
        error_samples={},
    )
    return topology.event_log_header("live", "reservation"), events, load


def test_the_nth_request_that_was_sent_is_the_nth_that_arrived() -> None:
    problem = make_problem([make_profile("m")], nodes={"n": {"a": 1}}, slo_us=100_000)
    topology = Topology.from_plan(make_plan(problem), problem.profiles)
    header, events, load = served_log(topology)

    seen = [e for e in with_seen(header, events, [{"m": load}]) if isinstance(e, Seen)]

    assert [event.request for event in seen] == list(range(LEAST_REQUESTS))
    assert {event.sent_at_us - event.scheduled_at_us for event in seen} == {BEFORE_US}
    # One more that the log does not have: nobody knows which.
    more = dataclasses.replace(load, requests=(*load.requests, load.requests[-1]))
    assert with_seen(header, events, [{"m": more}]) == events


def test_a_log_that_its_server_gave_up_ends_before_the_last_answered_request_was_sent() -> None:
    problem = make_problem([make_profile("m")], nodes={"n": {"a": 1}}, slo_us=100_000)
    topology = Topology.from_plan(make_plan(problem), problem.profiles)
    _, events, load = served_log(topology)
    last = load.requests[-1]
    assert last.sent_at_us is not None
    before = [event for event in events if event.at_us < last.sent_at_us]

    assert cut_short_us(events, [{"m": load}]) is None
    assert cut_short_us(before, [{"m": load}]) == last.sent_at_us - before[-1].at_us
    # What was refused before it came to a dispatcher, nobody logs.
    refused = dataclasses.replace(last, status=400, reason="http-400")
    requests = (*load.requests[:-1], refused)
    assert cut_short_us(before, [{"m": dataclasses.replace(load, requests=requests)}]) is None


def test_simulated_clients_wait_as_those_of_the_log_and_deadlines_are_as_early() -> None:
    problem = make_problem([make_profile("m")], nodes={"n": {"a": 1}}, slo_us=100_000)
    plan = make_plan(problem)
    topology = Topology.from_plan(plan, problem.profiles)
    header, events, load = served_log(topology)
    log = with_seen(header, events, [{"m": load}])
    arrivals = [Arrival(at_us=0, model="m"), Arrival(at_us=SECOND_US, model="m")]

    _, found = simulate(plan, problem.profiles, arrivals, jitter=False, times=(header, log))
    report = run_report("simulated", header, found).total
    sent = [event.at_us for event in found if isinstance(event, Dispatched)]

    assert sent == [BEFORE_US + IN_US, SECOND_US + BEFORE_US + IN_US]
    assert report.latency is not None
    assert report.slo_attainment == 1.0
    took_us = sorted(event.at_us - event.started_at_us for event in found if isinstance(event, Ran))
    ways_us = BEFORE_US + IN_US + BACK_US
    assert (report.latency.p50_us, report.latency.max_us) == tuple(t + ways_us for t in took_us)
    tight = [Arrival(at_us=0, model="m", timeout_us=report.latency.p50_us + EARLY_US // 2)] * 2
    _, refused = simulate(plan, problem.profiles, tight, jitter=False, times=(header, log))
    assert run_report("simulated", header, refused).total.slo_attainment == 0.0


# -- clients that were behind ---------------------------------------------------------------------


def hurried_log(topology: Topology, in_time_s: int) -> tuple[EventLogHeader, list[AnyEvent]]:
    """Ten requests a second in time, then four seconds of fifty, of which a client sent one each
    40 ms: the last four seconds late."""
    due = [(100_000 * i, 100_000 * i) for i in range(10 * in_time_s)]
    behind_us = SECOND_US * in_time_s
    due += [(behind_us + 20_000 * i, behind_us + 40_000 * i) for i in range(200)]
    events: list[AnyEvent] = []
    for number, (scheduled_us, sent_us) in enumerate(due):
        heard_us = sent_us + IN_US
        events.append(Arrived(heard_us, number, 0, sent_us + topology.models[0].slo_us))
        events.append(Seen(heard_us + 5_000, number, scheduled_us, sent_us))
    return topology.event_log_header("live", "reservation"), events


@pytest.mark.parametrize("in_time_s", [10, 0])
def test_what_waited_for_a_client_that_was_behind_is_of_no_lower_rate(in_time_s: int) -> None:
    """Where the client was never in time, the log says nothing of waits."""
    problem = make_problem([make_profile("m")], nodes={"n": {"a": 1}}, slo_us=100_000)
    plan = make_plan(problem)
    header, log = hurried_log(Topology.from_plan(plan, problem.profiles), in_time_s)
    arrivals = [Arrival(at_us=33_000 * i, model="m") for i in range(300)]

    _, found = simulate(plan, problem.profiles, arrivals, jitter=False, times=(header, log))
    latency = run_report("simulated", header, found).total.latency

    assert latency is not None
    assert latency.max_us < 200_000


def test_pauses_of_a_rehearsal_are_no_load() -> None:
    """Two seconds of a request each 5 ms, with a pause of one second between them."""
    due_us = [5_000 * i + SECOND_US * (i >= 400) for i in range(800)]
    seen = [Seen(at_us + 1_000, i, at_us, at_us) for i, at_us in enumerate(due_us)]
    at_us = np.arange(0, 100 * SECOND_US, 50_000)

    stretches = left_out(seen)
    found = Moments(np.array(due_us), at_us, np.random.default_rng(1), left_out=stretches)

    assert stretches == [(due_us[399], due_us[400])]
    like_us = found.all_at(at_us)
    assert not ((like_us > due_us[399]) & (like_us < due_us[400])).any()
