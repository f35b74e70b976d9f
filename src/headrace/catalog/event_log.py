"""Event logs in files: a header line, then one JSON array per event, in the order it happened.

Logs that were gzipped since, as those of a server are when they are rotated, are read as they are.
"""

import contextlib
import errno
import fcntl
import gzip
import os
import select
import stat
import tempfile
import zlib
from collections.abc import Iterator
from io import FileIO
from pathlib import Path
from types import TracebackType
from typing import BinaryIO, Final, cast

import msgspec

from headrace.catalog.regular_file import open_regular
from headrace.catalog.whole_file import check_apart
from headrace.domain.base import JSON_ERRORS
from headrace.domain.errors import DocumentError
from headrace.domain.events import (
    AnyEvent,
    Arrived,
    Dispatched,
    EventLogHeader,
    Evicted,
    Loaded,
    LoadFailed,
    Loading,
    Opened,
    Placed,
    Ran,
    Seen,
    SlotGained,
    SlotLost,
    Transferred,
)

MAX_LINE_BYTES: Final = 16 << 20
MAX_EVENTS: Final = 100_000_000
MAX_LOG_BYTES: Final = 1 << 34
_GZIP: Final = b"\x1f\x8b"
LAST_US: Final = 1 << 60

CHUNK_EVENTS: Final = 256
"""Encoded and written together: about 0.1 ms at a time, so the writer never stalls a dispatcher,
and no more than this is ever waiting in memory."""

PIPE_BYTES: Final = 1 << 20
"""What a reader of a pipe may be behind a writer that does not wait: some seconds at 1,000
requests/s, and the most that Linux grants everybody."""


class EventLogWriter:
    """Appends events to a file; the order of `append` calls is the total order of the log.

    `append` only keeps the event, which is immutable, until a chunk is full; it serves directly
    as a dispatcher's `EventSink`. Not thread-safe: one dispatcher, one writer.

    A file that takes no more, of a full disk say, is closed and given up: that is raised once, and
    events from then on are thrown away. One that somebody has truncated, as programs that rotate
    logs do when they have copied it, is begun anew at the next write or flush.
    """

    def __init__(self, path: Path, header: EventLogHeader, *, waits: bool = True) -> None:
        """Replace the file at `path` by an empty log. It is this writer's until that is closed.

        Args:
            waits: for the reader of a pipe or a terminal, to come and to read on. A writer that
                does not wait refuses a pipe that nobody reads, and gives up one that is full.
                Files are written at once, as far as their file system does.

        Raises:
            DocumentError: it cannot be written, or another writer's log is begun there.
        """
        self.path: Final = path
        try:
            self._file: FileIO = _own(path, waits=waits)
            self._is_regular = stat.S_ISREG(os.fstat(self._file.fileno()).st_mode)
            if self._is_regular:
                self._file.truncate(0)
        except OSError as error:
            raise _unwritable(path, error) from error
        self._encoder = msgspec.json.Encoder()
        self._header = header
        self._waiting: list[AnyEvent | EventLogHeader] = [header]
        self._written_bytes = 0
        """Since the file was empty."""

    def append(self, event: AnyEvent) -> None:
        """Raises:
        DocumentError: the file takes no more.
        """
        waiting = self._waiting
        waiting.append(event)
        if len(waiting) >= CHUNK_EVENTS:
            self._write()

    def flush(self) -> None:
        """Hand everything to the operating system; after that a killed process loses nothing.

        Raises:
            DocumentError: the file takes no more.
        """
        self._write()

    def close(self) -> None:
        """Flush and close; closing twice is harmless.

        Raises:
            DocumentError: the file takes no more.
        """
        if not self._file.closed:
            self.flush()
            self._file.close()

    def __enter__(self) -> "EventLogWriter":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def _write(self) -> None:
        waiting, self._waiting = self._waiting, []
        if self._file.closed:
            return
        try:
            self._write_lines(waiting)
            if self._was_truncated():
                self._file.truncate(0)
                self._written_bytes = 0
                self._write_lines([self._header, *(e for e in waiting if e is not self._header)])
        except OSError as error:
            with contextlib.suppress(OSError):
                self._file.close()
            raise _unwritable(self.path, error) from error

    def _was_truncated(self) -> bool:
        """Looked at behind what was written: before that, it could happen in between."""
        if not self._is_regular:
            return False
        return os.fstat(self._file.fileno()).st_size < self._written_bytes

    def _write_lines(self, waiting: list[AnyEvent | EventLogHeader]) -> None:
        lines = self._encoder.encode_lines(waiting)
        for piece in _pieces(lines):
            self._write_whole(piece)
        self._written_bytes += len(lines)

    def _write_whole(self, lines: bytes) -> None:
        while lines:
            written = self._file.write(lines)
            if written is None:
                raise BlockingIOError(errno.EAGAIN, "its reader does not keep up")
            lines = lines[written:]


