"""Why there is no plan: the binding constraint, and the nearest thing that would be feasible."""

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from math import ceil, floor, log10

import numpy as np

from headrace.domain.problem import Problem
from headrace.planning.assembly import Model
from headrace.planning.candidates import NEVER_US, CostTables, budget_us
from headrace.planning.hardware import Hardware
from headrace.planning.master import Wanted
from headrace.planning.search import Deadline, search

EXPLAIN_LIMIT_S = 10.0
"""Time for finding what would be feasible."""


_Path = tuple[int, tuple[tuple[int, int], ...]]
"""Latency, and (kind, end block) per stage."""


@dataclass(frozen=True, slots=True)
class Fastest:
    """The quickest way through a model, whatever the SLO."""

    latency_us: int
    batch_size: int
    stages: tuple[tuple[int, int], ...]
    """(kind, end block) per stage."""


def fastest_pipeline(tables: CostTables, min_stages: int, max_stages: int) -> Fastest | None:
    """The pipeline of least latency; None where no pipeline exists at all.

    Shortest paths over (stages so far, block reached, kind of the last stage).
    """
    blocks = tables.block_count
    best: Fastest | None = None
    for b in range(len(tables.p99_us)):
        layer: dict[tuple[int, int], _Path] = {
            (end, kind): (int(tables.p99_us[b, kind, 0, end]), ((kind, end),))
            for kind in range(len(tables.kinds))
            for end in range(1, blocks + 1)
        }
        for depth in range(1, min(max_stages, blocks) + 1):
            for (end, _), (latency, stages) in layer.items():
                quicker = best is None or latency < best.latency_us
                if end == blocks and depth >= min_stages and latency < NEVER_US and quicker:
                    best = Fastest(latency, b + 1, stages)
            layer = _next_layer(tables, b, layer)
    return best


def _next_layer(
    tables: CostTables, b: int, layer: dict[tuple[int, int], _Path]
) -> dict[tuple[int, int], _Path]:
    grown: dict[tuple[int, int], _Path] = {}
    for (block, kind), (latency, stages) in layer.items():
        if latency >= NEVER_US:
            continue
        for after in range(len(tables.kinds)):
            hop = int(tables.transfer_us[b, kind, after, block])
            for end in range(block + 1, tables.block_count + 1):
                total = latency + hop + int(tables.p99_us[b, after, block, end])
                known = grown.get((end, after))
                if total < NEVER_US and (known is None or total < known[0]):
                    grown[end, after] = (total, (*stages, (after, end)))
    return grown


def nearest_slo_us(latency_us: int, margin: float) -> int:
    """The least SLO whose budget is at least `latency_us`.

    >>> nearest_slo_us(60_000, 0.4)
    100000
    """
    return ceil(latency_us / (1 - Fraction(str(margin))))


def refuse_latency(problem: Problem, models: Sequence[Model]) -> str:
    """For problems in which some model has no pipeline within its budget."""
    return "\n".join(_refuse_model(problem, model) for model in models if not len(model.pipelines))


def _refuse_model(problem: Problem, model: Model) -> str:
    options, demand, tables = problem.options, model.demand, model.tables
    name = f"model {demand.model!r}"
    if tables.block_count < options.min_stages:
        return (
            f"{name} cannot be cut into enough stages\n"
            f"  needs  {options.min_stages} stages (min_stages)\n"
            f"  has    {tables.block_count} blocks\n"
            "  try    a smaller min_stages, or a profile with more --blocks"
        )
    fastest = fastest_pipeline(tables, options.min_stages, options.max_stages)
    if fastest is None:
        return _refuse_profile(problem, model)
    budget = budget_us(demand.slo_us, options.margin)
    nearest = nearest_slo_us(fastest.latency_us, options.margin)
    return (
        f"{name} cannot meet its SLO: even its fastest pipeline exceeds the latency budget\n"
        f"  needs  {_ms(fastest.latency_us)}  {_describe(tables, fastest)}\n"
        f"  has    {_ms(budget)}  SLO {_ms(demand.slo_us)} less a margin of"
        f" {options.margin * 100:g} %\n"
        f"  try    an SLO of at least {_ms(nearest)}, faster devices or a smaller margin"
    )


def _refuse_profile(problem: Problem, model: Model) -> str:
    profile = problem.profiles[model.demand.model]
    profiled = sorted({f"{times.share} {times.device}" for times in profile.block_times})
    offered = [f"{kind.share} {kind.device}" for kind in model.tables.kinds]
    where = f"model {model.demand.model!r} cannot run on any device of the cluster"
    if set(profiled) & set(offered):
        heaviest = profile.weights_bytes(0, len(profile.blocks))
        return (
            f"{where}: its weights do not fit\n"
            f"  needs  {heaviest:,} bytes of weights, in stages of whole blocks\n"
            f"  has    {_memory(problem)}\n"
            "  try    devices with more memory, more blocks or a larger max_stages"
        )
    return (
        f"{where}: it was not profiled there\n"
        f"  needs  {', '.join(offered)}\n"
        f"  has    {', '.join(profiled)}\n"
        "  try    `headrace profile` with the cluster's device types and shares"
    )


