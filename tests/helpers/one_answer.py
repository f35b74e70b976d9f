"""A run of load with one request of a model."""

from headrace.load.result import LoadResult, RequestResult
from headrace.metrics import distribution


def run_of_one(due_us: int, sent_us: int, ended_us: int, *, slo_us: int) -> dict[str, LoadResult]:
    """Of "m", answered; instants from the run's begin on."""
    answered = RequestResult(
        scheduled_at_us=due_us,
        deadline_at_us=due_us + slo_us,
        sent_at_us=sent_us,
        ended_at_us=ended_us,
        status=200,
        reason="",
        body_bytes=1,
    )
    run = LoadResult(
        model="m",
        started_at_us=0,
        span_us=None,
        requests=(answered,),
        lateness=distribution([sent_us - due_us]),
        connections=1,
        error_samples={},
    )
    return {"m": run}
