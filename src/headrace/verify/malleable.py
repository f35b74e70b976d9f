"""Does a malleable plan hold: every depth of every model, and what all slots carry (Accordion,
3.1).

A plan is either of pipelines or of depths. Of depths, restated:

depths    entry d - 1 has d stages, which cover all blocks once in order; so many slots of their
          kinds are there; latency and transfer of one batch are the profile's; fill is their sum,
          pace the largest of them
items     requests have at most what the problem allows; the typical one, the mean rounded up, keeps
          its budget alone at its best depth: fill + (ceil(B / b) - 1) x pace
slots     are promised to nobody, have no duty cycle, and are of a kind that some depth uses
memory    any slot of a kind may be asked to run what any depth runs on that kind. A node's cores
          map the weights once; every slot of another device type has a copy
carried   the stated throughputs fit on the slots: a request holds all slots of its depth as long as
          it takes by medians, and the gateway's part of the first where they have the same cores.
          For slots of one kind the cheapest depth of each model decides; for several kinds the
          depths' shares are the unknowns of a linear program
"""

from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from fractions import Fraction
from math import ceil, floor, inf

import numpy as np

from headrace.domain.cluster import is_cores
from headrace.domain.plan import Deployment, Depth, DepthStage
from headrace.domain.problem import Items
from headrace.domain.profile import Profile
from headrace.verify.case import Case
from headrace.verify.figures import (
    OF_ALL_PIPELINES,
    US_PER_S,
    Throughputs,
    latency_us,
    limit_gateway,
    transfer_us,
)

Kind = tuple[str, Fraction]

FEASIBLE = 1e-7
"""Up to which the linear program's answer is trusted."""

TOO_MUCH = 1e9
"""Of the slots: what needs so many times all of them is no way to serve a model."""

NOTHING = 1e-9
"""Of the slots: HiGHS takes no smaller coefficients."""


@dataclass(frozen=True, slots=True)
class _Figures:
    """Of one depth, recomputed."""

    fill_us: int
    pace_us: int
    held_us: dict[Kind, float]
    """Kind -> what a typical request holds of its slots, by medians."""

    def request_us(self, batches: int) -> int:
        return self.fill_us + (batches - 1) * self.pace_us


def check_malleable(case: Case) -> Throughputs:
    """Everything of the depths. Returns the throughputs that the plan may state."""
    depths = [depth for deployment in case.plan.deployments for depth in deployment.depths]
    used = {(stage.device, stage.share) for depth in depths for stage in depth.stages}
    for slot in case.plan.slots:
        where = f"slot {slot.name}"
        if slot.duty_us is not None:
            what = "a malleable plan's slot has a duty cycle (us)"
            case.report("duty", where, what, "none", slot.duty_us)
        if (slot.device, slot.share) not in used:
            what = "device type and share that no depth uses"
            case.report("pool", where, what, "one of a depth", f"{slot.device}: {slot.share}")
    ways: dict[str, list[_Figures]] = {}
    for deployment in case.plan.deployments:
        found = [_check_depth(case, deployment, at) for at in range(len(deployment.depths))]
        ways[deployment.model] = [figures for figures in found if figures is not None]
        _check_items(case, deployment, ways[deployment.model])
    _check_memory(case)
    return _check_carried(case, ways)


def _check_depth(case: Case, deployment: Deployment, at: int) -> _Figures | None:
    depth, where = deployment.depths[at], f"{deployment.model}/depth {at + 1}"
    most = case.plan.options.max_depth
    case.expect("depth", where, "stages", at + 1, len(depth.stages))
    if most is not None:
        case.limit("depth", where, "stages", len(depth.stages), most)
    case.expect("batch", where, "items together", case.plan.options.item_batch, depth.batch_size)
    _check_slots(case, where, depth.stages)
    profile = case.profiles.get(deployment.model)
    if profile is None or not _check_blocks(case, where, depth.stages, profile):
        return None
    return _check_times(case, where, profile, depth)


def _check_slots(case: Case, where: str, stages: Iterable[DepthStage]) -> None:
    there = Counter((slot.device, slot.share) for slot in case.plan.slots)
    for (device, share), needed in Counter((s.device, s.share) for s in stages).items():
        kind = case.types.get(device)
        if kind is None or share not in kind.shares:
            what = "device type or share that the cluster does not offer"
            case.report("share", where, what, "one that it offers", f"{device}: {share}")
        case.limit("pool", where, f"slots of {share} {device!r}", needed, there[device, share])


