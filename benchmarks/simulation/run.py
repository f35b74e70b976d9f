"""Speed of the simulator: simulated requests per CPU second, in a warm process.

Main sessions: the 24 published plans of PPipe's main experiment, each of their 72 models alone,
30 s of Poisson arrivals at a load factor of 0.9, no jitter, by our dispatcher in the compiled loop;
and as a peer the same sessions in artifact mode, which repeats the artifact's own simulator. They
need the reference data (HEADRACE_REFERENCE); without it they are skipped, with a message.

Synthetic sessions: one model, one pipeline of two stages on two pools of equal size, batch size 8,
at 90 % of the planned throughput, execution times with jitter. "alone": what became of every
request; "with log": every event as an object too, which is what `headrace simulate` does.

    python -m benchmarks.simulation.run [--requests N] [--every N] [--json]
"""

import argparse
import json
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from fractions import Fraction
from statistics import median
from typing import TypeVar

import numpy as np
from benchmarks.ppipe.artifact import run_session
from benchmarks.ppipe.cases import published_cases, short
from benchmarks.ppipe.ours import alone
from benchmarks.ppipe.planning_rows import problem_of
from benchmarks.ppipe.reference import reference_folder
from benchmarks.ppipe.systems import hardware_of

from headrace.dispatch.topology import Topology
from headrace.domain.cluster import Cluster, DeviceType, Node
from headrace.domain.plan import Deployment, Pipeline, Plan, Slot, Stage, Tenant
from headrace.domain.problem import Demand, PlanOptions
from headrace.domain.profile import Block, BlockTimes, Profile, Provenance
from headrace.domain.tensors import TensorSpec
from headrace.planning.common.imported import place_reference
from headrace.simulation.compiled import offer, run
from headrace.simulation.offered.arrivals import poisson
from headrace.simulation.offered.processes import poisson_us
from headrace.simulation.session import simulate

POLICIES = ("reservation", "reactive")
POOLS = (4, 30, 100)
BATCH = 8
LOAD_FACTOR = 0.9
SESSION_S = 30.0
REPEATS = 3
TARGET, STRETCH = 1_000_000, 5_000_000
P50_US = tuple(4_000 + 1_000 * size for size in range(1, BATCH + 1))
P99_US = tuple(round(1.1 * p50) for p50 in P50_US)
SLO_US = 5 * P99_US[-1]
WHOLE = Fraction(1)

Result = TypeVar("Result")


@dataclass(frozen=True, slots=True, kw_only=True)
class Main:
    """One published session; CPU seconds are the least of a few runs."""

    name: str
    slots: int
    requests: int
    batches: int
    slo_attainment: float
    cpu_s: float
    peer_cpu_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Synthetic:
    """One synthetic session, likewise."""

    policy: str
    slots_per_pool: int
    requests: int
    slo_attainment: float
    cpu_s: float
    logged_cpu_s: float


def timed(work: Callable[[], Result]) -> tuple[float, Result]:
    """The least CPU seconds of a few calls, and what the last one returned."""
    work()
    spent_s = []
    for _ in range(REPEATS):
        started_s = time.process_time()
        result = work()
        spent_s.append(time.process_time() - started_s)
    return min(spent_s), result


def main_sessions(every: int) -> Iterator[Main]:
    """Nothing where the reference data is absent."""
    folder = reference_folder()
    if folder is None:
        print(
            "skipped: the main sessions (set HEADRACE_REFERENCE to the folder that has `ppipe`)",
            file=sys.stderr,
        )
        return
    for case in published_cases(folder)[::every]:
        mine = alone(case.plans["ppipe"], case.index)
        profiles = {case.model: case.profiles[case.model]}
        placed = place_reference(mine, problem_of(mine, profiles))
        topology = Topology.from_plan(placed, profiles)
        rng = np.random.default_rng([1, *case.model.encode()])
        offered = offer(topology, poisson_us(LOAD_FACTOR * case.load_at_1_rps, SESSION_S, rng))
        cpu_s, outcomes = timed(lambda: run(topology, "reservation", offered))  # noqa: B023
        hardware = hardware_of(case, "ppipe")
        peer_cpu_s, _ = timed(lambda: run_session(hardware, offered.arrived_at_us))  # noqa: B023
        ended = outcomes.ended_at_us
        in_time = (ended >= 0) & (ended <= offered.deadline_at_us)
        yield Main(
            name=f"{case.cluster} {case.group} {short(case.model)}",
            slots=len(topology.slots),
            requests=len(ended),
            batches=outcomes.batches,
            slo_attainment=float(in_time.mean()),
            cpu_s=cpu_s,
            peer_cpu_s=peer_cpu_s,
        )


def profile() -> Profile:
    """Two equal blocks."""
    tensor = TensorSpec(name="x", dtype="float32", item_shape=(16,))
    block = Block(name="b", node_count=1, weights_bytes=1, cut=(tensor,), cut_bytes=64)
    times = BlockTimes(device="gpu", share=WHOLE, p50_us=(P50_US,) * 2, p99_us=(P99_US,) * 2)
    return Profile(
        model="m",
        provenance=Provenance(kind="synthetic", date="2026-01-01T00:00:00Z"),
        inputs=(tensor,),
        outputs=(tensor,),
        blocks=(block, block),
        block_times=(times,),
    )


