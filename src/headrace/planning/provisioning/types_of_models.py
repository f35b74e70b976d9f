"""On which type of device each model comes and goes, where a cluster has several.

A model is on one type. All devices together carry as much as the scarcest type does: so it counts
how many a type has and what else is on them, not only where a model starts soonest. Looked for is,
in this order: that stated rates are carried, the objective, the least mean time of a request.

Few choices are all looked at. Of many, sets of types are looked at from small to large. Each begins
with what was found for every smaller one, and with models dealt out to the types that they fill
least; then single models move, or two change places, as long as that is better. So a further type
never makes it worse. Types and models are taken by name: their order in the problem says nothing.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations, product
from math import prod

from headrace.domain.errors import DocumentError
from headrace.domain.problem import Problem
from headrace.planning.common.deadline import Deadline
from headrace.planning.provisioning.carrying import (
    Carried,
    carried,
    devices_enough,
    weight_of,
    without_room,
)
from headrace.planning.provisioning.placing import Placed, place, timed_on

COLD_SHARES = (1.0, 0.3, 0.1, 0.03, 0.0)
"""Parts of requests that are starts, for which layers are placed."""

CHOICES_MAX = 256
"""So many are all looked at."""

TYPES_MAX = 4
"""With more of them, single types and all together are looked at."""

LOOKS_MAX = 3_000
"""At sets of models on one type."""

PART = 0.5
"""Of the time left, at most, for moving models."""

SAME = 1e-9
"""Relative. Values closer than this are one value."""

Choice = tuple[str, ...]
"""The device type of each model."""

Value = tuple[float, float, float]
"""Larger is better; the first that differs decides."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OnTypes:
    """All models, each on a type of device."""

    carried: tuple[Carried, ...]
    """By name of the type."""
    devices: int | None
    """So many of the only type; None: all of each."""


def on_types(problem: Problem, planner: str, deadline: Deadline) -> OnTypes | str:
    """The best found, which may carry less than stated rates; or why models have no place.

    Raises:
        DocumentError: a profile lacks times that are needed; or devices are to be counted, and no
            type of them can run all models.
    """
    search = _Search(problem, planner, deadline)
    if refusal := search.homeless():
        return refusal
    counts = problem.options.objective == "least-devices"
    found = search.fewest() if counts else search.best()
    return found or search.refusal


