"""Slowdowns by an interference document: of batches beside what neighbours run.

The pure functions that planners and simulator share (`headrace.verify` restates them):

    slowdown = max(1, largest over neighbours of sum of coefficient x term)

Of several parts beside a tenant, and of several tenants on one of them, the one that slows it most
counts: the measurements are of pairs. A batch takes ceil(execution x slowdown) + what the server
takes between two batches, which no neighbour on the device slows.

A tenant runs smaller batches than planned when fewer requests wait, and these may take more of the
memory's bandwidth, where each batch reads the weights once. So what is promised holds at every
batch size up to the planned one, of both sides.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from math import prod

import numpy as np
from numpy.typing import NDArray

from headrace.domain.errors import ProfileError
from headrace.domain.interference import Interference, factors
from headrace.domain.profile import Profile

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class DeviceUse:
    """What one model at one batch size takes of its device while it runs alone on its part."""

    l2: float
    """Part of the second-level cache's bandwidth, in [0, 1]."""
    dram: float
    """Part of the memory's bandwidth, in [0, 1]."""
    share: float
    """Part of the device that it owns, in (0, 1]."""
    beside: float | None = None
    """Slowdown beside a neighbour that uses neither cache nor memory; None: never measured."""


Uses = Sequence[DeviceUse]
"""Of one model on one part of a device, at batch sizes 1, 2, …"""


def uses_of(profile: Profile, device: str, share: Fraction, batch_size: int) -> Uses:
    """At every batch size up to this one, as profiled; between two profiled sizes on the straight
    line, beyond them the nearest.

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
    return [
        DeviceUse(*found.at(size), float(share), found.beside_at(size))
        for size in range(1, batch_size + 1)
    ]


def slowdown_of(document: Interference, own: Uses, others: Iterable[Uses]) -> float:
    """How many times longer a batch takes beside its neighbours; at least 1.

    Args:
        own: of the tenant itself.
        others: of every tenant of every other slot on the device.

    Raises:
        ProfileError: the document is a function of how the model was measured beside others, and it
            never was.

    >>> from headrace.domain.profile import Provenance
    >>> document = Interference(
    ...     device="gpu",
    ...     coefficients=(0.9, 0.0, 0.5, 0.0, 0.0),
    ...     provenance=Provenance(kind="synthetic", date="2026-01-01"),
    ... )
    >>> own = [DeviceUse(0.5, 0.5, 0.5)]
    >>> slowdown_of(document, own, [[DeviceUse(0.4, 0.0, 0.5)], [DeviceUse(0.1, 0.0, 0.5)]])
    1.1
    >>> slowdown_of(document, own, [])
    1.0
    """
    mine = own_terms(document, own)
    sums = [float((mine @ other_terms(document, other).T).max()) for other in others]
    return max([1.0, *sums])


def own_terms(document: Interference, uses: Uses) -> Floats:
    """Shape (uses, terms): of each term its coefficient times what the batch itself brings to it.
    Times `other_terms` of a neighbour and summed over the terms: how much slower it is beside that.

    Raises:
        ProfileError: as `slowdown_of`.
    """
    found: Floats = _terms(document, uses, "own") * np.array(document.coefficients)
    return found


def other_terms(document: Interference, uses: Uses) -> Floats:
    """Shape (uses, terms): of each term what a batch brings to it as a neighbour."""
    return _terms(document, uses, "other")


def _terms(document: Interference, uses: Uses, side: str) -> Floats:
    columns = []
    for term in document.features:
        named = (factor.rpartition("_") for factor in factors(term))
        features = [feature for feature, _, whose in named if whose == side]
        columns.append([prod(_value(document, name, use) for name in features) for use in uses])
    return np.array(columns, np.float64).T


def slowed_us(execution_us: int, slowdown: float) -> int:
    """What a batch takes its device at most, in whole microseconds.

    >>> slowed_us(1000, 1.0), slowed_us(1000, 1.25), slowed_us(3, 1.1)
    (1000, 1250, 4)
    """
    return math.ceil(execution_us * slowdown)


def _value(document: Interference, feature: str, use: DeviceUse) -> float:
    value: float | None = getattr(use, feature)
    if value is None:
        raise ProfileError(
            f"the interference document of {document.device!r} is a function of how a model was"
            " measured beside others, and one was not\n"
            "  try       `headrace interfere --update-profiles` with its profile among others"
        )
    return value
