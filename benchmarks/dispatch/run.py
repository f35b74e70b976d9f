"""Cost of a dispatch decision: probe + reserve, microseconds per dispatched batch.

One model, one pipeline of two pools of equal size on nodes of four slots, batch size 1, offered
90 % of its capacity; every event of the simulated session goes through the real dispatcher.

    python benchmarks/dispatch/run.py [--json]
"""

import argparse
import json
import time
from collections.abc import Sequence

import numpy as np

from headrace.dispatch.dispatcher import Dispatcher
from headrace.dispatch.policies import POLICIES, make_policy
from headrace.dispatch.protocols import Batch, Decision, Dispatch, Policy
from headrace.dispatch.topology import ModelRoutes, Route, StageTable, Topology
from headrace.domain.request import Request
from headrace.simulation.clock import SimClock
from headrace.simulation.driver import SimDriver, exact_durations
from headrace.simulation.session import replay

POOLS = (4, 30, 100)
STAGE_US = 10_000
SLOTS_PER_NODE = 4
REQUESTS = 5_000


class TimedPolicy:
    """Passes everything on to a policy and adds up the time its decisions take."""

    def __init__(self, policy: Policy) -> None:
        self._policy = policy
        self.decide_ns = 0
        self.feedback_ns = 0
        self.batches = 0

    def decide(self, model: int, queue: Sequence[Request], now_us: int) -> Decision:
        started_ns = time.perf_counter_ns()
        decision = self._policy.decide(model, queue, now_us)
        self.decide_ns += time.perf_counter_ns() - started_ns
        self.batches += isinstance(decision, Dispatch)
        return decision

    def on_started(self, batch: Batch, now_us: int) -> None:
        started_ns = time.perf_counter_ns()
        self._policy.on_started(batch, now_us)
        self.feedback_ns += time.perf_counter_ns() - started_ns

    def on_ended(self, batch: Batch, now_us: int) -> None:
        started_ns = time.perf_counter_ns()
        self._policy.on_ended(batch, now_us)
        self.feedback_ns += time.perf_counter_ns() - started_ns

    def __getattr__(self, name: str) -> object:
        return getattr(self._policy, name)


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


def measure(policy_name: str, slots: int) -> dict[str, float | int | str]:
    """Simulate REQUESTS arrivals and return the cost per dispatched batch."""
    topology = two_pools(slots)
    rng = np.random.default_rng(1)
    gaps = rng.exponential(STAGE_US / slots / 0.9, size=REQUESTS)
    arrivals = (
        Request(id=i, model=0, arrived_at_us=at, deadline_at_us=at + 10 * STAGE_US)
        for i, at in enumerate(np.cumsum(gaps).astype(int).tolist())
    )
    clock = SimClock()
    policy = TimedPolicy(make_policy(policy_name, topology))
    driver = SimDriver(topology, clock, exact_durations)
    dispatcher = Dispatcher(topology, policy, clock, driver, lambda event: None)  # type: ignore[arg-type]
    driver.reports = dispatcher
    replay(arrivals, clock, dispatcher.on_arrival)
    started = time.process_time()
    clock.run()
    cpu_s = time.process_time() - started
    return {
        "policy": policy_name,
        "slots_per_pool": slots,
        "batches": policy.batches,
        "decide_us": policy.decide_ns / 1000 / policy.batches,
        "feedback_us": policy.feedback_ns / 1000 / policy.batches,
        "session_us": cpu_s * 1e6 / policy.batches,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    arguments = parser.parse_args()
    rows = [measure(policy, slots) for policy in POLICIES for slots in POOLS]
    if arguments.json:
        print(json.dumps(rows, indent=2))
        return
    print("microseconds per dispatched batch (two stages, 90 % load)")
    print(f"{'policy':<18}{'slots/pool':>11}{'decide':>9}{'feedback':>10}{'whole session':>15}")
    for row in rows:
        print(
            f"{row['policy']:<18}{row['slots_per_pool']:>11}{row['decide_us']:>9.1f}"
            f"{row['feedback_us']:>10.1f}{row['session_us']:>15.1f}"
        )


if __name__ == "__main__":
    main()
