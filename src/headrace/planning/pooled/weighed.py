"""Kinds of slots by weight, so that ways to cut a device know its memory.

Two slots of half a device fit it by share, and do not if each weighs two thirds of its memory.
Where that may happen, a kind (device type, share) is divided into sorts by what its slots weigh,
and devices are cut by patterns of sorts whose weights fit as well. All that is built on kinds and
patterns, prices, bounds and choices, then holds for memory without knowing of it.

Few weights are told apart on a device type: some classes, divided at the widest gaps between the
weights that occur, fewer where they would combine in more than PATTERNS_MAX ways. Weights of a
class count as its lightest: no plan is lost, and what is chosen may not pack (`packing` says so).
In `firmer` they count as its heaviest: what is chosen packs, and some plans are lost. With one
weight in every class both are exact.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from headrace.planning.common.allotments import Allotments, memory_limited
from headrace.planning.common.candidates import Ints, Pipelines
from headrace.planning.common.hardware import Hardware
from headrace.planning.common.master import Counting
from headrace.planning.common.patterns import TooManyDevicePatternsError, maximal_patterns
from headrace.planning.pooled.selection import ChosenAllotments

CLASSES = (12, 8, 6, 4, 3, 2, 1)
"""Numbers of classes that are tried; the first that gives few enough patterns is taken."""

PATTERNS_MAX = 600


@dataclass(frozen=True, slots=True)
class Weighed:
    """What is asked, with kinds divided by weight."""

    plain: Counting
    """As it was asked."""
    asked: Counting
    firmer: Counting | None
    """Of the same kinds; None where `asked` is exact."""
    kind_of: Ints
    """Shape (K,): which kind of `plain` each was."""

    def softened(self, chosen: ChosenAllotments) -> ChosenAllotments:
        """What was chosen for `firmer`, for `asked`."""
        assert self.firmer is not None
        firmer = self.firmer.hardware
        cut = _covered(self.asked.hardware, firmer.pattern_device, firmer.pattern_slots, chosen.cut)
        return replace(chosen, cut=cut)

    def undivided(self, chosen: ChosenAllotments) -> ChosenAllotments:
        """What was chosen for `asked`, for `plain`."""
        divided, hardware = self.asked.hardware, self.plain.hardware
        slots = np.zeros((len(divided.pattern_device), len(hardware.kinds)), dtype=np.int64)
        np.add.at(slots.T, self.kind_of, divided.pattern_slots.T)
        allotments = tuple(
            replace(
                mine,
                use=Allotments.of(pipelines, mine.pipeline, mine.slots, len(hardware.kinds)).use,
            )
            for pipelines, mine in zip(self.plain.columns, chosen.allotments, strict=True)
        )
        cut = _covered(hardware, divided.pattern_device, slots, chosen.cut)
        return ChosenAllotments(allotments=allotments, cut=cut)


def _covered(hardware: Hardware, devices: Ints, slots: Ints, cut: Ints) -> Ints:
    """Devices cut by some patterns, by patterns of `hardware` that have all their slots.

    Args:
        devices: shape (patterns,), type that each cuts.
        slots: shape (patterns, K).
        cut: shape (patterns,).
    """
    result = np.zeros(len(hardware.pattern_device), dtype=np.int64)
    for pattern in np.flatnonzero(cut):
        covers = hardware.pattern_device == devices[pattern]
        covers &= (hardware.pattern_slots >= slots[pattern]).all(axis=1)
        result[covers.argmax()] += cut[pattern]
    return result


class _Sort(NamedTuple):
    """Slots of one kind that weigh about the same; of a kind that is not divided, all."""

    kind: int
    lightest: int = 0
    heaviest: int = 0


class _Division(NamedTuple):
    """Of one device type."""

    sorts: list[_Sort]
    softer: Sequence[Sequence[int]]
    """Patterns: how many slots of each sort a device has."""
    firmer: Sequence[Sequence[int]]


def weighed(asked: Counting) -> Weighed | None:
    """None where no device's memory is full before its shares are."""
    hardware = asked.hardware
    limited = np.any([memory_limited(mine, hardware) for mine in asked.columns], axis=0)
    if not limited.any():
        return None
    # Who has a device alone shares no memory.
    divided = np.flatnonzero(limited & (hardware.shares < 1))
    weights = {int(kind): _weights_on(asked.columns, int(kind)) for kind in divided}
    divisions = [_division(hardware, device, weights) for device in range(len(hardware.devices))]
    sorts = [sort for division in divisions for sort in division.sorts]
    columns = [replace(mine, kinds=_sort_of(mine, sorts)) for mine in asked.columns]
    softer = _cut(hardware, sorts, [division.softer for division in divisions])
    firmer = _cut(hardware, sorts, [division.firmer for division in divisions])
    exact = all(sort.lightest == sort.heaviest for sort in sorts)
    return Weighed(
        plain=asked,
        asked=replace(asked, hardware=softer, columns=columns),
        firmer=None if exact else replace(asked, hardware=firmer, columns=columns),
        kind_of=np.array([sort.kind for sort in sorts], dtype=np.int64),
    )


