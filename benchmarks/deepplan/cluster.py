"""The paper's server, p3.8xlarge: four V100 in one machine, two behind each PCIe switch.

Memory for models is what its Figure 13 tells: PipeSwitch holds 100 instances of BERT-Base, with
its embeddings on the host 124; so 25 and 31 fit a device, whose 16 GB other things take as well.
"""

from collections.abc import Sequence
from functools import cache

from benchmarks.deepplan.profiles import DEVICE, profile_of
from msgspec.structs import replace

from headrace.dispatch.topology import Topology
from headrace.domain.cluster import Cluster, DeviceType, Node
from headrace.domain.plan import Plan
from headrace.domain.problem import Demand, PlanOptions, Problem, ProfileRef
from headrace.domain.profile import Profile
from headrace.planning import PROVISIONED, solve

DEVICES = 4
MEMORY_BYTES = 10_450 << 20
"""Of a device, for models: from 25 x 417.6 MiB on, and below 32 x 326.7 MiB."""
SLO_US = 100_000

SERVER = Cluster(
    device_types=(
        DeviceType(name=DEVICE, memory_bytes=MEMORY_BYTES, copy_stream=True, devices_per_link=2),
    ),
    nodes=(Node(name="p3", devices={DEVICE: DEVICES}),),
)

known = cache(profile_of)


def problem_of(
    networks: Sequence[str], provision: str, *, slo_us: int = SLO_US, cluster: Cluster = SERVER
) -> Problem:
    """One instance per entry, of the same rate each."""
    profiles: dict[str, Profile] = {}
    for number, network in enumerate(networks):
        name = f"{network}-{number}"
        profiles[name] = replace(known(network), model=name)
    return Problem(
        cluster=cluster,
        demands=tuple(Demand(model=name, slo_us=slo_us) for name in profiles),
        profiles=profiles,
        profile_refs=tuple(
            ProfileRef(model=name, path=f"{name}.profile.json", sha256="0" * 64)
            for name in profiles
        ),
        options=PlanOptions(planner=PROVISIONED, provision=provision, margin=0.0),
    )


def plan_of(problem: Problem) -> Plan:
    result = solve(problem)
    assert result.plan is not None, result.refusal
    return result.plan


def topology_of(problem: Problem) -> Topology:
    return Topology.from_plan(plan_of(problem), problem.profiles)