def _memory(problem: Problem) -> str:
    return ", ".join(
        f"{kind.memory_bytes:,} bytes per {kind.name}"
        for kind in problem.cluster.device_types
        if kind.memory_bytes is not None
    )


def _describe(tables: CostTables, fastest: Fastest) -> str:
    parts, first = [], 0
    for kind, end in fastest.stages:
        slot = tables.kinds[kind]
        parts.append(f"blocks {first}-{end - 1} on {slot.share} {slot.device}")
        first = end
    return f"{', then '.join(parts)}, batch size {fastest.batch_size}"


def refuse_capacity(problem: Problem, hardware: Hardware, models: Sequence[Model]) -> str:
    """For problems in which every model fits its budget, but not all of it fits the cluster."""
    deadline = Deadline(EXPLAIN_LIMIT_S)
    columns = [model.pipelines for model in models]
    rated = [
        Wanted(weight=model.demand.rate_rps or 0.0, least_rps=model.least_rps) for model in models
    ]
    needs, has = _device_need(hardware, models), _devices(hardware)
    more = _more_devices(hardware, models, deadline)
    if any(want.weight for want in rated):
        outcome = search(hardware, rated, columns, "max-min", deadline)
        if outcome.objective is not None:
            return _refuse_rates(models, outcome.objective, has, more)
    return (
        "the devices are too few to serve every model\n"
        f"  needs  {needs}\n"
        f"  has    {has}\n"
        f"  try    {more or 'more devices'}, fewer models or finer shares"
    )


def _refuse_rates(models: Sequence[Model], fraction: float, has: str, more: str) -> str:
    asked = [(m.demand.model, m.demand.rate_rps) for m in models if m.demand.rate_rps is not None]
    needs = ", ".join(f"{rate:g} rps of {name!r}" for name, rate in asked)
    reached = ", ".join(f"{round_down(rate * fraction)} rps of {name!r}" for name, rate in asked)
    together = " at once" if len(asked) > 1 else ""
    return (
        "the devices cannot carry the rates asked\n"
        f"  needs  {needs}\n"
        f"  has    {reached}{together}, with {has}\n"
        f"  try    rate_rps of at most {reached}{together}{', or ' + more if more else ''}"
    )


def _device_need(hardware: Hardware, models: Sequence[Model]) -> str:
    names = ", ".join(repr(model.demand.model) for model in models)
    return f"at least one pipeline for each of {names}"


def _devices(hardware: Hardware) -> str:
    pairs = zip(hardware.devices, hardware.owned, strict=True)
    return ", ".join(f"{count} {device!r}" for device, count in pairs)


def _more_devices(hardware: Hardware, models: Sequence[Model], deadline: Deadline) -> str:
    """The fewest further devices that make the problem feasible, in words; empty if unknown."""
    columns = [model.pipelines for model in models]
    wanted = [Wanted.of(model.demand, model.least_rps) for model in models]
    stages = sum(pipelines.kinds.shape[1] for pipelines in columns)
    # Enough of each type to carry every rate on the pipeline that is slowest per device.
    slots = [want.least_rps / p.rates_rps.min() for want, p in zip(wanted, columns, strict=True)]
    roomy = hardware.with_more(stages * ceil(1 + sum(slots)))
    outcome = search(roomy, wanted, columns, "fewest-more-devices", deadline)
    if outcome.chosen is None or outcome.stopped != "optimal":
        return ""
    cut = np.bincount(
        hardware.pattern_device, weights=outcome.chosen.cut, minlength=len(hardware.devices)
    )
    extra = np.maximum(cut - hardware.owned, 0).astype(int)
    added = [f"{n} {d!r}" for n, d in zip(extra, hardware.devices, strict=True) if n]
    return f"{' and '.join(added)} more" if added else ""


def round_down(value: float, digits: int = 6) -> str:
    """`value` to some significant digits, never above it, so that what is named is feasible.

    >>> round_down(411.2718281828), round_down(0.00123456789), round_down(7.0)
    ('411.271', '0.00123456', '7')
    """
    exponent = digits - 1 - floor(log10(value))
    scaled = floor(Fraction(value) * Fraction(10) ** exponent)
    return f"{float(Fraction(scaled) / Fraction(10) ** exponent):.{max(exponent, 0)}f}".rstrip(
        "0"
    ).rstrip(".")


def _ms(us: int) -> str:
    """Exactly: a refusal names values to be used as they stand."""
    return f"{us // 1000}.{us % 1000:03d} ms"
