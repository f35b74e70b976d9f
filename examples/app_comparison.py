"""Prediction, simulation and reality of an app: end to end, and module by module."""

from collections.abc import Mapping
from itertools import product

from examples.comparison import (
    Column,
    Comparison,
    dropped_text,
    observed_column,
    predicted_module_column,
)
from rich.table import Table

from headrace.domain.app import App
from headrace.domain.errors import PlanError
from headrace.domain.plan import AppClaim, Plan
from headrace.domain.profile import Profile
from headrace.metrics import Report
from headrace.reporting.readable import ReadableTable
from headrace.reporting.summary import milliseconds, percent, rate

CAPTION = (
    "predicted: from the plan alone: medians of machines that nobody else needs, worst cases under"
    " uniform arrivals, and no drops. A module's attainment is by the deadlines of its calls: the"
    " app's, less what the modules behind may use. The app's own code is in what was measured, in"
    " what was simulated with the times of a server's log, and predicted as the problem states it."
)
OPINIONS = ("predicted", "simulated", "measured")


def claim_of(plan: Plan, app: str) -> AppClaim:
    """
    Raises:
        PlanError: the plan has no such app.
    """
    claim = next((claim for claim in plan.apps if claim.app.name == app), None)
    if claim is None:
        known = ", ".join(claim.app.name for claim in plan.apps) or "none"
        raise PlanError(f"plan: has no app {app!r}; it has {known}")
    return claim


def app_comparisons(
    plan: Plan,
    app: str,
    rate_rps: float,
    profiles: Mapping[str, Profile],
    simulated: Report | None = None,
    measured: Report | None = None,
) -> dict[str, Comparison]:
    """One comparison for the app, under its name, then one per module (APP.MODULE).

    Args:
        rate_rps: offered requests of the app.
        simulated, measured: with a summary for each name; None: not run.

    Raises:
        PlanError: the plan has no such app.
    """
    claim = claim_of(plan, app)
    modules = {
        deployment.name: predicted_module_column(
            deployment,
            rate_rps * claim.app.module(deployment.module or "").fan_out.mean,
            profiles[deployment.model],
        )
        for deployment in plan.deployments
        if deployment.app == app
    }
    medians = {name.removeprefix(f"{app}."): column.p50_us or 0 for name, column in modules.items()}
    within = all(column.dropped == 0 for column in modules.values())
    whole = Column(
        throughput_rps=min(rate_rps, claim.app.rate_rps) if not within else rate_rps,
        p50_us=claim.app.longest_path_us(medians),
        p99_us=claim.worst_case_us + _code_us(claim.app),
        slo_attainment=1.0 if within else min(1.0, claim.app.rate_rps / rate_rps),
        dropped=0 if within else None,
    )
    return {
        name: Comparison(
            predicted=column,
            simulated=_observed(simulated, name),
            measured=_observed(measured, name),
        )
        for name, column in {app: whole, **modules}.items()
    }


def _code_us(app: App) -> int:
    """Of the app's own code along its longest path."""
    return app.longest_path_us({m.name: m.code_us for m in app.modules}) + app.code_us


def _observed(report: Report | None, name: str) -> Column | None:
    summary = None if report is None else report.models.get(name)
    return None if summary is None else observed_column(summary)


def app_table(comparisons: Mapping[str, Comparison], title: str) -> Table:
    """A section for the app and one for each module; a column per opinion that there is."""
    table = ReadableTable(
        title=title, title_justify="left", caption=CAPTION, caption_justify="left"
    )
    shown = [
        opinion
        for opinion in OPINIONS
        if any(getattr(comparison, opinion) is not None for comparison in comparisons.values())
    ]
    table.add_column("")
    table.add_column("")
    for opinion in shown:
        table.add_column(opinion, justify="right")
    rows = (
        ("throughput, requests/s", lambda c: rate(c.throughput_rps)),
        ("latency p50", lambda c: milliseconds(c.p50_us)),
        ("latency p99", lambda c: milliseconds(c.p99_us)),
        ("SLO attainment", lambda c: percent(c.slo_attainment)),
        ("dropped", dropped_text),
    )
    for (name, comparison), (number, (what, text)) in product(comparisons.items(), enumerate(rows)):
        columns = [getattr(comparison, opinion) for opinion in shown]
        table.add_row(
            name if number == 0 else "",
            what,
            *["" if column is None else text(column) for column in columns],
            end_section=number == len(rows) - 1,
        )
    return table
