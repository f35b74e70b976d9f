"""A start's timeline, counted out again from the layers' figures (imports no planner and no cost
model).

Streams are told as lists of jobs, each with what it waits for, and run one after the other; the
rules are those of `headrace.starts`, restated. Before all of them the model is opened; what was
measured of the whole is what it takes at least.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction

from headrace.domain.layers import LayerTimes, Residency
from headrace.domain.plan import Deployment, Slot
from headrace.verify.case import Case


def check_absences(case: Case) -> bool:
    """Whether models are absent as a whole plan says or not at all; what else holds of a plan of
    which some models come and go cannot be told."""
    plan = case.plan
    absent = [each for each in plan.deployments if each.cold_share is not None]
    if plan.is_provisioned or not absent:
        return True
    for each in plan.deployments:
        if each.cold_share is not None and each.start is None:
            what = "a part of its requests finds it absent, and no start says how it is brought"
            case.report("start", each.name, what, "a start, or no cold_share", each.cold_share)
        elif each.cold_share is None:
            what = "stays in memory, and other models of the plan are absent at times"
            case.report("start", each.name, what, "a cold_share of every model, or of none", "none")
    if not case.violations:
        what = "is absent at times, and not served by one pipeline of one stage"
        for each in absent:
            shape = [len(pipeline.stages) for pipeline in each.pipelines]
            case.report("start", each.name, what, "stages of its pipelines: [1]", shape)
    return False


def check_starts(case: Case) -> None:
    """Every start that the plan states is one that its profile gives."""
    for deployment in case.plan.deployments:
        stated = deployment.start
        profile = case.profiles.get(deployment.model)
        if stated is None or profile is None:
            continue
        where = f"{deployment.name}/start"
        _check_planner(case, where, stated.planner)
        if (stated.device, stated.share) not in _kinds(deployment):
            what = "the start's device and share"
            case.report("start", where, what, "a stage's", f"{stated.share} of {stated.device}")
        times = profile.timed_layers(stated.device, stated.share, stated.batch_size)
        if times is None:
            what = "layer times of the start's device, share and batch size"
            case.report("start", where, what, "profiled", "none")
            continue
        weights = [layer.weights_bytes for layer in profile.layers]
        for fault in faults_of_start(times, weights, stated):
            case.report("start", where, fault, "what the profile gives", "another")


def check_provision(case: Case) -> None:
    """A planner of starts is named where starts are planned, and by the plan's options too."""
    asked = case.plan.options.provision
    if asked is not None and not case.plan.has_starts:
        what = "provision names a planner of starts, and no start is planned"
        case.report("start", "options", what, "none", asked)


def _check_planner(case: Case, where: str, planner: str) -> None:
    asked = case.plan.options.provision
    if not planner or (asked is not None and planner != asked):
        what = "planner of the start is not that of the options"
        case.report("start", where, what, asked or "a name", planner)


def check_helper(case: Case, slot: Slot) -> None:
    """Part of a start may come over the link of another device of the node, behind another link."""
    if slot.helper is None:
        return
    kind, other = case.types.get(slot.device), case.slots.get(slot.helper)
    apart = other is not None and (
        (other.node, other.device) == (slot.node, slot.device)
        and other.device_index != slot.device_index
        and (
            kind is None
            or link_of(other, kind.devices_per_link) != link_of(slot, kind.devices_per_link)
        )
    )
    if not apart or (kind is not None and not kind.copy_stream):
        needed = "a slot of another device of its node and type, behind another link"
        case.report("start", f"slot {slot.name}", "helper", needed, slot.helper)


def link_of(slot: Slot, devices_per_link: int) -> tuple[str, int]:
    """Of devices of one type."""
    return slot.node, slot.device_index // devices_per_link


def _kinds(deployment: Deployment) -> set[tuple[str, Fraction]]:
    return {
        (stage.device, stage.share)
        for pipeline in deployment.pipelines
        for stage in pipeline.stages
    }


