"""Prediction, simulation and reality of one run, side by side."""

from collections.abc import Mapping
from typing import Any

import msgspec
from rich.table import Table

from headrace.cost import TimedStage, cost_model
from headrace.domain.base import Record
from headrace.domain.errors import PlanError
from headrace.domain.plan import Deployment, Pipeline, Plan
from headrace.domain.profile import Profile
from headrace.metrics import Summary
from headrace.reporting.readable import ReadableTable
from headrace.reporting.summary import milliseconds, percent, rate

CAPTION = (
    "predicted: from the plan alone: the latency of a full batch that waits for nothing, and no"
    " drops while the offered rate is within the planned throughput. Simulated and measured"
    " latencies include waiting, cover answered requests only, and ran on the same arrivals."
)


class Column(Record, frozen=True, kw_only=True):
    """One opinion on a run; None where it has none."""

    throughput_rps: float | None = None
    """Answered / answer span (see `metrics`)."""
    p50_us: int | None = None
    p99_us: int | None = None
    slo_attainment: float | None = None
    """In time / arrived."""
    dropped: int | None = None
    arrived: int | None = None


class Comparison(Record, frozen=True, kw_only=True):
    """Up to three opinions on the same run."""

    predicted: Column | None = None
    simulated: Column | None = None
    measured: Column | None = None

    def as_dict(self) -> dict[str, Any]:
        """Plain data for `--json`."""
        plain: dict[str, Any] = msgspec.to_builtins(self)
        return plain


def observed_column(summary: Summary) -> Column:
    """The column of a simulated or a measured run."""
    latency = summary.latency
    return Column(
        throughput_rps=summary.throughput_rps,
        p50_us=latency.p50_us if latency else None,
        p99_us=latency.p99_us if latency else None,
        slo_attainment=summary.slo_attainment,
        dropped=summary.dropped_total,
        arrived=summary.arrived,
    )


def predicted_column(
    plan: Plan, model: str, rate_rps: float, profiles: Mapping[str, Profile] | None = None
) -> Column:
    """What the plan itself says of `model` at this offered rate.

    p99 is that of the slowest pipeline. p50 needs the profiles, for a plan keeps p99 only; it is
    the mean over the pipelines, weighted by their throughput. Beyond the planned throughput the
    plan promises that much and nothing of latency or drops: the share of requests that it cannot
    carry is the least that will miss.

    Raises:
        PlanError: the plan does not deploy this model.
    """
    deployment = next((d for d in plan.deployments if d.model == model), None)
    if deployment is None:
        known = ", ".join(d.model for d in plan.deployments)
        raise PlanError(f"plan: does not deploy model {model!r}; it deploys {known}")
    planned_rps = deployment.throughput_rps
    within_plan = rate_rps <= planned_rps
    return Column(
        throughput_rps=min(rate_rps, planned_rps),
        p50_us=_p50_us(deployment, profiles[model]) if profiles else None,
        p99_us=max(pipeline.latency_us for pipeline in deployment.pipelines),
        slo_attainment=1.0 if within_plan else planned_rps / rate_rps,
        dropped=0 if within_plan else None,
    )


def predicted_module_column(deployment: Deployment, rate_rps: float, profile: Profile) -> Column:
    """What the plan says of a module of an app, offered `rate_rps` calls per second."""
    planned_rps = deployment.throughput_rps
    within_plan = rate_rps <= planned_rps
    return Column(
        throughput_rps=min(rate_rps, planned_rps),
        p50_us=_p50_us(deployment, profile),
        p99_us=deployment.worst_case_us,
        slo_attainment=1.0 if within_plan else planned_rps / rate_rps,
        dropped=0 if within_plan else None,
    )


def _p50_us(deployment: Deployment, profile: Profile) -> int:
    medians = [_pipeline_p50_us(pipeline, profile) for pipeline in deployment.pipelines]
    weights = [pipeline.throughput_rps for pipeline in deployment.pipelines]
    products = [p50 * weight for p50, weight in zip(medians, weights, strict=True)]
    return round(sum(products) / sum(weights))


def _pipeline_p50_us(pipeline: Pipeline, profile: Profile) -> int:
    """Medians of the stages and the transfers of a full batch; waits for nothing."""
    costs = cost_model({profile.model: profile})
    total_us = costs.gateway_us(profile.model)
    for stage in pipeline.stages:
        latency = costs.latency(TimedStage.of(profile.model, stage), pipeline.batch_size)
        total_us += latency.p50_us + stage.transfer_us
    return total_us


def comparison_table(comparison: Comparison, title: str) -> Table:
    """predicted | simulated | measured, as far as they are there."""
    columns = {
        name: column
        for name, column in (
            ("predicted", comparison.predicted),
            ("simulated", comparison.simulated),
            ("measured", comparison.measured),
        )
        if column is not None
    }
    table = ReadableTable(title=title, title_justify="left", caption_justify="left")
    if "predicted" in columns:
        table.caption = CAPTION
    table.add_column("")
    for name in columns:
        table.add_column(name, justify="right")
    shown = list(columns.values())
    table.add_row("throughput, requests/s", *[rate(c.throughput_rps) for c in shown])
    table.add_row("latency p50", *[milliseconds(c.p50_us) for c in shown])
    table.add_row("latency p99", *[milliseconds(c.p99_us) for c in shown])
    table.add_row("SLO attainment", *[percent(c.slo_attainment) for c in shown])
    table.add_row("dropped", *[dropped_text(c) for c in shown])
    return table


def dropped_text(column: Column) -> str:
    if column.dropped is None:
        return "–"
    return str(column.dropped) if column.arrived is None else f"{column.dropped}/{column.arrived}"
