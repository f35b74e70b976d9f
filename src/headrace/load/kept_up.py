"""What runs of load say of a server, where their generator kept up with its schedule.

A generator on the server's own cores may be slower than the rate that it is to send. Latency counts
from when a request was due, so attainment is then of the generator.
"""

from collections.abc import Mapping, Sequence

from headrace.load.result import LoadResult
from headrace.metrics import Distribution, attainment

Run = Mapping[str, LoadResult]
"""Model or app -> its requests."""


def kept_up(run: Run, name: str, slo_us: int) -> bool:
    """At most a tenth of the run's requests was sent later than the objective is long."""
    lateness = run[name].lateness
    return lateness is None or lateness.p90_us <= slo_us


def attained(runs: Sequence[Run], name: str, slo_us: int) -> float | None:
    """`slo_attainment` over those runs in which the generator kept up; None: none is."""
    return attainment(
        [each for run in runs if kept_up(run, name, slo_us) for each in run[name].outcomes]
    )


def latest(runs: Sequence[Run]) -> Distribution | None:
    """How late requests were sent in the run in which they were sent latest."""
    known = [result.lateness for run in runs for result in run.values() if result.lateness]
    return max(known, key=lambda lateness: lateness.p90_us, default=None)


def not_sent(runs: Sequence[Run], slos_us: Mapping[str, int]) -> tuple[str, ...]:
    """The models and apps for whose objectives the generator kept up in none of these runs."""
    asked = {name for run in runs for name in run}
    return tuple(
        name
        for name, slo_us in slos_us.items()
        if name in asked and not any(kept_up(run, name, slo_us) for run in runs)
    )