def faults_of_start(
    times: LayerTimes, weights_bytes: Sequence[int], residency: Residency
) -> list[str]:
    """What is wrong with a stated start, in words; empty: nothing.

    Args:
        weights_bytes: of each layer.
    """
    count = len(weights_bytes)
    faults = _misplaced(times, weights_bytes, residency)
    if faults:
        return faults
    place = residency.by_layer(count)
    sent = _arrivals(times, place, times.load_p99_us)
    if residency.waits_for_all:
        everything = max(sent.values(), default=0)
        sent = dict.fromkeys(range(count), everything)
    clock = times.open_p99_us
    sent = {layer: clock + at for layer, at in sent.items()}
    for layer in range(count):
        from_host = place[layer] is None
        took = times.host_p99_us[layer] if from_host else times.inside_p99_us[layer]
        clock = max(clock, sent.get(layer, 0)) + took
    clock = max(clock, times.start_p99_us)
    if clock != residency.start_us:
        faults.append(f"start_us is {residency.start_us}, and the layers' figures give {clock}")
    on_host = sum(weights_bytes[layer] for layer in residency.host)
    if on_host != residency.host_bytes:
        faults.append(f"host_bytes is {residency.host_bytes}, and its layers have {on_host}")
    bound = residency.bound_us
    if bound is not None and bound > residency.start_us:
        faults.append(f"bound_us is {bound}, later than the start it bounds")
    return faults


@dataclass(frozen=True, slots=True)
class Median:
    """A start by medians: its copies, its execution, and when it ends on an idle slot."""

    load_us: int
    exec_us: int
    alone_us: int


def median_start(
    times: LayerTimes, weights_bytes: Sequence[int], residency: Residency
) -> Median | None:
    """None: it places a layer nowhere or twice, which `faults_of_start` says."""
    if _misplaced(times, weights_bytes, residency):
        return None
    place = residency.by_layer(len(weights_bytes))
    sent = _arrivals(times, place, times.load_p50_us)
    everything = max(sent.values(), default=0)
    if residency.waits_for_all:
        sent = dict.fromkeys(range(len(weights_bytes)), everything)
    clock, executed = times.open_p50_us, 0
    for layer, at in enumerate(place):
        took = times.host_p50_us[layer] if at is None else times.inside_p50_us[layer]
        executed += took
        clock = max(clock, times.open_p50_us + sent.get(layer, 0)) + took
    alone_us = max(clock, times.start_p50_us)
    return Median(times.open_p50_us + everything, executed, alone_us)


def _misplaced(times: LayerTimes, weights_bytes: Sequence[int], residency: Residency) -> list[str]:
    count = len(weights_bytes)
    named = [*residency.host, *(i for group in residency.transfers for i in group.layers)]
    if any(not 0 <= layer < count for layer in named):
        return [f"names a layer outside the model's {count}"]
    weighing = {layer for layer in range(count) if weights_bytes[layer]}
    if sorted(named) != sorted(weighing):
        wrong = sorted(weighing.symmetric_difference(named)) or sorted(named)
        return [f"layer {wrong[0]}: weights are neither loaded once nor left on the host"]
    helper_from: int | None = None
    last = -1
    for group in residency.transfers:
        if list(group.layers) != sorted(group.layers) or group.layers[0] < last:
            return [f"transfers are not in the order of the layers, at layer {group.layers[0]}"]
        last = group.layers[-1]
        if group.helper:
            helper_from = group.layers[0] if helper_from is None else helper_from
            if not times.forward_us:
                return [
                    f"layer {helper_from} comes over a helper, and the profile has no forward_us:"
                    " no second device was measured"
                ]
        elif helper_from is not None:
            return [f"layer {group.layers[0]} comes over the device's own link behind the helper's"]
    return []


def _arrivals(
    times: LayerTimes, place: Sequence[tuple[int, bool, bool] | None], load_us: Sequence[int]
) -> Mapping[int, int]:
    """When each loaded layer's transfer is on the device, if copies take `load_us`."""
    arrived: dict[int, int] = {}
    own_link = helper_link = forwarding = 0
    members: dict[int, list[int]] = {}
    for layer, at in enumerate(place):
        if at is not None:
            members.setdefault(at[0], []).append(layer)
    for layers in members.values():
        takes = sum(load_us[layer] for layer in layers)
        takes -= sum(times.saved_us[layer] for layer in layers[1:])
        at = place[layers[0]]
        if at is not None and at[1]:
            helper_link += takes
            begins = max(forwarding, helper_link)
            forwarding = begins + times.forward_call_us
            forwarding += sum(times.forward_us[layer] for layer in layers)
            done = forwarding
        else:
            own_link += takes
            done = own_link
        arrived.update(dict.fromkeys(layers, done))
    return arrived
