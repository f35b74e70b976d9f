"""Chains of steps: what shares devices, with the budgets that paths have."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cached_property

from msgspec.structs import replace as changed

from headrace.cost import cost_model, shares_gateway_cores
from headrace.domain.app import App, topological_order
from headrace.domain.problem import Demand, Problem
from headrace.planning.apps.candidates import overhead_us, planned_rps
from headrace.planning.common.candidates import (
    NEVER_US,
    CostTables,
    Floats,
    budget_us,
    cost_tables,
    link_limits_rps,
)
from headrace.planning.common.shared_times import SharedTimes, TenantTimes
from headrace.planning.common.weights import Blocks

US_PER_S = 1e6

Place = tuple[int, int, str]
"""Of a stage: first block, the one behind the last, device type."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """What is a tenant of parts as a whole."""

    key: str
    """Unlike every other step's: MODEL, APP.MODULE or MODEL.PIPELINE.STAGE."""
    model: str
    rate_rps: float
    blocks: tuple[int, int] | None = None
    """Of a stage: first, and the one behind the last."""
    device: str | None = None
    """Of a stage: the only device type."""
    batch_size: int | None = None
    """Of a stage: the only batch size."""

    @property
    def longest_cycle_us(self) -> int:
        """A stage is one tenant of one slot, so that its cycle must carry the rate."""
        if self.batch_size is None:
            return NEVER_US
        return int(self.batch_size * US_PER_S / self.rate_rps)


@dataclass(frozen=True, slots=True, kw_only=True)
class StepChain:
    """Steps with one budget for the longest path over them."""

    name: str
    steps: tuple[Step, ...]
    before: tuple[tuple[int, ...], ...]
    """Per step, those that it waits for; steps stand in topological order."""
    budget_us: int


def model_chain(problem: Problem, demand: Demand) -> StepChain:
    """A model that runs whole."""
    step = Step(key=demand.model, model=demand.model, rate_rps=demand.rate_rps or 0.0)
    budget = model_budget_us(problem, demand)
    return StepChain(name=demand.model, steps=(step,), before=((),), budget_us=budget)


def model_budget_us(problem: Problem, demand: Demand) -> int:
    """SLO x (1 - margin), less the gateway's time."""
    gateway_us = cost_model(problem.profiles).gateway_us(demand.model)
    return budget_us(demand.slo_us, problem.options.margin_of(demand.model)) - gateway_us


def app_chain(problem: Problem, app: App) -> StepChain:
    """An app's modules; the budget is less what its code and the gateway take along a path."""
    names = [module.name for module in app.modules]
    order = topological_order(names, app.edges, app.name)
    waits = {name: [first for first, after in app.edges if after == name] for name in names}
    return StepChain(
        name=app.name,
        steps=tuple(
            Step(
                key=f"{app.name}.{name}",
                model=app.module(name).model,
                rate_rps=planned_rps(problem.options, app, name),
            )
            for name in order
        ),
        before=tuple(tuple(order.index(first) for first in waits[name]) for name in order),
        budget_us=app_budget_us(problem, app),
    )


def app_budget_us(problem: Problem, app: App) -> int:
    whole_us = budget_us(app.slo_us, problem.options.margin_of(app.name))
    return max(0, whole_us - overhead_us(app, problem.profiles))


