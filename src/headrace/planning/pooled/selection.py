"""Choose among listed allotments: the integer problem, small enough to be solved to proof."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Self

import numpy as np

from headrace.planning.common.allotments import Allotments
from headrace.planning.common.candidates import Floats, Ints, Pipelines
from headrace.planning.common.master import Counting, Master, Wanted, smallest_normalised
from headrace.planning.common.packing import devices_taken
from headrace.planning.common.solver import Status

TIDY_NODES = 500
"""Effort spent on choosing among equally good plans; bounded by nodes, so that it is repeatable."""


@dataclass(frozen=True, slots=True)
class ChosenAllotments:
    """Allotments that together fit the devices, one entry per demand."""

    allotments: tuple[Allotments, ...]
    cut: Ints
    """Shape (patterns,): devices cut by each pattern, room for all slots."""

    def throughputs(self) -> tuple[float, ...]:
        return tuple(float(a.throughput_rps.sum()) for a in self.allotments)

    def among_all(self, kept: Sequence[Ints]) -> Self:
        """The same, where pipelines were numbered among those that were kept.

        Args:
            kept: of each demand, which of all its pipelines.
        """
        renumbered = tuple(
            replace(mine, pipeline=rows[mine.pipeline])
            for mine, rows in zip(self.allotments, kept, strict=True)
        )
        return replace(self, allotments=renumbered)


def as_packed(asked: Counting, chosen: ChosenAllotments) -> ChosenAllotments | None:
    """With all devices that the slots take, which by weights may be more than by shares.

    Returns:
        `chosen` itself where it says so already, or where devices cost nothing; None where it takes
        more than there are.
    """
    hardware = asked.hardware
    given = hardware.counts
    if asked.goal == "least-cost":
        given = np.bincount(hardware.pattern_device.repeat(chosen.cut), minlength=len(given))
    taken = devices_taken(hardware, asked.columns, chosen.allotments, given)
    if (taken > hardware.counts).any():
        return None
    if (taken == given).all():
        return chosen
    # By any pattern: what counts is how many are cut.
    _, first = np.unique(hardware.pattern_device, return_index=True)
    cut = chosen.cut.copy()
    cut[first] += taken - given
    return replace(chosen, cut=cut)


@dataclass(frozen=True, slots=True)
class Selection:
    status: Status
    chosen: ChosenAllotments | None
    bound: float | None
    """Proven limit among the listed allotments; None if nothing is proven."""


Excluded = frozenset[tuple[int, int, tuple[int, ...]]]
"""A combination of (demand, pipeline, slots) that cannot be packed."""


class _SelectionProgram:
    """One selection problem and the meaning of its columns."""

    def __init__(
        self,
        asked: Counting,
        listed: Sequence[Allotments],
        excluded: Sequence[Excluded],
        *,
        gains: Sequence[Floats] | None = None,
    ) -> None:
        self.hardware, self.listed = asked.hardware, listed
        self.master = Master(asked.hardware, asked.wanted, asked.goal, integer=True)
        self.units: list[Ints] = []
        for demand, allotments in enumerate(listed):
            unit, kind = np.nonzero(allotments.use)
            self.units.append(
                self.master.add_work(
                    demand,
                    allotments.throughput_rps,
                    (unit, kind, allotments.use[unit, kind]),
                    gain=gains[demand] if gains is not None else None,
                )
            )
        self._limit_memory(asked.columns)
        self._exclude(excluded)

    def _limit_memory(self, columns: Sequence[Pipelines]) -> None:
        """Rows that every packing of weights into memory obeys; few sets obey them and do not fit.

        All weights fit in all memory together; and of slots heavier than 1 / (r + 1) of the
        memory, a device holds at most r.
        """
        hardware = self.hardware
        for i in np.flatnonzero(hardware.memory_bytes >= 0):
            memory, count = int(hardware.memory_bytes[i]), int(hardware.counts[i])
            self._limit_weights(columns, int(i), max(memory, 1), float(count))
            most = max(int(1 / k.share) for k in hardware.kinds if k.device == hardware.devices[i])
            for held in range(1, most):
                self._limit_heavy(columns, int(i), memory / (held + 1), float(held * count))

    def _limit_weights(
        self, columns: Sequence[Pipelines], device: int, memory: int, room: float
    ) -> None:
        row = self.master.model.add_rows(1, upper=room)
        for allotments, weights, units in self._weights(columns, device):
            loaded = (weights * allotments.slots).sum(axis=1)
            self.master.model.add_entries(row, units, loaded / memory)

    def _limit_heavy(
        self, columns: Sequence[Pipelines], device: int, heavy: float, room: float
    ) -> None:
        row = self.master.model.add_rows(1, upper=room)
        for allotments, weights, units in self._weights(columns, device):
            slots = ((weights > heavy) * allotments.slots).sum(axis=1)
            self.master.model.add_entries(row, units, slots)

    def _weights(
        self, columns: Sequence[Pipelines], device: int
    ) -> Iterator[tuple[Allotments, Ints, Ints]]:
        """Per demand: allotments, weights per slot of their stages on this type, columns."""
        for allotments, pipelines, units in zip(self.listed, columns, self.units, strict=True):
            kinds = pipelines.kinds[allotments.pipeline]
            mine = (kinds >= 0) & (self.hardware.kind_device[kinds] == device)
            yield allotments, np.where(mine, pipelines.weights_bytes[allotments.pipeline], 0), units

    def _exclude(self, combinations: Sequence[Excluded]) -> None:
        """No superset of any of these combinations."""
        for combination in combinations:
            columns = [
                units[at]
                for demand, (allotments, units) in enumerate(
                    zip(self.listed, self.units, strict=True)
                )
                for at in range(len(allotments))
                if (demand, *_identity(allotments, at)) in combination
            ]
            # A combination of which some member is not listed cannot be chosen anyway.
            if len(columns) == len(combination):
                row = self.master.model.add_rows(1, upper=len(columns) - 1.0)
                self.master.model.add_entries(row, np.array(columns), 1.0)

    def solve(
        self,
        *,
        time_limit_s: float,
        start: ChosenAllotments | None = None,
        node_limit: int | None = None,
    ) -> Selection:
        solution = self.master.model.solve(
            time_limit_s=time_limit_s,
            start=None if start is None else self._column_values(start),
            node_limit=node_limit,
        )
        if solution.values is None:
            return Selection(status=solution.status, chosen=None, bound=solution.bound)
        values = solution.values
        taken = [np.flatnonzero(values[units] > 0.5) for units in self.units]
        chosen = ChosenAllotments(
            allotments=tuple(a.take(rows) for a, rows in zip(self.listed, taken, strict=True)),
            cut=values[self.master.cut].astype(np.int64),
        )
        return Selection(status=solution.status, chosen=chosen, bound=solution.bound)

    def _column_values(self, start: ChosenAllotments) -> Floats | None:
        values = np.zeros(self.master.model.column_count)
        values[self.master.cut] = start.cut
        for allotments, units, before in zip(
            self.listed, self.units, start.allotments, strict=True
        ):
            position = {_identity(allotments, at): at for at in range(len(allotments))}
            for at in range(len(before)):
                now = position.get(_identity(before, at))
                if now is None:
                    return None
                values[units[now]] = 1.0
        self.master.fill_objective(values, start.throughputs())
        return values


def _identity(allotments: Allotments, at: int) -> tuple[int, tuple[int, ...]]:
    return int(allotments.pipeline[at]), tuple(int(n) for n in allotments.slots[at])


def identity_of(chosen: ChosenAllotments) -> Excluded:
    """`chosen` as a combination to exclude."""
    return frozenset(
        (demand, *_identity(allotments, at))
        for demand, allotments in enumerate(chosen.allotments)
        for at in range(len(allotments))
    )


def select(
    asked: Counting,
    listed: Sequence[Allotments],
    *,
    time_limit_s: float,
    start: ChosenAllotments | None = None,
    excluded: Sequence[Excluded] = (),
) -> Selection:
    """The best set of `listed` allotments; `start` is one to improve on."""
    choice = _SelectionProgram(asked, listed, excluded)
    return choice.solve(time_limit_s=time_limit_s, start=start)


def select_tidiest(
    asked: Counting,
    listed: Sequence[Allotments],
    best: ChosenAllotments,
    *,
    time_limit_s: float,
    excluded: Sequence[Excluded] = (),
) -> ChosenAllotments:
    """Among sets as good as `best`: fewest devices, then fewest slots and lowest latency.

    Plans then stay the same when nothing that matters changed. Never worse than `best`.
    """
    tidier = replace(asked, wanted=_held(asked, best), goal="fewest-devices")
    choice = _SelectionProgram(tidier, listed, excluded, gains=_untidiness(asked, listed))
    if asked.goal == "throughput":
        choice.master.hold_throughput(sum(best.throughputs()) * (1 - 1e-9))
    if asked.goal == "least-cost":
        choice.master.hold_cost(best.cut)
    tidy = choice.solve(time_limit_s=time_limit_s, start=best, node_limit=TIDY_NODES).chosen
    return best if tidy is None else tidy


def _held(asked: Counting, best: ChosenAllotments) -> Sequence[Wanted]:
    if asked.goal != "max-min":
        return asked.wanted
    smallest = smallest_normalised(best.throughputs(), asked.wanted)
    return [
        replace(want, least_rps=max(want.least_rps, want.weight * smallest * (1 - 1e-9)))
        for want in asked.wanted
    ]


def _untidiness(asked: Counting, listed: Sequence[Allotments]) -> list[Floats]:
    """Slots x latency, scaled so that all slots together weigh less than half a device."""
    longest = max((int(p.latency_us.max(initial=1)) for p in asked.columns), default=1)
    scale = 0.5 / (longest * max(1, int(asked.hardware.slots_max.sum())))
    return [
        np.asarray(a.slots.sum(axis=1) * p.latency_us[a.pipeline] * scale, np.float64)
        for a, p in zip(listed, asked.columns, strict=True)
    ]