def plan(slots_per_pool: int) -> Plan:
    """One pipeline of two stages, each on its own pool."""
    throughput_rps = slots_per_pool * BATCH / (P50_US[-1] / 1e6)
    pools = [[f"s{stage}-{i}" for i in range(slots_per_pool)] for stage in (0, 1)]
    slots = tuple(
        Slot(
            name=name,
            node="n",
            device="gpu",
            device_index=stage * slots_per_pool + i,
            share=WHOLE,
            tenants=(Tenant(model="m", pipeline="p", stage=stage),),
        )
        for stage, pool in enumerate(pools)
        for i, name in enumerate(pool)
    )
    stages = tuple(
        Stage(
            first_block=stage,
            end_block=stage + 1,
            device="gpu",
            share=WHOLE,
            pool=tuple(pool),
            latency_us=P99_US[-1],
            transfer_us=0,
            throughput_rps=throughput_rps,
        )
        for stage, pool in enumerate(pools)
    )
    pipeline = Pipeline(
        name="p",
        batch_size=BATCH,
        stages=stages,
        latency_us=2 * P99_US[-1],
        throughput_rps=throughput_rps,
    )
    return Plan(
        planner="by-hand",
        options=PlanOptions(),
        cluster=Cluster(
            device_types=(DeviceType(name="gpu"),),
            nodes=(Node(name="n", devices={"gpu": 2 * slots_per_pool}),),
        ),
        demands=(Demand(model="m", slo_us=SLO_US),),
        profiles=(),
        slots=slots,
        deployments=(
            Deployment(
                model="m",
                slo_us=SLO_US,
                budget_us=round(SLO_US * 0.6),
                pipelines=(pipeline,),
                throughput_rps=throughput_rps,
            ),
        ),
        objective=throughput_rps,
        bound=None,
        gap=None,
        stopped="heuristic",
        binding="none",
        cost_per_hour=None,
        runtime_s=0.0,
    )


def measure(policy: str, slots_per_pool: int, requests: int) -> Synthetic:
    """Simulate about `requests` arrivals, without and with the event log."""
    document, profiles = plan(slots_per_pool), {"m": profile()}
    rate_rps = LOAD_FACTOR * document.deployments[0].throughput_rps
    duration_s = requests / rate_rps
    topology = Topology.from_plan(document, profiles)
    offered = offer(topology, poisson_us(rate_rps, duration_s, np.random.default_rng(1)))
    arrivals = poisson("m", rate_rps, duration_s, np.random.default_rng(1))
    cpu_s, outcomes = timed(lambda: run(topology, policy, offered, rng=np.random.default_rng(1)))
    logged_cpu_s, _ = timed(lambda: simulate(document, profiles, arrivals, policy=policy, seed=1))
    ended = outcomes.ended_at_us
    return Synthetic(
        policy=policy,
        slots_per_pool=slots_per_pool,
        requests=len(ended),
        slo_attainment=float(((ended >= 0) & (ended <= offered.deadline_at_us)).mean()),
        cpu_s=cpu_s,
        logged_cpu_s=logged_cpu_s,
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--requests", type=int, default=50_000, help="per synthetic row [50000]")
    parser.add_argument(
        "--every", type=int, default=1, help="only every so-many-th main session [1]"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    given = parser.parse_args()
    if given.requests < 1 or given.every < 1:
        parser.error("--requests and --every must be at least 1")
    mains = list(main_sessions(given.every))
    synthetic = [measure(policy, slots, given.requests) for policy in POLICIES for slots in POOLS]
    if given.json:
        rows = {"main": [asdict(row) for row in mains], "synthetic": [asdict(r) for r in synthetic]}
        print(json.dumps(rows, indent=2))
        return
    if mains:
        _show_mains(mains)
    _show_synthetic(synthetic)


def _show_mains(rows: list[Main]) -> None:
    print(f"{len(rows)} main sessions of {SESSION_S:.0f} s, load factor {LOAD_FACTOR}")
    print(
        f"{'session':<32}{'slots':>6}{'requests':>9}{'batch':>6}{'attained':>9}{'req/CPU s':>12}"
        f"{'artifact mode':>15}"
    )
    for row in rows:
        print(
            f"{row.name:<32}{row.slots:>6}{row.requests:>9}{row.requests / row.batches:>6.1f}"
            f"{row.slo_attainment:>9.2%}{row.requests / row.cpu_s:>12,.0f}"
            f"{row.requests / row.peer_cpu_s:>15,.0f}"
        )
    requests = sum(row.requests for row in rows)
    ours = requests / sum(row.cpu_s for row in rows)
    peer = requests / sum(row.peer_cpu_s for row in rows)
    speeds = [row.requests / row.cpu_s for row in rows]
    per_batch = sum(row.cpu_s for row in rows) * 1e6 / sum(row.batches for row in rows)
    print(
        f"all: {ours:,.0f} requests per CPU second, {per_batch:.2f} us per batch (artifact mode:"
        f" {peer:,.0f}); per session median {median(speeds):,.0f}, least {min(speeds):,.0f}, most"
        f" {max(speeds):,.0f}\ntarget >= {TARGET:,}, stretch >= {STRETCH:,}:"
        f" {'stretch kept' if ours >= STRETCH else 'kept' if ours >= TARGET else 'MISSED'}\n"
    )


def _show_synthetic(rows: list[Synthetic]) -> None:
    print(f"two stages, batch size {BATCH}, Poisson at {LOAD_FACTOR:.0%} of planned throughput")
    print(f"{'':<14}{'':>11}{'':>10}{'':>10}{'requests per CPU second':>26}")
    print(
        f"{'policy':<14}{'slots/pool':>11}{'requests':>10}{'attained':>10}{'alone':>13}"
        f"{'with log':>13}"
    )
    for row in rows:
        print(
            f"{row.policy:<14}{row.slots_per_pool:>11}{row.requests:>10}{row.slo_attainment:>10.1%}"
            f"{row.requests / row.cpu_s:>13,.0f}{row.requests / row.logged_cpu_s:>13,.0f}"
        )


if __name__ == "__main__":
    main()
