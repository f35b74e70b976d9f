"""Which layouts the devices have: all ways that may carry what is wanted, and a walk over each."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from headrace.planning.common.deadline import OutOfTime
from headrace.planning.shares.listing import Parts
from headrace.planning.shares.master import Chosen, Prices
from headrace.planning.shares.pricing import Pricing
from headrace.planning.shares.walk import GAVE_UP, SOME, Slots, walks
from headrace.planning.shares.workload import Floats, Ints, Workload

WAYS_MAX = 3_000
"""Multisets of layouts that are looked at; more devices are a matter for the integer program."""

WAYS_AT_ONCE = 64
"""Between two looks at the clock."""

TOLERANCE = 1e-9

Slot = tuple[int, int]
"""Place and largest loudness."""


@dataclass(frozen=True, slots=True)
class Answer:
    """Of a question."""

    chosen: Chosen | None
    complete: bool
    """Whether a `chosen` of None means that there is none."""


def ask(
    pricing: Pricing,
    prices: Prices,
    parts: Parts,
    *,
    wanted: float,
    gap: float,
    spend: float,
    more_than: float,
    steps_max: int,
) -> Answer | None:
    """Parts and layouts that carry `wanted` times every rate; None where there are too many ways.

    Args:
        parts: those to choose from.
        gap: what all devices together may waste.
        spend: the most that the devices may cost.
        more_than: ways that cost no more were asked before.
        steps_max: of all walks together.
    """
    load = pricing.load
    ways = _ways(pricing, prices, gap, spend, more_than)
    if ways is None:
        return None
    if not ways:
        return Answer(None, True)
    sorts, slots_of = _sorts(pricing, ways)
    slots = _slots(load, prices, parts, sorts, wanted)
    price, missing = prices.price * load.target_rps, load.wanted(wanted)
    used_layouts = np.flatnonzero(slots_of.any(axis=1))
    steps = 0
    for begin in range(0, len(ways), WAYS_AT_ONCE):
        if pricing.deadline.passed or steps > steps_max:
            return Answer(None, False)
        some = ways[begin : begin + WAYS_AT_ONCE]
        counts = np.stack(some)[:, used_layouts] @ slots_of[used_layouts]
        most = int(counts.sum(axis=1).max()) + 1
        chosen_slot, chosen_part = np.full(most, -1), np.full(most, -1)
        way, code = walks(
            slots, price, counts, missing, steps_max - steps, chosen_slot, chosen_part
        )
        steps += code // 4
        if code % 4 == GAVE_UP:
            return Answer(None, False)
        if code % 4 == SOME:
            used = int(np.flatnonzero(chosen_slot < 0)[0])
            rows, number = np.unique(chosen_part[:used], return_counts=True)
            return Answer(Chosen(parts.take(rows), number, some[way]), True)
    return Answer(None, True)


def _sorts(pricing: Pricing, ways: Sequence[Ints]) -> tuple[list[Slot], Ints]:
    """All sorts of slots that these ways have, and of each how many a layout has; shape (layouts,
    sorts)."""
    used = np.flatnonzero(np.any(ways, axis=0)).tolist()
    slots = {
        c: list(zip(pricing.layouts[c].places, pricing.layouts[c].loudness, strict=True))
        for c in used
    }
    sorts = sorted({slot for some in slots.values() for slot in some})
    number = {slot: at for at, slot in enumerate(sorts)}
    slots_of = np.zeros((len(pricing.layouts), len(sorts)), np.int64)
    for c, some in slots.items():
        for slot in some:
            slots_of[c, number[slot]] += 1
    return sorts, slots_of


def _ways(
    pricing: Pricing, prices: Prices, gap: float, spend: float, more_than: float
) -> list[Ints] | None:
    """How many devices have each layout, the least waste first. Without ways that another one
    contains, or that use no device. None: more than WAYS_MAX, or than can be counted in time."""
    try:
        found = _counted(pricing, prices, gap, spend, more_than)
    except OutOfTime:
        return None
    if len(found) > WAYS_MAX:
        return None
    found.sort(key=lambda way: way[0])
    return [counts for _, counts in found if counts.any()]


def _counted(
    pricing: Pricing, prices: Prices, gap: float, spend: float, more_than: float
) -> list[tuple[float, Ints]]:
    """(waste, how many devices have each layout) of every way, or of the first ones where there are
    more than WAYS_MAX."""
    offers, layouts = pricing.offers, pricing.layouts
    usable = [c for c in np.argsort(prices.layout_waste) if prices.layout_waste[c] <= gap]
    wastes = [max(0.0, float(prices.layout_waste[c])) for c in usable]
    of_device = [layouts[c].device for c in usable]
    following = _following(of_device, len(offers))
    counts = np.zeros(len(layouts), np.int64)
    left = [offer.count for offer in offers]
    found: list[tuple[float, Ints]] = []

    def fitting(at: int, wasted: float, spent: float) -> int:
        """The first layout from there on of which there may be one more device; past the end: none.

        Those behind it waste no less."""
        first = len(usable)
        for device, offer in enumerate(offers):
            if left[device] and spent + offer.price <= spend + TOLERANCE:
                first = min(first, following[device][at])
        if first < len(usable) and wasted + wastes[first] <= gap:
            return first
        return len(usable)

    def more(at: int, wasted: float, spent: float) -> None:
        """As deep as there are devices, however many layouts they have."""
        pricing.deadline.check()
        if fitting(0, wasted, spent) == len(usable):
            if spent > more_than + TOLERANCE:
                found.append((wasted, counts.copy()))
            return
        at = fitting(at, wasted, spent)
        while at < len(usable) and len(found) <= WAYS_MAX:
            device = of_device[at]
            most, price = left[device], offers[device].price
            for number in range(most, 0, -1):
                spending, wasting = spent + number * price, wasted + number * wastes[at]
                if spending <= spend + TOLERANCE and wasting <= gap and len(found) <= WAYS_MAX:
                    counts[usable[at]], left[device] = number, most - number
                    more(at + 1, wasting, spending)
            counts[usable[at]], left[device] = 0, most
            at = fitting(at + 1, wasted, spent)

    more(0, 0.0, 0.0)
    return found


def _following(of_device: Sequence[int], devices: int) -> list[list[int]]:
    """device -> layout -> the first layout of the device from that one on.

    >>> _following([1, 0, 1], 2)
    [[1, 1, 3, 3], [0, 2, 2, 3]]
    """
    end = len(of_device)
    found = [[end] * (end + 1) for _ in range(devices)]
    for at in range(end - 1, -1, -1):
        for device, row in enumerate(found):
            row[at] = at if device == of_device[at] else row[at + 1]
    return found


def _slots(
    load: Workload, prices: Prices, parts: Parts, sorts: Sequence[Slot], wanted: float
) -> Slots:
    """The parts that each sort of slot may hold."""
    models = load.models
    carried = parts.rates_rps(models) / load.target_rps
    worth = np.minimum(carried, load.wanted(wanted)) @ (prices.price * load.target_rps)
    rent = np.array([prices.rent[place, loud] for place, loud in sorts])
    part_of: list[Ints] = []
    first = np.zeros((len(sorts), models + 1), np.int64)
    entries: list[Ints] = []
    wastes: list[Floats] = []
    written, base = 0, 0
    for s, (place, loud) in enumerate(sorts):
        rows = np.flatnonzero((parts.place == place) & (parts.loudness <= loud))
        waste = rent[s] - worth[rows]
        order = np.argsort(waste, kind="stable")
        for m in range(models):
            first[s, m] = written
            serving = order[carried[rows[order], m] > 0]
            entries.append(base + serving)
            wastes.append(waste[serving])
            written += len(serving)
        first[s, models] = written
        part_of.append(rows)
        base += len(rows)
    return Slots(
        first=first,
        entries=np.concatenate(entries),
        entry_waste=np.concatenate(wastes),
        part=np.concatenate(part_of),
        carried=np.ascontiguousarray(carried),
        rent=rent,
    )
