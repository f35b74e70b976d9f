"""A plan of apps as people read it, and why it is so."""

from collections.abc import Mapping, Sequence
from math import inf
from typing import TYPE_CHECKING

from rich.console import Group
from rich.markup import escape
from rich.table import Table

from headrace.domain.plan import Deployment, Plan, Slot
from headrace.reporting.readable import ReadableTable, figures
from headrace.reporting.summary import milliseconds, rate

if TYPE_CHECKING:
    # The planners load numba, which a printed plan does not need.
    from headrace.planning.apps.bill.explain import BillReason
    from headrace.planning.apps.explain import AppReason, ModuleReason, StockReason

_SAME = 1e-6
"""Costs that differ by less are one."""

_READINGS = {
    "remaining": "batches of consecutive requests (d + b/w)",
    "twice": "one request at a time, in turn (2 d)",
    "pair": "batches among pairs of machines (d + b/t, t of two)",
    "turns": "turns on shared slots, beside models (d + D)",
}


def machines_table(plan: Plan) -> Table:
    """One row per entry: machines or a turn, batch, device, load, worst case, cost."""
    shared = {slot.name: slot for slot in plan.slots if slot.duty_us is not None}
    table = ReadableTable(
        *("app", "module", "machines"),
        *map(figures, ("req/s", "collect", "run", "worst", "budget", "cost/h")),
        title=f"machines by {escape(plan.planner)}",
        title_justify="left",
    )
    app = None
    for deployment in plan.deployments:
        if app not in (None, deployment.app):
            table.add_section()
        app_name = "" if app == deployment.app else str(deployment.app)
        _add_module(table, deployment, app_name, shared)
        app = deployment.app
    return table


def _add_module(table: Table, deployment: Deployment, app: str, shared: Mapping[str, Slot]) -> None:
    for index, pipeline in enumerate(deployment.pipelines):
        load, stage = pipeline.load, pipeline.stages[0]
        if load is None:
            continue
        share = "" if stage.share == 1 else f"{stage.share} "
        machines = f"{load.machines:.4g} × {share}{escape(stage.device)}"
        slot = shared.get(stage.pool[0])
        if slot is not None:
            machines = f"{load.machines:.0%} of {escape(slot.name)}"
        table.add_row(
            escape(app) if index == 0 else "",
            escape(str(deployment.module)) if index == 0 else "",
            f"{machines}, batch {pipeline.batch_size}",
            rate(load.rate_rps),
            milliseconds(load.collect_us),
            milliseconds(stage.latency_us),
            milliseconds(load.worst_case_us),
            milliseconds(deployment.budget_us) if index == 0 else "",
            f"{load.cost_per_hour:,.4g}",
        )
    if deployment.dummy_rps:
        table.add_row("", "", "of which dummy load", rate(deployment.dummy_rps), style="dim")


def apps_table(plan: Plan) -> Table:
    """What the plan says of each app as a whole."""
    table = ReadableTable.grid(padding=(0, 2))
    table.add_column(style="dim")
    table.add_column()
    billed = plan.options.bill == "devices" or plan.is_together
    of_what = "for its parts of the devices" if billed else "in proportion to load"
    for claim in plan.apps:
        table.add_row(
            escape(claim.app.name),
            f"{rate(claim.app.rate_rps)} requests/s within {milliseconds(claim.worst_case_us)} of"
            f" {milliseconds(claim.budget_us)}, at {claim.cost_per_hour:,.6g} per hour {of_what};"
            f" dispatched in {_READINGS[claim.reading]}",
        )
    return table


def explanation(reasons: Sequence["AppReason"], stock: Sequence["StockReason"] = ()) -> Group:
    """`headrace plan --explain`; `stock`: the device types that there are too few of."""
    parts: list[Table | str] = []
    for reason in reasons:
        parts += [_headline(reason, short=bool(stock)), _modules(reason.modules)]
    parts += [_scarce(one) for one in stock]
    return Group(*parts)


