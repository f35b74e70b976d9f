"""How a call ends, as gRPC says it: a number, a sentence, and fields behind the answer.

The numbers are gRPC's. Each of the core's endings has one; the fields say what HTTP's JSON says:
`headrace-reason`, `headrace-retry-after-ms`, `headrace-late-ms`, and gRPC's own word for when to
come again, `grpc-retry-pushback-ms`.
"""

import logging
import secrets
from dataclasses import dataclass
from urllib.parse import quote

from headrace.serving.core.protocol import Invalid, Late
from headrace.serving.core.refusals import kind_of
from headrace.serving.core.signature import Fault
from headrace.serving.engine.inference import Refusal
from headrace.serving.front.access import Denial
from headrace.serving.front.grpc.frames import header_block

log = logging.getLogger("headrace.grpc")

OK = 0
INVALID_ARGUMENT = 3
DEADLINE_EXCEEDED = 4
NOT_FOUND = 5
PERMISSION_DENIED = 7
RESOURCE_EXHAUSTED = 8
FAILED_PRECONDITION = 9
UNIMPLEMENTED = 12
INTERNAL = 13
UNAVAILABLE = 14
UNAUTHENTICATED = 16

_OF_FAULT: dict[Fault, int] = {
    "malformed": INVALID_ARGUMENT,
    "unknown-model": NOT_FOUND,
    "too-large": RESOURCE_EXHAUSTED,
    "unknown-encoding": UNIMPLEMENTED,
    "not-representable": INVALID_ARGUMENT,
    "queue-full": UNAVAILABLE,
}
_OF_KIND = {
    "overloaded": RESOURCE_EXHAUSTED,
    "unavailable": UNAVAILABLE,
    "failed": UNAVAILABLE,
    "invalid": INVALID_ARGUMENT,
    "broken": INTERNAL,
}
_OF_DENIAL = {400: INVALID_ARGUMENT, 401: UNAUTHENTICATED}
_PRINTABLE = "".join(map(chr, range(0x20, 0x7F))).replace("%", "")


@dataclass(frozen=True, slots=True)
class Status:
    """Of one call, or of one message of a stream."""

    code: int
    message: str = ""
    fields: tuple[tuple[bytes, bytes], ...] = ()

    def trailers(self) -> bytes:
        """As a header block."""
        found = [(b"grpc-status", b"%d" % self.code)]
        if self.message:
            found.append((b"grpc-message", quote(self.message, safe=_PRINTABLE).encode()))
        return header_block((*found, *self.fields))


ENDED_WELL = Status(OK)


def status_of(ending: Late | Refusal | Invalid) -> Status:
    """Of an inference that has no answer."""
    if isinstance(ending, Late):
        late_ms = b"%g" % (ending.late_us / 1000)
        reason = ((b"headrace-reason", b"late"), (b"headrace-late-ms", late_ms))
        return Status(DEADLINE_EXCEEDED, ending.message, reason)
    if isinstance(ending, Invalid):
        return Status(_OF_FAULT[ending.fault], ending.message)
    kind = kind_of(ending)
    fields = [(b"headrace-reason", ending.reason.encode())]
    if ending.never:
        # In gRPC's words: no retry.
        fields.append((b"grpc-retry-pushback-ms", b"-1"))
    elif kind not in ("invalid", "broken"):
        wait_us = ending.told_wait_us
        fields.append((b"headrace-retry-after-ms", b"%g" % (wait_us / 1000)))
        fields.append((b"grpc-retry-pushback-ms", b"%d" % -(-wait_us // 1000)))
    return Status(_OF_KIND[kind], ending.message, tuple(fields))


def denied(denial: Denial) -> Status:
    return Status(_OF_DENIAL.get(denial.status, PERMISSION_DENIED), denial.sentence)


def internal_error() -> Status:
    """Tell the client an id, and the log the rest. Call it while an exception is handled."""
    log_id = secrets.token_hex(8)
    log.exception("internal error %s", log_id)
    return Status(INTERNAL, f"internal error; the server's log has the details under {log_id}")
