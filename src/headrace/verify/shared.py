"""Does what tenants of one device are promised hold: turns on a slot, and slowdowns beside others.

The promise of a slot with duty cycle D (gpu-lets, section 2.2), restated:

turns      in each D every tenant runs one batch of at most its pipeline's size (of a model of
           several sizes as many requests, in batches of one size each), whichever takes longest, so
           the latencies of all of them, slowed, and the gateway's time where it has the same cores,
           sum to at most D x max_utilisation of the device
rate       batch / D on each slot (`figures`)
wait       a request that just misses a batch waits for the next, D at most, then for that batch:
           D + latency, of every stage, and the gateway's time fit the budget (`figures`)
alike      the slots of one stage have one duty cycle

The slowdown of a tenant is at least what the plan's interference document of the device type says
of it beside each tenant of each other slot on the device (section 4.4), and at least 1: the largest
of sums of coefficient x term, terms from the utilisations that the profiles state, at whatever
batch sizes up to the planned ones both may run. Between two profiled sizes utilisations are on a
straight line, so a sum is largest at one of them, unless a term multiplies two of one side. Slots
of one stage state one slowdown. Cost: per device, the square of its tenants and of such sizes.
"""

import math
from collections import defaultdict
from collections.abc import Iterator, Sequence
from fractions import Fraction
from itertools import pairwise
from typing import NamedTuple

from headrace.domain.interference import Interference
from headrace.domain.plan import Slot, Tenant
from headrace.domain.utilisation import Utilisation
from headrace.verify.case import Case, PlannedPipeline
from headrace.verify.figures import gateway_part_us, stage_rates


def check_turns(case: Case) -> None:
    taken_us: dict[str, int] = defaultdict(int)
    for planned in case.pipelines:
        for index, stage in enumerate(planned.stages):
            cycles = {case.slots[name].duty_us for name in stage.pool if name in case.slots}
            if len(cycles) > 1:
                found = ", ".join(sorted(map(str, cycles)))
                case.report("duty", planned.stage_where(index), "duty cycles (us)", "one", found)
            rates = stage_rates(case, planned, index)
            if rates is not None:
                for name in stage.pool:
                    taken_us[name] += rates.p99_us + gateway_part_us(case, planned, index)
    for slot in case.plan.slots:
        if slot.duty_us is not None:
            _check_cycle(case, slot, taken_us[slot.name])


def _check_cycle(case: Case, slot: Slot, taken_us: int) -> None:
    where, kind = f"slot {slot.name}", case.types.get(slot.device)
    if slot.duty_us is None or slot.duty_us < 1:
        case.report("duty", where, "duty cycle (us)", "at least 1", slot.duty_us)
        return
    usable = Fraction(str(kind.max_utilisation)) if kind is not None else Fraction(1)
    if taken_us > slot.duty_us * usable:
        what = "batches (us) of all its tenants exceed its duty cycle"
        case.report("duty", where, what, taken_us, float(slot.duty_us * usable))


def check_slowdowns(case: Case) -> None:
    documents = {document.device: document for document in case.plan.interference}
    if len(documents) < len(case.plan.interference) or not documents.keys() <= case.types.keys():
        found = ", ".join(document.device for document in case.plan.interference)
        needed = f"at most one for each of {', '.join(case.types)}"
        case.report("slowdown", "plan", "interference documents", needed, found)
    devices: dict[tuple[str, str, int], list[Slot]] = defaultdict(list)
    for slot in case.plan.slots:
        devices[slot.node, slot.device, slot.device_index].append(slot)
        _check_stated(case, slot)
    for (_, device, _), slots in devices.items():
        if device in documents and len(slots) > 1:
            _check_beside(case, documents[device], slots)


