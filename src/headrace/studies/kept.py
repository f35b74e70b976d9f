"""Results of a study in a file, one per line, so that one that was stopped goes on.

The first line says which sources the results came from; every other one is a call's digest and its
result. A line is written whole and flushed: what a crash leaves is whole lines and at most one
that is not, which is cut off.
"""

import fcntl
import hashlib
import threading
from pathlib import Path
from typing import Self

import msgspec

from headrace.domain.base import JSON_ERRORS, Record
from headrace.domain.errors import StudyError
from headrace.studies.calls import Call, Outcome

SCHEMA = "headrace.study/1"


class _Header(Record, frozen=True, kw_only=True):
    schema: str
    sources: str


class _Line(Record, frozen=True, kw_only=True):
    call: str
    result: bytes


class Kept:
    """A file of results; one study at a time may have it open. A context manager."""

    def __init__(self, path: Path, sources: str) -> None:
        """Open the file, or make it.

        Args:
            sources: what `sources.sources_of` says of the code that runs now.

        Raises:
            StudyError: it cannot be opened, is no such file, is in use, or has results of other
                sources.
        """
        self._lock = threading.Lock()
        self._results: dict[str, bytes] = {}
        try:
            self._file = path.open("a+b")
        except OSError as error:
            raise StudyError(f"--resume: {path} cannot be opened: {error.strerror}") from error
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            self._read(path, sources)
        except BlockingIOError as error:
            self._file.close()
            raise StudyError(f"--resume: {path} is in use by another study") from error
        except StudyError:
            self._file.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self._file.close()

    def __len__(self) -> int:
        return len(self._results)

    def get(self, call: Call) -> Outcome | None:
        """The result of an equal call, if there is one."""
        with self._lock:
            found = self._results.get(_digest(call))
        return None if found is None else Outcome(result=found)

    def add(self, call: Call, outcome: Outcome) -> None:
        """Keep a result; what ends after the file was closed is not kept. From any thread."""
        line = _Line(call=_digest(call), result=outcome.result)
        with self._lock:
            if self._file.closed:
                return
            self._results[line.call] = line.result
            self._write(msgspec.json.encode(line))

    def _read(self, path: Path, sources: str) -> None:
        self._file.seek(0)
        content = self._file.read()
        whole = content.rfind(b"\n") + 1
        lines = content[:whole].splitlines()
        if not lines:
            if content and not b'{"schema":"headrace.study/'.startswith(content[:26]):
                raise StudyError(_other_kind(path))
            self._file.truncate(0)
            self._write(msgspec.json.encode(_Header(schema=SCHEMA, sources=sources)))
            return
        try:
            header = msgspec.json.decode(lines[0], type=_Header)
            found = [msgspec.json.decode(line, type=_Line) for line in lines[1:]]
        except JSON_ERRORS as error:
            raise StudyError(_other_kind(path)) from error
        if header.schema != SCHEMA:
            raise StudyError(_other_kind(path))
        if header.sources != sources:
            raise StudyError(
                f"--resume: {path} has results of other sources\n"
                f"  needs     {sources}, which run now\n"
                f"  has       {header.sources}\n"
                "  try       those sources, or another file"
            )
        self._results = {line.call: line.result for line in found}
        self._file.truncate(whole)

    def _write(self, line: bytes) -> None:
        self._file.write(line + b"\n")
        self._file.flush()


def _digest(call: Call) -> str:
    return hashlib.sha256(call.function.encode() + b"\0" + call.task).hexdigest()


def _other_kind(path: Path) -> str:
    return (
        f"--resume: {path} holds no results of a study\n"
        f"  expected  a first line that states {SCHEMA}\n"
        "  try       another file; it is made where there is none"
    )
