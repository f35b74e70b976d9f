"""Errors of app functions in the log: each in full once, and counted from then on.

An input that breaks a function can be sent a thousand times a second. What tells errors apart is
the app, the type, the line that raised, and the line of the app's own that led there, since many
mistakes are found by the same line of a library; of an output that is not as declared, which one.
These are bounded by code, not by clients.
Clients get an error's id, under which its traceback is found; it is the same for all occurrences.
"""

import logging
import secrets
import time
import traceback
from collections.abc import Callable, Collection
from dataclasses import dataclass

from headrace.serving.apps.api import WrongOutputError

AGAIN_S = 10.0
"""At least so long between two lines on one error."""
MOST_KINDS = 256
MAX_TRACEBACK = 16_384
"""Characters."""


@dataclass(slots=True)
class _Known:
    log_id: str
    logged_at_s: float
    since: int = 0
    """How often since then."""


class ErrorLog:
    """Of all apps of a server."""

    def __init__(self, logger: logging.Logger, now_s: Callable[[], float] = time.monotonic) -> None:
        self._logger = logger
        self._now_s = now_s
        self._known: dict[tuple[str, str, str], _Known] = {}

    def note(self, app: str, kind: str, where: str, trace: str) -> str:
        """Log it, or count it; return its id.

        Args:
            kind: the exception's type.
            where: files and lines.
        """
        key, now_s = (app, kind, where), self._now_s()
        known = self._known.get(key)
        if known is None:
            if len(self._known) >= MOST_KINDS:
                del self._known[next(iter(self._known))]
            known = self._known[key] = _Known(secrets.token_hex(8), now_s)
            text = trace if len(trace) <= MAX_TRACEBACK else "…" + trace[-MAX_TRACEBACK:]
            self._logger.error("app %s failed: error %s\n%s", app, known.log_id, text.rstrip())
            return known.log_id
        known.since += 1
        if now_s - known.logged_at_s >= AGAIN_S:
            self._logger.error(
                "app %s failed: error %s, %d times more (%s at %s)",
                *(app, known.log_id, known.since, kind, where),
            )
            known.logged_at_s, known.since = now_s, 0
        return known.log_id


def described(error: BaseException, own: Collection[str] = ()) -> tuple[str, str, str]:
    """What `ErrorLog.note` wants to know of an exception: type, place, traceback.

    Args:
        own: the files of the app's functions.
    """
    if isinstance(error, WrongOutputError):
        kind, where, trace = described(error.cause, own)
        return kind, f"{where}, output {error.output!r}", trace
    places = [
        (f.filename, f"{f.filename}:{f.lineno}") for f in traceback.extract_tb(error.__traceback__)
    ]
    ours = [place for filename, place in places if filename in own]
    where = places[-1][1] if places else "?"
    if ours and ours[-1] != where:
        where = f"{ours[-1]}, in {where}"
    return type(error).__name__, where, "".join(traceback.format_exception(error))
