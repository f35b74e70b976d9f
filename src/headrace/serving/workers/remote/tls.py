"""TLS between gateway and agents: one private authority signs the certificates of all agents.

Whose name a certificate bears does not matter, since agents are known by addresses: that the
authority has signed it does. Who calls proves the cluster's secret afterwards, inside of it.
"""

import ssl
from pathlib import Path

from headrace.serving.workers.remote.handshake import HandshakeError


def calling(authority: Path | None) -> ssl.SSLContext | None:
    """For connections to agents; None: without an authority, none.

    Raises:
        HandshakeError: its file cannot be used.
    """
    if authority is None:
        return None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.check_hostname = False
    context.verify_mode = ssl.CERT_REQUIRED
    try:
        context.load_verify_locations(authority)
    except (OSError, ssl.SSLError) as error:
        raise HandshakeError(
            f"{authority}: is no authority's certificate (PEM): {error}"
        ) from error
    return context


def agent_contexts(
    certificate: Path | None, key: Path | None, authority: Path | None
) -> tuple[ssl.SSLContext | None, ssl.SSLContext | None]:
    """When an agent is called, and when it calls another; None: without TLS.

    Raises:
        HandshakeError: a file is missing or cannot be used.
    """
    given = (certificate, key, authority)
    if all(each is None for each in given):
        return None, None
    if certificate is None or key is None or authority is None:
        raise HandshakeError("agent: TLS needs --tls-cert, --tls-key and --tls-ca, all three")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    try:
        # Without a password OpenSSL would ask on the terminal.
        context.load_cert_chain(certificate, key, password="")
    except (OSError, ssl.SSLError) as error:
        raise HandshakeError(
            f"agent: --tls-cert {certificate} and --tls-key {key} cannot be used: {error}"
        ) from error
    return context, calling(authority)
