"""What the cluster offers, in the planner's indices."""

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from headrace.domain.cluster import Cluster
from headrace.planning.common.candidates import Floats, Ints, SlotKind, usable_kinds
from headrace.planning.common.patterns import maximal_patterns

UNLIMITED = 1_000_000
"""Devices; more than any refusal will recommend."""


@dataclass(frozen=True)
class Hardware:
    """K slot kinds on D device types."""

    kinds: tuple[SlotKind, ...]
    devices: tuple[str, ...]
    owned: Ints
    """Shape (D,): how many devices of each type there are."""
    counts: Ints
    """Shape (D,): how many could be had; more than owned only to explain a refusal."""
    kind_device: Ints
    """Shape (K,): index into `devices`."""
    shares: Floats
    """Shape (K,)."""
    pattern_device: Ints
    """Shape (patterns,): index into `devices`."""
    pattern_slots: Ints
    """Shape (patterns, K): slots of each kind that one device cut this way gives."""
    prices: Floats | None
    """Shape (D,): per hour; None unless all are known."""
    memory_bytes: Ints
    """Shape (D,): of one device; -1 where unknown."""

    @cached_property
    def slots_max(self) -> Ints:
        """Shape (K,): slots of one kind if every device were cut for it."""
        per_device = np.array([int(1 / kind.share) for kind in self.kinds], dtype=np.int64)
        slots: Ints = self.counts[self.kind_device] * per_device
        return slots

    def with_more(self, device: int, count: int) -> "Hardware":
        """As if `count` more of the device type `device` were there."""
        counts = self.counts.copy()
        counts[device] += count
        return replace(self, owned=counts, counts=counts)

    def with_unlimited(self, device: int) -> "Hardware":
        """As if more of the device type `device` could be had, at a price."""
        counts = self.counts.copy()
        counts[device] += UNLIMITED
        return replace(self, counts=counts)

    @classmethod
    def of(cls, cluster: Cluster) -> "Hardware":
        """
        Raises:
            DocumentError: shares so fine that they combine in too many ways.
        """
        kinds = usable_kinds(cluster)
        devices = tuple(dict.fromkeys(kind.device for kind in kinds))
        owners: list[int] = []
        rows: list[Ints] = []
        for i, device in enumerate(devices):
            mine = [k for k, kind in enumerate(kinds) if kind.device == device]
            for pattern in maximal_patterns([kinds[k].share for k in mine], device=device):
                row = np.zeros(len(kinds), dtype=np.int64)
                row[mine] = pattern
                owners.append(i)
                rows.append(row)
        types = [cluster.device_type(device) for device in devices]
        known = [kind.price_per_hour for kind in types if kind.price_per_hour is not None]
        counts = np.array([cluster.count(device) for device in devices], dtype=np.int64)
        return cls(
            kinds=kinds,
            devices=devices,
            owned=counts,
            counts=counts,
            kind_device=np.array([devices.index(kind.device) for kind in kinds], dtype=np.int64),
            shares=np.array([float(kind.share) for kind in kinds]),
            pattern_device=np.array(owners, dtype=np.int64),
            pattern_slots=np.array(rows, dtype=np.int64).reshape(len(rows), len(kinds)),
            prices=np.array(known) if len(known) == len(devices) else None,
            memory_bytes=np.array(
                [-1 if t.memory_bytes is None else t.memory_bytes for t in types], dtype=np.int64
            ),
        )
