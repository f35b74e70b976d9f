"""What `benchmarks.ppipe.live` found: one row per model, simulated | measured, and its table."""

from collections.abc import Sequence
from dataclasses import dataclass

from examples.demo.shell import console
from rich.table import Table

from headrace.domain.request import Outcome
from headrace.metrics import Distribution, Summary, summarise

TARGET_POINTS = 1.5
SILENT = ("connect", "closed", "protocol", "timeout")
"""Ends of a request that are neither an answer nor a refusal with a reason."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One model on one cluster, or all of them. Latencies in microseconds."""

    model: str
    arrived: int
    offered_rps: float
    simulated: float
    """Attainment."""
    measured: float
    """As the clients saw it."""
    served: float
    """As the server saw it: without the clients' own lateness and the way there and back."""
    unanswered: int
    simulated_drops: dict[str, int]
    measured_drops: dict[str, int]
    simulated_late: int
    measured_late: int
    simulated_p50_us: int
    simulated_p99_us: int
    measured_p50_us: int
    measured_p99_us: int

    @property
    def points(self) -> float:
        """Measured minus simulated attainment, percentage points."""
        return 100 * (self.measured - self.simulated)


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One cluster, loaded once."""

    cluster: str
    group: str
    load_factor: float
    seconds: float
    slots: int
    rows: list[Row]
    """One per model, then their total."""
    cpu_share: dict[str, float]
    """Of one core: gateway, workers, load generator."""
    others_share: float
    """Of all core time, used by processes that are none of ours."""
    stolen_share: float
    late_p50_us: int
    """Of the load generator's sends; part of every measured latency."""
    late_p99_us: int
    overrun_p50_us: int
    """By which a stage's batch took longer than its profile, the emulation's own error."""
    overrun_p99_us: int
    overhead_us: int
    """That the profiles were given; see `rehearse`."""

    @property
    def met(self) -> bool:
        return all(abs(row.points) <= TARGET_POINTS and not row.unanswered for row in self.rows)


def row_of(
    model: str,
    foretold: Summary,
    felt: Sequence[Outcome],
    served: Sequence[Outcome],
    span_us: int,
) -> Row:
    seen = summarise(felt, span_us)
    return Row(
        model=model,
        arrived=seen.arrived,
        offered_rps=seen.arrived / span_us * 1e6,
        simulated=foretold.slo_attainment or 0.0,
        measured=seen.slo_attainment or 0.0,
        served=summarise(served, span_us).slo_attainment or 0.0,
        unanswered=sum(outcome.reason in SILENT for outcome in felt),
        simulated_drops=foretold.dropped,
        measured_drops=seen.dropped,
        simulated_late=foretold.late,
        measured_late=seen.late,
        simulated_p50_us=_latency(foretold).p50_us,
        simulated_p99_us=_latency(foretold).p99_us,
        measured_p50_us=_latency(seen).p50_us,
        measured_p99_us=_latency(seen).p99_us,
    )


def _latency(summary: Summary) -> Distribution:
    if summary.latency is None:
        raise SystemExit("nothing was answered; see the server's output above")
    return summary.latency


def show(run: Run) -> None:
    table = Table(
        title=f"{run.group} on {run.cluster}, {run.slots} emulated slots, load factor"
        f" {run.load_factor:g}, {run.seconds:g} s: simulated | measured",
        title_justify="left",
    )
    for heading in ("model", "req/s", "attainment %", "points", "p50 ms", "p99 ms"):
        table.add_column(heading, justify="left" if heading == "model" else "right")
    table.add_column("drops and late")
    table.add_column("unanswered", justify="right")
    for row in run.rows:
        table.add_row(
            row.model.split("_")[0],
            f"{row.offered_rps:.1f}",
            f"{100 * row.simulated:.2f} | {100 * row.measured:.2f}",
            f"{row.points:+.2f}",
            f"{row.simulated_p50_us / 1e3:.1f} | {row.measured_p50_us / 1e3:.1f}",
            f"{row.simulated_p99_us / 1e3:.1f} | {row.measured_p99_us / 1e3:.1f}",
            f"{_ends(row.simulated_drops, row.simulated_late)}"
            f" | {_ends(row.measured_drops, row.measured_late)}",
            str(row.unanswered),
        )
    console.print(table)
    shares = ", ".join(f"{who} {share:.0%}" for who, share in run.cpu_share.items())
    console.print(
        f"CPU, of one core: {shares}; others {run.others_share:.1%} of all cores, host took"
        f" {run.stolen_share:.1%}\n"
        f"a batch is planned to cost {run.overhead_us} us beyond its profile\n"
        f"late: load generator {run.late_p50_us} us p50, {run.late_p99_us} us p99; emulated"
        f" batches {run.overrun_p50_us} us p50, {run.overrun_p99_us} us p99\n"
        f"target: every model within {TARGET_POINTS} points, none unanswered:"
        f" {'met' if run.met else 'MISSED'}"
    )


def _ends(drops: dict[str, int], late: int) -> str:
    counts = {**drops, "late": late}
    return ", ".join(f"{count} {end}" for end, count in counts.items() if count) or "none"
