"""Does it fit: devices, memory, links, and the time of shared slots.

devices  the shares of the slots on a device sum to at most 1
memory   of a device: the weights of all blocks of all its slots. Every slot is a process with its
         own copy of each block that any of its stages has
links    a hop's traffic is the pipeline's throughput x the bytes of the cut between its stages. It
         spreads evenly over all pairs (slot of the one pool, slot of the other), since batches take
         whatever slots are free; a pair on one node crosses no link. The sum over all hops must not
         exceed the node's bandwidth, in each direction
time     of a slot: the sum over its tenants of rate / what it can do with all its time. A stage's
         rate spreads over its pool in proportion to what each slot can do, so that a slot with one
         tenant is busy throughput / (slots x running rate) <= 1

Rates are recomputed ones. For links the larger of claimed and recomputed counts: a claim is a plan
to send. Cost: linear in slots + stages x pool.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from fractions import Fraction

from headrace.domain.plan import Slot
from headrace.verify.case import Case
from headrace.verify.figures import Throughputs, stage_rates
from headrace.verify.shared import check_slowdowns, check_turns


def check_resources(case: Case, throughputs: Throughputs) -> None:
    _check_devices(case)
    if case.plan.is_provisioned:  # models come and go: memory and time are `provisioned`'s
        return
    check_turns(case)
    check_slowdowns(case)
    _check_memory(case)
    _check_links(case, throughputs)
    _check_time(case, throughputs)


def _by_device(case: Case) -> dict[tuple[str, str, int], list[Slot]]:
    devices: dict[tuple[str, str, int], list[Slot]] = defaultdict(list)
    for slot in case.plan.slots:
        devices[slot.node, slot.device, slot.device_index].append(slot)
    return devices


def _check_devices(case: Case) -> None:
    for (node, device, index), slots in _by_device(case).items():
        total = sum((slot.share for slot in slots), Fraction(0))
        if total > 1:
            what = "its slots' shares sum to more than the device"
            case.report("devices", f"{node}/{device}-{index}", what, total, 1)
            continue
        kind = case.types.get(device)
        parts = Counter(slot.share for slot in slots)
        if kind is not None and kind.splits and not _within_a_split(parts, kind.splits):
            what, cuts = "no split of the device has these parts", map(_listed, kind.splits)
            found = _listed(sorted(parts.elements(), reverse=True))
            case.report("devices", f"{node}/{device}-{index}", what, found, " ".join(cuts))


def _within_a_split(parts: Counter[Fraction], splits: Iterable[tuple[Fraction, ...]]) -> bool:
    return any(all(count <= split.count(part) for part, count in parts.items()) for split in splits)


def _listed(parts: Iterable[Fraction]) -> str:
    return f"[{', '.join(map(str, parts))}]"


def _check_memory(case: Case) -> None:
    held = _blocks_held(case)
    for (node, device, index), slots in _by_device(case).items():
        kind = case.types.get(device)
        if kind is not None and kind.memory_bytes is not None:
            needed = sum(_weights(case, slot, held) for slot in slots)
            what = "weights (bytes) of its slots exceed the memory"
            case.limit("memory", f"{node}/{device}-{index}", what, needed, kind.memory_bytes)


def _blocks_held(case: Case) -> dict[str, dict[str, set[int]]]:
    """Slot -> model -> blocks whose weights it needs."""
    held: dict[str, dict[str, set[int]]] = defaultdict(lambda: defaultdict(set))
    for planned in case.pipelines:
        profile = case.profiles.get(planned.model)
        # A range that reaches beyond the model is reported, and must not be walked to its end.
        end = len(profile.blocks) if profile else 0
        for stage in planned.stages:
            for name in stage.pool:
                blocks = range(max(0, stage.first_block), min(stage.end_block, end))
                held[name][planned.model].update(blocks)
    return held


def _weights(case: Case, slot: Slot, held: dict[str, dict[str, set[int]]]) -> int:
    total = 0
    for model, blocks in held.get(slot.name, {}).items():
        profile = case.profiles.get(model)
        if profile is not None:
            total += sum(b.weights_bytes for i, b in enumerate(profile.blocks) if i in blocks)
    return total


def _check_links(case: Case, throughputs: Throughputs) -> None:
    leaving, entering = _traffic(case, throughputs)
    for direction, traffic in (("leaving", leaving), ("entering", entering)):
        for name, bytes_per_s in traffic.items():
            node = case.nodes.get(name)
            if node is not None and node.bandwidth_gbps is not None:
                what, most = f"planned traffic (bytes/s) {direction}", node.bandwidth_gbps * 1e9 / 8
                case.limit("links", f"node {name}", what, bytes_per_s, most)


def _traffic(case: Case, throughputs: Throughputs) -> tuple[dict[str, float], dict[str, float]]:
    """Node -> bytes per second that leave it, and that enter it."""
    leaving: dict[str, float] = defaultdict(float)
    entering: dict[str, float] = defaultdict(float)
    for planned in case.pipelines:
        pipeline, profile = planned.pipeline, case.profiles.get(planned.model)
        recomputed = throughputs.pipelines.get((planned.model, pipeline.name), 0.0)
        rps = max(recomputed, pipeline.throughput_rps)
        for stage, after in zip(pipeline.stages, pipeline.stages[1:], strict=False):
            if profile is None or not 0 < stage.end_block <= len(profile.blocks):
                continue
            if not stage.pool or not after.pool:
                continue  # reported already
            per_pair = rps * profile.blocks[stage.end_block - 1].cut_bytes
            per_pair /= len(stage.pool) * len(after.pool)
            sources, targets = _nodes_of(case, stage.pool), _nodes_of(case, after.pool)
            ways = ((sources, targets, leaving), (targets, sources, entering))
            for ends, others, traffic in ways:
                slots_over_there = others.total()
                for name, slots in ends.items():
                    traffic[name] += per_pair * slots * (slots_over_there - others[name])
    return leaving, entering


def _nodes_of(case: Case, pool: Sequence[str]) -> Counter[str]:
    return Counter(case.slots[name].node for name in pool if name in case.slots)


def _check_time(case: Case, throughputs: Throughputs) -> None:
    busy: dict[str, float] = defaultdict(float)
    for planned in case.pipelines:
        rps = throughputs.pipelines.get((planned.model, planned.pipeline.name), 0.0)
        for index in range(len(planned.stages)):
            rates = stage_rates(case, planned, index)
            total_rps = 0.0 if rates is None else rates.total_rps
            if rates is None or total_rps <= 0:
                continue
            for name, slot_rps in rates.slots_rps.items():
                busy[name] += rps * slot_rps / total_rps / rates.running_rps
    what = "part of its time that its tenants need"
    for slot in case.plan.slots:
        case.limit("time", f"slot {slot.name}", what, busy[slot.name], 1.0)
