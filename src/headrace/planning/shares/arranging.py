"""Chosen parts and layouts -> devices with their parts, memory kept."""

from collections import defaultdict

from headrace.planning.common.shared_assembly import ChosenDevice, ChosenPart, ChosenTenant
from headrace.planning.common.shared_times import SharedTimes
from headrace.planning.shares.devices import Devices
from headrace.planning.shares.master import Chosen
from headrace.planning.shares.workload import Workload

Part = int
"""Index into the chosen parts."""

TRIES_MAX = 20_000


def needed(load: Workload, chosen: Chosen, multiple: float) -> Chosen:
    """Without parts that nothing asked for needs: `multiple` of every target, and floors."""
    rates = chosen.parts.rates_rps(load.models) / load.target_rps
    count = chosen.count.copy()
    carried = count @ rates
    wanted = load.wanted(multiple) * (1 - 1e-9)
    for part in rates.sum(axis=1).argsort():
        while count[part] and (carried - rates[part] >= wanted).all():
            count[part] -= 1
            carried = carried - rates[part]
    used = count > 0
    return Chosen(chosen.parts.take(used.nonzero()[0]), count[used], chosen.layouts)


def arranged(
    load: Workload, devices: Devices, times: list[SharedTimes], chosen: Chosen
) -> list[ChosenDevice] | None:
    """Every part in a place that may hold it; None where no order of them fits the memory."""
    slots: list[tuple[int, int, int]] = []
    device_type: list[int] = []
    for row in chosen.layouts.nonzero()[0]:
        layout = devices.layouts[row]
        for _ in range(chosen.layouts[row]):
            pairs = zip(layout.places, layout.loudness, strict=True)
            slots += [(place, loud, len(device_type)) for place, loud in pairs]
            device_type.append(layout.device)
    memory = [times[kind].device.memory_bytes for kind in device_type]
    held = _placed(load, chosen, slots, memory)
    if held is None:
        return None
    found = []
    for index, kind in enumerate(device_type):
        parts = [held[s] for s, slot in enumerate(slots) if slot[2] == index]
        some = [_part(devices, times[kind], chosen, part) for part in parts if part is not None]
        if some:
            some.sort(key=lambda part: -part.share)
            found.append(ChosenDevice(times[kind].device.name, tuple(some)))
    return found


def _placed(
    load: Workload,
    chosen: Chosen,
    slots: list[tuple[int, int, int]],
    memory: list[int | None],
) -> list[Part | None] | None:
    """Per slot the part in it. Loud parts first, since fewer slots may hold them; of those the
    heaviest first, each on the device with the most memory left; then other devices are tried."""
    weights = [
        load.weights.together(models[models >= 0].tolist()) for models in chosen.parts.models
    ]
    parts = [part for part, count in enumerate(chosen.count) for _ in range(count)]
    loudness, place = chosen.parts.loudness, chosen.parts.place
    parts.sort(key=lambda part: (-int(loudness[part]), -weights[part]))
    free: dict[tuple[int, int], list[int]] = defaultdict(list)
    for index, (where, loud, _) in enumerate(slots):
        free[where, loud].append(index)
    held: list[Part | None] = [None] * len(slots)
    left = [float("inf") if each is None else float(each) for each in memory]
    tries = 0

    def put(at: int) -> bool:
        nonlocal tries
        tries += 1
        if at == len(parts):
            return True
        if tries > TRIES_MAX:
            return False
        part = parts[at]
        loud = int(loudness[part])
        fitting = [
            index
            for (where, most), some in free.items()
            if where == place[part] and most >= loud
            for index in some
            if held[index] is None and left[slots[index][2]] >= weights[part]
        ]
        # The quietest slot that will do, then the emptiest device; of equal devices one.
        fitting.sort(key=lambda index: (slots[index][1], -left[slots[index][2]]))
        seen = set()
        for index in fitting:
            kind = slots[index][1], left[slots[index][2]]
            if kind in seen and left[slots[index][2]] == float("inf"):
                continue
            seen.add(kind)
            held[index] = part
            left[slots[index][2]] -= weights[part]
            if put(at + 1):
                return True
            held[index] = None
            left[slots[index][2]] += weights[part]
        return False

    return held if put(0) else None


def _part(devices: Devices, times: SharedTimes, chosen: Chosen, part: Part) -> ChosenPart:
    place, models, batch, duty_us, _ = (table[part] for table in chosen.parts)
    tenants = tuple(
        ChosenTenant(times.models[m].demand.model, int(b))
        for m, b in zip(models, batch, strict=True)
        if m >= 0
    )
    return ChosenPart(devices.places[place][1], int(duty_us), tenants)
