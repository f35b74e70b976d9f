"""Why there is no plan: the binding constraint, and the nearest thing that would be feasible."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from math import ceil

from msgspec.structs import replace as replace_fields

from headrace.domain.apart import apart
from headrace.domain.problem import Problem
from headrace.planning.common.candidates import (
    NEVER_US,
    CostTables,
    Pipelines,
    budget_us,
    feasible_pipelines,
    least_rest_us,
)
from headrace.planning.common.deadline import Deadline, OutOfTime
from headrace.planning.common.hardware import Hardware
from headrace.planning.common.master import Counting, Wanted
from headrace.planning.common.models import Model, model_of
from headrace.planning.common.packing import fit_alone
from headrace.planning.common.rounded import round_down
from headrace.planning.pooled.relaxation import relax
from headrace.planning.pooled.search import search

EXPLAIN_LIMIT_S = 10.0
"""Time for finding what would be feasible: for the rates, and for the devices; at most as long as
the planning may take."""

FARTHEST = 64
"""Times as many devices as the relaxation needs are tried; it is seldom far off."""


@dataclass(frozen=True, slots=True)
class Fastest:
    """The quickest way through a model, whatever the SLO."""

    latency_us: int
    """All stages and transfers, and what the gateway takes."""
    batch_size: int
    stages: tuple[tuple[int, int], ...]
    """(kind, end block) per stage."""


def fastest_pipeline(
    tables: CostTables, hardware: Hardware, min_stages: int, max_stages: int
) -> Fastest | None:
    """The pipeline of least latency that fits on the devices; None where there is none.

    Widens a budget until something fits in it: listing everything that any budget allows could
    be too much. The first budget is what all blocks, wherever they run, and the gateway need at
    least.
    """
    slowest = int(tables.p99_us[tables.p99_us < NEVER_US].max(initial=0))
    slowest += int(tables.transfer_us.max(initial=0))
    most = slowest * max_stages + tables.gateway_us
    budget = int(least_rest_us(tables.p99_us.min(axis=0))[0]) + tables.gateway_us
    while True:
        pipelines = feasible_pipelines(
            tables, min(budget, most), min_stages=min_stages, max_stages=max_stages
        )
        pipelines = _fitting(pipelines, hardware)
        if len(pipelines):
            return _fastest_of(pipelines, tables.gateway_us)
        if budget >= most:
            return None
        budget += budget // 4 + 1


def _fastest_of(pipelines: Pipelines, gateway_us: int) -> Fastest:
    row = int(pipelines.latency_us.argmin())
    depth = int((pipelines.kinds[row] >= 0).sum())
    pairs = zip(pipelines.kinds[row, :depth], pipelines.ends[row, :depth], strict=True)
    return Fastest(
        latency_us=int(pipelines.latency_us[row]) + gateway_us,
        batch_size=int(pipelines.batch[row]),
        stages=tuple((int(kind), int(end)) for kind, end in pairs),
    )


def nearest_slo_us(latency_us: int, margin: float) -> int:
    """The least SLO whose budget is at least `latency_us`.

    >>> nearest_slo_us(60_000, 0.4)
    100000
    """
    return ceil(latency_us / (1 - Fraction(str(margin))))


def refuse_latency(problem: Problem, hardware: Hardware, models: Sequence[Model]) -> str:
    """For problems in which some model has no pipeline within its budget."""
    return "\n".join(
        _refuse_model(problem, hardware, model) for model in models if not len(model.pipelines)
    )


def _refuse_model(problem: Problem, hardware: Hardware, model: Model) -> str:
    options, demand, tables = problem.options, model.demand, model.tables
    name = f"model {demand.model!r}"
    if tables.block_count < options.min_stages:
        return (
            f"{name} cannot be cut into enough stages\n"
            f"  needs  {options.min_stages} stages (min_stages)\n"
            f"  has    {tables.block_count} blocks\n"
            "  try    a smaller min_stages, or a profile with more --blocks"
        )
    if (tables.p99_us >= NEVER_US).all():
        return _refuse_profile(problem, model)
    fastest = fastest_pipeline(tables, hardware, options.min_stages, options.max_stages)
    if fastest is None and _fits_without_limits(problem, model):
        return _refuse_memory(problem, model)
    if fastest is None:
        return (
            f"{name} has no pipeline for which the devices suffice\n"
            f"  needs  one slot for each of {options.min_stages}..{options.max_stages} stages\n"
            f"  has    {_devices(hardware)}\n"
            "  try    more devices, finer shares or another range of stages"
        )
    margin = options.margin_of(demand.model)
    budget = budget_us(demand.slo_us, margin)
    nearest = nearest_slo_us(fastest.latency_us, margin)
    return (
        f"{name} cannot meet its SLO: even its fastest pipeline exceeds the latency budget\n"
        f"  needs  {_ms(fastest.latency_us)}  {_describe(tables, fastest)}\n"
        f"  has    {_ms(budget)}  SLO {_ms(demand.slo_us)} less a margin of"
        f" {margin * 100:g} %\n"
        f"  try    an SLO of at least {_ms(nearest)}, faster devices or a smaller margin"
    )


def _refuse_profile(problem: Problem, model: Model) -> str:
    profile = problem.profiles[model.demand.model]
    profiled = sorted({f"{times.share} {times.device}" for times in profile.block_times})
    offered = [f"{kind.share} {kind.device}" for kind in model.tables.kinds]
    where = f"model {model.demand.model!r} cannot run on any device of the cluster"
    if set(profiled) & set(offered):
        return _refuse_memory(problem, model)
    return (
        f"{where}: it was not profiled there\n"
        f"  needs  {', '.join(offered)}\n"
        f"  has    {', '.join(profiled)}\n"
        "  try    `headrace profile` with the cluster's device types and shares"
    )


def _fits_without_limits(problem: Problem, model: Model) -> bool:
    """Whether there is a pipeline for it, did every device have memory enough."""
    types = tuple(replace_fields(each, memory_bytes=None) for each in problem.cluster.device_types)
    roomy = replace_fields(problem, cluster=replace_fields(problem.cluster, device_types=types))
    options, hardware = problem.options, Hardware.of(roomy.cluster)
    tables = model_of(roomy, hardware, model.demand).tables
    found = fastest_pipeline(tables, hardware, options.min_stages, options.max_stages)
    return found is not None


def _refuse_memory(problem: Problem, model: Model) -> str:
    profile, most = problem.profiles[model.demand.model], problem.options.max_stages
    weights = profile.weights_bytes(0, len(profile.blocks))
    instead = ", more blocks or a larger max_stages"
    if problem.options.planner == "no-partitioning":
        can_be_cut = len(profile.blocks) > 1
        instead = ", or --planner pooled, which cuts models into stages" * can_be_cut
    return (
        f"model {model.demand.model!r} cannot run on any device of the cluster: its weights do not"
        " fit\n"
        f"  needs  {weights:,} bytes of weights, in at most {most} stages of whole blocks\n"
        f"  has    {_memory(problem)}\n"
        f"  try    devices with more memory{instead}"
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
    gateway = f", and {_ms(tables.gateway_us)} at the gateway" if tables.gateway_us else ""
    return f"{', then '.join(parts)}, batch size {fastest.batch_size}{gateway}"


def refuse_capacity(problem: Problem, hardware: Hardware, models: Sequence[Model]) -> str:
    """For problems in which every model fits its budget, but not all of it fits the cluster."""
    has = _devices(hardware)
    limit_s = min(EXPLAIN_LIMIT_S, problem.options.time_limit_s)
    fraction = _carried(hardware, models, Deadline(limit_s))
    more = _more_devices(problem, hardware, models, Deadline(limit_s))
    if fraction is not None and any(model.demand.rate_rps for model in models):
        return _refuse_rates(models, fraction, has, more)
    names = ", ".join(repr(model.demand.model) for model in models)
    return (
        "the devices are too few to serve every model\n"
        f"  needs  at least one pipeline for each of {names}\n"
        f"  has    {has}\n"
        f"  try    {more or 'more devices'}, fewer models or finer shares"
    )


def _carried(hardware: Hardware, models: Sequence[Model], deadline: Deadline) -> float | None:
    """The largest common fraction of all asked rates that can be carried; 1 where none is asked.

    None: not even one pipeline per model fits.
    """
    rated = [
        Wanted(weight=model.demand.rate_rps or 0.0, least_rps=model.least_rps) for model in models
    ]
    if not any(want.weight for want in rated):
        rated = [Wanted(weight=want.least_rps, least_rps=want.least_rps) for want in rated]
    asked = Counting(hardware, rated, [m.pipelines for m in models], "max-min")
    return search(asked, deadline).objective


def _refuse_rates(models: Sequence[Model], fraction: float, has: str, more: str) -> str:
    asked = [(m.demand.model, m.demand.rate_rps) for m in models if m.demand.rate_rps is not None]
    needs = ", ".join(f"{apart(rate)[0]} rps of {name!r}" for name, rate in asked)
    reached = ", ".join(f"{round_down(rate * fraction)} rps of {name!r}" for name, rate in asked)
    together = " at once" if len(asked) > 1 else ""
    return (
        "the devices cannot carry the rates asked\n"
        f"  needs  {needs}\n"
        f"  has    {reached}{together}, with {has}\n"
        f"  try    rate_rps of at most {reached}{together}{', or ' + more if more else ''}"
    )


def _devices(hardware: Hardware) -> str:
    pairs = zip(hardware.devices, hardware.owned, strict=True)
    return ", ".join(f"{count} {device!r}" for device, count in pairs)


def _more_devices(
    problem: Problem, hardware: Hardware, models: Sequence[Model], deadline: Deadline
) -> str:
    """How many more devices of one type would do, for every type; empty if unknown."""
    offers = []
    for device, name in enumerate(hardware.devices):
        # Of each type that does not help all its time is spent: none takes that of the others.
        mine = deadline.part(1 / (len(hardware.devices) - device))
        count = _more_of(problem, hardware, models, device, mine)
        if count is not None:
            offers.append(f"{count} {name!r} more")
    return " or ".join(offers)


def _more_of(
    problem: Problem, hardware: Hardware, models: Sequence[Model], device: int, deadline: Deadline
) -> int | None:
    """The least number of further devices of one type that makes the problem feasible.

    Sought by halves between what the relaxation needs and the first of its multiples that do; None
    where FARTHEST times as many do not, as where no model's weights fit.
    """
    roomy = hardware.with_unlimited(device)
    # With more devices there may be pipelines that did not fit at all.
    models = [model_of(problem, roomy, model.demand) for model in models]
    wanted = [Wanted.of(model.demand, model.least_rps) for model in models]
    columns = [model.pipelines for model in models]
    try:
        asked = Counting(roomy, wanted, columns, "fewest-more-devices")
        relaxation = relax(asked, time_limit_s=deadline.left_s)
    except OutOfTime:
        return None
    if relaxation is None:
        return None

    def enough(count: int) -> bool:
        richer = hardware.with_more(device, count)
        fitting = [replace(m, pipelines=_fitting(m.pipelines, richer)) for m in models]
        if not all(len(m.pipelines) for m in fitting):
            return False
        carried = _carried(richer, fitting, deadline)
        return carried is not None and carried >= 1 - 1e-9

    least = max(1, ceil(relaxation.bound - 1e-6))
    too_few, count = least - 1, least
    while not enough(count):
        too_few, count = count, 2 * count
        if deadline.passed or count > FARTHEST * least:
            return None
    while count - too_few > 1:
        middle = (too_few + count) // 2
        if enough(middle):
            count = middle
        elif deadline.passed:
            return None
        else:
            too_few = middle
    return count


def _fitting(pipelines: Pipelines, hardware: Hardware) -> Pipelines:
    return pipelines.take(fit_alone(pipelines, hardware))


def _ms(us: int) -> str:
    """Exactly: a refusal names values to be used as they stand."""
    return f"{us // 1000}.{us % 1000:03d} ms"