class _Search:
    """Models by name, and what is known of sets of them on one type."""

    def __init__(self, problem: Problem, planner: str, deadline: Deadline) -> None:
        self.refusal = ""
        """Why a set of models has no room on a type, of the first such set."""
        self._problem, self._deadline = problem, deadline.part(PART)
        shares = COLD_SHARES if planner.startswith("exact") else COLD_SHARES[:1]
        self._demands = sorted(problem.demands, key=lambda demand: demand.model)
        self._stated = all(demand.rate_rps is not None for demand in problem.demands)
        # Per model, type -> for each of the shares, how it stands there or why it cannot.
        self._offers: list[dict[str, list[Placed | str]]] = [
            {
                times.device: [
                    place(problem, demand, times, planner, part, deadline) for part in shares
                ]
                for times in sorted(timed_on(problem, demand), key=lambda times: times.device)
            }
            for demand in self._demands
        ]
        self._types = sorted({name for offers in self._offers for name in offers})
        self._known: dict[tuple[str, frozenset[int]], Carried | str] = {}

    def homeless(self) -> str:
        """Why some models can run on no type, not even alone; empty: there are none such."""
        refusals = []
        for model, offers in enumerate(self._offers):
            found = [self._on(name, frozenset([model])) for name in offers]
            texts = [each for each in found if isinstance(each, str)]
            if len(texts) == len(found):
                refusals.append(texts[0])
        return "\n".join(refusals)

    def best(self) -> OnTypes | None:
        """Of all choices where they are few, else of those that moves lead to."""
        if prod(map(len, self._offers)) <= CHOICES_MAX:
            choices = list(product(*self._offers))
        else:
            choices = self._moved_over_sets()
        loads = self._loads(self._first(choices)) if choices else None
        return None if loads is None else OnTypes(carried=loads, devices=None)

    def _moved_over_sets(self) -> list[Choice]:
        """The best found for each set of types."""
        found: dict[frozenset[str], Choice] = {}
        for types in self._sets():
            some = frozenset(types)
            begins = [choice for smaller, choice in found.items() if smaller < some]
            dealt = [self._dealt(types, first) for first in (None, *types)]
            ended = [self._improved(each, types) for each in [*begins, *filter(None, dealt)]]
            if ended:
                found[some] = self._first(ended)
        return list(found.values())

    def fewest(self) -> OnTypes | None:
        """The fewest devices of one type that carry stated rates; else all of those that carry
        most of them."""
        if not any(all(name in offers for offers in self._offers) for name in self._types):
            raise DocumentError(
                "planner provisioned: counts devices of one type, and none of"
                f" {', '.join(self._types)} can run all of these models; plan them apart"
            )
        best: tuple[float, int, float] | None = None
        found = None
        for name in self._types:
            dealt = self._dealt([name])
            for load in (self._loads(dealt) or ()) if dealt else ():
                there = self._problem.cluster.count(name)
                devices = min(there, devices_enough(self._problem, load.placed))
                value = (max(1.0, load.need), devices, load.total_us)
                if best is None or value < best:
                    best = value
                    fewer = carried(self._problem, load.placed, devices)
                    found = OnTypes(carried=(fewer,), devices=devices)
        return found

    def _sets(self) -> Iterator[Sequence[str]]:
        """Of types, small ones first."""
        count = len(self._types)
        sizes = range(1, count + 1) if count <= TYPES_MAX else (1, count)
        for size in sizes:
            yield from combinations(self._types, size)

    def _on(self, name: str, models: frozenset[int]) -> Carried | str:
        """Models on a type, with their layers placed so that requests take least in the mean; or
        why they have no room there.

        Which layers stay on the host hangs on how many requests are starts, and that on how much
        memory the others take: each part is tried.
        """
        if (name, models) not in self._known:
            self._known[name, models] = self._looked_at(name, sorted(models))
        return self._known[name, models]

    def _looked_at(self, name: str, models: Sequence[int]) -> Carried | str:
        best, refusal = None, ""
        for found in zip(*(self._offers[model][name] for model in models), strict=True):
            placed = [each for each in found if isinstance(each, Placed)]
            if len(placed) < len(found):
                # Layers placed for few starts may start too late, where those for many do not.
                refusal = refusal or "\n".join(each for each in found if isinstance(each, str))
            elif without := without_room(self._problem, placed):
                refusal = refusal or without
            else:
                load = carried(self._problem, placed)
                if best is None or load.total_us < best.total_us:
                    best = load
        self.refusal = self.refusal or refusal * (best is None)
        return best or refusal

    def _loads(self, choice: Choice) -> tuple[Carried, ...] | None:
        """What each type carries; None: some models have no room."""
        found = [
            self._on(name, frozenset(m for m, its in enumerate(choice) if its == name))
            for name in sorted(set(choice))
        ]
        loads = tuple(each for each in found if isinstance(each, Carried))
        return loads if len(loads) == len(found) else None

    def _value(self, choice: Choice) -> Value | None:
        loads = self._loads(choice)
        if loads is None:
            return None
        rates = [
            (each.demand, weight_of(each.demand) / on.need) for on in loads for each in on.placed
        ]
        if self._problem.options.objective == "throughput":
            objective = sum(rate for _, rate in rates)
        else:
            objective = min(rate / demand.weight for demand, rate in rates)
        short = max(1.0, *(on.need for on in loads)) if self._stated else 1.0
        return -short, objective, -sum(on.total_us for on in loads)

    def _first(self, choices: Sequence[Choice]) -> Choice:
        """The first of the best."""
        best = choices[0]
        for each in choices[1:]:
            if _beats(self._value(each), self._value(best)):
                best = each
        return best

    def _dealt(self, types: Sequence[str], first: str | None = None) -> Choice | None:
        """Models, those that take most first, each to the type of these that it fills least; None:
        there is one that has no room on any of them.

        Args:
            first: where all are that have room there.
        """
        alone = [
            min(
                load.need
                for name in offers
                if isinstance(load := self._on(name, frozenset([model])), Carried)
            )
            for model, offers in enumerate(self._offers)
        ]
        on: dict[str, frozenset[int]] = {name: frozenset() for name in types}
        for model in sorted(range(len(alone)), key=lambda m: -alone[m]):
            loads = [
                (name != first, load.need, name)
                for name in types
                if name in self._offers[model]
                and isinstance(load := self._on(name, on[name] | {model}), Carried)
            ]
            if not loads:
                return None
            *_, name = min(loads)
            on[name] |= {model}
        types_of = {model: name for name, models in on.items() for model in models}
        return tuple(types_of[model] for model in range(len(alone)))

    def _improved(self, choice: Choice, types: Sequence[str]) -> Choice:
        """With models moved as long as that is better."""
        while True:
            for neighbours in (self._moved(choice, types), self._swapped(choice)):
                best = self._first([choice, *neighbours])
                if best != choice:
                    break
            else:
                return choice
            choice = best

    def _moved(self, choice: Choice, types: Sequence[str]) -> Iterator[Choice]:
        """Each model on each other type."""
        for model, name in enumerate(choice):
            for other in types:
                if other != name and other in self._offers[model] and self._may_look:
                    yield (*choice[:model], other, *choice[model + 1 :])

    def _swapped(self, choice: Choice) -> Iterator[Choice]:
        """Each two models on each other's types."""
        for one, other in combinations(range(len(choice)), 2):
            first, second = choice[one], choice[other]
            offered = second in self._offers[one] and first in self._offers[other]
            if first != second and offered and self._may_look:
                swapped = list(choice)
                swapped[one], swapped[other] = second, first
                yield tuple(swapped)

    @property
    def _may_look(self) -> bool:
        return len(self._known) < LOOKS_MAX and not self._deadline.passed


def _beats(one: Value | None, other: Value | None) -> bool:
    if one is None or other is None:
        return one is not None
    for a, b in zip(one, other, strict=True):
        if abs(a - b) > SAME * max(abs(a), abs(b)):
            return a > b
    return False
