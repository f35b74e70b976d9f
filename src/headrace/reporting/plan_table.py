"""A plan as people read it: what runs where, what it promises, what proves it."""

from collections.abc import Mapping
from itertools import groupby

from rich.console import Group
from rich.markup import escape
from rich.table import Table

from headrace.domain.plan import Pipeline, Plan, Slot, Stage
from headrace.domain.problem import Objective
from headrace.reporting.app_table import apps_table, machines_table
from headrace.reporting.depths_table import (
    depth_claims,
    depths_table,
    slots_line,
)
from headrace.reporting.readable import ReadableTable, figures
from headrace.reporting.shared_table import is_shared, slots_table
from headrace.reporting.starts_table import starts_table
from headrace.reporting.summary import milliseconds, rate

_OBJECTIVES: Mapping[Objective, str] = {
    "throughput": "requests/s of all models",
    "max-min": "smallest requests/s / weight",
    "least-cost": "cost per hour",
    "least-devices": "devices used",
}

SAME = 1e-6
"""Relative: prices that differ by less are one."""

SLOTS_NAMED = 6
"""Slots of a pool that are named one by one; of larger pools the first ones and the number."""


def plan_report(plan: Plan, whole_devices: float | None = None) -> Group:
    """The pipelines, one row per stage, or, where slots are shared, one per tenant, or, where it is
    malleable, one per depth; their slots; and what the plan claims as a whole.

    Args:
        whole_devices: a price per hour that no plan of its apps on whole devices stays below; None:
            none is known.
    """
    claims = claims_table(plan, whole_devices)
    if plan.is_together:
        return Group(slots_table(plan), apps_table(plan), claims)
    if plan.has_starts:
        return Group(stages_table(plan), pools_table(plan), starts_table(plan), claims)
    if plan.apps:
        return Group(machines_table(plan), pools_table(plan), apps_table(plan), claims)
    if plan.is_malleable:
        return Group(depths_table(plan), claims)
    if is_shared(plan):
        return Group(slots_table(plan), claims)
    return Group(stages_table(plan), pools_table(plan), claims)


def stages_table(plan: Plan) -> Table:
    table = ReadableTable(
        *("model", "pipeline", figures("batch"), "blocks", "on"),
        *map(figures, ("p99", "hop", "req/s")),
        title=f"plan by {escape(plan.planner)}",
        title_justify="left",
    )
    for deployment in plan.deployments:
        label = deployment.model
        for pipeline in deployment.pipelines:
            for index, stage in enumerate(pipeline.stages):
                first = index == 0
                table.add_row(
                    label if first else "",
                    pipeline.name if first else "",
                    str(pipeline.batch_size) if first else "",
                    f"{stage.first_block}–{stage.end_block - 1}",
                    f"{len(stage.pool)} × {share_of(stage)}",
                    milliseconds(stage.latency_us),
                    milliseconds(stage.transfer_us) if stage.transfer_us else "",
                    rate(stage.throughput_rps),
                )
            label = ""
            if len(pipeline.stages) > 1:
                table.add_row(*_pipeline_total(pipeline), style="dim")
        table.add_section()
    return table


def ready_table(plan: Plan, levels: Mapping[str, float] | None = None) -> Table:
    """What a server that has just started serves, one row per pipeline.

    Args:
        levels: MODEL/PIPELINE/NUMBER of a stage -> how many times its profile it takes, as was
            rehearsed.
    """
    table = ReadableTable(
        *("model", figures("SLO ms"), "pipeline", "stages (blocks)"),
        *map(figures, ("slots", "batch", "predicted p99 ms", "throughput /s")),
        *([figures("x profile")] if levels else []),
        title="READY",
        title_style="bold green",
    )
    for deployment in plan.deployments:
        for pipeline in deployment.pipelines:
            names = [f"{deployment.name}/{pipeline.name}/{i}" for i in range(len(pipeline.stages))]
            known = (
                [f"{levels[name]:.2f}" if name in levels else "–" for name in names]
                if levels
                else []
            )
            table.add_row(
                escape(deployment.name),
                f"{deployment.slo_us / 1000:g}",
                escape(pipeline.name),
                " → ".join(f"{s.first_block}–{s.end_block - 1}" for s in pipeline.stages),
                " + ".join(str(len(stage.pool)) for stage in pipeline.stages),
                str(pipeline.batch_size),
                f"{pipeline.latency_us / 1000:.1f}",
                f"{pipeline.throughput_rps:.1f}",
                *([" + ".join(known)] if known else []),
            )
    return table


def pools_table(plan: Plan) -> Table:
    """Which slots serve which stage."""
    table = ReadableTable.grid(padding=(0, 2))
    table.add_column(style="dim")
    table.add_column()
    for deployment in plan.deployments:
        for pipeline in deployment.pipelines:
            for index, stage in enumerate(pipeline.stages):
                name = f"{deployment.model}/{pipeline.name} stage {index}"
                if deployment.app is not None:
                    name = pipeline.name
                table.add_row(escape(name), escape(pool_names(stage)))
    return table


def share_of(stage: Stage | Slot) -> str:
    """What one slot is made of: "L4", or "1/2 L4"."""
    return stage.device if stage.share == 1 else f"{stage.share} {stage.device}"


def pool_names(stage: Stage) -> str:
    """The pool's slots; long pools by their first names and size."""
    if len(stage.pool) <= SLOTS_NAMED:
        return ", ".join(stage.pool)
    more = len(stage.pool) - SLOTS_NAMED + 1
    return f"{', '.join(stage.pool[: SLOTS_NAMED - 1])} and {more} more"