def _pieces(lines: bytes) -> Iterator[bytes]:
    """The same as pieces of whole lines. A pipe takes up to PIPE_BUF bytes whole or not at all, so
    that what was written of a log that is given up ends with a line."""
    begin = 0
    while begin < len(lines):
        end = lines.rfind(b"\n", begin, begin + select.PIPE_BUF)
        if end < 0:
            end = lines.index(b"\n", begin)
        yield lines[begin : end + 1]
        begin = end + 1


def check_event_log(path: Path, *read: Path) -> None:
    """Before long work: refuse now a place where no log can be begun. Leaves nothing.

    Args:
        read: what the work is done from, which the log must not replace.

    Raises:
        DocumentError: no log can be written there, it is one of those files, or another process
            writes one there.
    """
    check_apart(path, *read)
    try:
        if not path.exists():
            with tempfile.TemporaryFile(dir=path.parent):
                pass
        elif path.is_file():
            _own(path, waits=True).close()
        elif path.is_dir():
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
    except OSError as error:
        raise _unwritable(path, error) from error


def remove_event_log(path: Path) -> None:
    """Remove a log that nobody writes any more.

    Raises:
        DocumentError: another process writes there, or it cannot be removed.
    """
    try:
        with _own(path, waits=False):
            path.unlink()
    except OSError as error:
        raise DocumentError(f"{path}: cannot remove an event log: {error.strerror}") from error


_NO_LOCKS = (errno.ENOLCK, errno.ENOTSUP)


def _own(path: Path, *, waits: bool) -> FileIO:
    """Open it for writing as the only one who does; what is in it stays.

    Devices and pipes are anybody's, and so are files where the file system has no locks.

    Raises:
        DocumentError: another process does.
        OSError: it cannot be opened, or is a pipe without a reader that is not waited for.
    """
    at_once = 0 if waits else os.O_NONBLOCK
    # Append: where the file is truncated meanwhile, what follows stands at its new end.
    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | at_once
    descriptor = os.open(path, flags, 0o666)
    try:
        mode = os.fstat(descriptor).st_mode
        if stat.S_ISREG(mode):
            _lock(descriptor, path)
        elif stat.S_ISFIFO(mode) and not waits:
            with contextlib.suppress(OSError):  # Of a user with many pipes: as large as it is.
                fcntl.fcntl(descriptor, fcntl.F_SETPIPE_SZ, PIPE_BYTES)
        return FileIO(descriptor, "wb")
    except BaseException:
        os.close(descriptor)
        raise


def _lock(descriptor: int, path: Path) -> None:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        raise DocumentError(
            f"{path}: another process writes an event log there; stop it, or name another file"
        ) from error
    except OSError as error:
        if error.errno not in _NO_LOCKS:
            raise


def _unwritable(path: Path, error: OSError) -> DocumentError:
    reason = error.strerror
    if error.errno == errno.ENXIO and path.is_fifo():
        reason = "nobody reads this pipe; start its reader first"
    return DocumentError(f"{path}: cannot write an event log: {reason}")


def _unreadable(path: Path, error: OSError) -> DocumentError:
    return DocumentError(f"{path}: cannot read an event log: {error.strerror}")


def read_event_log(
    path: Path, *, allow_cut_short: bool = False
) -> tuple[EventLogHeader, list[AnyEvent]]:
    """Read a log as `EventLogWriter` wrote it.

    Args:
        allow_cut_short: leave out a last line without its newline, which is what remains of a
            writer that was killed, and take gzipped data without their end.

    Raises:
        DocumentError: names the file, the line, what was expected and what was found.
    """
    try:
        with _opened(path) as file:
            lines = _lines(file, path, allow_cut_short)
            header = _header(next(lines, (1, b"")), path)
            return header, list(_events(lines, path, header))
    except OSError as error:
        raise _unreadable(path, error) from error


def read_header(path: Path) -> EventLogHeader:
    """Read what a log begins with.

    Raises:
        DocumentError: there is no event log.
    """
    try:
        with _opened(path) as file:
            return _header(next(_lines(file, path, True), (1, b"")), path)
    except OSError as error:
        raise _unreadable(path, error) from error


@contextlib.contextmanager
def _opened(path: Path) -> Iterator[BinaryIO]:
    with open_regular(path, MAX_LOG_BYTES) as file:
        if file.peek(len(_GZIP))[: len(_GZIP)] != _GZIP:
            yield file
            return
        with gzip.GzipFile(fileobj=file) as unpacked:
            yield cast(BinaryIO, unpacked)


