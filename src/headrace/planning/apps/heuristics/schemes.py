"""Harpagon's planner, its ablations and its baselines as settings of one scheme (Table III).

The systems as their own papers have them differ in more than this table; what is compared here is
what Harpagon compares: their dispatch, configurations, batching, devices, residual optimisation
and splitting, over the same candidates.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from headrace.domain.plan import Reading
from headrace.planning.apps.candidates import AppCase, ModuleCase
from headrace.planning.apps.exact.combine import CostCurve, least_cost
from headrace.planning.apps.heuristics.scheduling import reassign, schedule_module
from headrace.planning.apps.heuristics.splitting import (
    Split,
    quantised_costs,
    split_by_efficiency,
    split_by_throughput,
    split_evenly,
)
from headrace.planning.apps.machines import Schedule
from headrace.planning.apps.order import decompose, path_us, rest_us
from headrace.planning.common.deadline import Deadline

Devices = Literal["all", "cheapest", "dearest", "one"]
"""all: any; cheapest, dearest: of those that can run the module; one: the same type for the whole
app, the one with which it costs least."""

SPLIT_S = 1.0
"""For the cheapest of quantised splits, where modules are neither in series nor parallel."""

CHOSEN_UNDO_MAX = 8
"""Moves that cost-direct may take back; the paper leaves R open (decision 0015)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Scheme:
    """One column of Table III."""

    reading: Reading = "remaining"
    configurations: int | None = None
    batching: bool = True
    devices: Devices = "all"
    dummy: bool = True
    reassignments: int | None = None
    """How often left-over latency may be given to a module; None: until nothing improves."""
    split: Literal["efficiency", "throughput", "even", "quantised"] = "efficiency"
    step_us: int = 0
    merge: bool = True
    direct: bool = True


HARPAGON = Scheme()

