"""How many models on one part are looked at, where all sets of them are too many.

Parts grow with the models on them as batch sizes to the power of their number. So all sets of a few
models are looked at (`numbers`), and beyond that, all sets or larger ones at fewer batch sizes
(`coarser`): each at least a quarter larger than the one before, or a half, twice or four times as
large. A plan of either is a plan; only the first says anything of what there is not.
"""

from bisect import bisect_left
from dataclasses import replace as with_fields

import numpy as np

from headrace.planning.shares.devices import Devices
from headrace.planning.shares.listing import Candidates, countable
from headrace.planning.shares.workload import TENANTS_MAX, Workload

FEW_PARTS = 20_000
"""Parts with any number of tenants that are looked at from the start."""

MANY_PARTS = 5_000_000
"""Parts that are looked at where three models on a part are too few for a plan. Beyond, plans have
no more models on a part than can be looked at, and the bound is that of models alone."""

ASKED_PARTS = 200_000_000
"""The same where `max_tenants` says how many models a part may have: seconds for every look."""

STEPS = (1.25, 1.5, 2.0, 4.0)
"""From one batch size to the next, at least."""


def are_countable(load: Workload, devices: Devices, tenants_max: int) -> bool:
    """Whether parts with so many tenants are few enough to look at."""
    return _are_few(load, devices, tenants_max, MANY_PARTS)


def numbers(load: Workload, devices: Devices, most_tenants: int, *, asked: bool) -> list[int]:
    """Most models on one part: numbers to try until one gives a plan.

    Args:
        most_tenants: as many as there may be.
        asked: whether the problem says how many.
    """
    few = ASKED_PARTS if asked else FEW_PARTS
    if most_tenants <= TENANTS_MAX or _are_few(load, devices, most_tenants, few):
        return [most_tenants]
    return list(dict.fromkeys([TENANTS_MAX, _most(load, devices, most_tenants)]))


def coarser(load: Workload, devices: Devices, most_tenants: int) -> tuple[Workload, Devices] | None:
    """More models on a part than `load.tenants_max`, at fewer batch sizes; None where even the
    fewest are too many."""
    rough = devices
    for step in STEPS:
        rough = with_fields(devices, candidates=_thinned(devices.candidates, step))
        if are_countable(load, rough, most_tenants):
            return with_fields(load, tenants_max=most_tenants), rough
    most = _most(load, rough, most_tenants)
    return None if most <= load.tenants_max else (with_fields(load, tenants_max=most), rough)


def _most(load: Workload, devices: Devices, most_tenants: int) -> int:
    """The largest number of tenants whose parts are countable; TENANTS_MAX at least."""
    # More models on a part never make fewer parts.
    more = bisect_left(
        range(TENANTS_MAX + 1, most_tenants + 1),
        True,
        key=lambda tenants: not are_countable(load, devices, tenants),
    )
    return TENANTS_MAX + more


def _are_few(load: Workload, devices: Devices, tenants_max: int, most_parts: int) -> bool:
    return countable(devices.candidates, with_fields(load, tenants_max=tenants_max), most_parts)


def _thinned(candidates: Candidates, step: float) -> Candidates:
    """With batch sizes of each model that are at least `step` times the one before."""
    keep = np.zeros(len(candidates.batch), np.bool_)
    for begin, end in zip(candidates.first[:, :-1].flat, candidates.first[:, 1:].flat, strict=True):
        least = 0.0
        for c in range(begin, end):
            if candidates.batch[c] >= least:
                keep[c], least = True, step * candidates.batch[c]
    before = np.concatenate([[0], np.cumsum(keep)])
    return candidates._replace(
        first=before[candidates.first],
        batch=candidates.batch[keep],
        latency_us=candidates.latency_us[keep],
        taken_us=candidates.taken_us[keep],
        loudness=candidates.loudness[keep],
    )
