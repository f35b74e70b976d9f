"""Metrics as tables for people and as plain data for programs."""

from collections.abc import Callable, Mapping, Sequence

from rich.markup import escape
from rich.table import Table

from headrace.metrics import Distribution, Report, SlotUse, Summary, WeightsUse
from headrace.reporting.readable import ReadableTable, figures

_LATENCY_ROWS: Mapping[str, Callable[[Distribution], float]] = {
    "latency p50": lambda latency: latency.p50_us,
    "latency p90": lambda latency: latency.p90_us,
    "latency p99": lambda latency: latency.p99_us,
    "latency p99.9": lambda latency: latency.p999_us,
    "latency max": lambda latency: latency.max_us,
    "latency mean": lambda latency: latency.mean_us,
}


def milliseconds(value_us: float | None) -> str:
    """Microseconds as people read them; a dash where there is no value.

    >>> milliseconds(12345), milliseconds(123456), milliseconds(None)
    ('12.3 ms', '123 ms', '–')
    """
    if value_us is None:
        return "–"
    value_ms = value_us / 1000
    return f"{value_ms:.0f} ms" if abs(value_ms) >= 100 else f"{value_ms:.3g} ms"


def rate(value_rps: float | None) -> str:
    """Requests per second, four digits.

    >>> rate(1234.56), rate(12.345), rate(None)
    ('1,235', '12.35', '–')
    """
    if value_rps is None:
        return "–"
    return f"{value_rps:,.0f}" if value_rps >= 1000 else f"{value_rps:.4g}"


def percent(fraction: float | None) -> str:
    """Percent, cut off rather than rounded up: 100 % means that none was missed.

    >>> percent(0.99999), percent(1.0), percent(None)
    ('99.99 %', '100 %', '–')
    """
    if fraction is None:
        return "–"
    # 1e-9: keeps 0.29 * 10000 = 2899.9999999999995 at 29.00.
    hundredths = int(fraction * 10_000 + 1e-9)
    return f"{hundredths / 100:.2f}".rstrip("0").rstrip(".") + " %"


def drops(summary: Summary) -> str:
    """The number of dropped requests with their reasons: "3 (2 deadline, 1 failed)"."""
    if not summary.dropped_total:
        return "0"
    reasons = ", ".join(f"{count} {reason}" for reason, count in summary.dropped.items())
    # The reasons may be a foreign server's own words: they must not act as markup.
    return escape(f"{summary.dropped_total} ({reasons})")


def summary_table(report: Report, title: str) -> Table:
    """One column per model, and one for the total where there are several."""
    columns = dict(report.models)
    if len(columns) != 1:
        columns["total"] = report.total
    table = ReadableTable(
        "",
        *map(figures, columns),
        title=escape(title),
        title_justify="left",
        caption_justify="left",
    )
    for label, cells in _rows(list(columns.values())).items():
        table.add_row(label, *cells)
    return table


def _rows(summaries: Sequence[Summary]) -> Mapping[str, list[str]]:
    rows = {
        "arrived": [str(s.arrived) for s in summaries],
        "answered in time": [str(s.in_time) for s in summaries],
        "answered late": [str(s.late) for s in summaries],
        "dropped": [drops(s) for s in summaries],
        "SLO attainment": [percent(s.slo_attainment) for s in summaries],
        "offered, requests/s": [rate(s.offered_rps) for s in summaries],
        "throughput, requests/s": [rate(s.throughput_rps) for s in summaries],
        "goodput, requests/s": [rate(s.goodput_rps) for s in summaries],
    }
    for label, pick in _LATENCY_ROWS.items():
        rows[label] = [milliseconds(pick(s.latency) if s.latency else None) for s in summaries]
    rows["slack p50"] = [milliseconds(s.slack_p50_us) for s in summaries]
    rows["slack of the worst 1 %"] = [milliseconds(s.slack_p1_us) for s in summaries]
    return rows


def slots_table(slots: Sequence[SlotUse]) -> Table:
    """One row per slot: how busy it was, and with what batches."""
    numbers = map(figures, ("utilisation", "batches", "mean batch size"))
    table = ReadableTable("slot", "node", *numbers, title="slots", title_justify="left")
    for use in slots:
        size = "–" if use.mean_batch_size is None else f"{use.mean_batch_size:.2f}"
        table.add_row(use.slot, use.node, percent(use.utilisation), str(use.batches), size)
    return table


def weights_line(weights: WeightsUse) -> str:
    """How models came and went."""
    took = weights.load
    times = (
        f", {milliseconds(took.p50_us)} (p50) and {milliseconds(took.p99_us)} (p99) each"
        if took
        else ""
    )
    failed = f", {weights.failed} failed" if weights.failed else ""
    return (
        f"starts: {weights.cold} requests ({percent(weights.cold_share)}) found their model absent;"
        f" {weights.loads} loads of {weights.moved_bytes / 1e9:,.1f} GB{times}{failed};"
        f" {weights.evictions} evictions"
    )


def lateness_line(report: Report) -> str:
    """How well the load generator itself kept to its schedule."""
    late = report.lateness
    if late is None:
        return ""
    return (
        f"{sent_late(late)}, part of the latencies above; at most {report.connections} connections"
    )


def sent_late(late: Distribution) -> str:
    """How far behind its schedule a load generator was."""
    return (
        f"sent behind schedule by {milliseconds(late.p50_us)} (p50), {milliseconds(late.p99_us)}"
        f" (p99), {milliseconds(late.max_us)} (max)"
    )
