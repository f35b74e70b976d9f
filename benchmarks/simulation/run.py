"""Speed of the simulator: simulated requests per CPU second, event log included.

One model, one pipeline of two stages on two pools of equal size, batch size 8, Poisson arrivals
at 90 % of the planned throughput, execution times with jitter. One node, so no transfers.

    python benchmarks/simulation/run.py [--requests N] [--json]
"""

import argparse
import json
import time
from fractions import Fraction

import numpy as np

from headrace.domain.cluster import Cluster, DeviceType, Node
from headrace.domain.plan import Deployment, Pipeline, Plan, Slot, Stage, Tenant
from headrace.domain.problem import Demand, PlanOptions
from headrace.domain.profile import Block, BlockTimes, Profile, Provenance, TensorSpec
from headrace.metrics import run_report
from headrace.simulation.arrivals import poisson
from headrace.simulation.session import simulate

POOLS = (4, 30, 100)
BATCH = 8
LOAD_FACTOR = 0.9
P50_US = tuple(4_000 + 1_000 * size for size in range(1, BATCH + 1))
P99_US = tuple(round(1.1 * p50) for p50 in P50_US)
SLO_US = 5 * P99_US[-1]
WHOLE = Fraction(1)


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


def measure(policy: str, slots_per_pool: int, requests: int) -> dict[str, str | int | float]:
    """Simulate about `requests` arrivals and say what a CPU second was worth."""
    document = plan(slots_per_pool)
    rate_rps = LOAD_FACTOR * document.deployments[0].throughput_rps
    arrivals = poisson("m", rate_rps, requests / rate_rps, np.random.default_rng(1))
    started_s = time.process_time()
    header, events = simulate(document, {"m": profile()}, arrivals, policy=policy, seed=1)
    cpu_s = time.process_time() - started_s
    summary = run_report("simulated", header, events).total
    return {
        "policy": policy,
        "slots_per_pool": slots_per_pool,
        "requests": summary.arrived,
        "events": len(events),
        "slo_attainment": summary.slo_attainment or 0.0,
        "cpu_s": cpu_s,
        "requests_per_cpu_s": summary.arrived / cpu_s,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--requests", type=int, default=20_000, help="per row [20000]")
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    arguments = parser.parse_args()
    rows = [
        measure(policy, slots, arguments.requests)
        for policy in ("reservation", "reactive")
        for slots in POOLS
    ]
    if arguments.json:
        print(json.dumps(rows, indent=2))
        return
    print(f"two stages, batch size {BATCH}, Poisson at {LOAD_FACTOR:.0%} of planned throughput")
    print(f"{'policy':<14}{'slots/pool':>11}{'requests':>10}{'attained':>10}{'requests/CPU s':>16}")
    for row in rows:
        print(
            f"{row['policy']:<14}{row['slots_per_pool']:>11}{row['requests']:>10}"
            f"{row['slo_attainment']:>10.1%}{row['requests_per_cpu_s']:>16,.0f}"
        )


if __name__ == "__main__":
    main()
