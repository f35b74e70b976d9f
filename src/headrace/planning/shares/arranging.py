"""Chosen parts and layouts -> devices with their parts, memory kept."""

from collections import defaultdict
from collections.abc import Iterator
from math import inf

from headrace.planning.common.shared_assembly import ChosenDevice, ChosenPart, ChosenTenant
from headrace.planning.common.shared_times import SharedTimes
from headrace.planning.shares.devices import Devices
from headrace.planning.shares.master import Chosen
from headrace.planning.shares.workload import Workload

Part = int
"""Index into the chosen parts."""

TRIES_MAX = 20_000
"""Parts that have no place where the others are."""


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
    parts = [list[ChosenPart]() for _ in device_type]
    for (_, _, index), part in zip(slots, held, strict=True):
        if part is not None:
            parts[index].append(_part(devices, times[device_type[index]], chosen, part))
    return [
        ChosenDevice(times[kind].device.name, tuple(sorted(some, key=lambda part: -part.share)))
        for kind, some in zip(device_type, parts, strict=True)
        if some
    ]


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
    loudness, place = chosen.parts.loudness.tolist(), chosen.parts.place.tolist()
    parts.sort(key=lambda part: (-loudness[part], -weights[part]))
    free = _Free(slots, memory)
    choices = list[Iterator[int]]()
    tries = 0
    while len(free.taken) < len(parts):
        at = len(free.taken)
        part = parts[at]
        if at == len(choices):
            choices.append(free.choices(place[part], loudness[part], weights[part]))
        index = next(choices[at], None)
        if index is not None:
            free.take(index, part, weights[part])
            continue
        choices.pop()
        tries += 1
        if at == 0 or tries > TRIES_MAX:
            return None
        free.give_back(weights[parts[at - 1]])
    return free.held


class _Free:
    """What is free of slots (place, loudness, device), and of devices' memory."""

    def __init__(self, slots: list[tuple[int, int, int]], memory: list[int | None]) -> None:
        self.held: list[Part | None] = [None] * len(slots)
        self.taken: list[int] = []
        """Slots, in the order in which they were."""
        self._slots = slots
        self._left = [inf if each is None else float(each) for each in memory]
        self._groups: dict[tuple[int, int], list[int]] = defaultdict(list)
        """Alike but for their devices. Where these have no limit, those that are free, last first:
        one is as good as another."""
        for index in reversed(range(len(slots))):
            self._groups[slots[index][:2]].append(index)

    def choices(self, place: int, loudness: int, weight: int) -> Iterator[int]:
        """Slots for such a part: the quietest that will do first, then of the emptiest device."""
        fitting = [
            index
            for (where, most), some in self._groups.items()
            if where == place and most >= loudness
            for index in (some if some and self._is_limited(some[-1]) else some[-1:])
            if self.held[index] is None and self._left[self._slots[index][2]] >= weight
        ]
        fitting.sort(key=self._preference)
        yield from fitting

    def take(self, index: int, part: Part, weight: int) -> None:
        self.held[index] = part
        self._left[self._slots[index][2]] -= weight
        self.taken.append(index)
        if not self._is_limited(index):
            self._groups[self._slots[index][:2]].pop()

    def give_back(self, weight: int) -> None:
        """The slot that was taken last."""
        index = self.taken.pop()
        self.held[index] = None
        self._left[self._slots[index][2]] += weight
        if not self._is_limited(index):
            self._groups[self._slots[index][:2]].append(index)

    def _is_limited(self, index: int) -> bool:
        return self._left[self._slots[index][2]] < inf

    def _preference(self, index: int) -> tuple[int, float, int]:
        _, loudness, device = self._slots[index]
        return loudness, -self._left[device], index


def _part(devices: Devices, times: SharedTimes, chosen: Chosen, part: Part) -> ChosenPart:
    place, models, batch, duty_us, _ = (table[part] for table in chosen.parts)
    tenants = tuple(
        ChosenTenant(times.models[m].demand.model, int(b))
        for m, b in zip(models, batch, strict=True)
        if m >= 0
    )
    return ChosenPart(devices.places[place][1], int(duty_us), tenants)
