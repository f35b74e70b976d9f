"""What a load run saw: every request, and the metrics of all of them."""

from collections.abc import Mapping
from dataclasses import dataclass

from headrace.domain.request import Outcome
from headrace.metrics import Distribution, Report, distribution, summarise


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestResult:
    """One request. Instants are microseconds of CLOCK_MONOTONIC: comparable across processes."""

    scheduled_at_us: int
    deadline_at_us: int
    sent_at_us: int | None
    """When it was written to a connection; None: it never got one."""
    ended_at_us: int
    status: int
    """Of HTTP; 0: no complete response came."""
    reason: str
    """Empty for a result. Otherwise the reason that the server states, or "http-STATUS", or what
    befell the connection: connect, closed, protocol, timeout."""
    body_bytes: int

    @property
    def outcome(self) -> Outcome:
        """In the terms of `metrics`: arrived when it was scheduled, answered by a 200.

        Headrace says "late" instead of handing over a result that is; the simulator counts such
        a request as answered late, and so does this.
        """
        late = self.reason == "late" and self.ended_at_us > self.deadline_at_us
        reason = "" if late else self.reason
        return Outcome(
            arrived_at_us=self.scheduled_at_us,
            deadline_at_us=self.deadline_at_us,
            ended_at_us=None if reason else self.ended_at_us,
            reason=reason,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadResult:
    """A whole run."""

    model: str
    started_at_us: int
    """Instant 0 of the schedule."""
    span_us: int | None
    """How long requests were offered, where the schedule says so."""
    requests: tuple[RequestResult, ...]
    """In the order of the schedule."""
    lateness: Distribution | None
    """How long after its instant the generator turned to a request; its own doing, not the
    server's. It is part of every latency."""
    connections: int
    """The most that were open at once."""
    error_samples: dict[str, str]
    """Drop reason, or "late" -> the first message that came with it."""

    @property
    def outcomes(self) -> list[Outcome]:
        return [request.outcome for request in self.requests]

    @property
    def distorted(self) -> bool:
        """Whether the generator's own lateness is a noticeable part of what it measured."""
        answered = [r.ended_at_us - r.scheduled_at_us for r in self.requests if not r.reason]
        latency = distribution(answered)
        if self.lateness is None or latency is None:
            return False
        return self.lateness.p99_us > max(1_000, latency.p99_us // 10)

    def report(self) -> Report:
        return report_of({self.model: self})


def report_of(results: Mapping[str, LoadResult]) -> Report:
    """Of one run of one or several models: each of them, and all together."""
    models = {name: summarise(r.outcomes, r.span_us) for name, r in results.items()}
    first = next(iter(results.values()))
    total = models[first.model]
    if len(models) > 1:
        outcomes = [outcome for result in results.values() for outcome in result.outcomes]
        outcomes.sort(key=lambda outcome: outcome.arrived_at_us)
        total = summarise(outcomes, first.span_us)
    return Report(
        source="measured",
        models=models,
        total=total,
        lateness=first.lateness,
        connections=first.connections,
        error_samples=first.error_samples,
    )