def _check_blocks(case: Case, where: str, stages: tuple[DepthStage, ...], profile: Profile) -> bool:
    at, whole = 0, True
    for index, stage in enumerate(stages):
        if stage.first_block != at or stage.end_block <= at:
            what = "does not continue where the stage before ends"
            stated = f"[{stage.first_block}, {stage.end_block})"
            case.report("blocks", f"{where}/stage {index}", what, f"[{at}, more than {at})", stated)
            whole = False
        at = stage.end_block
    case.expect("blocks", where, "blocks covered", len(profile.blocks), at)
    return whole and at == len(profile.blocks)


def _check_times(case: Case, where: str, profile: Profile, depth: Depth) -> _Figures | None:
    batch, medians, parts = depth.batch_size, [], []
    for index, stage in enumerate(depth.stages):
        after = depth.stages[index + 1] if index + 1 < len(depth.stages) else None
        took_us = latency_us(profile, stage, batch)
        if took_us is None:
            what = f"batch size on {stage.share} of a {stage.device!r} is not profiled"
            case.report("batch", f"{where}/stage {index}", what, "profiled", batch)
            return None
        hop_us = transfer_us(case, profile, stage, after, batch)
        at = f"{where}/stage {index}"
        case.expect("latency", at, "p99 latency (us)", took_us[1], stage.latency_us)
        case.expect("transfer", at, "transfer (us)", hop_us, stage.transfer_us)
        parts += [took_us[1], hop_us]
        medians += [took_us[0], float(hop_us)]
    case.expect("latency", where, "fill (us)", sum(parts), depth.fill_us)
    case.expect("latency", where, "pace (us)", max(parts), depth.pace_us)
    batches = ceil(_items(case, profile.model).typical / max(1, batch))
    request_us = sum(medians) + (batches - 1) * max(medians)
    held: dict[Kind, float] = defaultdict(float)
    for stage in depth.stages:
        held[stage.device, stage.share] += request_us
    first = depth.stages[0]
    if is_cores(first.device) and len(case.nodes) == 1:
        held[first.device, first.share] += profile.gateway_shared_us or profile.gateway_us
    return _Figures(sum(parts), max(parts), dict(held))


def _items(case: Case, model: str) -> Items:
    demand = case.demands.get(model)
    return Items() if demand is None else demand.items


def _check_items(case: Case, deployment: Deployment, depths: list[_Figures]) -> None:
    model, items = deployment.model, _items(case, deployment.model)
    asked = case.plan.options.max_items
    most = items.most if asked is None else asked
    case.expect("items", model, "most items of a request", most, deployment.max_items or 0)
    case.limit("items", model, "items of a typical request", items.typical, most)
    demand, profile = case.demands.get(model), case.profiles.get(model)
    if demand is None or profile is None or not depths:
        return
    batches = ceil(items.typical / max(1, case.plan.options.item_batch))
    alone_us = min(each.request_us(batches) for each in depths) + profile.gateway_us
    margin = Fraction(str(case.plan.options.margin_of(model)))
    budget_us = floor(demand.slo_us * (1 - margin))
    what = f"a request of {items.typical} items exceeds its latency budget (us) even alone"
    case.limit("slo", model, what, alone_us, budget_us)


def _check_memory(case: Case) -> None:
    needed = _weights(case)
    slots = Counter((s.node, s.device, s.device_index, s.share) for s in case.plan.slots)
    copies: dict[tuple[str, str, str], int] = defaultdict(int)
    for (node, device, index, share), count in slots.items():
        if is_cores(device):
            place = (node, device, f"all {_there(case, node, device)}")
            copies[place] = max(copies[place], needed[device, share])
        else:
            copies[node, device, f"{index}"] += count * needed[device, share]
    for (node, device, which), held in copies.items():
        kind = case.types.get(device)
        if kind is None or kind.memory_bytes is None:
            continue
        shared = _there(case, node, device) if is_cores(device) else 1
        what = "weights (bytes) of all that its slots may be asked to run"
        case.limit("memory", f"{node}/{device}-{which}", what, held, shared * kind.memory_bytes)


