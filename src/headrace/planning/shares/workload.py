"""What the exact planner of shared devices is given, in plain numbers."""

from dataclasses import dataclass
from fractions import Fraction

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]

NEVER_US = 1 << 50
"""Latency of what was not profiled or may not be used."""

TENANTS_MAX = 3
"""Most models that take turns on one part: what gpu-lets allow."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """Models with rates and latency budgets. M models, K kinds of parts, B batch sizes."""

    latency_us: Ints
    """Shape (M, K, B): of a batch of b + 1 alone on its device; NEVER_US where impossible."""
    taken_us: Ints
    """Same shape: what the batch takes of a duty cycle; more than its latency where the gateway
    works on the same core."""
    budget_us: Ints
    """Shape (M,): what the duty cycle and a batch may take together."""
    rate_rps: Floats
    """Shape (M,): asked for, or what `max-min` multiplies."""
    weights_bytes: Ints
    """Shape (M,)."""
    tenants_max: int = TENANTS_MAX

    @property
    def models(self) -> int:
        return len(self.rate_rps)


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceOffer:
    """Devices of one type."""

    name: str
    count: int
    price: float
    """What one device adds to the objective: 1 for `least-devices`."""
    splits: tuple[tuple[int, ...], ...]
    """Legal cuts that no other one contains: kinds of parts, largest first."""
    memory_bytes: int | None = None
    max_utilisation: float = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """A part of a device that can be chosen: all of one kind are interchangeable."""

    device: int
    """Index into the offers."""
    share: Fraction