def _weights_on(columns: Sequence[Pipelines], kind: int) -> Ints:
    """Those that occur, in rising order."""
    return np.unique(np.concatenate([mine.weights_bytes[mine.kinds == kind] for mine in columns]))


def _division(hardware: Hardware, device: int, weights: Mapping[int, Ints]) -> _Division:
    """By as many classes of weight as give few enough patterns.

    Args:
        weights: on each kind that is to be divided.
    """
    kinds = [int(kind) for kind in np.flatnonzero(hardware.kind_device == device)]
    mine = [weights[kind] for kind in kinds if kind in weights]
    occurring = np.unique(np.concatenate([*mine, np.empty(0, np.int64)]))
    for most in CLASSES:
        classes = _classes(occurring, most)
        sorts = [sort for kind in kinds for sort in _sorts(kind, weights.get(kind), classes)]
        try:
            softer = _patterns(hardware, device, sorts, [sort.lightest for sort in sorts])
            firmer = _patterns(hardware, device, sorts, [sort.heaviest for sort in sorts])
        except TooManyDevicePatternsError:
            continue
        return _Division(sorts, softer, firmer)
    owned = hardware.pattern_slots[hardware.pattern_device == device][:, kinds]
    return _Division([_Sort(kind) for kind in kinds], owned, owned)


def _classes(weights: Ints, most: int) -> list[Ints]:
    """Rising weights, divided at the widest gaps."""
    widest = np.argsort(-np.diff(weights), kind="stable")[: most - 1]
    return np.split(weights, np.sort(widest) + 1)


def _sorts(kind: int, weights: Ints | None, classes: Sequence[Ints]) -> Iterator[_Sort]:
    if weights is None or not len(weights):
        yield _Sort(kind)
        return
    for members in classes:
        mine = np.intersect1d(members, weights)
        if len(mine):
            yield _Sort(kind, int(mine[0]), int(mine[-1]))


def _patterns(
    hardware: Hardware, device: int, sorts: Sequence[_Sort], weights: Sequence[int]
) -> Sequence[Sequence[int]]:
    return maximal_patterns(
        [hardware.kinds[sort.kind].share for sort in sorts],
        device=hardware.devices[device],
        weights_bytes=weights,
        memory_bytes=int(hardware.memory_bytes[device]) if any(weights) else None,
        most=PATTERNS_MAX,
    )


def _cut(
    hardware: Hardware, sorts: Sequence[_Sort], patterns: Sequence[Sequence[Sequence[int]]]
) -> Hardware:
    """The same devices with kinds of these sorts, cut by these patterns of each type's sorts."""
    kind = np.array([sort.kind for sort in sorts], dtype=np.int64)
    kind_device = hardware.kind_device[kind]
    pattern_device = np.repeat(np.arange(len(patterns)), [len(mine) for mine in patterns])
    pattern_slots = np.zeros((len(pattern_device), len(sorts)), dtype=np.int64)
    for device, mine in enumerate(patterns):
        rows = np.flatnonzero(pattern_device == device)
        pattern_slots[np.ix_(rows, np.flatnonzero(kind_device == device))] = mine
    return replace(
        hardware,
        kinds=tuple(hardware.kinds[sort.kind] for sort in sorts),
        kind_device=kind_device,
        shares=hardware.shares[kind],
        pattern_device=pattern_device,
        pattern_slots=pattern_slots,
    )


def _sort_of(pipelines: Pipelines, sorts: Sequence[_Sort]) -> Ints:
    """Shape (C, P): of each stage; -1 after the last."""
    result = np.full_like(pipelines.kinds, -1)
    for sort, (kind, lightest, _) in enumerate(sorts):
        # Sorts of a kind come in rising order: the last one that is not too heavy is it.
        result[(pipelines.kinds == kind) & (pipelines.weights_bytes >= lightest)] = sort
    return result
