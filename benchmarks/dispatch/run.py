"""Cost of dispatching: microseconds per dispatched batch, everything included.

One model, one pipeline of two pools of equal size on nodes of four slots, batch size 1, offered
90 % of its capacity; so four events per batch: an arrival, a transfer and two runs.

    simulated   the whole session in the compiled loop: queues, decisions, reservations, feedback
                and virtual time
    kernel      the same decisions, asked for one event at a time as the server does, the way from
                Python included
    dispatcher  that, and what the Dispatcher adds: orders to a driver, and counters; this is what
                a server without `--events` pays
    logged      that, and the events, encoded and written to a file: a server with `--events`
    in Python   the Dispatcher, events that are thrown away, and virtual time in Python: its clock,
                its driver and the arrivals

CPU time; of kernel, dispatcher and logged the least of five.

With --tenants: slots of one stage that serve one model, or four in turns, at the same load in all:
what a decision costs with several tenants per slot.

    python -m benchmarks.dispatch.run [--json] [--tenants]
"""

import argparse
import json
import time
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
from benchmarks.dispatch.tape import Call, Recorder, kernel_s, play

from headrace.catalog.event_log import EventLogWriter
from headrace.dispatch.dispatcher import Dispatcher
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
TENANT_SLOTS = (1, 4, 30)
"""With --tenants."""


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


def in_turns(slots: int, tenants: int) -> Topology:
    """`tenants` models, each on all `slots` slots."""
    stage = StageTable(0, 1, tuple(range(slots)), (STAGE_US,), (STAGE_US,), 0)
    return Topology(
        models=tuple(
            ModelRoutes(f"m{number}", 10 * STAGE_US, (Route("p0", 1, (stage,), (0,)),))
            for number in range(tenants)
        ),
        slots=tuple(f"s{i}" for i in range(slots)),
        slot_node=(0,) * slots,
        nodes=("n0",),
        node_bytes_per_us=(None,),
    )


def measure_tenants(slots: int, tenants: int) -> dict[str, float | int | str]:
    """As `measure`, of what a server pays per batch."""
    topology = in_turns(slots, tenants)
    rng = np.random.default_rng(1)
    gaps = rng.exponential(STAGE_US / slots / 0.9, size=REQUESTS)
    models = rng.integers(tenants, size=REQUESTS)
    offered = offer(topology, np.cumsum(gaps).astype(np.int64), models)
    run(topology, "reservation", offered)
    started = time.process_time()
    batches = run(topology, "reservation", offered).batches
    compiled_s = time.process_time() - started
    _, calls = session(topology, "reservation", offered, recorded=True)
    return {
        "slots": slots,
        "tenants": tenants,
        "session_us": compiled_s * 1e6 / batches,
        "kernel_us": least(lambda: kernel_s(topology, "reservation", calls)) * 1e6 / batches,
        "dispatcher_us": least(lambda: play(topology, "reservation", calls)) * 1e6 / batches,
    }


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
    in_python_s, _ = session(topology, policy, offered)
    _, calls = session(topology, policy, offered, recorded=True)
    return {
        "policy": policy,
        "slots_per_pool": slots,
        "batches": batches,
        "session_us": compiled_s * 1e6 / batches,
        "kernel_us": least(lambda: kernel_s(topology, policy, calls)) * 1e6 / batches,
        "dispatcher_us": least(lambda: play(topology, policy, calls)) * 1e6 / batches,
        "logged_us": least(lambda: logged_s(topology, policy, calls)) * 1e6 / batches,
        "in_python_us": in_python_s * 1e6 / batches,
    }


def least(measured: Callable[[], float]) -> float:
    return min(measured() for _ in range(5))


def logged_s(topology: Topology, policy: str, calls: list[Call]) -> float:
    """As `play`, of a dispatcher with an event log."""
    with TemporaryDirectory() as folder:
        header = topology.event_log_header("virtual", policy)
        with EventLogWriter(Path(folder) / "run.events", header) as log:
            return play(topology, policy, calls, log.append)


def session(
    topology: Topology, policy: str, offered: Offered, *, recorded: bool = False
) -> tuple[float, list[Call]]:
    """Seconds of a session in Python, and what the dispatcher was told in it, if recorded."""
    clock = SimClock()
    driver = SimDriver(topology, clock, exact_durations)
    recorder = Recorder(clock)
    dispatcher = Dispatcher(
        topology, policy, recorder if recorded else clock, driver, lambda event: None
    )
    recorder.dispatcher = dispatcher
    driver.reports = recorder if recorded else dispatcher
    requests = (
        Request(id=i, model=model, arrived_at_us=at, deadline_at_us=deadline)
        for i, (model, at, deadline) in enumerate(
            zip(
                offered.model.tolist(),
                offered.arrived_at_us.tolist(),
                offered.deadline_at_us.tolist(),
                strict=True,
            )
        )
    )
    replay(requests, clock, recorder.on_arrival if recorded else dispatcher.on_arrival)
    started_s = time.process_time()
    clock.run()
    return time.process_time() - started_s, recorder.calls


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    parser.add_argument("--tenants", action="store_true", help="one and four models per slot")
    arguments = parser.parse_args()
    if arguments.tenants:
        _print_tenants(arguments.json)
        return
    rows = [measure(policy, slots) for policy in POLICIES for slots in POOLS]
    if arguments.json:
        print(json.dumps(rows, indent=2))
        return
    print("microseconds per dispatched batch (two stages, 90 % load); target <= 5, stretch <= 1.5")
    columns = f"{'simulated':>11}{'kernel':>9}{'dispatcher':>12}{'logged':>9}{'in Python':>11}"
    print(f"{'policy':<18}{'slots/pool':>11}{columns}")
    for row in rows:
        print(
            f"{row['policy']:<18}{row['slots_per_pool']:>11}{row['session_us']:>11.2f}"
            f"{row['kernel_us']:>9.2f}{row['dispatcher_us']:>12.2f}{row['logged_us']:>9.2f}"
            f"{row['in_python_us']:>11.2f}"
        )


def _print_tenants(as_json: bool) -> None:
    rows = [measure_tenants(slots, tenants) for slots in TENANT_SLOTS for tenants in (1, 4)]
    if as_json:
        print(json.dumps(rows, indent=2))
        return
    print("microseconds per dispatched batch (one stage, 90 % load); four tenants <= 2 x one")
    print(f"{'slots':>6}{'tenants':>9}{'simulated':>11}{'kernel':>9}{'dispatcher':>12}")
    for row in rows:
        print(
            f"{row['slots']:>6}{row['tenants']:>9}{row['session_us']:>11.2f}"
            f"{row['kernel_us']:>9.2f}{row['dispatcher_us']:>12.2f}"
        )


if __name__ == "__main__":
    main()
