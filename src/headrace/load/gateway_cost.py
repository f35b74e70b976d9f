"""What the gateway takes of a processor for one request of a model, on the path that serves.

A server of its own runs the model's inputs and outputs through HTTP, protocol, dispatcher, shared
memory and back; its worker only waits for as long as a batch would take. Counted is the processor
time of the gateway's process, so that other programs on the machine disturb little.
"""

from fractions import Fraction
from pathlib import Path
from tempfile import TemporaryDirectory

from msgspec.structs import replace

from headrace.catalog.documents import sha256_file, write_document
from headrace.cost import TimedStage, cost_model
from headrace.domain.cluster import Cluster, DeviceType, Node
from headrace.domain.problem import Demand, PlanOptions, Problem, ProfileRef
from headrace.domain.profile import VARIES, BlockTimes, Profile
from headrace.load.child_server import ChildServer, child_server
from headrace.load.generator import LoadOptions, run_load
from headrace.planning import solve
from headrace.simulation.offered.arrivals import arrivals_for

MOST_STAGE_US = 1_000
BATCH_SIZE = 32
SLO_US = 60_000_000
FIRST_RPS = 100.0
MOST_RPS = 25_000.0
"""Below what the worker can do."""
BUSY = 1.0
"""Of the gateway, while it is measured: it limits throughput when it has no rest, and idle
every request would pay for waking it up; far beyond, many are read in one turn for less."""
CONNECTIONS = 32
"""All that is under way at once, so that tensor memory is never full."""
STEPS = 3
"""Each nearer to that, since the busier it is the less a request takes."""
SEED = 1


def measure_gateway_us(profile: Profile, device: str, duration_s: float = 1.0) -> int:
    """Processor time of the gateway per request of one item, microseconds, at least 1.

    Takes about four seconds, most of them for the server to start and to end.

    Args:
        device: that the profile has times of; a worker takes as long as a whole one.

    Raises:
        ModelError: inputs whose shape is free cannot be made up.
        ServerFailedError: no server could be started.
    """
    with TemporaryDirectory(prefix="headrace-") as folder:
        plan = _write_plan(profile, device, Path(folder))
        with child_server(plan, "--executor", "emulated", "--no-auth") as server:
            # The first requests also warm it up.
            rate_rps, taken_us = FIRST_RPS, []
            for _ in range(1 + STEPS):
                part_s = duration_s / STEPS
                taken_us.append(_per_request_us(server, profile.model, rate_rps, part_s))
                rate_rps = min(MOST_RPS, BUSY * 1e6 / taken_us[-1])
            return max(1, round(taken_us[-1]))


def _per_request_us(server: ChildServer, model: str, rate_rps: float, duration_s: float) -> float:
    arrivals = arrivals_for("poisson", {model: rate_rps}, max(duration_s, 20 / rate_rps), SEED)
    before_us = server.processor_us()
    options = LoadOptions(slo_us=SLO_US, connections=CONNECTIONS)
    result = run_load(server.url, model, arrivals, options)
    answered = sum(not request.reason for request in result.requests)
    return max(1.0, (server.processor_us() - before_us) / max(1, answered))


def _write_plan(profile: Profile, device: str, folder: Path) -> Path:
    """Of the model as one block that takes what a batch of one does, whatever the batch size, and
    MOST_STAGE_US at most: a slower worker would leave the gateway idle."""
    whole = Fraction(1)
    stage = TimedStage.whole_model(profile, device, whole)
    alone_us = cost_model({profile.model: profile}).execution(stage, 1).p50_us
    took_us = (min(MOST_STAGE_US, alone_us),) * (BATCH_SIZE if profile.batched else 1)
    last = profile.blocks[-1]
    emulated = replace(
        profile,
        model_path=None,
        model_sha256=None,
        blocks=(last,),
        block_times=(BlockTimes(device="cpu", share=whole, p50_us=(took_us,), p99_us=(took_us,)),),
        stage_times=(),
        gateway_us=0,
        # Of a model of several sizes the largest.
        dimensions=(),
        sizes=(),
        buckets=(),
        inputs=tuple(replace(spec, dims=()) for spec in profile.inputs),
        # What varies within one request does so at any size.
        outputs=tuple(
            spec if VARIES in spec.dims else replace(spec, dims=()) for spec in profile.outputs
        ),
    )
    write_document(emulated, folder / "profile.json")
    named = ProfileRef(
        model=profile.model, path="profile.json", sha256=sha256_file(folder / "profile.json")
    )
    found = solve(
        Problem(
            cluster=Cluster(
                device_types=(DeviceType(name="cpu"),),
                nodes=(Node(name="local", devices={"cpu": 1}),),
            ),
            demands=(Demand(model=profile.model, slo_us=SLO_US),),
            profiles={profile.model: emulated},
            profile_refs=(named,),
            options=PlanOptions(margin=0.0),
        )
    )
    assert found.plan is not None, "one slot serves one block"
    write_document(found.plan, folder / "plan.json")
    return folder / "plan.json"
