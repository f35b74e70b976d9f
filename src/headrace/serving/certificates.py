"""Until when the certificate that a server shows is valid, for its log: clients refuse it after."""

import logging
import ssl
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

SOON_S = 14 * 86_400.0
"""So long before its end a certificate is worth a warning."""
_FLIGHTS = 3
"""Of a handshake: each side speaks twice at most."""
_NO_CHECK_TIME = ssl.VerifyFlags(0x200000)
"""OpenSSL's X509_V_FLAG_NO_CHECK_TIME, which the module has no name for."""


@dataclass(frozen=True, slots=True)
class Validity:
    """Of a certificate, in seconds since 1970."""

    since_s: float
    until_s: float

    def complaint(self, now_s: float) -> str | None:
        """What is wrong with it, or soon will be, and what to do; None: nothing."""
        if now_s < self.since_s:
            return (
                f"is valid from {_shown(self.since_s)} on: clients refuse it before; look at the"
                " clock of this machine, or start with another one"
            )
        if now_s > self.until_s:
            return f"has expired on {_shown(self.until_s)}: clients refuse it; {_RENEW}"
        if now_s > self.until_s - SOON_S:
            return f"expires on {_shown(self.until_s)}: clients refuse it then; {_RENEW}"
        return None


_RENEW = "renew it, and start again, as it is read at the start"


def validity(certificate: Path, key: Path) -> Validity | None:
    """What a certificate says, whatever the time is; None: it cannot be used.

    `ssl` tells that of one that a handshake has verified and of no other, so here a client that
    trusts this very certificate shakes hands with its server in memory.
    """
    served = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    trusting = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    trusting.check_hostname = False
    trusting.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN | _NO_CHECK_TIME
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    try:
        served.load_cert_chain(certificate, key, password="")
        trusting.load_verify_locations(certificate)
        client = trusting.wrap_bio(to_client, to_server)
        server = served.wrap_bio(to_server, to_client, server_side=True)
        for side in (client, server) * _FLIGHTS:
            with suppress(ssl.SSLWantReadError):
                side.do_handshake()
        shown = client.getpeercert() or {}
        since, until = str(shown["notBefore"]), str(shown["notAfter"])
        return Validity(ssl.cert_time_to_seconds(since), ssl.cert_time_to_seconds(until))
    except (OSError, ValueError, KeyError):  # SSLError is an OSError
        return None


def reminder(log: logging.Logger, certificate: Path, key: Path) -> Callable[[], None]:
    """Writes a line where the certificate as it is now is refused by clients, or soon will be,
    whenever it is called."""
    found = validity(certificate, key)

    def remind() -> None:
        complaint = None if found is None else found.complaint(time.time())
        if complaint is not None:
            log.warning("--tls-cert %s %s", certificate, complaint)

    return remind


def _shown(at_s: float) -> str:
    return datetime.fromtimestamp(at_s, UTC).strftime("%Y-%m-%d %H:%M UTC")