def _lines(file: BinaryIO, path: Path, allow_cut_short: bool) -> Iterator[tuple[int, bytes]]:
    number = read_bytes = 0
    while line := _line(file, path, number, allow_cut_short):
        number += 1
        read_bytes += len(line)
        if read_bytes > MAX_LOG_BYTES:
            raise DocumentError(f"{path}:{number}: more than {MAX_LOG_BYTES:,} bytes")
        if len(line) > MAX_LINE_BYTES:
            raise DocumentError(f"{path}:{number}: longer than {MAX_LINE_BYTES} bytes")
        if number > MAX_EVENTS:
            raise DocumentError(f"{path}:{number}: more than {MAX_EVENTS} events")
        # Of another kind of file, which `_header` says, and not of a log.
        is_log = number > 1 or line.startswith(b"{")
        if is_log and not line.endswith(b"\n"):
            if allow_cut_short and number > 1:
                return
            raise DocumentError(f"{path}:{number}: cut short; its writer was not closed")
        yield number, line


def _line(file: BinaryIO, path: Path, number: int, allow_cut_short: bool) -> bytes:
    """The one behind the `number`-th; empty: there is none."""
    try:
        return file.readline(MAX_LINE_BYTES + 1)
    except EOFError as error:
        if allow_cut_short:
            return b""
        raise DocumentError(f"{path}: cut short; its gzipped data have no end") from error
    except (gzip.BadGzipFile, zlib.error) as error:
        raise DocumentError(f"{path}:{number + 1}: damaged gzipped data: {error}") from error


def _header(numbered: tuple[int, bytes], path: Path) -> EventLogHeader:
    number, line = numbered
    if not line:
        raise DocumentError(f"{path}: is empty; an event log begins with its header")
    try:
        header = msgspec.json.decode(line, type=EventLogHeader)
    except JSON_ERRORS as error:
        if line.strip() == b"{":  # over several lines, as plans and profiles are
            raise DocumentError(
                f"{path}:{number}: is another kind of document\n"
                "  expected  a headrace.events/1 log, whose first line is its header\n"
                "  try       the log that `headrace serve` or `simulate` writes with --events"
            ) from error
        raise DocumentError(
            f"{path}:{number}: expected the header of a headrace.events/1 log: {error}"
        ) from error
    if len(header.nodes) != len(header.slots) or len(header.pipelines) != len(header.models):
        raise DocumentError(
            f"{path}:{number}: needs one node per slot and one list of pipelines per model"
        )
    return header


def _events(
    lines: Iterator[tuple[int, bytes]], path: Path, header: EventLogHeader
) -> Iterator[AnyEvent]:
    decoder: msgspec.json.Decoder[AnyEvent] = msgspec.json.Decoder(AnyEvent)
    for number, line in lines:
        try:
            event = decoder.decode(line)
        except JSON_ERRORS as error:
            raise DocumentError(f"{path}:{number}: expected an event: {error}") from error
        if not _refers_to(header, event):
            raise DocumentError(
                f"{path}:{number}: names a model, pipeline or slot that the header does not have"
            )
        if not _is_in_time(event):
            raise DocumentError(
                f"{path}:{number}: an instant is negative or beyond {LAST_US} us, or something"
                " ends before it starts"
            )
        yield event


def _is_in_time(event: AnyEvent) -> bool:
    match event:
        case (
            Ran(started_at_us=first)
            | Transferred(started_at_us=first)
            | Loaded(started_at_us=first)
        ):
            return 0 <= first <= event.at_us <= LAST_US
        case Seen(scheduled_at_us=first, sent_at_us=sent):
            return 0 <= first <= sent <= event.at_us <= LAST_US
        case Arrived(deadline_at_us=last):
            return 0 <= event.at_us <= LAST_US and 0 <= last <= 2 * LAST_US
        case Opened(deadline_at_us=last, items=items):
            return 0 <= event.at_us <= LAST_US and 0 <= last <= 2 * LAST_US and items > 0
        case _:
            return 0 <= event.at_us <= LAST_US


def _refers_to(header: EventLogHeader, event: AnyEvent) -> bool:
    """Whether every index of the event lies inside the header's lists."""
    slots, models = len(header.slots), len(header.models)
    match event:
        case Arrived(model=model):
            return 0 <= model < models
        case Dispatched(model=model, pipeline=pipeline, path=path):
            return (
                0 <= model < models
                and 0 <= pipeline < len(header.pipelines[model])
                and all(0 <= hop.slot < slots for hop in path)
            )
        case Transferred(from_slot=source, to_slot=target):
            return 0 <= source < slots and 0 <= target < slots
        case Opened(model=model):
            return 0 <= model < models
        case Placed(slots=held):
            return all(0 <= slot < slots for slot in held)
        case (
            Loading(slot=slot, model=model)
            | Loaded(slot=slot, model=model)
            | LoadFailed(slot=slot, model=model)
            | Evicted(slot=slot, model=model)
        ):
            return 0 <= slot < slots and 0 <= model < models
        case Ran(slot=slot) | SlotLost(slot=slot) | SlotGained(slot=slot):
            return 0 <= slot < slots
        case _:
            return True
