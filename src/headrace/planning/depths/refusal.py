"""Why there is no malleable plan: what binds, and the nearest SLO, items or rates that would do."""

from collections.abc import Sequence
from fractions import Fraction
from math import ceil

from headrace.cost import cost_model
from headrace.domain.apart import apart, ms_apart, ms_enough
from headrace.domain.cluster import Cluster
from headrace.domain.problem import Demand, Problem
from headrace.planning.common.candidates import SlotKind, budget_us
from headrace.planning.common.deadline import Deadline
from headrace.planning.common.rounded import round_down
from headrace.planning.depths.capacity import Capacity
from headrace.planning.depths.table import DepthTable


def refuse_slo(problem: Problem, demand: Demand, table: DepthTable) -> str | None:
    """A typical request misses its SLO on an idle machine: more slots would not help it."""
    items = table.chain.typical
    gateway_us = cost_model(problem.profiles).gateway_us(demand.model)
    needed_us = table.quickest_us(items) + gateway_us
    margin = problem.options.margin_of(demand.model)
    budget = budget_us(demand.slo_us, margin)
    if needed_us <= budget:
        return None
    least_us = ceil(needed_us / (1 - Fraction(str(margin))))
    fitting = table.items_within(budget - gateway_us)
    fewer = f"requests of at most {fitting:,} items, or " if fitting else ""
    deepest = len(table.cuts)
    needs, has, slo = ms_apart(needed_us, budget, demand.slo_us)
    return (
        f"model {demand.model!r}: a request of {items:,} items misses its SLO even alone, at the"
        f" best depth\n"
        f"  needs  {needs} at depths up to {deepest}\n"
        f"  has    {has}, SLO {slo} less a margin of {margin:.0%}\n"
        f"  try    {fewer}an SLO of {ms_enough(least_us)} ms"
    )


def refuse_memory(cluster: Cluster, needed: dict[SlotKind, int]) -> str:
    """No device holds what all its slots may be asked to run."""
    lines = [
        f"  has    {cluster.device_type(kind.device).memory_bytes or 0:,} bytes on a"
        f" {kind.device!r}, which would need {needed[kind]:,}"
        for kind in needed
    ]
    return (
        "memory: no device type holds the weights of all models, any range of which its slots may"
        " be asked to run\n" + "\n".join(lines) + "\n  try    fewer models, or devices with that"
        " much memory"
    )


def refuse_rates(problem: Problem, capacity: Capacity, deadline: Deadline) -> tuple[str, bool]:
    """All slots together carry less than the rates that are asked for; and whether that is proven
    of every way to cut the models."""
    multiple, bound = capacity.multiple(deadline)
    part = max(multiple, 1e-9)
    slots = _listed(capacity.kinds)
    rates = ", ".join(
        f"{apart(demand.rate_rps)[0]} requests/s of {demand.model!r}"
        for demand in problem.demands
        if demand.rate_rps
    )
    refusal = (
        f"rates: {slots} are too few\n"
        f"  needs  {rates}\n"
        f"  has    {apart(multiple, 1.0, digits=3)[0]} times these\n"
        f"  try    rates of {round_down(part, 2)} times these, or {ceil(100 / part) / 100:g} times"
        " the slots"
    )
    return refusal, bound < 1


def _listed(kinds: dict[SlotKind, int]) -> str:
    return ", ".join(
        f"{count} slots of {'' if kind.share == 1 else f'{kind.share} '}{kind.device!r}"
        for kind, count in kinds.items()
    )


def beyond_slo(problem: Problem, tables: Sequence[DepthTable]) -> list[tuple[str, int, int]]:
    """Models of whose largest requests some miss their SLO even alone: name, the most items that
    keep it, the most items allowed."""
    costs, found = cost_model(problem.profiles), []
    for demand, table in zip(problem.demands, tables, strict=True):
        allowed_us = demand.slo_us - costs.gateway_us(demand.model)
        fitting = table.items_within(allowed_us)
        if fitting < table.chain.most:
            found.append((demand.model, fitting, table.chain.most))
    return found