def bill_explanation(reason: "BillReason") -> Group:
    """`headrace plan --explain` of a plan for whole devices."""
    parts: list[Table | str] = [
        f"bill: {reason.bill:,.6g} per hour for {reason.devices} devices; with a device for each"
        f" module it would be {reason.apart:,.6g}, so sharing saves"
        f" {max(0.0, reason.apart - reason.bill):,.4g}"
    ]
    if reason.fraction is not None and reason.fraction_bill is not None:
        parts.append(
            f"  in proportion to load the least is {reason.fraction:,.6g}, where others pay for the"
            f" rest of each device; the devices of that plan cost {reason.fraction_bill:,.6g}"
        )
    if reason.slots:
        table = ReadableTable(
            "slot", figures("cycle"), "turn", *map(figures, ("batch", "takes")), "waits"
        )
        for slot in reason.slots:
            for index, (pipeline, batch, latency_us, follows) in enumerate(slot.turns):
                table.add_row(
                    escape(slot.slot) if index == 0 else "",
                    milliseconds(slot.duty_us) if index == 0 else "",
                    escape(pipeline),
                    str(batch),
                    milliseconds(latency_us),
                    "for turns before it" if follows else "a cycle at most",
                )
        parts.append(table)
    return Group(*parts)


def _scarce(reason: "StockReason") -> str:
    saved = (
        f"saves {reason.saved_by_one:,.4g} per hour"
        if reason.saved_by_one > 0
        else "by itself saves nothing"
    )
    return (
        f"stock: {reason.used} of {reason.there} {escape(reason.device)} used;"
        f" with enough devices {reason.wanted} would be; one more {saved}"
        + ("" if reason.proven else ", or more (time limit)")
    )


def _headline(reason: "AppReason", *, short: bool) -> str:
    lines = [
        f"{escape(reason.app)}: {reason.cost:,.6g} per hour{_cheaper(reason, short=short)}",
        f"  {escape(reason.eater)} eats most of the budget;"
        f" {milliseconds(reason.budget_us - reason.worst_case_us)} are left over",
        f"  one more ms of SLO saves {reason.saved_by_1_ms:,.4g} per hour"
        + (", with as many devices as that takes" if short else ""),
    ]
    if reason.next_saving_us is None:
        lines.append("  half as much SLO again would save nothing")
    else:
        lines.append(
            f"  the next saving, {reason.next_saving:,.4g} per hour, takes"
            f" {milliseconds(reason.next_saving_us)} more"
        )
    return "\n".join(lines)


def _cheaper(reason: "AppReason", *, short: bool) -> str:
    least, with_dummy = reason.least_cost, reason.least_cost_with_dummy
    if min(least, with_dummy) == inf:
        return "; only devices that are taken as full keep its SLO"
    if reason.cost <= min(least, with_dummy) * (1 + _SAME):
        return " in proportion to load, the least there is"
    if short:
        return f"; {least:,.6g} would do (with more devices, see stock below)"
    if reason.cost <= least * (1 + _SAME):
        return (
            f", the least where dummy load only fills machines; {with_dummy:,.6g} would do with any"
            " amount of it (least-cost-dummy)"
        )
    if with_dummy < least * (1 - _SAME):
        return f"; {least:,.6g} would do (least-cost), or {with_dummy:,.6g} (least-cost-dummy)"
    return f"; {least:,.6g} would do (least-cost)"


def _modules(modules: Sequence["ModuleReason"]) -> Table:
    numbers = map(figures, ("worst", "of path", "of cost"))
    table = ReadableTable("module", *numbers, "why", "one more machine")
    for module in modules:
        table.add_row(
            escape(module.module) + (" *" if module.critical else ""),
            milliseconds(module.worst_case_us),
            f"{module.path_fraction:.0%}",
            f"{module.cost_fraction:.0%}",
            _why(module),
            f"{module.extra_cost:,.4g}/h: {rate(module.extra_rps)} more req/s"
            + (f", or {milliseconds(module.faster_us)} faster" if module.faster_us else ""),
        )
    table.caption = "* on a longest path"
    return table


def _why(module: "ModuleReason") -> str:
    better = module.unavailable or next(iter(module.rejected), None)
    if better is None:
        return f"{escape(module.first)}: the best per price that there is"
    but = "but none is left" if module.unavailable else f"and need {milliseconds(better.needs_us)}"
    batches = f"batches of {better.batch_size} on {escape(better.device)}"
    return f"{escape(module.first)}; {batches} are better per price {but}"
