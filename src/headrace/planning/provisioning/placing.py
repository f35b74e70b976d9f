"""One model that comes and goes, on one type of device: its start, its memory, its batches."""

from dataclasses import dataclass
from fractions import Fraction

from headrace.cost import TimedStage, cost_model
from headrace.domain.errors import DocumentError
from headrace.domain.layers import LayerTimes, Residency
from headrace.domain.plan import Stage
from headrace.domain.problem import Demand, Problem
from headrace.planning.common.candidates import budget_us
from headrace.planning.common.deadline import Deadline
from headrace.planning.provisioning.planners import NEED_HELPER, StartPlanned
from headrace.planning.provisioning.refusal import refuse_start
from headrace.planning.provisioning.residency import stated
from headrace.planning.provisioning.served import plan_served_start
from headrace.start_times import predicted_start, with_host_layers
from headrace.starts import chain_of

HURRIED = "deepplan"
"""The planner of starts once time is up: milliseconds, where exact ones take up to seconds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Placed:
    """A model on a type of device."""

    demand: Demand
    device: str
    share: Fraction
    residency: Residency
    batch_us: tuple[int, int]
    """p50 and p99 of a batch of one, once it is loaded."""
    exec_us: int
    load_us: int
    links: int
    held_bytes: int
    working_bytes: int
    hurried: bool
    """Time was up, and its start is one of `HURRIED`."""


def timed_on(problem: Problem, demand: Demand) -> list[LayerTimes]:
    """A model's layer times on each device type that the cluster has.

    Raises:
        DocumentError: its profile has none of these.
    """
    profile, cluster = problem.profiles[demand.model], problem.cluster
    found = [
        times
        for kind in cluster.device_types
        if cluster.count(kind.name)
        for times in [profile.timed_layers(kind.name, max(kind.shares))]
        if times is not None and profile.max_batch(kind.name, max(kind.shares))
    ]
    if not found:
        known = sorted({f"{each.share} of a {each.device}" for each in profile.layer_times})
        raise DocumentError(
            f"planner provisioned: profile {demand.model!r} has layer times for"
            f" {', '.join(known) or 'nothing'}, and the cluster has none of these\n"
            "  try    a profile with `layers` and `layer_times` of the cluster's devices"
        )
    return found


def place(
    problem: Problem,
    demand: Demand,
    times: LayerTimes,
    planner: str,
    cold_share: float,
    deadline: Deadline,
) -> Placed | str:
    """A model on one type of device; or why it cannot run there.

    Args:
        cold_share: the part of requests that are starts, for which its layers are placed.
        deadline: once it has passed, no further start is looked for exactly.

    Raises:
        DocumentError: `planner` needs times that the profile does not have, or the profile states
            starts as of devices without a copy stream, and the type has one.
    """
    profile = problem.profiles[demand.model]
    kind = problem.cluster.device_type(times.device)
    if planner in NEED_HELPER and not times.forward_us:
        raise DocumentError(
            f"--provision {planner}: copies over a second device, and profile {demand.model!r} has"
            f" no forward_us on {times.device!r}\n  try    a planner without +pt"
        )
    if kind.copy_stream and times.start_p50_us:
        raise DocumentError(
            f"planner provisioned: profile {demand.model!r} states starts of the whole model on"
            f" {times.device!r} (start_p50_us), which take what runs them, and the device type is"
            " said to execute others meanwhile (copy_stream)\n"
            "  try    leave copy_stream out, or state what opening the model takes (open_p50_us)"
        )
    start, hurried = _start_of(times, planner, cold_share, deadline)
    later = ", or a longer --time-limit-s: its start was planned when time was up" * hurried
    residency = stated(profile.layers, times, start, planner)
    told = predicted_start(residency, profile)
    memory = int((kind.memory_bytes or 0) * times.share)
    needed = told.held_bytes + told.working_bytes
    if needed > memory:
        beside = f", {told.working_bytes:,} of them to load and run it" * bool(told.working_bytes)
        return (
            f"model {demand.model!r}: needs {needed:,} bytes of a {times.device!r}{beside},"
            f" and share {times.share} of one has {memory:,}\n"
            "  try    devices with more memory, or a model cut over several (without --provision)"
            f"{later}"
        )
    costs = cost_model(problem.profiles)
    stage = Stage(
        first_block=0, end_block=len(profile.blocks), device=times.device, share=times.share,
        pool=(), latency_us=0, transfer_us=0, throughput_rps=0.0,
    )  # fmt: skip
    (batch,) = with_host_layers(
        [costs.latency(TimedStage.of(demand.model, stage), 1)], profile, residency
    )
    start_us = residency.start_us + costs.between_batches_us(demand.model)
    needed_us = max(start_us, batch.p99_us) + costs.gateway_us(demand.model)
    if needed_us > budget_us(demand.slo_us, problem.options.margin_of(demand.model)):
        margin = problem.options.margin_of(demand.model)
        return refuse_start(demand, times.device, needed_us, margin) + later
    return Placed(
        demand=demand,
        device=times.device,
        share=times.share,
        residency=residency,
        batch_us=(batch.p50_us, batch.p99_us),
        exec_us=told.exec_us if kind.copy_stream else told.alone_us,
        load_us=told.load_us if kind.copy_stream else 0,
        links=2 if told.uses_helper else 1,
        held_bytes=told.held_bytes,
        working_bytes=told.working_bytes,
        hurried=hurried,
    )


_KNOWN: dict[tuple[LayerTimes, str, float], StartPlanned] = {}


def _start_of(
    times: LayerTimes, planner: str, cold_share: float, deadline: Deadline
) -> tuple[StartPlanned, bool]:
    """Instances of one network have the same start; and whether it is of `HURRIED`."""
    key = (times, planner, round(cold_share, 3))
    hurried = key not in _KNOWN and planner.startswith("exact") and deadline.passed
    if hurried:
        key = (times, HURRIED, 1.0)
    if key not in _KNOWN:
        if len(_KNOWN) > 1_000:
            _KNOWN.clear()
        _KNOWN[key] = plan_served_start(key[1], chain_of(times), key[2])
    return _KNOWN[key], hurried
