"""Where events go: to a file per plan, where a log is wanted."""

import asyncio
import logging
from collections import defaultdict
from pathlib import Path

from headrace.catalog.event_log import EventLogWriter
from headrace.dispatch.protocols import EventSink
from headrace.domain.errors import DocumentError
from headrace.domain.events import AnyEvent, EventLogHeader
from headrace.serving.core.counters import ModelCounters

logger = logging.getLogger(__name__)

FLUSH_PERIOD_S = 1.0


class EpochLogs:
    """A server's event logs: RUN.events for its first plan, RUN.2.events for its second, …

    Requests are answered whether or not they can be logged: a log that cannot be written any more,
    because the disk is full or the reader of a pipe has stopped, ends with a line in the server's
    own log.
    """

    def __init__(self, path: Path | None) -> None:
        """`path` None: there are no logs."""
        self.counters: defaultdict[str, ModelCounters] = defaultdict(ModelCounters)
        """By model as clients know it, made when first asked for: all that any plan served."""
        self._path = path
        self._logs: list[EventLogWriter] = []
        self._opened = 0

    def open(self, header: EventLogHeader) -> EventSink | None:
        """The sink for the events of another plan.

        Raises:
            DocumentError: its log cannot be written.
        """
        self._opened += 1
        if self._path is None:
            return None
        log = EventLogWriter(epoch_path(self._path, self._opened), header, waits=False)
        self._logs.append(log)

        def sink(event: AnyEvent) -> None:
            try:
                log.append(event)
            except DocumentError as error:
                _give_up(error)

        return sink

    async def keep_flushed(self) -> None:
        """Hand the logs over every second: the log of a server that was killed is wanted most."""
        while True:
            await asyncio.sleep(FLUSH_PERIOD_S)
            for log in self._logs:
                try:
                    log.flush()
                except DocumentError as error:
                    _give_up(error)

    def close(self) -> None:
        for log in self._logs:
            try:
                log.close()
            except DocumentError as error:
                _give_up(error)


def _give_up(error: DocumentError) -> None:
    logger.error("%s; its events are lost from here on, serving goes on", error)


def epoch_path(path: Path, number: int) -> Path:
    """The log of a server's `number`-th plan.

    >>> str(epoch_path(Path("run.events"), 1)), str(epoch_path(Path("run.events"), 2))
    ('run.events', 'run.2.events')
    """
    return path if number == 1 else path.with_name(f"{path.stem}.{number}{path.suffix}")
