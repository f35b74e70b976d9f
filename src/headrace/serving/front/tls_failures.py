"""A handshake that fails is explained: to the client by an alert, to the log in a sentence.

When OpenSSL cannot agree with a client it writes an alert that says why; asyncio and uvloop then
hang up, and what was written last is lost. So a failure is kept from them: they are told that the
handshake has more to read, before which they send what was written (`_Explaining`). The client then
hangs up itself. What it had still under way is read and dropped: unread, it would make the kernel
reset the connection before the client has read why. Until it hangs up, has sent too much, or the
handshake has taken too long, it keeps a seat, unless another needs one.

Who sends a request of HTTP in the clear could not read an alert, and is answered in the clear.
"""

import re
import ssl
from collections.abc import Callable
from contextvars import ContextVar
from typing import NoReturn

from headrace.serving.front.http_messages import Limits, problem

on_failure: ContextVar[Callable[[str], None]] = ContextVar("headrace_tls_failure")
"""Takes the sentence; set it where a loop is given a client's socket and a `ServerContext`."""

_BEGINNING_BYTES = 5
"""Of a record's header: OpenSSL looks at nothing before it has that."""
_HANDSHAKE_RECORD = b"\x16"
_REQUEST = re.compile(rb"[A-Z]{3,4} /?|[A-Z]{5}")
"""Such a beginning of a request, and no more of its method: the rest may come later."""
_DROPPED_BYTES = Limits().linger_bytes
_IN_THE_CLEAR = b"".join(
    problem(400, "this port speaks TLS: ask for https://").encode(False, head_only=False)
)
_WHY = {
    "PEER_DID_NOT_RETURN_A_CERTIFICATE": "it shows no certificate, which --tls-client-ca asks for",
    "UNSUPPORTED_PROTOCOL": "it speaks only TLS older than 1.2",
    "TLSV1_ALERT_UNKNOWN_CA": "it does not know who has signed --tls-cert",
    "SSLV3_ALERT_CERTIFICATE_EXPIRED": "it says that --tls-cert has expired",
}
"""By OpenSSL's reasons; of others these are shown themselves."""


class _Explaining(ssl.SSLObject):
    """The server's side of one connection."""

    incoming: ssl.MemoryBIO
    outgoing: ssl.MemoryBIO
    explain: Callable[[str], None]
    _beginning = b""
    """Of what the client has sent."""
    _failed = False
    _dropped_bytes = 0

    def do_handshake(self) -> None:
        if self._failed:
            self._drop()
        if len(self._beginning) < _BEGINNING_BYTES:
            sent = self.incoming.read()
            self.incoming.write(sent)
            self._beginning = (self._beginning + sent)[:_BEGINNING_BYTES]
        try:
            super().do_handshake()
        except (ssl.SSLWantReadError, ssl.SSLSyscallError):  # what loops wait at
            raise
        except ssl.SSLError as error:
            self._failed = True
            self.explain(f"turned away: {_why(error, self._beginning)}")
            if _REQUEST.fullmatch(self._beginning):
                self.outgoing.write(_IN_THE_CLEAR)
            if not self.outgoing.pending:
                raise
            raise ssl.SSLWantReadError from error

    def _drop(self) -> NoReturn:
        """What came behind a handshake that has failed."""
        self._dropped_bytes += len(self.incoming.read())
        if self._dropped_bytes > _DROPPED_BYTES:
            raise ssl.SSLError("too much came behind a handshake that has failed")
        raise ssl.SSLWantReadError


class ServerContext(ssl.SSLContext):
    """Of a server whose failed handshakes are explained."""

    sslobject_class = _Explaining

    def wrap_bio(
        self,
        incoming: ssl.MemoryBIO,
        outgoing: ssl.MemoryBIO,
        server_side: bool = False,
        server_hostname: str | bytes | None = None,
        session: ssl.SSLSession | None = None,
    ) -> ssl.SSLObject:
        tls = super().wrap_bio(incoming, outgoing, server_side, server_hostname, session)
        assert isinstance(tls, _Explaining)
        tls.incoming, tls.outgoing, tls.explain = incoming, outgoing, on_failure.get()
        return tls


def _why(error: ssl.SSLError, beginning: bytes) -> str:
    # What OpenSSL calls this differs from version to version.
    if not beginning.startswith(_HANDSHAKE_RECORD):
        return "it speaks no TLS, and this port nothing else"
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"its certificate is not trusted ({error.verify_message}); see --tls-client-ca"
    reason = error.reason or str(error)
    return _WHY.get(reason, f"no TLS can be agreed on ({reason.replace('_', ' ').lower()})")
