"""Slowdowns by an interference document: of one batch beside what neighbours run.

The pure function that planners, dispatcher and simulator share (`headrace.verify` restates it):

    slowdown = max(1, largest over neighbours of sum of coefficient x term)

Of several parts beside a tenant, and of several tenants on one of them, the one that slows it most
counts: the measurements are of pairs. A batch takes ceil(execution x slowdown) + what the server
takes between two batches, which no neighbour on the device slows.
"""

import math
from collections.abc import Iterable
from fractions import Fraction
from typing import NamedTuple

from headrace.domain.errors import ProfileError
from headrace.domain.interference import Interference, factors
from headrace.domain.profile import Profile


class DeviceUse(NamedTuple):
    """What one model at one batch size takes of its device while it runs alone on its part."""

    l2: float
    """Part of the second-level cache's bandwidth, in [0, 1]."""
    dram: float
    """Part of the memory's bandwidth, in [0, 1]."""
    share: float
    """Part of the device that it owns, in (0, 1]."""


def use_of(profile: Profile, device: str, share: Fraction, batch_size: int) -> DeviceUse:
    """As profiled; between two profiled batch sizes on the straight line, beyond them the nearest.

    Raises:
        ProfileError: the profile says nothing of this device type and share.
    """
    found = profile.utilised(device, share)
    if found is None:
        raise ProfileError(
            f"profile {profile.model!r}: no utilisation on {share} of a {device!r}, which the"
            f" interference document of {device!r} is a function of\n"
            "  try       profiles with `utilisation` of every share, or no interference document"
        )
    return DeviceUse(*found.at(batch_size), float(share))


def slowdown_of(document: Interference, own: DeviceUse, others: Iterable[DeviceUse]) -> float:
    """How many times longer a batch takes beside its neighbours; at least 1.

    Args:
        own: of the batch itself.
        others: of every tenant of every other slot on the device.

    >>> from headrace.domain.profile import Provenance
    >>> document = Interference(
    ...     device="gpu",
    ...     coefficients=(0.9, 0.0, 0.5, 0.0, 0.0),
    ...     provenance=Provenance(kind="synthetic", date="2026-01-01"),
    ... )
    >>> own = DeviceUse(0.5, 0.5, 0.5)
    >>> slowdown_of(document, own, [DeviceUse(0.4, 0.0, 0.5), DeviceUse(0.1, 0.0, 0.5)])
    1.1
    >>> slowdown_of(document, own, [])
    1.0
    """
    return max((1.0, *(_beside_one(document, own, other) for other in others)))


def slowed_us(execution_us: int, slowdown: float) -> int:
    """What a batch takes its device at most, in whole microseconds.

    >>> slowed_us(1000, 1.0), slowed_us(1000, 1.25), slowed_us(3, 1.1)
    (1000, 1250, 4)
    """
    return math.ceil(execution_us * slowdown)


def _beside_one(document: Interference, own: DeviceUse, other: DeviceUse) -> float:
    values = {
        "l2_own": own.l2,
        "l2_other": other.l2,
        "dram_own": own.dram,
        "dram_other": other.dram,
        "share_own": own.share,
        "share_other": other.share,
    }
    return sum(
        coefficient * math.prod(values[name] for name in factors(term))
        for term, coefficient in zip(document.features, document.coefficients, strict=True)
    )
