"""Where events go: to a file per plan, where a log is wanted."""

import asyncio
import logging
import secrets
from collections import defaultdict
from contextlib import suppress
from dataclasses import dataclass
from glob import escape
from pathlib import Path

from msgspec.structs import replace

from headrace.catalog.event_log import EventLogWriter, read_header, remove_event_log
from headrace.dispatch.protocols import EventSink
from headrace.domain.errors import DocumentError
from headrace.domain.events import AnyEvent, EventLogHeader
from headrace.serving.core.counters import ModelCounters

logger = logging.getLogger(__name__)

FLUSH_PERIOD_S = 1.0


@dataclass(slots=True)
class _Log:
    writer: EventLogWriter
    users: int = 1


class EpochLogs:
    """A server's event logs: RUN.events for its first plan, RUN.2.events for its second, …

    Requests are answered whether or not they can be logged: a log that cannot be written any more,
    because the disk is full or the reader of a pipe has stopped, ends with a line in the server's
    own log.

    The first log replaces all that the run before has left: RUN.2.events is never of another run
    than RUN.events. Headers name the run, for logs that were moved.

    A log has its plan's engine as its user, and others that `join`; the last to `leave` closes it.
    """

    def __init__(self, path: Path | None) -> None:
        """`path` None: there are no logs."""
        self.counters: defaultdict[str, ModelCounters] = defaultdict(ModelCounters)
        """By model as clients know it, made when first asked for: all that any plan served."""
        self._path = path
        self._logs: dict[EventSink, _Log] = {}
        self._opened = 0
        self._run = secrets.token_hex(8)

    def open(self, header: EventLogHeader) -> EventSink | None:
        """The sink for the events of another plan, whose engine is to `leave` it.

        Raises:
            DocumentError: its log cannot be written.
        """
        self._opened += 1
        if self._path is None:
            return None
        path = epoch_path(self._path, self._opened)
        header = replace(header, run=self._run, number=self._opened)
        before = _run_of(path)
        log = EventLogWriter(path, header, waits=False)
        if self._opened == 1 and before:
            _remove_later(path, before)

        def sink(event: AnyEvent) -> None:
            try:
                log.append(event)
            except DocumentError as error:
                _give_up(error)

        self._logs[sink] = _Log(log)
        return sink

    def join(self, sink: EventSink) -> None:
        """Somebody else writes to it too, until he calls `leave`. Without effect for a sink that
        is none of these."""
        if sink in self._logs:
            self._logs[sink].users += 1

    def leave(self, sink: EventSink) -> None:
        """Once for each `join`, and once for its engine; the last to leave closes the log."""
        if sink in self._logs:
            self._logs[sink].users -= 1
            if not self._logs[sink].users:
                _close(self._logs.pop(sink).writer)

    async def keep_flushed(self) -> None:
        """Hand the logs over every second: the log of a server that was killed is wanted most."""
        while True:
            await asyncio.sleep(FLUSH_PERIOD_S)
            for log in self._logs.values():
                try:
                    log.writer.flush()
                except DocumentError as error:
                    _give_up(error)

    def close(self) -> None:
        while self._logs:
            _close(self._logs.popitem()[1].writer)


def _run_of(path: Path) -> str:
    """Which run of a server has written the log that is there; empty: none that says so."""
    with suppress(DocumentError):
        return read_header(path).run
    return ""


def _remove_later(first: Path, run: str) -> None:
    """Remove the later logs of the run whose first is replaced; what else has such a name is
    somebody's, such as another server's log of a day."""
    removed = []
    for path in sorted(first.parent.glob(f"{escape(first.stem)}.*{escape(first.suffix)}")):
        try:
            header = read_header(path)
        except DocumentError:
            continue
        if header.run != run or path != epoch_path(first, header.number):
            continue
        try:
            remove_event_log(path)
            removed.append(path.name)
        except DocumentError as error:
            logger.warning("%s; it stays, and is not of this run", error)
    if removed:
        logger.info("%s: removed logs of the run before: %s", first, ", ".join(removed))


def _close(writer: EventLogWriter) -> None:
    try:
        writer.close()
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