SCHEMES: Mapping[str, Scheme] = {
    "harpagon": HARPAGON,
    "nexus": Scheme(
        reading="twice",
        configurations=2,
        devices="one",
        dummy=False,
        reassignments=0,
        split="quantised",
        step_us=10_000,
    ),
    "scrooge": Scheme(
        reading="pair", configurations=2, dummy=False, reassignments=0, split="throughput"
    ),
    "inferline": Scheme(
        reading="twice", configurations=1, dummy=False, reassignments=0, split="throughput"
    ),
    "clipper": Scheme(
        reading="twice",
        configurations=1,
        devices="one",
        dummy=False,
        reassignments=0,
        split="even",
    ),
    "harp-2d": replace(HARPAGON, reading="twice"),
    "harp-dt": replace(HARPAGON, reading="pair"),
    "harp-1c": replace(HARPAGON, configurations=1),
    "harp-2c": replace(HARPAGON, configurations=2),
    "harp-nb": replace(HARPAGON, batching=False),
    "harp-nhc": replace(HARPAGON, devices="cheapest"),
    "harp-nhe": replace(HARPAGON, devices="dearest"),
    "harp-nd": replace(HARPAGON, dummy=False),
    "harp-0re": replace(HARPAGON, reassignments=0),
    "harp-1re": replace(HARPAGON, reassignments=1),
    "harp-tb": replace(HARPAGON, split="throughput"),
    "harp-q0.01": replace(HARPAGON, split="quantised", step_us=10_000),
    "harp-q0.1": replace(HARPAGON, split="quantised", step_us=100_000),
    "harp-nnm": replace(HARPAGON, merge=False),
    "harp-ncd": replace(HARPAGON, direct=False),
}
"""Planner name -> scheme. The last two are named in section IV.C's text only."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AppSchedule:
    """Machines of every module of an app."""

    modules: tuple[Schedule, ...]
    budgets_us: tuple[int, ...]
    """What each module was scheduled within, and later given."""
    iterations: int = 0
    """Moves that the split took."""
    reassigned: int = 0

    @property
    def cost(self) -> float:
        return sum(module.cost for module in self.modules)

    def path_us(self, case: AppCase) -> int:
        return path_us(case.before, [module.worst_case_us for module in self.modules])


def plan_scheme(case: AppCase, scheme: Scheme) -> AppSchedule | None:
    """Plan one app by a scheme; None where the scheme finds nothing that fits."""
    if scheme.devices != "one":
        return _plan(_restricted(case, scheme), scheme)
    shared = set.intersection(*({c.device for c in m.candidates} for m in case.modules))
    plans = [
        _plan(_restricted(case, replace(scheme, devices="all"), only=device), scheme)
        for device in sorted(shared)
    ]
    return min((plan for plan in plans if plan), key=lambda plan: plan.cost, default=None)


def _restricted(case: AppCase, scheme: Scheme, only: str | None = None) -> AppCase:
    """The app with the candidates that the scheme may use."""
    modules = []
    for module in case.modules:
        prices = [candidate.price for candidate in module.candidates]
        price = {"cheapest": min(prices), "dearest": max(prices)}.get(scheme.devices)
        least = min(candidate.batch for candidate in module.candidates)
        kept = [
            i
            for i, candidate in enumerate(module.candidates)
            if (scheme.batching or candidate.batch == least)
            and (price is None or candidate.price == price)
            and (only is None or candidate.device == only)
        ]
        modules.append(module if len(kept) == len(prices) else module.keep(kept))
    return replace(case, modules=tuple(modules))


def _plan(case: AppCase, scheme: Scheme) -> AppSchedule | None:
    best: AppSchedule | None = None
    known: dict[tuple[str, int], Schedule | None] = {}
    for split in _splits(case, scheme, known):
        modules = [
            _schedule(module, budget, scheme, known)
            for module, budget in zip(case.modules, split.budgets_us, strict=True)
        ]
        done = [module for module in modules if module is not None]
        if len(done) < len(modules):
            continue
        found = _reassigned(case, scheme, done, split)
        if best is None or found.cost < best.cost * (1 - 1e-12):
            best = found
    return best


def _splits(
    case: AppCase, scheme: Scheme, known: dict[tuple[str, int], Schedule | None]
) -> Sequence[Split]:
    if scheme.split == "even":
        return [split_evenly(case)]
    if scheme.split == "throughput":
        split = split_by_throughput(case, scheme.reading)
        return [split] if split else []

    def cost_at(module: ModuleCase, budget_us: int) -> float | None:
        schedule = _schedule(module, budget_us, scheme, known)
        return schedule.cost if schedule else None

    if scheme.split == "efficiency":
        return split_by_efficiency(
            case,
            scheme.reading,
            merge=scheme.merge,
            undo_max=CHOSEN_UNDO_MAX if scheme.direct else 0,
            cost_at=cost_at,
        )

    curves = [CostCurve(*pair) for pair in quantised_costs(case, scheme.step_us, cost_at)]
    limit = Deadline(SPLIT_S)
    chosen = least_cost(decompose(case.before), curves, case.before, case.budget_us, limit)
    if chosen is None:
        return []
    budgets = tuple(
        int(curve.latency_us[i]) for curve, i in zip(curves, chosen.points, strict=True)
    )
    return [Split(budgets_us=budgets, iterations=0)]


def _schedule(
    module: ModuleCase,
    budget_us: int,
    scheme: Scheme,
    known: dict[tuple[str, int], Schedule | None],
) -> Schedule | None:
    key = (module.name, budget_us)
    if key not in known:
        known[key] = schedule_module(
            module,
            budget_us,
            reading=scheme.reading,
            configurations=scheme.configurations,
            dummy=scheme.dummy,
        )
    return known[key]


def _reassigned(
    case: AppCase, scheme: Scheme, schedules: Sequence[Schedule], split: Split
) -> AppSchedule:
    """Give latency that is left to one module after the other, most saving first."""
    modules, budgets = list(schedules), list(split.budgets_us)
    times = 0
    while scheme.reassignments is None or times < scheme.reassignments:
        rest = rest_us(case.before, [module.worst_case_us for module in modules])
        best: tuple[float, int, Schedule] | None = None
        for i, module in enumerate(case.modules):
            found = reassign(
                module,
                modules[i],
                case.budget_us - rest[i],
                reading=scheme.reading,
                configurations=scheme.configurations,
                dummy=scheme.dummy,
            )
            if found is not None and (best is None or modules[i].cost - found.cost > best[0]):
                best = (modules[i].cost - found.cost, i, found)
        if best is None:
            break
        _, i, modules[i] = best
        budgets[i] = max(budgets[i], modules[i].worst_case_us)
        times += 1
    return AppSchedule(
        modules=tuple(modules),
        budgets_us=tuple(budgets),
        iterations=split.iterations,
        reassigned=times,
    )
