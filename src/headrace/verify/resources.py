"""Does it fit: devices, memory, links, and the time of shared slots."""

from collections import defaultdict
from collections.abc import Sequence
from fractions import Fraction

from headrace.domain.plan import Slot
from headrace.verify.case import Case, at_most
from headrace.verify.figures import Throughputs, stage_rates


def check_resources(case: Case, throughputs: Throughputs) -> None:
    _check_devices(case)
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
            case.report(
                "devices",
                f"{node}/{device}-{index}",
                "its slots' shares sum to more than the device",
                needed=total,
                available=1,
            )


def _check_memory(case: Case) -> None:
    held = _blocks_held(case)
    for (node, device, index), slots in _by_device(case).items():
        kind = case.types.get(device)
        if kind is None or kind.memory_bytes is None:
            continue
        needed = sum(_weights(case, slot, held) for slot in slots)
        if needed > kind.memory_bytes:
            case.report(
                "memory",
                f"{node}/{device}-{index}",
                "weights (bytes) of its slots exceed the memory",
                needed=needed,
                available=kind.memory_bytes,
            )


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
    """Every slot is a process with its own copy."""
    total = 0
    for model, blocks in held.get(slot.name, {}).items():
        profile = case.profiles.get(model)
        if profile is not None:
            total += sum(b.weights_bytes for i, b in enumerate(profile.blocks) if i in blocks)
    return total


def _check_links(case: Case, throughputs: Throughputs) -> None:
    """Each hop's items spread evenly over all pairs of its two pools.

    Judged by the larger of claimed and recomputed throughput: a claim is a plan to send.
    """
    leaving: dict[str, float] = defaultdict(float)
    entering: dict[str, float] = defaultdict(float)
    for planned in case.pipelines:
        pipeline, profile = planned.pipeline, case.profiles.get(planned.model)
        recomputed = throughputs.pipelines.get((planned.model, pipeline.name), 0.0)
        rps = max(recomputed, pipeline.throughput_rps)
        for stage, after in zip(pipeline.stages, pipeline.stages[1:], strict=False):
            if profile is None or not 0 < stage.end_block <= len(profile.blocks):
                continue
            per_pair = rps * profile.blocks[stage.end_block - 1].cut_bytes
            per_pair /= len(stage.pool) * len(after.pool)
            sources, targets = _nodes_of(case, stage.pool), _nodes_of(case, after.pool)
            for ends, others, traffic in (
                (sources, targets, leaving),
                (targets, sources, entering),
            ):
                there = sum(others.values())
                for name, slots in ends.items():
                    # What stays within a node crosses no link.
                    traffic[name] += per_pair * slots * (there - others.get(name, 0))
    for direction, traffic in (("leaving", leaving), ("entering", entering)):
        for name, bytes_per_s in traffic.items():
            node = case.nodes.get(name)
            if node is None or node.bandwidth_gbps is None:
                continue
            limit = node.bandwidth_gbps * 1e9 / 8
            if not at_most(bytes_per_s, limit):
                case.report(
                    "links",
                    f"node {name}",
                    f"planned traffic (bytes/s) {direction}",
                    needed=bytes_per_s,
                    available=limit,
                )


def _nodes_of(case: Case, pool: Sequence[str]) -> dict[str, int]:
    nodes: dict[str, int] = defaultdict(int)
    for name in pool:
        if name in case.slots:
            nodes[case.slots[name].node] += 1
    return nodes


def _check_time(case: Case, throughputs: Throughputs) -> None:
    """Tenants of a slot must leave each other time.

    A stage's load spreads over its pool in proportion to what each slot can do.
    """
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
    for slot in case.plan.slots:
        if not at_most(busy[slot.name], 1.0):
            case.report(
                "time",
                f"slot {slot.name}",
                "part of its time that its tenants need",
                needed=busy[slot.name],
                available=1.0,
            )