def _there(case: Case, node: str, device: str) -> int:
    """Devices of this type; none of a node that is not there, which is reported."""
    found = case.nodes.get(node)
    return 0 if found is None else found.devices.get(device, 0)


def _weights(case: Case) -> dict[Kind, int]:
    """Kind -> bytes of the blocks that some depth runs on it."""
    blocks: dict[tuple[Kind, str], set[int]] = defaultdict(set)
    for deployment in case.plan.deployments:
        profile = case.profiles.get(deployment.model)
        end = len(profile.blocks) if profile else 0
        for stage in (stage for depth in deployment.depths for stage in depth.stages):
            # A range that reaches beyond the model is reported, and must not be walked to its end.
            held = range(max(0, stage.first_block), min(stage.end_block, end))
            blocks[(stage.device, stage.share), deployment.model].update(held)
    needed: dict[Kind, int] = defaultdict(int)
    for (kind, model), held_blocks in blocks.items():
        profile = case.profiles.get(model)
        if profile is not None:
            needed[kind] += sum(profile.blocks[block].weights_bytes for block in held_blocks)
    return needed


def _check_carried(case: Case, ways: dict[str, list[_Figures]]) -> Throughputs:
    claimed = {d.model: d.throughput_rps for d in case.plan.deployments}
    if any(not ways[model] or not 0 <= rps < inf for model, rps in claimed.items()):
        for model, rps in claimed.items():
            if not 0 <= rps < inf:
                case.report("throughput", model, OF_ALL_PIPELINES, "a number", rps)
        return Throughputs(pipelines={}, deployments=dict.fromkeys(claimed, 0.0))
    slots: dict[Kind, float] = defaultdict(float)
    for slot in case.plan.slots:
        kind = case.types.get(slot.device)
        slots[slot.device, slot.share] += kind.max_utilisation if kind else 0.0
    needed = _part_of_slots(ways, claimed, slots)
    what = "slots' time that the stated throughputs need, in parts of what there is"
    case.limit("throughput", "plan", what, needed, 1.0 + (FEASIBLE if len(slots) > 1 else 0.0))
    limit_gateway(case, claimed)
    return Throughputs(pipelines={}, deployments=claimed)


def _part(held_us: float, slots: float) -> float:
    return held_us / (slots * US_PER_S)


def _part_of_slots(
    ways: dict[str, list[_Figures]], rates_rps: dict[str, float], slots: dict[Kind, float]
) -> float:
    """The least t so that t times the slots carry these rates."""
    kinds = sorted(slots)
    if not kinds or not all(slots.values()):
        return inf  # There are none, or of an unknown device type, which is reported.
    if len(kinds) == 1:
        there_us = slots[kinds[0]] * US_PER_S
        least = {model: min(sum(w.held_us.values()) for w in ways[model]) for model in ways}
        return sum(rps * least[model] for model, rps in rates_rps.items()) / there_us
    # Per way the part of each kind's time that it takes, if its model uses no other.
    parts = {
        model: [
            row
            for way in ways[model]
            if max(row := [_part(rps * way.held_us.get(k, 0.0), slots[k]) for k in kinds])
            < TOO_MUCH
        ]
        for model, rps in rates_rps.items()
    }
    if not all(parts.values()):
        return inf
    # Here, since few plans need it, and every server and `verify` would load it.
    import highspy

    from headrace.highs import SilentHighs

    program = SilentHighs()
    program.setOptionValue("threads", 1)
    least = program.addVariable(lb=0.0, obj=1.0)
    taken = [[-1.0 * least] for _ in kinds]
    for rows in parts.values():
        shares = [program.addVariable(lb=0.0) for _ in rows]
        program.addConstr(sum(shares[1:], start=1.0 * shares[0]) == 1.0)
        for share, row in zip(shares, rows, strict=True):
            for terms, part in zip(taken, row, strict=True):
                if part > NOTHING:
                    terms.append(part * share)
    for terms in taken:
        program.addConstr(sum(terms[1:], start=terms[0]) <= 0.0)
    program.run()
    if program.getModelStatus() != highspy.HighsModelStatus.kOptimal:
        return inf
    return float(np.array(program.getSolution().col_value)[0])
