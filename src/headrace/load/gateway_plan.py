"""What is served while the gateway's time is measured: one slot of one model."""

from fractions import Fraction
from pathlib import Path

from msgspec.structs import replace

from headrace.catalog.documents import sha256_file, write_document
from headrace.cost import TimedStage, cost_model
from headrace.domain.cluster import Cluster, DeviceType, Node
from headrace.domain.problem import Demand, PlanOptions, Problem, ProfileRef
from headrace.domain.profile import BlockTimes, Profile
from headrace.domain.tensors import VARIES
from headrace.planning import solve
from headrace.profiling.devices import CPU

MOST_STAGE_US = 1_000
"""Of a batch on a worker that waits, and of a request of a model that is run."""
BATCH_SIZE = 32
SLO_US = 60_000_000


def least_slot_us(profile: Profile, device: str) -> float:
    """What a request takes of a whole device at the batch size that is best for throughput."""
    costs = cost_model({profile.model: profile})
    whole = TimedStage.whole_model(profile, device, Fraction(1))
    largest = profile.max_batch(device, Fraction(1))
    return min(costs.latency(whole, size).p50_us / size for size in range(1, largest + 1))


def runs_on_a_core(profile: Profile, device: str) -> bool:
    """Whether the model itself is run: one of one size, whose whole device is a core of this
    machine, and so quick that it matters to its time what ran on the core before it."""
    return (
        device == CPU
        and profile.model_path is not None
        and not profile.dimensions
        and profile.shares == {Fraction(1)}
        and least_slot_us(profile, device) <= MOST_STAGE_US
    )


def as_it_is(profile: Profile, model_folder: Path) -> Profile:
    """The profile, to be read from another folder."""
    assert profile.model_path is not None
    path = str((model_folder / profile.model_path).absolute())
    return replace(profile, model_path=path, gateway_us=0, gateway_shared_us=0)


def that_waits(profile: Profile, device: str) -> Profile:
    """Of the model as one block that takes what a batch of one does, whatever the batch size, and
    MOST_STAGE_US at most: a slower worker would leave the gateway idle."""
    whole = Fraction(1)
    stage = TimedStage.whole_model(profile, device, whole)
    alone_us = cost_model({profile.model: profile}).execution(stage, 1).p50_us
    took_us = (min(MOST_STAGE_US, alone_us),) * (BATCH_SIZE if profile.batched else 1)
    return replace(
        profile,
        model_path=None,
        model_sha256=None,
        blocks=(profile.blocks[-1],),
        block_times=(BlockTimes(device=CPU, share=whole, p50_us=(took_us,), p99_us=(took_us,)),),
        stage_times=(),
        gateway_us=0,
        cores={},
        # Of a model of several sizes the largest.
        dimensions=(),
        sizes=(),
        buckets=(),
        utilisation=(),
        layers=(),
        layer_times=(),
        inputs=tuple(replace(spec, dims=()) for spec in profile.inputs),
        # What varies within one request does so at any size.
        outputs=tuple(
            spec if VARIES in spec.dims else replace(spec, dims=()) for spec in profile.outputs
        ),
    )


def write_plan(profile: Profile, folder: Path) -> Path:
    """Of one core for all that it can do; the profile beside it."""
    write_document(profile, folder / "profile.json")
    named = ProfileRef(
        model=profile.model, path="profile.json", sha256=sha256_file(folder / "profile.json")
    )
    found = solve(
        Problem(
            cluster=Cluster(
                device_types=(DeviceType(name=CPU),),
                nodes=(Node(name="local", devices={CPU: 1}),),
            ),
            demands=(Demand(model=profile.model, slo_us=SLO_US),),
            profiles={profile.model: profile},
            profile_refs=(named,),
            options=PlanOptions(margin=0.0),
        )
    )
    assert found.plan is not None, "one slot serves one model"
    write_document(found.plan, folder / "plan.json")
    return folder / "plan.json"