class Costs:
    """What batches of steps take of parts; one for all searches of a problem."""

    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        self._costs = cost_model(problem.profiles)
        self._tables: dict[str, CostTables] = {}
        self._links: dict[tuple[str, str, Fraction], Floats] = {}
        self._alone: dict[Step, list[tuple[SharedTimes, float]]] = {}
        self._least: dict[Step, int] = {}

    @cached_property
    def devices(self) -> tuple[str, ...]:
        """Types that the cluster has."""
        cluster = self.problem.cluster
        return tuple(kind.name for kind in cluster.device_types if cluster.count(kind.name))

    @cached_property
    def _parts(self) -> dict[str, frozenset[Fraction]]:
        """Per device type the shares that a part may have."""
        return {name: self.problem.cluster.device_type(name).part_shares for name in self.devices}

    @cached_property
    def prices(self) -> tuple[float, ...]:
        """Of one device of each type, by the objective."""
        if self.problem.options.objective == "least-devices":
            return tuple(1.0 for _ in self.devices)
        kinds = (self.problem.cluster.device_type(name) for name in self.devices)
        return tuple(kind.price_per_hour or 0.0 for kind in kinds)

    def tables(self, model: str) -> CostTables:
        if model not in self._tables:
            demand = next((d for d in self.problem.demands if d.model == model), None)
            # The rates in these tables are those of machines; parts need times alone.
            asked = demand or Demand(model=model, slo_us=1)
            self._tables[model] = cost_tables(self.problem, asked, in_turns=True)
        return self._tables[model]

    def problem_of(self, steps: Sequence[Step]) -> Problem:
        """The steps as a problem of whole models, for `planning.shares`."""
        return changed(
            self.problem,
            apps=(),
            demands=tuple(
                Demand(model=step.key, slo_us=1, rate_rps=step.rate_rps) for step in steps
            ),
            profiles={step.key: self.problem.profiles[step.model] for step in steps},
            options=changed(
                self.problem.options,
                margin=0.0,
                # Budgets and `link_rps` count with them, and they name models, not steps.
                model_margins={},
                carried_parts={},
                link_parts={},
                module_headroom={},
            ),
        )

    def times(self, steps: Sequence[Step], budgets_us: Sequence[int]) -> list[SharedTimes]:
        """Per device type what every step takes of its parts, within these budgets."""
        return [self._times_on(device, steps, budgets_us) for device in self.devices]

    def _times_on(
        self, device: str, steps: Sequence[Step], budgets_us: Sequence[int]
    ) -> SharedTimes:
        return SharedTimes(
            self.problem.cluster.device_type(device),
            tuple(
                replace(self._times(step, device), budget_us=int(own))
                for step, own in zip(steps, budgets_us, strict=True)
            ),
        )

    def _times(self, step: Step, device: str) -> TenantTimes:
        tables = self.tables(step.model)
        first, end = step.blocks or (0, tables.block_count)
        latency_us: dict[Fraction, tuple[int, ...]] = {}
        link_rps: dict[Fraction, float] = {}
        kinds = enumerate(tables.kinds) if step.device in (None, device) else ()
        for k, (name, share) in kinds:
            if name == device and share in self._parts[device]:
                column = [int(us) for us in tables.p99_us[:, k, first, end] if us < NEVER_US]
                if step.batch_size is not None:
                    own = column[step.batch_size - 1 : step.batch_size]
                    column = [*[NEVER_US] * (step.batch_size - 1), *own]
                    link_rps[share] = self.link_rps(step.model, device, share, (first, end))
                    if link_rps[share] < step.rate_rps:
                        continue
                if column and min(column) < NEVER_US:
                    latency_us[share] = tuple(column)
        # The first slot of a request pays the gateway, where they have the same cores.
        pays = first == 0 and shares_gateway_cores(self.problem.cluster, device)
        return TenantTimes(
            demand=Demand(model=step.key, slo_us=1, rate_rps=step.rate_rps),
            latency_us=latency_us,
            overhead_us=self._costs.between_batches_us(step.model),
            gateway_batch_us=self._costs.gateway_on_slot_us(step.model) if pays else 0,
            budget_us=0,
            blocks=self.blocks(step),
            longest_cycle_us=step.longest_cycle_us,
            link_rps=link_rps,
        )

    def transfer_us(self, model: str, batch: int, one: Place, after: Place) -> int:
        """Of a batch over an idle link, from a stage to the next."""
        tables = self.tables(model)
        devices = [kind.device for kind in tables.kinds]
        a, b = devices.index(one[2]), devices.index(after[2])
        return int(tables.transfer_us[batch - 1, a, b, one[1]])

    def link_rps(self, model: str, device: str, share: Fraction, blocks: tuple[int, int]) -> float:
        """What the link of one slot carries of a stage; the part that its model is to use."""
        known = model, device, share
        if known not in self._links:
            profile, cluster = self.problem.profiles[model], self.problem.cluster
            self._links[known] = link_limits_rps(profile, cluster, device, share)
        part = self.problem.options.link_parts.get(model, 1.0)
        return part * float(self._links[known][blocks])

    def blocks(self, step: Step) -> Blocks:
        """Whose weights it needs."""
        return Blocks.of(step.model, self.problem.profiles[step.model], step.blocks)

    def least_us(self, step: Step) -> int:
        """The shortest wait and batch on any part, with nobody else there; NEVER_US: none."""
        unnamed = _unnamed(step)
        if unnamed not in self._least:
            self._least[unnamed] = self._least_us(unnamed)
        return self._least[unnamed]

    def _least_us(self, step: Step) -> int:
        return min(
            (
                us + times.least_cycle_us(tenant.busy_us(us, size))
                for times, _ in self._times_alone(step)
                for tenant in times.models
                for latency in tenant.latency_us.values()
                for size, us in enumerate(latency, start=1)
                if us < NEVER_US
                and times.least_cycle_us(tenant.busy_us(us, size)) <= tenant.longest_cycle_us
            ),
            default=NEVER_US,
        )

    def least_price(self, step: Step, budget: int) -> float:
        """What the step's rate takes at least, if devices could be had in fractions of time and
        share: price x share x busy / (batch x max_utilisation) per request."""
        found = float("inf")
        for times, price in self._times_alone(_unnamed(step)):
            [tenant] = times.models
            for share, latency in tenant.latency_us.items():
                for size, us in enumerate(latency, start=1):
                    cycle_us = times.least_cycle_us(tenant.busy_us(us, size))
                    if us < NEVER_US and us + cycle_us <= budget:
                        per_request = price * float(share) * cycle_us / size / US_PER_S
                        found = min(found, step.rate_rps * per_request)
        return found

    def _times_alone(self, unnamed: Step) -> list[tuple[SharedTimes, float]]:
        """With the price, per device type that it may have. Kept: of the ways to cut a model, most
        have stages that others have too."""
        if unnamed not in self._alone:
            self._alone[unnamed] = [
                (self._times_on(device, [unnamed], [0]), price)
                for device, price in zip(self.devices, self.prices, strict=True)
                if unnamed.device in (None, device)
            ]
        return self._alone[unnamed]


def _unnamed(step: Step) -> Step:
    """Equal for steps that take the same of parts."""
    return replace(step, key=step.model)
