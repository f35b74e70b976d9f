"""What a cluster has, and whether the machines of several apps fit it together."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache

import numpy as np

from headrace.domain.cluster import Cluster, DeviceType
from headrace.planning.apps.candidates import AppCase, ModuleCase
from headrace.planning.common.candidates import Floats, Ints
from headrace.planning.common.packing import SlotSize, pack


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceStock:
    """D device types, of which Q kinds of slot are cut, for N modules of all apps together."""

    devices: tuple[DeviceType, ...]
    counts: Ints
    """Shape (D,)."""
    kinds: tuple[tuple[int, Fraction], ...]
    """Per kind of slot: the index of its device type, and its share."""
    weights_bytes: tuple[int, ...]
    """Shape (N,): of a slot of each module."""

    @classmethod
    def of(
        cls, cluster: Cluster, modules: Sequence[ModuleCase], weights_bytes: Sequence[int]
    ) -> "DeviceStock":
        """The kinds of slot that the modules' candidates take."""
        taken = {(c.device, c.share) for module in modules for c in module.candidates}
        return cls(
            devices=cluster.device_types,
            counts=np.array([cluster.count(kind.name) for kind in cluster.device_types], np.int64),
            kinds=tuple(
                (index, share)
                for index, device in enumerate(cluster.device_types)
                for name, share in sorted(taken, key=lambda kind: (kind[0], -kind[1]))
                if name == device.name
            ),
            weights_bytes=tuple(weights_bytes),
        )

    @property
    def shares(self) -> Floats:
        """Shape (Q, D): what a slot takes of each device type."""
        parts = np.zeros((len(self.kinds), len(self.devices)))
        for q, (device, share) in enumerate(self.kinds):
            parts[q, device] = float(share)
        return parts

    @property
    def price_per_hour(self) -> float:
        """Of all devices: what no plan within the stock exceeds."""
        prices = [float(device.price_per_hour or 0.0) for device in self.devices]
        return float(np.dot(prices, self.counts))

    def kind_of(self, module: ModuleCase) -> Ints:
        """Shape (K,): the kind of slot of each candidate."""
        index = {(self.devices[d].name, share): q for q, (d, share) in enumerate(self.kinds)}
        return np.array([index[c.device, c.share] for c in module.candidates], np.int64)

    def needed(self, slots: Ints) -> Ints:
        """Shape (D,): the fewest devices of each type that hold the slots, shape (N, Q)."""
        sizes: list[Counter[SlotSize]] = [Counter() for _ in self.devices]
        for module, q in np.argwhere(slots):
            device, share = self.kinds[q]
            known = self.devices[device].memory_bytes is not None
            size = SlotSize(share, self.weights_bytes[module] if known else 0)
            sizes[device][size] += int(slots[module, q])
        return np.array(
            [
                _devices_needed(tuple(sorted(size.items())), device.name, device.memory_bytes)
                for size, device in zip(sizes, self.devices, strict=True)
            ],
            np.int64,
        )

    def limits(self, low: Ints) -> Ints:
        """Shape (N, Q): the most slots of each kind that a module can have beside `low` of all.

        By shares and by memory alone, so that more than these never fit.
        """
        most = np.zeros_like(low)
        for d, device in enumerate(self.devices):
            mine = [q for q, (index, _) in enumerate(self.kinds) if index == d]
            free = int(self.counts[d]) - sum(int(low[:, q].sum()) * self.kinds[q][1] for q in mine)
            memory = device.memory_bytes
            held = sum(int(low[:, q] @ np.array(self.weights_bytes)) for q in mine)
            for q in mine:
                more = np.full(len(low), int(free // self.kinds[q][1]))
                if memory is not None:
                    room = int(self.counts[d]) * memory - held
                    more = np.minimum(more, [room // max(1, w) for w in self.weights_bytes])
                most[:, q] = np.maximum(0, low[:, q] + more)
        return most


@lru_cache(maxsize=1 << 14)
def _devices_needed(
    sizes: tuple[tuple[SlotSize, int], ...], device: str, memory_bytes: int | None
) -> int:
    if all(size.share == 1 for size, _ in sizes):
        return sum(count for _, count in sizes)
    return len(pack(Counter(dict(sizes)), device=device, memory_bytes=memory_bytes))


def flat(cases: Sequence[AppCase]) -> list[ModuleCase]:
    """The modules of all apps, in order."""
    return [module for case in cases for module in case.modules]
