"""A plan, and what was verified of it, as tables for people."""

from collections.abc import Mapping, Sequence

from rich.markup import escape
from rich.table import Table

from headrace.domain.plan import Pipeline, Plan, Slot, Stage
from headrace.reporting.summary import milliseconds, rate
from headrace.verify import Violation

_OBJECTIVES = {
    "throughput": ("throughput of all models", "requests/s"),
    "max-min": ("smallest throughput / weight", "requests/s"),
    "least-cost": ("cost", "per hour"),
}


def plan_table(plan: Plan) -> Table:
    """One row per stage, grouped by pipeline."""
    table = Table(title="PLAN", title_justify="left", box=None, pad_edge=False)
    table.add_column("pipeline", overflow="fold")
    for heading in ("batch", "blocks"):
        table.add_column(heading, no_wrap=True)
    table.add_column("slots", overflow="fold")
    for heading in ("p99", "path p99", "rps"):
        table.add_column(heading, justify="right", no_wrap=True)
    slots = {slot.name: slot for slot in plan.slots}
    for deployment in plan.deployments:
        for pipeline in deployment.pipelines:
            first = (escape(f"{deployment.model}/{pipeline.name}"), str(pipeline.batch_size))
            for row in _stage_rows(pipeline, slots):
                table.add_row(*first, *row)
                first = ("", "")
    return table


def _stage_rows(
    pipeline: Pipeline, slots: Mapping[str, Slot]
) -> Sequence[tuple[str, str, str, str, str]]:
    rows = []
    for number, stage in enumerate(pipeline.stages):
        last = number == len(pipeline.stages) - 1
        rows.append(
            (
                f"{stage.first_block} to {stage.end_block - 1}",
                _pool(stage, slots),
                milliseconds(stage.latency_us),
                milliseconds(pipeline.latency_us) if last else "",
                rate(pipeline.throughput_rps) if last else rate(stage.throughput_rps),
            )
        )
    return rows


def _pool(stage: Stage, slots: Mapping[str, Slot]) -> str:
    """Slots by name while they fit in a row, else how many of what on how many nodes."""
    if len(stage.pool) <= 2:
        return escape(", ".join(stage.pool))
    kind = stage.device if stage.share == 1 else f"{stage.share} {stage.device}"
    nodes = {slots[name].node for name in stage.pool}
    return escape(f"{len(stage.pool)} x {kind} on {len(nodes)} node{'s' * (len(nodes) > 1)}")


def plan_facts(plan: Plan) -> list[tuple[str, str]]:
    """(what, value) lines under the table: what is claimed, proven, and in the way."""
    what, unit = _OBJECTIVES[plan.options.objective]
    facts = []
    for deployment in plan.deployments:
        facts.append(
            (
                deployment.model,
                f"{rate(deployment.throughput_rps)} requests/s within"
                f" {milliseconds(deployment.slo_us)} (planned into"
                f" {milliseconds(deployment.budget_us)}, margin {plan.options.margin:.0%})",
            )
        )
    facts.append(("objective", f"{what}: {plan.objective:,.6g} {unit}"))
    facts.append(("bound", _bound(plan)))
    facts.append(("binding", plan.binding))
    if plan.cost_per_hour is not None:
        facts.append(("cost", f"{plan.cost_per_hour:,.4g} per hour, of the devices used"))
    facts.append(("planned", f"by {plan.planner} in {plan.runtime_s:.3g} s ({plan.stopped})"))
    return facts


def _bound(plan: Plan) -> str:
    if plan.bound is None or plan.gap is None:
        return "none: this planner proves nothing"
    proven = "proven optimal" if plan.stopped == "optimal" else "not closed"
    return f"{plan.bound:,.6g}, gap {plan.gap:.2%} ({proven})"


def violations_table(violations: Sequence[Violation]) -> Table:
    """One row per broken promise."""
    table = Table(title="VIOLATIONS", title_justify="left", box=None, pad_edge=False)
    for heading in ("check", "where", "what", "needs", "has"):
        table.add_column(heading, overflow="fold")
    for violation in violations:
        table.add_row(
            *map(
                escape,
                (
                    violation.check,
                    violation.where,
                    violation.what,
                    violation.needed,
                    violation.available,
                ),
            )
        )
    return table


def checks_table(checks: Mapping[str, str], violations: Sequence[Violation]) -> Table:
    """One row per check: its promise, and whether the plan keeps it."""
    broken = {violation.check for violation in violations}
    table = Table(title="VERIFIED", title_justify="left", box=None, pad_edge=False)
    table.add_column("")
    table.add_column("check")
    table.add_column("promise")
    for name, promise in checks.items():
        mark = "[bold red]broken[/bold red]" if name in broken else "[green]ok[/green]"
        table.add_row(mark, name, promise)
    return table
