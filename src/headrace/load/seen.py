"""What clients saw of the requests in a server's event log.

Client and server count by the same clock, but nothing that is sent numbers a request for both. Each
takes them in order, though: the n-th that was sent to a model is the n-th of it that arrived. Two
that were sent at the same moment may change places, which changes no distribution.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence

from headrace.domain.events import AnyEvent, Arrived, EventLogHeader, Seen
from headrace.load.result import LoadResult, RequestResult


def with_seen(
    header: EventLogHeader,
    events: Sequence[AnyEvent],
    runs: Sequence[Mapping[str, LoadResult]],
) -> list[AnyEvent]:
    """The log with what clients say of it, in order of time.

    Args:
        runs: all load that the server has had, one after the other: model -> its requests. Where
            the log has more or fewer of a model, or one before it was sent, nothing is said of it.
    """
    arrived: defaultdict[str, list[Arrived]] = defaultdict(list)
    for event in events:
        if isinstance(event, Arrived):
            arrived[header.models[event.model]].append(event)
    found = list(events)
    for model in {model for run in runs for model in run}:
        sent = [r for run in runs if model in run for r in run[model].requests]
        found += _matched(arrived[model], sent)
    found.sort(key=lambda event: event.at_us)
    return found


def cut_short_us(
    events: Sequence[AnyEvent], runs: Sequence[Mapping[str, LoadResult]]
) -> int | None:
    """How long before the last request that was answered was sent a server's log ends. None: the
    log goes on behind that, as one does that was written to its end: whatever is answered has
    arrived, and every arrival is logged."""
    answered = [
        request.sent_at_us
        for run in runs
        for result in run.values()
        for request in result.requests
        if request.sent_at_us is not None and not request.reason
    ]
    last_us = max((event.at_us for event in events), default=0)
    sent_us = max(answered, default=0)
    return sent_us - last_us if last_us < sent_us else None


def _matched(arrived: Sequence[Arrived], sent: Sequence[RequestResult]) -> list[Seen]:
    known = sorted((r.sent_at_us, r.scheduled_at_us, r.ended_at_us) for r in sent if r.sent_at_us)
    if len(known) != len(sent) or len(arrived) != len(sent):
        return []
    in_order = sorted(arrived, key=lambda event: event.at_us)
    if any(event.at_us < at_us for event, (at_us, _, _) in zip(in_order, known, strict=True)):
        return []
    return [
        Seen(ended_at_us, event.request, scheduled_at_us, at_us)
        for event, (at_us, scheduled_at_us, ended_at_us) in zip(in_order, known, strict=True)
    ]
