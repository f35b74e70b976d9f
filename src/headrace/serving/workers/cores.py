"""Which cores of this machine a slot owns, and what keeps parts of one core apart.

A CPU device with n cores takes n cores of the machine; a slot of share k/n owns k whole ones of
these: its worker stays on them, computes with k threads, and no other slot has them. All slots of a
device of one core stay on that core, and a share of it is a part of its time. That is kept by the
kernel where a quota may be set (`control_groups`); elsewhere the system divides the core evenly
among its busy slots, whatever their shares are.
"""

import logging
from collections.abc import Mapping, Sequence
from fractions import Fraction

from headrace.domain.plan import Slot

logger = logging.getLogger(__name__)

Place = tuple[str, str, int]
"""Node, device type and number of a device."""


def place_of(slot: Slot) -> Place:
    return slot.node, slot.device, slot.device_index


def slot_cores(
    slots: Sequence[Slot],
    allowed: Sequence[int],
    cores_of: Mapping[str, int] | None = None,
    kept: Mapping[Place, tuple[int, ...]] | None = None,
) -> dict[str, tuple[int, ...]]:
    """Give each device of these slots cores of its own, as long as there are enough.

    Nodes of the plan that this machine stands in for get cores one after the other.

    Args:
        cores_of: device type -> how many cores one device has; 1 where nothing is said.
        kept: cores of devices that have theirs already, from a plan that is being replaced.

    Returns:
        Slot -> its cores; empty where the system cannot pin.
    """
    if not allowed:
        return {}
    counts = cores_of or {}
    devices = _device_cores(sorted({place_of(slot) for slot in slots}), allowed, counts, kept or {})
    given: dict[Place, int] = {}
    found = {}
    for slot in slots:
        place = place_of(slot)
        count = threads_of(slot.share, counts.get(slot.device, 1))
        cores = devices[place]
        first = given.get(place, 0) if len(cores) > 1 else 0
        given[place] = first + count
        found[slot.name] = tuple(dict.fromkeys(cores[first : first + count])) or cores[-1:]
    return found


def threads_of(share: Fraction, cores: int) -> int:
    """How many threads compute a batch of a slot with this share of a device.

    >>> threads_of(Fraction(1, 2), 1), threads_of(Fraction(1), 2), threads_of(Fraction(3, 4), 4)
    (1, 2, 3)
    """
    return max(1, int(share * cores))


def _device_cores(
    places: Sequence[Place],
    allowed: Sequence[int],
    counts: Mapping[str, int],
    kept: Mapping[Place, tuple[int, ...]],
) -> dict[Place, tuple[int, ...]]:
    """A device that both plans use stays where it is, or two plans would run there at once; unless
    one of its cores is not allowed any more."""
    needed = sum(counts.get(device, 1) for _, device, _ in places)
    if needed > len(allowed):
        logger.warning(
            "the plan uses %d cores but only %d are here: some slots share one and will be late",
            needed,
            len(allowed),
        )
    found = {
        place: kept[place]
        for place in places
        if place in kept and set(kept[place]).issubset(allowed)
    }
    taken = {core for cores in found.values() for core in cores}
    free = [core for core in allowed if core not in taken] if found else list(allowed)
    number = 0
    for place in places:
        if place not in found:
            count = counts.get(place[1], 1)
            pool = free or list(allowed)
            found[place] = tuple(pool[(number + i) % len(pool)] for i in range(count))
            number += count
    return found


# -- parts of one core ----------------------------------------------------------------------------


def part_of_a_core(share: Fraction, cores: int) -> Fraction | None:
    """The share of one core that a slot has; None: it owns whole ones.

    >>> part_of_a_core(Fraction(1, 2), 1), part_of_a_core(Fraction(1, 2), 2)
    (Fraction(1, 2), None)
    """
    return share if cores == 1 and share < 1 else None


def divided_cores(slots: Sequence[Slot], cores_of: Mapping[str, int]) -> dict[Place, list[Slot]]:
    """Devices of one core of which several slots have parts. A part that is alone on its core gets
    what it is promised, and more."""
    found: dict[Place, list[Slot]] = {}
    for slot in slots:
        if part_of_a_core(slot.share, cores_of[slot.device]) is not None:
            found.setdefault(place_of(slot), []).append(slot)
    return {place: parts for place, parts in found.items() if len(parts) > 1}


def say_quota(used: int, quota: float | None) -> None:
    """That this server's control group gives it less time than the cores that its slots have."""
    if quota is not None and quota < used:
        logger.warning(
            "the control group, or container, of this server gives it the time of %.3g cores, and"
            " its slots are kept on %d: they stand still when it is used up, and others may be kept"
            " on the same cores. Give it whole ones (`docker run --cpuset-cpus`, `AllowedCPUs=`,"
            " the kubelet's static CPU manager)",
            quota,
            used,
        )


def say_unenforced(slots: Sequence[str]) -> None:
    """Nothing here keeps these slots to their parts of a core."""
    logger.warning(
        "shares of a core are not enforced here: %d slots, such as %r, divide their cores evenly"
        " while they are busy. This process may not set CPU quotas (control groups, version 2,"
        " `cpu.max`); devices of several `cores` have slots that own whole ones",
        len(slots),
        slots[0],
    )
