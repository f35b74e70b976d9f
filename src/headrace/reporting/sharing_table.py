"""`headrace plan --explain` of plans that share devices."""

from typing import TYPE_CHECKING

from rich.console import Group
from rich.markup import escape

from headrace.reporting.readable import ReadableTable

if TYPE_CHECKING:
    from headrace.planning.shares.explain import SharingReason

_UNITS = {
    "least-devices": "devices",
    "least-cost": "per hour",
    "max-min": "throughput / weight",
}


def sharing_explanation(reason: "SharingReason") -> Group:
    """What sharing saves, what binds, and how much of its budget each model waits."""
    unit = _UNITS[reason.objective]
    lines = [
        f"shared: {reason.reached:,.6g} {unit};"
        f" whole devices in turns: {_value(reason.in_turns, reason)};"
        f" whole devices for each model: {_value(reason.alone, reason)}",
        f"  {_saving(reason)}",
        f"  {escape(reason.binding)}",
    ]
    table = ReadableTable(
        "model", "asked", "carried", "longest wait on", "batch", "wait", "of budget"
    )
    for each in reason.waits:
        turns = f", with {each.beside} more" if each.beside else ""
        table.add_row(
            escape(each.model),
            "-" if each.rate_rps is None else f"{each.rate_rps:,.5g}/s",
            f"{each.throughput_rps:,.5g}/s",
            f"{each.share} of a {escape(each.device)}{turns}",
            str(each.batch_size),
            f"{each.wait_us / 1000:,.1f} ms",
            f"{each.budget_us / 1000:,.1f} ms",
        )
    return Group("\n".join(lines), table)


def _value(reached: float | None, reason: "SharingReason") -> str:
    if reached is None:
        return "no plan" if reason.in_time else "no plan found in time"
    return f"{reached:,.6g}"


def _saving(reason: "SharingReason") -> str:
    if reason.alone is None and not reason.in_time:
        return "what sharing saves is not known: the search for a plan without it had no time"
    if reason.alone is None:
        return "without sharing there is no plan"
    if reason.objective == "max-min":
        return f"sharing carries {reason.reached / reason.alone:.2f} times as much"
    saved = reason.alone - reason.reached
    part = f"{saved / reason.alone:.0%}" if reason.alone else "0%"
    return f"sharing saves {saved:,.6g} {_UNITS[reason.objective]} ({part})"
