"""What the exact planner of shared devices is given, in plain numbers."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from headrace.planning.common.weights import Weights

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]

TENANTS_MAX = 3
"""Most models that take turns on one part, where more are too many to look at: as in gpu-lets."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """M models: what is asked of them."""

    target_rps: Floats
    """Shape (M,): the rate asked for, or the weight that `max-min` multiplies."""
    floor: Floats
    """Shape (M,): multiples of the target that must be carried, whatever multiple is found."""
    have: Floats
    """Shape (M,): multiples of the target that other devices carry already."""
    budget_us: Ints
    """Shape (M,): what the duty cycle and a batch may take together."""
    weights: Weights
    """Of M tenants."""
    tenants_max: int = TENANTS_MAX

    @property
    def models(self) -> int:
        return len(self.target_rps)

    def wanted(self, multiple: float) -> Floats:
        """Shape (M,): multiples of the targets, none below its floor, that are still missing."""
        missing: Floats = np.maximum(np.maximum(self.floor, multiple) - self.have, 0.0)
        return missing


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceOffer:
    """Devices of one type."""

    name: str
    count: int
    price: float
    """What one device adds to the objective: 1 for `least-devices`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """One way to cut and use a device."""

    device: int
    """Index into the offers."""
    places: tuple[int, ...]
    """Of each part, what it may be."""
    loudness: tuple[int, ...]
    """Of each part, the most that it may be."""
