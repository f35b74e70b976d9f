"""What waits on a gateway's sockets, in virtual time."""

from collections.abc import Callable, Iterator, Sequence

from msgspec import structs

from headrace.dispatch.protocols import Batch, Clock, CompletionReports
from headrace.domain.request import Request


class Inbox:
    """Gives the dispatcher each request at its instant, or when the gateway next takes a report.

    A gateway that shares its core with a worker gets it back when the batch ends, and reads all
    requests that came meanwhile together with the report. Were they left on their way for as long
    as those of the log had been, the slot would be idle though its next batch is there.
    """

    def __init__(
        self,
        requests: Iterator[Request],
        ready_at_us: Sequence[int],
        clock: Clock,
        take: Callable[[Request], None],
        on_progress: Callable[[int], None] | None = None,
    ) -> None:
        """
        Args:
            requests: in order of `arrived_at_us`, when they are taken at the latest.
            ready_at_us: of each, in order: from when on it is there to be read.
            on_progress: called with the number of requests so far, now and then.
        """
        self._coming = zip(requests, ready_at_us, strict=True)
        self._clock = clock
        self._take = take
        self._on_progress = on_progress
        self._next: tuple[Request, int] | None = None

    def open(self) -> None:
        """From now on requests come."""
        self._next = next(self._coming, None)
        self._wait()

    def reading(self, reports: CompletionReports) -> CompletionReports:
        """`reports`, before each of which everything is read that is there."""
        return _ReadFirst(self.read, reports)

    def read(self) -> None:
        """Take all that is ready."""
        now_us = self._clock.now_us()
        if self._next is not None and self._next[1] <= now_us:
            self._take_ready(now_us)

    def _wait(self) -> None:
        if self._next is not None:
            request, _ = self._next
            self._clock.call_at(request.arrived_at_us, lambda: self._due(request))

    def _due(self, request: Request) -> None:
        if self._next is not None and self._next[0] is request:
            now_us = self._clock.now_us()
            self._take_next(now_us)
            self._take_ready(now_us)

    def _take_ready(self, now_us: int) -> None:
        while self._next is not None and self._next[1] <= now_us:
            self._take_next(now_us)
        self._wait()

    def _take_next(self, now_us: int) -> None:
        assert self._next is not None
        request, _ = self._next
        self._next = next(self._coming, None)
        self._take(structs.replace(request, arrived_at_us=now_us))
        if self._on_progress is not None and request.id % 1000 == 0:
            self._on_progress(request.id + 1)


class _ReadFirst:
    def __init__(self, read: Callable[[], None], reports: CompletionReports) -> None:
        self._read = read
        self._reports = reports

    def on_transferred(self, batch: Batch, stage: int, attempt: int, started_at_us: int) -> None:
        self._read()
        self._reports.on_transferred(batch, stage, attempt, started_at_us)

    def on_ran(
        self, batch: Batch, stage: int, attempt: int, started_at_us: int, ended_at_us: int
    ) -> None:
        self._read()
        self._reports.on_ran(batch, stage, attempt, started_at_us, ended_at_us)
