"""Plans of more models than memory: every model may run on every device, and is brought there when
it is asked for.

Which devices: all of the cluster, or as few as carry the rates. Per model, one device type: the one
on which it starts soonest. What all devices carry:

    execution   sum of r_i (absent_i exec_i + (1 - absent_i) batch_i)  <=  slots x max_utilisation
    copies      sum of r_i absent_i load_i (twice with a helper)       <=  links x max_utilisation

with absent_i as for LRU and random arrivals (`residents`), which the dispatcher's own eviction is
meant to improve on, and times by medians. Where a device has no copy stream, a start takes it
whole. Every start must be over within the latency budget.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction

from headrace.cost import TimedStage, cost_model
from headrace.domain.errors import DocumentError
from headrace.domain.layers import LayerTimes, Residency
from headrace.domain.plan import Deployment, Pipeline, PlanResult, Slot, Stage
from headrace.domain.problem import Demand, Problem
from headrace.planning.common.assembly import Claim, written
from headrace.planning.common.candidates import budget_us
from headrace.planning.common.deadline import Deadline
from headrace.planning.provisioning.planners import NEED_HELPER, Start
from headrace.planning.provisioning.refusal import refuse_rates, refuse_start
from headrace.planning.provisioning.residency import stated
from headrace.planning.provisioning.residents import absent_shares, usable_bytes
from headrace.planning.provisioning.served import plan_served_start
from headrace.start_times import predicted_start, with_host_layers
from headrace.starts import chain_of

DEFAULT = "exact"
COLD_SHARES = (1.0, 0.3, 0.1, 0.03, 0.0)
"""Parts of requests that are starts, for which layers are placed."""
US_PER_S = 1e6


@dataclass(frozen=True, slots=True, kw_only=True)
class _Placed:
    """A model on its kind of device."""

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


def fits(problem: Problem) -> bool:
    """Whether all models may be in memory: one copy of each, on a slot of its own.

    A look at the whole: where it says no there is no plan that keeps all in memory, and where it
    says yes there may be none either.
    """
    profiled = {
        name for demand in problem.demands for name in problem.profiles[demand.model].devices
    }
    kinds = [
        kind
        for kind in problem.cluster.device_types
        if kind.name in profiled and problem.cluster.count(kind.name)
    ]
    slots = sum(problem.cluster.count(kind.name) * int(1 / min(kind.shares)) for kind in kinds)
    if len(problem.demands) > slots:
        return False
    memory = [
        kind.memory_bytes * problem.cluster.count(kind.name)
        for kind in kinds
        if kind.memory_bytes is not None
    ]
    if not memory:
        return True
    needed = sum(
        sum(block.weights_bytes for block in problem.profiles[demand.model].blocks)
        for demand in problem.demands
    )
    return needed <= sum(memory)


def plan_provisioned(problem: Problem) -> PlanResult:
    """Every model on every device of its kind, and what they carry.

    Raises:
        DocumentError: apps, an objective or options that these plans do not have, a profile without
            layer times, or a device type without its memory.
    """
    deadline = Deadline(problem.options.time_limit_s)
    _check(problem)
    planner = problem.options.provision or DEFAULT
    best, best_us = None, 0.0
    refusal = ""
    # Which layers stay on the host hangs on how many requests are starts, and that on how much
    # memory the others take: each part is tried, and the least mean time of a request is taken.
    for part in COLD_SHARES if planner.startswith("exact") else COLD_SHARES[:1]:
        found = [_place(problem, demand, planner, part) for demand in problem.demands]
        placed = [each for each in found if isinstance(each, _Placed)]
        if len(placed) < len(found):
            # Layers placed for few starts may start too late, where those for many do not.
            refusal = refusal or "\n".join(each for each in found if isinstance(each, str))
            continue
        if without_room := _without_room(problem, placed):
            refusal = refusal or without_room
            continue
        mean_us = _mean_us(problem, placed)
        if best is None or mean_us < best_us:
            best, best_us = placed, mean_us
    if best is None:
        return _refused(refusal, deadline)
    return _carried(problem, planner, best, deadline)


def _check(problem: Problem) -> None:
    if problem.apps:
        raise DocumentError(
            "planner provisioned: brings models to devices, and the problem is one of apps\n"
            "  try    plan the models alone"
        )
    if problem.options.objective == "least-cost":
        raise DocumentError(
            "planner provisioned: knows the objectives max-min, throughput and least-devices, not"
            " least-cost"
        )
    if problem.options.objective == "least-devices" and any(
        demand.rate_rps is None for demand in problem.demands
    ):
        raise DocumentError(
            "planner provisioned: least-devices needs a rate of every model; state rate_rps"
        )
    if problem.options.provision in NEED_HELPER:
        _check_helpers(problem)
    for demand in problem.demands:
        if dimensions := problem.profiles[demand.model].dimensions:
            raise DocumentError(
                f"planner provisioned: model {demand.model!r} has several sizes"
                f" ({', '.join(dimensions)}), and starts are planned for one; profile it at one"
            )
    for kind in problem.cluster.device_types:
        if kind.memory_bytes is None and problem.cluster.count(kind.name):
            raise DocumentError(
                f"planner provisioned: device type {kind.name!r} does not state its memory_bytes,"
                " which models are to share\n  try    state it in the problem file"
            )


def _check_helpers(problem: Problem) -> None:
    for kind in problem.cluster.device_types:
        alone = [
            node.name
            for node in problem.cluster.nodes
            if 0 < node.devices.get(kind.name, 0) <= kind.devices_per_link
        ]
        if alone or (problem.cluster.count(kind.name) and not kind.copy_stream):
            has = f"one link on node {alone[0]!r}" if alone else "no copy_stream"
            raise DocumentError(
                f"--provision {problem.options.provision}: copies over a second device, behind"
                f" another link, while the first executes, and {kind.name!r} has {has}\n"
                "  try    a planner without +pt"
            )


# -- one model ------------------------------------------------------------------------------------


def _place(problem: Problem, demand: Demand, planner: str, cold_share: float) -> _Placed | str:
    """Where it starts soonest; or why nowhere."""
    best, refusals = None, []
    for times in _timed(problem, demand):
        found = _on(problem, demand, times, planner, cold_share)
        if isinstance(found, str):
            refusals.append(found)
        elif best is None or found.residency.start_us < best.residency.start_us:
            best = found
    return best or refusals[0]


def _timed(problem: Problem, demand: Demand) -> list[LayerTimes]:
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


def _on(
    problem: Problem, demand: Demand, times: LayerTimes, planner: str, cold_share: float
) -> _Placed | str:
    profile = problem.profiles[demand.model]
    kind = problem.cluster.device_type(times.device)
    if planner in NEED_HELPER and not times.forward_us:
        raise DocumentError(
            f"--provision {planner}: copies over a second device, and profile {demand.model!r} has"
            f" no forward_us on {times.device!r}\n  try    a planner without +pt"
        )
    start = _start_of(times, planner, cold_share)
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
        return refuse_start(
            demand, times.device, needed_us, problem.options.margin_of(demand.model)
        )
    return _Placed(
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
    )


def _without_room(problem: Problem, placed: Sequence[_Placed]) -> str:
    """A model that does not fit beside the largest run of another; empty: there is none."""
    for each in placed:
        kind = problem.cluster.device_type(each.device)
        memory = int((kind.memory_bytes or 0) * each.share)
        others = [it for it in placed if (it.device, it.share) == (each.device, each.share)]
        largest = max(others, key=lambda it: it.working_bytes)
        if each.held_bytes + largest.working_bytes > memory:
            return (
                f"model {each.demand.model!r}: needs {each.held_bytes:,} bytes of a"
                f" {each.device!r}, beside {largest.working_bytes:,} to load and run"
                f" {largest.demand.model!r}, and share {each.share} of one has {memory:,}\n"
                "  try    devices with more memory, or fewer models"
            )
    return ""


_KNOWN: dict[tuple[LayerTimes, str, float], Start] = {}


def _start_of(times: LayerTimes, planner: str, cold_share: float) -> Start:
    """Instances of one network have the same start."""
    key = (times, planner, round(cold_share, 3))
    if key not in _KNOWN:
        if len(_KNOWN) > 1_000:
            _KNOWN.clear()
        _KNOWN[key] = plan_served_start(planner, chain_of(times), key[2])
    return _KNOWN[key]


# -- all of them ----------------------------------------------------------------------------------


def _weights(problem: Problem) -> list[float]:
    """What rates are in proportion to."""
    return [
        demand.weight if demand.rate_rps is None else demand.rate_rps for demand in problem.demands
    ]


def _absent(problem: Problem, placed: Sequence[_Placed], devices: int | None = None) -> list[float]:
    """Of each model, on all devices or on so many."""
    weights, absent = _weights(problem), [0.0] * len(placed)
    for kind in {(each.device, each.share) for each in placed}:
        rows = [i for i, each in enumerate(placed) if (each.device, each.share) == kind]
        slots = _slot_count(problem, *kind) if devices is None else devices * int(1 / kind[1])
        room = int((problem.cluster.device_type(kind[0]).memory_bytes or 0) * kind[1])
        memory = max(0, room - max(placed[i].working_bytes for i in rows))
        rates, sizes = [weights[i] for i in rows], [placed[i].held_bytes for i in rows]
        shares = absent_shares(rates, sizes, slots * usable_bytes(rates, sizes, memory))
        for i, part in zip(rows, shares.tolist(), strict=True):
            absent[i] = part
    return absent


def _mean_us(problem: Problem, placed: Sequence[_Placed]) -> float:
    """What requests take alone, weighted by their rates."""
    rows = list(zip(_weights(problem), placed, _absent(problem, placed), strict=True))
    total = sum(
        weight * (part * each.residency.start_us + (1 - part) * each.batch_us[1])
        for weight, each, part in rows
    )
    return total / sum(weight for weight, _, _ in rows)


def _slot_count(problem: Problem, device: str, share: Fraction) -> int:
    return problem.cluster.count(device) * int(1 / share)


def _link_count(problem: Problem, device: str, devices: int | None) -> int:
    """Of so many devices, the first ones of the first nodes; None: of all."""
    per, count = problem.cluster.device_type(device).devices_per_link, 0
    left = problem.cluster.count(device) if devices is None else devices
    for node in problem.cluster.nodes:
        here = min(node.devices.get(device, 0), left)
        left -= here
        count += -(-here // per)
    return count + left // per


def _part(
    problem: Problem, placed: Sequence[_Placed], absent: Sequence[float], devices: int | None
) -> dict[tuple[str, Fraction], float]:
    """Kind -> what rates as the weights need of its slots' time, or of their links'; at most 1
    where they carry them.

    Args:
        devices: so many; None: all that the cluster has. More than it has are thought to be alike.
    """
    need: dict[tuple[str, Fraction], float] = {}
    for kind in {(each.device, each.share) for each in placed}:
        exec_us = copy_us = 0.0
        for weight, each, part in zip(_weights(problem), placed, absent, strict=True):
            if (each.device, each.share) == kind:
                exec_us += weight * (part * each.exec_us + (1 - part) * each.batch_us[0])
                copy_us += weight * part * each.load_us * each.links
        slots = _slot_count(problem, *kind) if devices is None else devices * int(1 / kind[1])
        links = _link_count(problem, kind[0], devices)
        part = max(exec_us / slots, copy_us / max(1, links))
        need[kind] = part / US_PER_S / problem.cluster.device_type(kind[0]).max_utilisation
    return need


def _carried(
    problem: Problem, planner: str, placed: Sequence[_Placed], deadline: Deadline
) -> PlanResult:
    devices = None
    if problem.options.objective == "least-devices":
        devices = _fewest(problem, placed)
    absent = _absent(problem, placed, devices)
    need = _part(problem, placed, absent, devices)
    stated_rates = all(demand.rate_rps is not None for demand in problem.demands)
    scarce = max(need, key=lambda kind: need[kind])
    if any(demand.rate_rps is not None for demand in problem.demands) and not stated_rates:
        return _refused(
            "planner provisioned: some models have a rate_rps and some have none; state all, or"
            " weights alone",
            deadline,
        )
    if stated_rates and need[scarce] > 1:
        enough = _enough(problem, placed, scarce)
        return _refused(refuse_rates(problem, scarce[0], need[scarce], absent, enough), deadline)
    slots = tuple(_slots(problem, planner, placed, devices))
    deployments = tuple(
        _deployment(problem, each, part, weight / need[each.device, each.share], slots)
        for each, part, weight in zip(placed, absent, _weights(problem), strict=True)
    )
    claim = Claim(
        bound=None,
        stopped="heuristic",
        binding=_binding(problem, need, absent),
        runtime_s=deadline.spent_s,
    )
    plan = written(problem, slots, deployments, claim)
    return PlanResult(plan=plan, stopped="heuristic", bound=None, runtime_s=plan.runtime_s)


def _binding(
    problem: Problem, need: dict[tuple[str, Fraction], float], absent: Sequence[float]
) -> str:
    weights = _weights(problem)
    cold = sum(w * a for w, a in zip(weights, absent, strict=True)) / sum(weights)
    kinds = ", ".join(sorted({device for device, _ in need}))
    return (
        f"time of the slots on {kinds}, or of their links: {cold:.1%} of requests are expected to"
        " be starts, were the model that is unused for longest to leave"
    )


def _enough(problem: Problem, placed: Sequence[_Placed], kind: tuple[str, Fraction]) -> int:
    """Devices of one type that carry the stated rates."""
    devices = 1
    while _part(problem, placed, _absent(problem, placed, devices), devices)[kind] > 1:
        devices += 1
    return devices


def _fewest(problem: Problem, placed: Sequence[_Placed]) -> int:
    """
    Raises:
        DocumentError: the models are on devices of several types.
    """
    kinds = {(each.device, each.share) for each in placed}
    if len(kinds) > 1:
        raise DocumentError(
            "planner provisioned: counts devices of one type, and these models start soonest on"
            f" {', '.join(sorted(device for device, _ in kinds))}; leave one in the cluster"
        )
    (kind,) = kinds
    there = problem.cluster.count(kind[0])
    return min(there, _enough(problem, placed, kind))


def _slots(
    problem: Problem, planner: str, placed: Sequence[_Placed], devices: int | None
) -> Iterator[Slot]:
    """Of every device that some model may run on; each helped by one behind the link that is half
    of the node's links away."""
    kinds = {each.device for each in placed}
    left = {device: problem.cluster.count(device) for device in kinds}
    if devices is not None:
        left = dict.fromkeys(kinds, devices)
    for device, share in sorted({(each.device, each.share) for each in placed}):
        for node in problem.cluster.nodes:
            count = min(node.devices.get(device, 0), left[device])
            left[device] -= count
            per = problem.cluster.device_type(device).devices_per_link
            links = -(-count // per)
            helps = planner in NEED_HELPER and links > 1 and share == 1
            for index in range(count):
                link = (index // per + links // 2) % links
                other = min(link * per + index % per, count - 1)
                for position in range(int(1 / share)):
                    yield Slot(
                        name=_slot_name(node.name, device, index, position, share),
                        node=node.name,
                        device=device,
                        device_index=index,
                        share=share,
                        tenants=(),
                        helper=_slot_name(node.name, device, other, 0, share) if helps else None,
                    )


def _slot_name(node: str, device: str, index: int, position: int, share: Fraction) -> str:
    return f"{node}/{device}-{index}" + ("" if share > Fraction(1, 2) else f"/{position}")


def _deployment(
    problem: Problem, each: _Placed, absent: float, rate_rps: float, slots: Sequence[Slot]
) -> Deployment:
    pool = tuple(
        slot.name for slot in slots if (slot.device, slot.share) == (each.device, each.share)
    )
    stage = Stage(
        first_block=0,
        end_block=len(problem.profiles[each.demand.model].blocks),
        device=each.device,
        share=each.share,
        pool=pool,
        latency_us=each.batch_us[1],
        transfer_us=0,
        throughput_rps=rate_rps,
    )
    return Deployment(
        model=each.demand.model,
        slo_us=each.demand.slo_us,
        budget_us=budget_us(each.demand.slo_us, problem.options.margin_of(each.demand.model)),
        pipelines=(
            Pipeline(
                name="p0",
                batch_size=1,
                stages=(stage,),
                latency_us=stage.latency_us,
                throughput_rps=rate_rps,
            ),
        ),
        throughput_rps=rate_rps,
        start=each.residency,
        cold_share=absent,
    )


def _refused(refusal: str, deadline: Deadline) -> PlanResult:
    return PlanResult(
        plan=None, stopped="infeasible", bound=None, runtime_s=deadline.spent_s, refusal=refusal
    )