def _pipeline_total(pipeline: Pipeline) -> tuple[str, ...]:
    latency, throughput = milliseconds(pipeline.latency_us), rate(pipeline.throughput_rps)
    return ("", "", "", "", "all stages", latency, "", throughput)


def claims_table(plan: Plan, whole_devices: float | None = None) -> Table:
    """Predicted latency and throughput, objective, bound, cost, and what keeps it from better."""
    table = ReadableTable.grid(padding=(0, 2))
    table.add_column(style="dim")
    table.add_column()
    cycles = {slot.name: slot.duty_us or 0 for slot in plan.slots}
    takes = "a turn and a batch take" if any(cycles.values()) else "a batch takes"
    for model, claim in depth_claims(plan) if plan.is_malleable else ():
        table.add_row(escape(model), escape(claim))
    if plan.is_malleable:
        table.add_row("slots", escape(slots_line(plan)))
    for deployment in plan.deployments:
        if deployment.app is not None or deployment.depths:
            continue  # said already
        slowest = max(
            pipeline.latency_us
            + sum(
                max((cycles[name] for name in stage.pool), default=0) for stage in pipeline.stages
            )
            for pipeline in deployment.pipelines
        )
        margin = plan.options.margin_of(deployment.model)
        table.add_row(
            escape(deployment.model),
            f"{rate(deployment.throughput_rps)} requests/s; {takes} at most"
            f" {milliseconds(slowest)} of its budget of {milliseconds(deployment.budget_us)}"
            f" (SLO {milliseconds(deployment.slo_us)} less {margin:.0%})",
        )
    for demand in plan.demands:
        if demand.shapes:
            table.add_row("sizes", escape(f"{demand.model}: {_parts(demand.shapes)}"))
    table.add_row("objective", f"{_OBJECTIVES[plan.options.objective]}: {plan.objective:,.6g}")
    table.add_row("bound", _bound(plan, whole_devices))
    if plan.options.headroom_for is not None:
        table.add_row("head-room", _headroom(plan))
    table.add_row("binding", escape(plan.binding))
    table.add_row("devices", _devices(plan))
    if plan.cost_per_hour is not None:
        table.add_row("cost", f"{plan.cost_per_hour:,.6g} per hour")
    table.add_row("planned", f"in {plan.runtime_s:.2f} s")
    return table


def _parts(shapes: Mapping[str, float]) -> str:
    """
    >>> _parts({"16": 3.0, "64": 1.0})
    '75% of the requests at 16, 25% at 64'
    """
    whole = sum(shapes.values())
    parts = [f"{part / whole:.0%}" for part in shapes.values()]
    first, *others = (f"{part} at {text}" for part, text in zip(parts, shapes, strict=True))
    return ", ".join([first.replace(" at", " of the requests at", 1), *others])


def _bound(plan: Plan, whole_devices: float | None) -> str:
    if plan.bound is None or plan.gap is None:
        return f"none proven ({plan.stopped})"
    if plan.stopped == "optimal":
        of_what = _optimal_of(plan, whole_devices) if plan.apps else ""
        return f"{plan.bound:,.6g}: proven optimal{of_what}"
    return f"{plan.bound:,.6g}, gap {plan.gap:.2%} ({plan.stopped})"


def _optimal_of(plan: Plan, whole_devices: float | None) -> str:
    """Among which plans of apps."""
    if plan.is_together:
        return " among plans in which everything takes turns"
    if plan.options.bill == "fraction":
        among = f" among the plans that {plan.planner} looks at"
        return f"{among}, in proportion to load; whole devices may cost more"
    least = whole_devices or 0.0
    if least >= plan.objective * (1 - SAME):
        return ", for whole devices"
    among = " among plans with one turn per module"
    return f"{among}; no plan on whole devices costs less than {least:,.6g}" if least else among


def _headroom(plan: Plan) -> str:
    return escape(f"{room_text(plan)}; the bound is without; {plan.options.margin_reason}")


def room_text(plan: Plan) -> str:
    """The room of a plan of apps, in words; app by app where it is not that of all."""
    options = plan.options
    for_all = options.rate_headroom, options.margin
    rooms = {}
    for name, modules in ((claim.app.name, claim.app.modules) for claim in plan.apps):
        own = options.module_headroom.get(f"{name}.{modules[0].name}", 0.0)
        rooms[name] = (1 + options.rate_headroom) * (1 + own) - 1, options.margin_of(name)
    if all(room == for_all for room in rooms.values()):
        return _room(*for_all)
    texts = {name: _room(*room) if room != for_all else "none" for name, room in rooms.items()}
    return ", ".join(f"{text} for {name}" for name, text in texts.items())


def _room(rate_headroom: float, margin: float) -> str:
    return f"{rate_headroom:.0%} more rate and a margin of {margin:.0%}"


def _devices(plan: Plan) -> str:
    used = sorted({(slot.device, slot.node, slot.device_index) for slot in plan.slots})
    counts = {device: len(list(group)) for device, group in groupby(used, key=lambda key: key[0])}
    return ", ".join(
        f"{counts.get(kind.name, 0)} of {plan.cluster.count(kind.name)} {escape(kind.name)}"
        for kind in plan.cluster.device_types
        if plan.cluster.count(kind.name)
    )