def _check_stated(case: Case, slot: Slot) -> None:
    for tenant in slot.tenants:
        if not (math.isfinite(tenant.slowdown) and tenant.slowdown >= 1):
            where = _label(slot, tenant)
            case.report("slowdown", where, "slowdown", "at least 1", tenant.slowdown)
        planned = _planned(case, tenant)
        if planned is not None and 0 <= tenant.stage < len(planned.stages):
            stated = case.slowdown(planned, tenant.stage)
            what = "slowdown is not that of its stage's other slots"
            case.expect("slowdown", _label(slot, tenant), what, stated, tenant.slowdown)


class _Used(NamedTuple):
    """What a tenant takes of the device while it is alone."""

    l2: float
    dram: float
    share: float
    beside: float | None


def _check_beside(case: Case, document: Interference, slots: list[Slot]) -> None:
    every_size = any(_multiplies_one_side(term) for term in document.features)
    used = [
        (slot, tenant, _used(case, slot, tenant, every_size)) for slot, tenant in _tenants(slots)
    ]
    for slot, tenant, own in used:
        others = [other for held, _, other in used if held is not slot]
        where = _label(slot, tenant)
        if not own:
            what = f"utilisation in the profile, on {slot.share} of a {slot.device!r}"
            case.report("slowdown", where, what, "of every tenant beside others", "none")
            continue
        if own[0].beside is None and any("beside_own" in term for term in document.features):
            what = "`beside` in the profile's utilisation, which the interference document needs"
            case.report("slowdown", where, what, "of every tenant beside others", "none")
            continue
        beside = (_beside(document, mine, it) for mine in own for other in others for it in other)
        what = "slowdown beside the other tenants on its device"
        case.limit("slowdown", where, what, max([1.0, *beside]), tenant.slowdown)


def _multiplies_one_side(term: str) -> bool:
    sides = [name.rpartition("_")[2] for name in term.split("*")]
    return len(set(sides)) < len(sides)


def _tenants(slots: list[Slot]) -> Iterator[tuple[Slot, Tenant]]:
    return ((slot, tenant) for slot in slots for tenant in slot.tenants)


def _beside(document: Interference, own: _Used, other: _Used) -> float:
    total = 0.0
    for term, coefficient in zip(document.features, document.coefficients, strict=True):
        value = coefficient
        for name in term.split("*") if term != "1" else ():
            feature, _, whose = name.rpartition("_")
            value *= getattr(own if whose == "own" else other, feature)
        total += value
    return total


def _used(case: Case, slot: Slot, tenant: Tenant, every_size: bool) -> list[_Used]:
    """At the batch sizes up to its pipeline's that count; none where the profile does not say."""
    planned, profile = _planned(case, tenant), case.profiles.get(tenant.model)
    if planned is None or profile is None:
        return []
    most = planned.pipeline.batch_size
    for used in profile.utilisation:
        if (used.device, used.share) == (slot.device, slot.share):
            ends = {1, most, *(size for size in used.batch_sizes if size < most)}
            sizes = range(1, most + 1) if every_size else sorted(ends)
            return [_interpolated(used, slot, size) for size in sizes]
    return []


def _interpolated(used: Utilisation, slot: Slot, batch: int) -> _Used:
    columns = (used.l2, used.dram, *((used.beside,) if used.beside else ()))
    rows = list(zip(used.batch_sizes, *columns, strict=True))
    found: Sequence[float] = rows[0][1:] if batch < rows[0][0] else rows[-1][1:]
    for (size, *low), (next_size, *high) in pairwise(rows):
        if size <= batch <= next_size:
            part = (batch - size) / (next_size - size)
            found = [a + part * (b - a) for a, b in zip(low, high, strict=True)]
            break
    l2, dram, *beside = found
    return _Used(l2, dram, float(slot.share), beside[0] if beside else None)


def _planned(case: Case, tenant: Tenant) -> PlannedPipeline | None:
    return case.pipeline_of(tenant.model, tenant.pipeline)


def _label(slot: Slot, tenant: Tenant) -> str:
    return f"slot {slot.name}, {tenant.model}/{tenant.pipeline}/stage {tenant.stage}"
