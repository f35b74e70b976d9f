"""What a batch costs a slot beyond its execution, measured on the path that serves.

A slot that ends a batch reports it, the dispatcher decides, and the next batch's frame reaches
the worker: until then the slot is idle though work is waiting. Next to stages of milliseconds it
is small; next to a stage of microseconds it is everything.
"""

import asyncio
from collections.abc import Sequence
from fractions import Fraction
from itertools import pairwise
from pathlib import Path
from statistics import median

from headrace.domain.cluster import Cluster, DeviceType, Node
from headrace.domain.events import AnyEvent, Ran
from headrace.domain.plan import Deployment, Pipeline, Plan, Slot, Stage, Tenant
from headrace.domain.problem import Demand, PlanOptions, ProfileRef
from headrace.domain.profile import Block, BlockTimes, Profile, Provenance
from headrace.domain.tensors import TensorSpec
from headrace.executors.table import EMULATED
from headrace.serving.engine.engine import Engine
from headrace.serving.engine.inference import Answer, Inference, Refusal
from headrace.serving.engine.served_plan import ServedPlan, ServiceOptions
from headrace.serving.workers.remote.cluster import ClusterAddresses

BATCHES = 200
STAGE_US = 500
"""Long enough for the gateway to be asleep when the batch ends, as it is in real service."""
SLO_US = 60_000_000
NODE = "local"
_NAME = "overhead"
_WHOLE = Fraction(1)


async def measure_batch_overhead_us(cluster: ClusterAddresses | None = None) -> int:
    """Return the median gap between batches of one busy slot, with a real worker process.

    Args:
        cluster: where an agent for `NODE` is, whose worker it is then; None: of this machine.

    The worker emulates a stage of STAGE_US; 64 bytes go in and out, so that the gap is the
    control path's alone. Takes about a second.
    """
    plan, profile = _plan(), _profile()
    events: list[AnyEvent] = []
    engine = Engine(
        ServedPlan(plan=plan, profiles={_NAME: profile}, folders={_NAME: Path()}),
        ServiceOptions(executor=EMULATED, cluster=cluster),
        sink=events.append,
    )
    await engine.start()
    try:
        await _run_batches(engine)
    finally:
        await engine.stop()
    return median_gap_us([event for event in events if isinstance(event, Ran)])


def median_gap_us(runs: Sequence[Ran]) -> int:
    """From the end of a batch to the start of the next, of batches in a row on one slot."""
    return round(median(later.started_at_us - earlier.at_us for earlier, later in pairwise(runs)))


async def _run_batches(engine: Engine) -> None:
    done = asyncio.Event()
    answered = 0

    def count(result: Answer | Refusal) -> None:
        nonlocal answered
        answered += 1
        if answered == BATCHES:
            done.set()

    for _ in range(BATCHES):
        engine.submit(
            Inference(model=_NAME, items=1, inputs=(bytes(64),), on_done=count, timeout_us=SLO_US)
        )
    await done.wait()


def _profile() -> Profile:
    tensor = TensorSpec(name="x", dtype="float32", item_shape=(16,))
    block = Block(name="b", node_count=1, weights_bytes=0, cut=(tensor,), cut_bytes=64)
    times = BlockTimes(device="cpu", share=_WHOLE, p50_us=((STAGE_US,),), p99_us=((STAGE_US,),))
    return Profile(
        model=_NAME,
        provenance=Provenance(kind="synthetic", date="2026-01-01T00:00:00Z"),
        inputs=(tensor,),
        outputs=(tensor,),
        blocks=(block,),
        block_times=(times,),
    )


def _plan() -> Plan:
    rate_rps = 1e6 / STAGE_US
    stage = Stage(
        first_block=0,
        end_block=1,
        device="cpu",
        share=_WHOLE,
        pool=(f"{NODE}/cpu-0",),
        latency_us=STAGE_US,
        transfer_us=0,
        throughput_rps=rate_rps,
    )
    pipeline = Pipeline(
        name="p0", batch_size=1, stages=(stage,), latency_us=STAGE_US, throughput_rps=rate_rps
    )
    slot = Slot(
        name=f"{NODE}/cpu-0",
        node=NODE,
        device="cpu",
        device_index=0,
        share=_WHOLE,
        tenants=(Tenant(model=_NAME, pipeline="p0", stage=0),),
    )
    return Plan(
        planner="none",
        options=PlanOptions(margin=0.0),
        cluster=Cluster(
            device_types=(DeviceType(name="cpu"),), nodes=(Node(name=NODE, devices={"cpu": 1}),)
        ),
        demands=(Demand(model=_NAME, slo_us=SLO_US),),
        profiles=(ProfileRef(model=_NAME, path="", sha256=""),),
        slots=(slot,),
        deployments=(
            Deployment(
                model=_NAME,
                slo_us=SLO_US,
                budget_us=SLO_US,
                pipelines=(pipeline,),
                throughput_rps=rate_rps,
            ),
        ),
        objective=rate_rps,
        bound=None,
        gap=None,
        stopped="heuristic",
        binding="the one slot there is",
        cost_per_hour=None,
        runtime_s=0.0,
    )
