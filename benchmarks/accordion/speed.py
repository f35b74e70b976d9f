"""CPU time of a simulated ten-minute stream on 64 places, and of a decision.

    HEADRACE_REFERENCE=FOLDER python -m benchmarks.accordion.speed [--streams 1,3,6] [--seed 10]

A decision is one event told to the kernel alone, as the server does it: a query that arrives with
its items, or a stage that has run; the way from Python included, no event log. Wall time;
moderate SLO.
"""

import argparse
import time
from collections.abc import Callable

import numpy as np
from benchmarks.accordion.simulated import (
    POLICIES,
    offered_stream,
    policy_of,
    topology_of,
)
from benchmarks.accordion.streams import STREAMS, query_stream

from headrace.dispatch.dispatcher import Dispatcher
from headrace.dispatch.policies import Policy
from headrace.dispatch.topology import Topology
from headrace.domain.request import Request
from headrace.simulation.clock import SimClock
from headrace.simulation.compiled import Offered, run
from headrace.simulation.driver import SimDriver, exact_durations
from headrace.simulation.session import replay_items

STREAM_S, DECISION_US = 1.0, 20.0
REPEATS = 3


def stream_s(topology: Topology, policy: Policy, offered: Offered) -> float:
    """CPU seconds of the whole simulation."""
    run(topology, policy, offered)
    return _least(lambda: run(topology, policy, offered))


def _least(work: Callable[[], object]) -> float:
    spent = []
    for _ in range(REPEATS):
        started_s = time.process_time()
        work()
        spent.append(time.process_time() - started_s)
    return min(spent)


def decisions_us(topology: Topology, policy: Policy, offered: Offered) -> list[float]:
    """Wall time of each call of the kernel in a session of the server's dispatcher."""
    clock = SimClock()
    driver = SimDriver(topology, clock, exact_durations)
    dispatcher = Dispatcher(topology, policy, clock, driver, None)
    driver.reports = dispatcher
    spent_us: list[float] = []
    tell = dispatcher.tell_kernel

    def timed(*numbers: int) -> int:
        before_ns = time.perf_counter_ns()
        written = int(tell(*numbers))
        spent_us.append((time.perf_counter_ns() - before_ns) / 1e3)
        return written

    dispatcher.tell_kernel = timed
    replay_items(iter(_queries(offered)), clock, dispatcher.on_items)
    clock.run()
    return spent_us


def _queries(offered: Offered) -> list[list[Request]]:
    queries: list[list[Request]] = []
    first = 0
    while first < len(offered.model):
        items = int(offered.items[first])
        queries.append(
            [
                Request(
                    id=number,
                    model=int(offered.model[first]),
                    arrived_at_us=int(offered.arrived_at_us[first]),
                    deadline_at_us=int(offered.deadline_at_us[first]),
                    priority=int(offered.priority[first]),
                )
                for number in range(first, first + items)
            ]
        )
        first += items
    return queries


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--streams", default=",".join(map(str, STREAMS)))
    parser.add_argument("--seed", type=int, default=10)
    given = parser.parse_args()
    print(f"a stream <= {STREAM_S:g} s of CPU time, a decision <= {DECISION_US:g} us")
    print(f"{'stream':8}{'policy':16}{'queries':>8}{'items':>8}{'CPU s':>8}", end="")
    print(f"{'events':>9}{'us each':>9}{'p99':>7}")
    worst_s = worst_us = 0.0
    for number in map(int, given.streams.split(",")):
        stream, topology = query_stream(number, given.seed), topology_of(number)
        offered = offered_stream(stream, stream.slo_us("moderate"))
        for name in POLICIES:
            if name.endswith("-all"):
                continue
            policy = policy_of(name)
            took_s = stream_s(topology, policy, offered)
            spent_us = decisions_us(topology, policy, offered)
            mean_us, p99_us = float(np.mean(spent_us)), float(np.percentile(spent_us, 99))
            worst_s, worst_us = max(worst_s, took_s), max(worst_us, mean_us)
            print(
                f"{number:<8}{name:16}{len(stream):8}{len(offered.model):8}{took_s:8.3f}"
                f"{len(spent_us):9}{mean_us:9.2f}{p99_us:7.1f}"
            )
    kept = worst_s <= STREAM_S and worst_us <= DECISION_US
    print(f"most: {worst_s:.3f} s, {worst_us:.2f} us: {'holds' if kept else 'MISSED'}")


if __name__ == "__main__":
    main()
