"""Slots into devices, exactly: the fewest devices whose shares and memory hold them.

Bin packing with few sizes. First-fit decreasing fills devices one after the other; if it needs no
more than the sum of all shares, rounded up, that is the fewest. Otherwise the cutting-stock program
is solved: minimise the number of devices, each cut by a maximal pattern (`patterns`), such that the
patterns give every size as often as it is needed. Shares are fractions, and sums exact.

The paper adds up fractions of unlike devices and does not ask whether they pack (equation 23).
Cost: O(slots + devices) for each size by first fit; the program, where it is needed, has as many
columns as there are patterns.
"""

from collections import Counter
from collections.abc import Sequence
from fractions import Fraction
from math import ceil, lcm
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from headrace.planning.common.allotments import Allotments
from headrace.planning.common.candidates import Ints, Pipelines
from headrace.planning.common.hardware import Hardware
from headrace.planning.common.patterns import maximal_patterns
from headrace.planning.common.solver import LinearModel

PACK_LIMIT_S = 10.0


class SlotSize(NamedTuple):
    """What a slot takes of its device."""

    share: Fraction
    weights_bytes: int
    """0 where the device's memory is not known."""

    def __hash__(self) -> int:
        """A fraction's own takes ten times as long, and every slot is looked up by its size."""
        return hash((self.share.numerator, self.share.denominator, self.weights_bytes))


def slot_sizes(
    hardware: Hardware, columns: Sequence[Pipelines], chosen: Sequence[Allotments]
) -> list[Counter[SlotSize]]:
    """Per device type, how many slots of each size the chosen allotments have."""
    sizes: list[Counter[SlotSize]] = [Counter() for _ in hardware.devices]
    for pipelines, allotments in zip(columns, chosen, strict=True):
        for row, slots in zip(allotments.pipeline, allotments.slots, strict=True):
            for stage, count in enumerate(slots):
                if count:
                    kind = int(pipelines.kinds[row, stage])
                    device = int(hardware.kind_device[kind])
                    weights = int(pipelines.weights_bytes[row, stage])
                    known = hardware.memory_bytes[device] >= 0
                    size = SlotSize(hardware.kinds[kind].share, weights if known else 0)
                    sizes[device][size] += int(count)
    return sizes


def devices_taken(
    hardware: Hardware, columns: Sequence[Pipelines], chosen: Sequence[Allotments], given: Ints
) -> Ints:
    """Devices of each type, `given`, or as many as the slots chosen on it take when packed.

    Counts that patterns cover always fit by share; only memory takes more.

    Args:
        given: shape (D,), patterns of that many devices cover the slots.

    Returns:
        Shape (D,).
    """
    taken = given.copy()
    for i, sizes in enumerate(slot_sizes(hardware, columns, chosen)):
        memory = int(hardware.memory_bytes[i])
        if memory >= 0 and _heaviest_device(sizes) > memory:
            packed = pack(sizes, device=hardware.devices[i], memory_bytes=memory)
            taken[i] = max(given[i], len(packed))
    return taken


def fit_alone(pipelines: Pipelines, hardware: Hardware) -> npt.NDArray[np.bool_]:
    """Shape (C,): whether one slot of each stage fits on the devices that there are."""
    fits = np.ones(len(pipelines), dtype=bool)
    for i, device in enumerate(hardware.devices):
        mine = (pipelines.kinds >= 0) & (hardware.kind_device[pipelines.kinds] == i)
        # With a device for every stage there is nothing to pack.
        tight = np.flatnonzero(fits & (mine.sum(axis=1) > hardware.counts[i]))
        memory = int(hardware.memory_bytes[i])
        known: dict[tuple[SlotSize, ...], bool] = {}
        for row in tight:
            sizes = tuple(
                SlotSize(hardware.kinds[kind].share, int(weights) if memory >= 0 else 0)
                for kind, weights, here in zip(
                    pipelines.kinds[row], pipelines.weights_bytes[row], mine[row], strict=True
                )
                if here
            )
            key = tuple(sorted(sizes))
            if key not in known:
                room = memory if memory >= 0 else None
                packed = pack(Counter(sizes), device=device, memory_bytes=room)
                known[key] = len(packed) <= hardware.counts[i]
            fits[row] = known[key]
    return fits


def _heaviest_device(sizes: Counter[SlotSize]) -> int:
    """A bound on the weights that share one device, whatever the packing."""
    if not sizes:
        return 0
    most = int(1 / min(size.share for size in sizes))
    return most * max(size.weights_bytes for size in sizes)


def pack(
    sizes: Counter[SlotSize], *, device: str, memory_bytes: int | None = None
) -> list[list[SlotSize]]:
    """The fewest devices that hold all slots; each device lists its slots, largest first.

    First-fit decreasing, and where that misses the obvious lower bound, the exact answer over
    all maximal patterns.
    """
    kinds = sorted(sizes, reverse=True)
    if not kinds:
        return []
    greedy = _first_fit(kinds, sizes, memory_bytes)
    least = ceil(sum(size.share * count for size, count in sizes.items()))
    if len(greedy) <= least:
        return greedy
    exact = _by_patterns(kinds, sizes, device, memory_bytes)
    return exact if exact is not None and len(exact) < len(greedy) else greedy


def _first_fit(
    kinds: Sequence[SlotSize], sizes: Counter[SlotSize], memory_bytes: int | None
) -> list[list[SlotSize]]:
    """Shares as whole numbers of the finest one: there may be 100,000 devices."""
    finest = lcm(*(size.share.denominator for size in kinds))
    devices: list[list[SlotSize]] = []
    free: list[int] = []
    room: list[int] = []
    for size in kinds:
        part = int(size.share * finest)
        # Memory that is not known never lacks.
        weights = 0 if memory_bytes is None else size.weights_bytes
        first = 0
        for _ in range(sizes[size]):
            # Devices that refused this size refuse it again.
            while first < len(devices) and (part > free[first] or weights > room[first]):
                first += 1
            if first == len(devices):
                devices.append([])
                free.append(finest)
                room.append(memory_bytes or 0)
            devices[first].append(size)
            free[first] -= part
            room[first] -= weights
    return devices


def _by_patterns(
    kinds: Sequence[SlotSize],
    sizes: Counter[SlotSize],
    device: str,
    memory_bytes: int | None,
) -> list[list[SlotSize]] | None:
    patterns = np.array(
        maximal_patterns(
            [size.share for size in kinds],
            device=device,
            weights_bytes=[size.weights_bytes for size in kinds],
            memory_bytes=memory_bytes,
        )
    )
    model = LinearModel(maximise=False)
    cut = model.add_columns(len(patterns), gain=1.0, integer=True)
    rows = model.add_rows(len(kinds), lower=np.array([float(sizes[size]) for size in kinds]))
    pattern, kind = np.nonzero(patterns)
    model.add_entries(rows[kind], cut[pattern], patterns[pattern, kind])
    values = model.solve(time_limit_s=PACK_LIMIT_S).values
    if values is None:
        return None
    left = Counter(sizes)
    devices: list[list[SlotSize]] = []
    for slots, count in zip(patterns, values[cut].astype(int), strict=True):
        for _ in range(count):
            held = [
                size
                for size, most in zip(kinds, slots, strict=True)
                for _ in range(min(int(most), left[size]))
            ]
            left.subtract(held)
            devices.append(held)
    assert not +left, "patterns cover every slot"
    return [held for held in devices if held]
