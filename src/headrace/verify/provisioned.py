"""Does a plan of more models than memory hold (DeepPlan).

Every model may run on every slot of its pool, and is brought there when it is asked for. Restated:

memory      of a device is stated; every model alone, with what its runs take for a while, fits a
            slot's part of it, less what its start leaves on the host, or as measured
latency     of a batch once the model is loaded: the profile's, and what layers on the host take
            more
slo         the start, and such a batch, keep the model's budget; both take the slot what the server
            takes between two batches
start       what comes over a helper has one: a slot of another device of the same node and type,
            behind another link to host memory
copies      a model is on as many slots at once as its batches alone, at the rate stated, keep busy
absent      the part of requests that find their model absent. Each slot keeps room for the largest
            run; where the rest is found to have room for all copies at once (`room`), none is. Else
            random arrivals at rates as stated, or in proportion to weights, and LRU: the time T
            after which an unused model is gone has sum of bytes (1 - exp(-r T)) = what is there,
            absent = exp(-r T) (Che's). There is no more than whole models: as many as fit of each,
            in the mean by rates or over models, and less than all by at least the smallest. Copies
            of a model have even parts of its requests
carried     rates as stated, or in proportion to weights (over the part that a model is expected to
            carry), times what the slots' time or their links, whichever is scarcer, allow, by
            medians; or what fills all copies of some model, where with one more copy that would
            not be carried; a link is shared by the slots of `devices_per_link` devices of a node,
            by index
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from math import exp, expm1, inf

from headrace.domain.plan import Deployment, Slot, Stage
from headrace.domain.profile import Profile
from headrace.verify.case import RELATIVE, Case
from headrace.verify.figures import Throughputs, check_deployments, latency_us
from headrace.verify.room import all_have_room, held_bytes
from headrace.verify.starts import Median, check_helper, link_of, median_start

US_PER_S = 1e6

MORE = 1e-8
"""Relative. So much more than stated is more."""


@dataclass(frozen=True, slots=True)
class _Model:
    """Recomputed figures of one deployment."""

    kind: tuple[str, Fraction]
    batch_us: float
    start: Median
    size_bytes: int
    working_bytes: int
    helped: bool


def check_provisioned(case: Case) -> Throughputs:
    """Everything of such plans but the starts themselves. Returns what the plan may state."""
    for slot in case.plan.slots:
        _check_slot(case, slot)
    known: dict[str, _Model] = {}
    for deployment in case.plan.deployments:
        profile = case.profiles.get(deployment.model)
        found = None if profile is None else _check_model(case, deployment, profile)
        # A model that nobody asked for is reported, and has no rate to go on with.
        if found is not None and deployment.model in case.demands:
            known[deployment.model] = found
    stated = {each.model: each.throughput_rps for each in case.plan.deployments}
    if len(known) < len(stated) or any(not 0 < rps < inf for rps in stated.values()):
        for model, rps in stated.items():
            if not 0 < rps < inf:
                case.report("throughput", model, "throughput (rps)", "a number above 0", rps)
        return Throughputs(pipelines={}, deployments=dict.fromkeys(stated, 0.0))
    carried = _carried(case, known, stated)
    pipelines = {}
    for planned in case.pipelines:
        rps, where = carried[planned.model], planned.where
        what = "throughput (rps) that slots and links carry"
        case.expect("throughput", where, what, rps, planned.pipeline.throughput_rps)
        for index, stage in enumerate(planned.stages):
            case.expect("throughput", planned.stage_where(index), what, rps, stage.throughput_rps)
        pipelines[planned.model, planned.pipeline.name] = rps
    return Throughputs(pipelines=pipelines, deployments=check_deployments(case, pipelines))


def _check_slot(case: Case, slot: Slot) -> None:
    where = f"slot {slot.name}"
    if slot.tenants or slot.duty_us is not None:
        what = "tenants or a duty cycle, where models come and go"
        case.report("tenants", where, what, "none", f"{len(slot.tenants)} tenants, {slot.duty_us}")
    kind = case.types.get(slot.device)
    if kind is not None and kind.memory_bytes is None:
        case.report("memory", where, "memory (bytes) of its device type", "stated", "none")
    check_helper(case, slot)


def _check_model(case: Case, deployment: Deployment, profile: Profile) -> _Model | None:
    """None: too broken to tell, which is reported here or elsewhere."""
    model, start = deployment.model, deployment.start
    pipeline = deployment.pipelines[0]
    stage, where = pipeline.stages[0], f"{model}/{pipeline.name}"
    assert start is not None, "asked only of such plans"
    took_us = latency_us(profile, stage, pipeline.batch_size)
    times = profile.timed_layers(start.device, start.share, start.batch_size)
    kind = case.types.get(stage.device)
    if took_us is None or times is None or kind is None:
        return None
    if any(not 0 <= layer < len(profile.layers) for layer in start.host):
        return None
    at_size = profile.timed_layers(start.device, start.share, pipeline.batch_size)
    read, items = (times, pipeline.batch_size) if at_size is None else (at_size, 1)
    more99 = items * max(0, sum(read.host_p99_us[i] - read.inside_p99_us[i] for i in start.host))
    more50 = items * max(0, sum(read.host_p50_us[i] - read.inside_p50_us[i] for i in start.host))
    batch50 = took_us[0] + more50
    batch99 = max(int(batch50), took_us[1] + more99)
    case.expect("latency", where, "p99 latency (us) once loaded", batch99, stage.latency_us)
    case.expect("latency", where, "latency (us) of the pipeline", batch99, pipeline.latency_us)
    case.expect("transfer", where, "transfer (us)", 0, stage.transfer_us)
    needed_us = max(start.start_us + profile.batch_overhead_us, batch99) + profile.gateway_us
    case.limit("slo", model, "start (us), gateway included", needed_us, deployment.budget_us)
    size = sum(layer.weights_bytes for layer in profile.layers)
    size -= sum(profile.layers[i].weights_bytes for i in start.host)
    if times.held_bytes:  # weights that several layers share are there once
        size = min(size, sum(block.weights_bytes for block in profile.blocks))
        size = max(size, times.held_bytes)
    helped = any(transfer.helper for transfer in start.transfers)
    _check_pool(case, where, stage)
    for name in stage.pool:
        slot = case.slots.get(name)
        if helped and slot is not None and slot.helper is None:
            what = f"slot {name!r} of its pool has no helper"
            case.report("start", where, what, "one: part of its start comes over it", "none")
    told = median_start(times, [layer.weights_bytes for layer in profile.layers], start)
    if told is None:
        return None
    more_us = profile.batch_overhead_us
    told = Median(told.load_us, told.exec_us + more_us, told.alone_us + more_us)
    return _Model((stage.device, stage.share), batch50, told, size, times.working_bytes, helped)


def _check_pool(case: Case, where: str, stage: Stage) -> None:
    """Every slot of its kind: the time and memory of all of them are counted with."""
    alike = {s.name for s in case.plan.slots if (s.device, s.share) == (stage.device, stage.share)}
    missing = sorted(alike.difference(stage.pool))
    if missing:
        what = "its pool leaves out slots that it may be brought to"
        case.report("pool", where, what, f"all {len(alike)}", f"without {', '.join(missing)}")


def _slots_of(case: Case, kind: tuple[str, Fraction]) -> int:
    return sum((slot.device, slot.share) == kind for slot in case.plan.slots)


def _links_of(case: Case, kind: tuple[str, Fraction]) -> int:
    per = case.types[kind[0]].devices_per_link
    ours = [slot for slot in case.plan.slots if (slot.device, slot.share) == kind]
    return len({link_of(slot, per) for slot in ours})


def _check_memory(case: Case, kind: tuple[str, Fraction], ours: Mapping[str, _Model]) -> int:
    """Bytes of each slot for models."""
    each_slot = int((case.types[kind[0]].memory_bytes or 0) * kind[1])
    each_slot = max(0, each_slot - max(each.working_bytes for each in ours.values()))
    what = "bytes that it takes of a slot, beside the largest run on it"
    for model, each in ours.items():
        case.limit("memory", model, what, each.size_bytes, each_slot)
    return each_slot


def _carried(
    case: Case, known: Mapping[str, _Model], stated: Mapping[str, float]
) -> dict[str, float]:
    """Model -> requests per second, when all models of its kind of slot get what these allow."""
    expected: dict[str, float] = {}
    absent: dict[str, float] = {}
    for kind in {each.kind for each in known.values()}:
        ours = {model: each for model, each in known.items() if each.kind == kind}
        rates = {model: case.proportion_of(case.demands[model]) for model in ours}
        memory = _check_memory(case, kind, ours)
        factor = sum(stated[model] for model in ours) / sum(rates.values())
        copies = _copies(case, kind, ours, rates, factor)
        there = _absent(ours, rates, copies, _slots_of(case, kind), memory)
        allowed = 1 / _busiest(case, kind, ours, rates, there)
        more = _copies(case, kind, ours, rates, factor * (1 + MORE))
        if more != copies and factor < allowed:
            then = _absent(ours, rates, more, _slots_of(case, kind), memory)
            if factor * _busiest(case, kind, ours, rates, then) >= 1:
                allowed = factor
        absent.update(there)
        expected.update({model: rate * allowed for model, rate in rates.items()})
    for deployment in case.plan.deployments:
        what = "part of its requests that find it absent"
        claimed = -1.0 if deployment.cold_share is None else deployment.cold_share
        case.expect("start", deployment.model, what, absent[deployment.model], claimed)
    return expected


def _copies(
    case: Case,
    kind: tuple[str, Fraction],
    ours: Mapping[str, _Model],
    rates: Mapping[str, float],
    factor: float,
) -> dict[str, int]:
    """Of each model: on so many slots at once, as its batches alone fill more than one fewer."""
    there_us = US_PER_S * case.types[kind[0]].max_utilisation
    full = {m: factor * rates[m] * each.batch_us / there_us for m, each in ours.items()}
    others = max(0, _slots_of(case, kind) - 1)
    return {m: 1 + int(min(others, busy - RELATIVE * busy)) for m, busy in full.items()}


def _absent(
    ours: Mapping[str, _Model],
    rates: Mapping[str, float],
    copies: Mapping[str, int],
    slots: int,
    memory: int,
) -> dict[str, float]:
    """Model -> the part of its requests, of which each copy has an even part."""
    sizes = [(each.size_bytes, copies[model]) for model, each in ours.items()]
    if all_have_room(sizes, slots, memory):
        return dict.fromkeys(ours, 0.0)
    of_copy = {model: rates[model] / copies[model] for model in ours}
    there = held_bytes([rates[model] for model in ours], sizes, slots, memory)
    all_bytes = [size * count for size, count in sizes]
    after = _gone_after(list(of_copy.values()), all_bytes, there)
    return {model: exp(-rate * after) for model, rate in of_copy.items()}


def _gone_after(rates: Sequence[float], sizes: Sequence[int], memory: float) -> float:
    """T, by Newton's method from below: the sum grows ever more slowly.

    Args:
        rates: of one copy of each model.
        sizes: of all its copies, bytes.
    """
    at, both = 0.0, list(zip(rates, sizes, strict=True))
    for _ in range(1_000):
        held = sum(-size * expm1(-rate * at) for rate, size in both)
        slope = sum(size * rate * exp(-rate * at) for rate, size in both)
        step = (memory - held) / slope
        at += step
        if step <= 1e-15 * at:
            break
    return at


def _busiest(
    case: Case,
    kind: tuple[str, Fraction],
    ours: Mapping[str, _Model],
    rates: Mapping[str, float],
    absent: Mapping[str, float],
) -> float:
    """What requests at these rates take of the slots' time or of their links', whichever is
    scarcer."""
    beside = case.types[kind[0]].copy_stream
    runs_us = copies_us = 0.0
    for model, each in ours.items():
        start_us = each.start.exec_us if beside else each.start.alone_us
        mean_us = absent[model] * start_us + (1 - absent[model]) * each.batch_us
        runs_us += rates[model] * mean_us
        if beside:
            links = 2 if each.helped else 1
            copies_us += rates[model] * absent[model] * each.start.load_us * links
    slots, links = _slots_of(case, kind), _links_of(case, kind)
    busiest_us = max(runs_us / slots, copies_us / links) if slots else inf
    return busiest_us / (US_PER_S * case.types[kind[0]].max_utilisation)
