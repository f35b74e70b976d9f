"""CPU time of a simulated ten-minute stream on 64 places, and of a decision.

    HEADRACE_REFERENCE=FOLDER python -m benchmarks.accordion.speed [--streams 1,3,6] [--seed 10]

A decision is one event told to the kernel alone, as the server does it: a query that arrives with
its items, or a stage that has run; the way from Python included, no event log. Least of three runs;
moderate SLO.
"""

import argparse
import time
from collections.abc import Callable
from itertools import groupby

import numpy as np
from benchmarks.accordion.simulated import (
    POLICIES,
    offered_stream,
    policy_of,
    topology_of,
)
from benchmarks.accordion.streams import STREAMS, query_stream

from headrace.dispatch.dispatcher import Dispatcher
from headrace.dispatch.kernel.handle import kernel_of
from headrace.dispatch.kernel.tables import Store
from headrace.dispatch.policies import Policy
from headrace.dispatch.topology import Topology
from headrace.domain.request import Request
from headrace.simulation.clock import SimClock
from headrace.simulation.compiled import Offered, run
from headrace.simulation.driver import SimDriver, exact_durations
from headrace.simulation.session import replay_items

STREAM_S, DECISION_US = 1.0, 20.0
REPEATS = 3

Told = list[tuple[int, ...]]


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


def told_to_kernel(topology: Topology, policy: Policy, offered: Offered) -> Told:
    """All that the kernel is told in a session of the server's dispatcher in virtual time."""
    clock = SimClock()
    driver = SimDriver(topology, clock, exact_durations)
    dispatcher = Dispatcher(topology, policy, clock, driver, None)
    driver.reports = dispatcher
    told: Told = []
    tell = dispatcher.tell_kernel

    def noting(*numbers: int) -> int:
        told.append(numbers)
        return int(tell(*numbers))

    dispatcher.tell_kernel = noting
    replay_items(iter(_queries(offered)), clock, dispatcher.on_items)
    clock.run()
    return told


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


def decision_us(topology: Topology, policy: Policy, told: Told) -> tuple[float, float]:
    """CPU time of an event in the kernel: the mean, and the 99th percentile of wall time."""
    kernel = kernel_of(policy.module)
    spent = []
    each_ns: list[int] = []
    for repeat in range(REPEATS):
        store = Store(topology, policy, queue_max=10_000, logged=False)
        spent_s = 0.0
        # The tables were elsewhere each time that they had grown.
        for i, (_, between) in enumerate(groupby(told, key=lambda numbers: numbers[0])):
            if i:
                store.grow(2 * store.rows)
            held, tell = kernel.kind.hold(store.arrays), kernel.tell
            again = [(held.where, *numbers[1:]) for numbers in between]
            if repeat == 0:
                for numbers in again:
                    before_ns = time.perf_counter_ns()
                    tell(*numbers)
                    each_ns.append(time.perf_counter_ns() - before_ns)
                continue
            started_s = time.process_time()
            for numbers in again:
                tell(*numbers)
            spent_s += time.process_time() - started_s
        if repeat:
            spent.append(spent_s)
    return min(spent) * 1e6 / len(told), float(np.percentile(each_ns, 99)) / 1e3


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
            told = told_to_kernel(topology, policy, offered)
            mean_us, p99_us = decision_us(topology, policy, told)
            worst_s, worst_us = max(worst_s, took_s), max(worst_us, mean_us)
            print(
                f"{number:<8}{name:16}{len(stream):8}{len(offered.model):8}{took_s:8.3f}"
                f"{len(told):9}{mean_us:9.2f}{p99_us:7.1f}"
            )
    kept = worst_s <= STREAM_S and worst_us <= DECISION_US
    print(f"most: {worst_s:.3f} s, {worst_us:.2f} us: {'holds' if kept else 'MISSED'}")


if __name__ == "__main__":
    main()
