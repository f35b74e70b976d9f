"""Why apps have no plan on whole devices, and what would do, found as such plans are.

SLOs or devices are too few. A request takes at least as long as the fastest batches on its longest
path: where an app's budget is no longer, no number of devices helps, and its SLO is looked for.
Else all SLOs are, longer in proportion, and besides of each device type the fewest with which
there is a plan; where no single type helps, those of the cheapest plan. What is smaller than
what is named is proven to be too little, or the refusal does not say that it is needed.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from math import log10

from headrace.domain.problem import Problem
from headrace.planning.apps.candidates import OFF_EVERY_PATH, AppCase
from headrace.planning.apps.order import path_us
from headrace.planning.common.deadline import Deadline
from headrace.planning.common.enough import (
    least_devices,
    least_slos,
    slos_text,
    with_devices,
)

STEPS = 100
"""SLOs that are named are multiples of a power of ten that goes at least so often into the SLO."""

LONGEST = 32
"""Times the SLO: what is longer is not looked for."""

MORE = 128
"""Devices of a type that are named at most, besides those that there are."""

MOST_S = 10.0
"""At most, for all searches."""

EACH = 0.5
"""Of the time left, for all searches, and of what is left of that for each."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DevicesFound:
    """What a search on whole devices found."""

    devices: dict[str, int] | None
    """Of each type, those that it takes; None: there is no plan, or none was found."""
    certain: bool
    """Whether no plan exists, where none was found."""


Search = Callable[[Problem, Deadline], DevicesFound]


@dataclass(slots=True, kw_only=True)
class Refusal:
    """Of a problem for which a search found nothing."""

    problem: Problem
    cases: Sequence[AppCase]
    search: Search
    limit: Deadline
    """For finding out what would do."""
    certain: bool
    """Whether it is certain that there is no plan, and of what is named, that less would not do."""

    def text(self) -> str:
        """In half of the time that is left: the rest is for simulating what would do."""
        problem, self.limit = self.problem, Deadline(min(MOST_S, EACH * self.limit.left_s))
        proven = self.certain
        slow = [case.name for case in self.cases if _too_slow(case)]
        every = [app.name for app in problem.apps]
        devices = None if slow else self._devices()
        slos = (slow and self._slos(slow)) or self._slos(every)
        if slow:
            head = f"app {slow[0]!r}: no plan meets the SLO"
        elif proven:
            head = "no plan on whole devices meets every SLO with the devices that there are"
        else:
            head = "no plan on whole devices was found"
        stock = {name: problem.cluster.count(name) for name in self._kinds()}
        needs = [text for text in (devices, slos) if text]
        advice = [f"{devices} under `cluster.nodes`"] if devices else []
        advice.append(slos or "a longer SLO")
        limit = problem.options.max_tenants
        budgets = f" ({OFF_EVERY_PATH})" if slow else ""
        turns = f", at most {limit} modules on one (max_tenants)" if limit else ""
        if limit and not slow:
            advice.append("a larger max_tenants")
        if not slow:
            advice.append("a lower rate")
        if self.limit.passed:
            advice.append("a longer --time-limit-s")
        return (
            f"{head}\n"
            f"  {'needs ' if self.certain or not needs else 'enough'}    "
            f"{' or '.join(needs) or 'more devices, or longer SLOs'}\n"
            f"  has       {_of_each(stock)}{turns}, {slos_text(problem, slow or every)}{budgets}\n"
            f"  try       {_either(advice)}"
        )

    def _does(self, problem: Problem) -> bool | None:
        found = self._search(problem)
        if found.devices is None:
            return False if found.certain else None
        return True

    def _search(self, problem: Problem) -> DevicesFound:
        return self.search(problem, self.limit.part(EACH))

    def _slos(self, apps: Collection[str]) -> str | None:
        """Those with which there is a plan, in words."""
        problem = self.problem
        longest_us = max(app.slo_us for app in problem.apps if app.name in apps)
        longer = least_slos(
            problem,
            apps,
            self._does,
            growth=2.0,
            most=LONGEST,
            step_us=10 ** int(log10(max(1, longest_us // STEPS))),
            limit=self.limit,
        )
        if longer is None:
            return None
        found, certain = longer
        self.certain &= certain
        return slos_text(found, apps)

    def _devices(self) -> str | None:
        """Of each type as many as are enough, in words; else of all together."""
        problem, enough = self.problem, []
        counts = {name: problem.cluster.count(name) for name in self._kinds()}
        for name, count in counts.items():
            found = least_devices(problem, name, self._does, most=count + MORE, limit=self.limit)
            if found is not None:
                enough.append(_of_each({name: found.value}))
                self.certain &= found.certain
        if enough:
            return " or ".join(enough)
        used = self._search(with_devices(problem, {n: count + MORE for n, count in counts.items()}))
        if used.devices is None:
            return None
        # Fewer of one of them may do.
        self.certain = False
        return _of_each({n: more for n, more in used.devices.items() if more > counts[n]})

    def _kinds(self) -> list[str]:
        """Device types that may run some module."""
        modules = [module for case in self.cases for module in case.modules]
        return sorted({each.device for module in modules for each in module.candidates})


def _of_each(counts: Mapping[str, int]) -> str:
    return " and ".join(f"{count} of {name}" for name, count in counts.items())


def _either(texts: Sequence[str]) -> str:
    *others, last = texts
    return f"{', '.join(others)}, or {last}" if others else last


def _too_slow(case: AppCase) -> bool:
    """Whether no number of devices keeps its SLO."""
    least_us = [int(module.duration_us.min()) for module in case.modules]
    return path_us(case.before, least_us) >= case.budget_us
