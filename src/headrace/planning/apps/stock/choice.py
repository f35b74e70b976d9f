"""The cheapest machines of one app within limits on its slots, at prices of scarce devices."""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Generic, TypeVar

import numpy as np

from headrace.planning.apps.candidates import AppCase
from headrace.planning.apps.exact.combine import Choice, least_cost
from headrace.planning.apps.exact.fronts import (
    ModuleFront,
    SlotLimits,
    front_schedule,
    module_front,
)
from headrace.planning.apps.exact.prime import Curve
from headrace.planning.apps.machines import WHOLE, Schedule
from headrace.planning.apps.order import decompose, rest_us
from headrace.planning.apps.stock.devices import DeviceStock
from headrace.planning.common.candidates import Floats, Ints
from headrace.planning.common.deadline import Deadline

KNOWN_MAX = 32
"""Answers kept per app or module and prices; the oldest are forgotten."""

Answer = TypeVar("Answer")


@dataclass(frozen=True, slots=True, kw_only=True)
class Machines:
    """Machines of every module of an app, or none where nothing fits."""

    fronts: tuple[ModuleFront, ...]
    """Per module a front of one point, the one chosen; costs contain the charges. Empty: none."""
    slots: Ints
    """Shape (M, Q)."""
    cost: float
    """Without charges."""
    at_least: float
    """No machines within the limits cost less, charges included; infinite: there are none."""

    def schedules(self, case: AppCase) -> tuple[Schedule, ...]:
        return tuple(
            front_schedule(module, front, 0)
            for module, front in zip(case.modules, self.fronts, strict=True)
        )


class _Memory(Generic[Answer]):
    """Answers, and between which limits each holds: slots not taken may as well not be there."""

    def __init__(self) -> None:
        self._known: list[tuple[Ints, Ints, Answer]] = []

    def find(self, limits: Ints) -> Answer | None:
        for taken, most, answer in reversed(self._known):
            if (taken <= limits).all() and (limits <= most).all():
                return answer
        return None

    def add(self, taken: Ints, limits: Ints, answer: Answer) -> None:
        self._known.append((taken, limits.copy(), answer))
        if len(self._known) > KNOWN_MAX:
            self._known.pop(0)


class AppChoice:
    """One app; remembers what it has worked out."""

    def __init__(self, case: AppCase, stock: DeviceStock, limit: Deadline) -> None:
        self.case = case
        self._limit = limit
        self._shares = stock.shares
        self._kinds = [stock.kind_of(module) for module in case.modules]
        self._part = decompose(case.before)
        least = [int(module.duration_us.min()) for module in case.modules]
        self._rooms = [case.budget_us - rest for rest in rest_us(case.before, least)]
        self._fronts: dict[tuple[int, bytes], _Memory[ModuleFront]] = defaultdict(_Memory)
        self._chosen: dict[bytes, _Memory[Machines]] = defaultdict(_Memory)

    def cheapest(self, limits: Ints, prices: Floats) -> Machines:
        """The cheapest machines within limits and budget, charges included.

        Args:
            limits: shape (M, Q), slots that each module may take.
            prices: shape (D,), of a device, on top of its price.
        """
        known = self._chosen[prices.tobytes()]
        machines = known.find(limits)
        if machines is None:
            machines = self._cheapest(limits, self._shares @ prices)
            known.add(machines.slots, limits, machines)
        return machines

    def _cheapest(self, limits: Ints, charge: Floats) -> Machines:
        fronts = [self._front(m, limits[m], charge) for m in range(len(limits))]
        found = self._points(fronts)
        slots = np.zeros_like(limits)
        at_least = np.inf
        if not all(front.proven for front in fronts) or (found and not found.proven):
            curves = [front.at_least or front for front in fronts]
            lowest = self._points(curves)
            if lowest is not None:
                at_least = sum(
                    float(x.cost[p]) for x, p in zip(curves, lowest.at_least, strict=True)
                )
        if found is None:
            return Machines(fronts=(), slots=slots, cost=np.inf, at_least=at_least)
        chosen = tuple(
            _one(front, point) for front, point in zip(fronts, found.points, strict=True)
        )
        for m, front in enumerate(chosen):
            slots[m] = _slots(front, self._kinds[m], len(charge))[0]
        charged = sum(float(front.cost[0]) for front in chosen)
        return Machines(
            fronts=chosen,
            slots=slots,
            cost=charged - float(slots.sum(axis=0) @ charge),
            at_least=min(charged, at_least),
        )

    def _points(self, fronts: Sequence[Curve]) -> Choice | None:
        return least_cost(self._part, fronts, self.case.before, self.case.budget_us, self._limit)

    def _front(self, module: int, limits: Ints, charge: Floats) -> ModuleFront:
        known = self._fronts[module, charge.tobytes()]
        found = known.find(limits)
        if found is None:
            kind = self._kinds[module]
            found = module_front(
                self.case.modules[module],
                self._rooms[module],
                SlotLimits(kind=kind, room=limits, charge=charge),
            )
            taken = _slots(found, kind, len(charge)).max(axis=0, initial=0)
            known.add(taken, limits, found)
        return found


def _one(front: ModuleFront, point: int) -> ModuleFront:
    here = slice(point, point + 1)
    return replace(
        front,
        latency_us=front.latency_us[here],
        cost=front.cost[here],
        whole=front.whole[here],
        last=front.last[here],
        part=front.part[here],
        at_least=None,
    )


def _slots(front: ModuleFront, kind: Ints, kinds: int) -> Ints:
    """Per point and kind of slot: one per machine, whatever its load. Shape (P, Q)."""
    of_kind = np.zeros((len(kind), kinds), np.int64)
    of_kind[np.arange(len(kind)), kind] = 1
    slots: Ints = front.whole @ of_kind
    parts = np.flatnonzero(front.last >= 0)
    of_rest = np.ceil(front.part[parts] - WHOLE).astype(np.int64)
    slots[parts, kind[front.last[parts]]] += np.maximum(1, of_rest)
    return slots


def cheapest_of_all(
    apps: Sequence[AppChoice], limits: Ints, prices: Floats
) -> tuple[Machines, ...]:
    """Of every app by itself; `limits` has the modules of all apps, shape (N, Q)."""
    found, first = [], 0
    for app in apps:
        end = first + len(app.case.modules)
        found.append(app.cheapest(limits[first:end], prices))
        first = end
    return tuple(found)
