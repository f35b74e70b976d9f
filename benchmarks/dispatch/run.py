"""Cost of dispatching: microseconds per dispatched batch, everything included.

One model, one pipeline of two pools of equal size on nodes of four slots, batch size 1, offered
90 % of its capacity. "simulated": the whole session in the compiled loop, queues, decisions,
reservations, feedback and virtual time; "kernel": the same decisions, asked for one event at a time
as the server does, the way from Python included; "in Python": that, the log and virtual time.

    python benchmarks/dispatch/run.py [--json]
"""

import argparse
import json
import time

import numpy as np

from headrace.dispatch.dispatcher import Dispatcher
from headrace.dispatch.kernel import handle
from headrace.dispatch.kernel.layout import Ints
from headrace.dispatch.policies import POLICIES
from headrace.dispatch.topology import ModelRoutes, Route, StageTable, Topology
from headrace.domain.request import Request
from headrace.simulation.clock import SimClock
from headrace.simulation.compiled import Offered, offer, run
from headrace.simulation.driver import SimDriver, exact_durations
from headrace.simulation.session import replay

POOLS = (4, 30, 100)
STAGE_US = 10_000
SLOTS_PER_NODE = 4
REQUESTS = 20_000


def two_pools(slots: int) -> Topology:
    """A pipeline of two pools of `slots` slots; a transfer takes 1 ms on an idle link."""
    pools = range(slots), range(slots, 2 * slots)
    stages = tuple(
        StageTable(0, 1, tuple(pool), (STAGE_US,), (STAGE_US,), input_bytes)
        for pool, input_bytes in zip(pools, (0, 1_250_000), strict=True)
    )
    node = tuple(slot // SLOTS_PER_NODE for slot in range(2 * slots))
    nodes = node[-1] + 1
    return Topology(
        models=(ModelRoutes("m", 10 * STAGE_US, (Route("p0", 1, stages, (0,)),)),),
        slots=tuple(f"s{i}" for i in range(2 * slots)),
        slot_node=node,
        nodes=tuple(f"n{i}" for i in range(nodes)),
        node_bytes_per_us=(1250.0,) * nodes,
    )


def measure(policy: str, slots: int) -> dict[str, float | int | str]:
    """Simulate REQUESTS arrivals in the compiled loop, then through the server's Dispatcher."""
    topology = two_pools(slots)
    rng = np.random.default_rng(1)
    gaps = rng.exponential(STAGE_US / slots / 0.9, size=REQUESTS)
    offered = offer(topology, np.cumsum(gaps).astype(np.int64))
    run(topology, policy, offered)
    started = time.process_time()
    batches = run(topology, policy, offered).batches
    compiled_s = time.process_time() - started
    in_kernel_s, in_python_s = through_dispatcher(topology, policy, offered)
    return {
        "policy": policy,
        "slots_per_pool": slots,
        "batches": batches,
        "session_us": compiled_s * 1e6 / batches,
        "kernel_us": in_kernel_s * 1e6 / batches,
        "dispatcher_us": in_python_s * 1e6 / batches,
    }


def through_dispatcher(topology: Topology, policy: str, offered: Offered) -> tuple[float, float]:
    """Seconds in the kernel as the server calls it, and in all of the dispatcher, same session."""
    clock = SimClock()
    driver = SimDriver(topology, clock, exact_durations)
    dispatcher = Dispatcher(topology, policy, clock, driver, lambda event: None)
    driver.reports = dispatcher
    spent_ns = [0]

    def timed(addresses: Ints, *numbers: int) -> int:
        started_ns = time.perf_counter_ns()
        rows = tell(addresses, *numbers)
        spent_ns[0] += time.perf_counter_ns() - started_ns
        return rows

    requests = (
        Request(id=i, model=0, arrived_at_us=at, deadline_at_us=deadline)
        for i, (at, deadline) in enumerate(
            zip(offered.arrived_at_us.tolist(), offered.deadline_at_us.tolist(), strict=True)
        )
    )
    replay(requests, clock, dispatcher.on_arrival)
    tell = handle.tell
    handle.tell = timed
    started = time.process_time()
    try:
        clock.run()
    finally:
        handle.tell = tell
    return spent_ns[0] / 1e9, time.process_time() - started


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    arguments = parser.parse_args()
    rows = [measure(policy, slots) for policy in POLICIES for slots in POOLS]
    if arguments.json:
        print(json.dumps(rows, indent=2))
        return
    print("microseconds per dispatched batch (two stages, 90 % load); target <= 5, stretch <= 1.5")
    print(f"{'policy':<18}{'slots/pool':>11}{'simulated':>11}{'kernel':>9}{'in Python':>11}")
    for row in rows:
        print(
            f"{row['policy']:<18}{row['slots_per_pool']:>11}{row['session_us']:>11.2f}"
            f"{row['kernel_us']:>9.2f}{row['dispatcher_us']:>11.2f}"
        )


if __name__ == "__main__":
    main()
