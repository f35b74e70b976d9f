"""TLS of a listening port: the server's certificate, and whose certificates clients must show."""

import ssl
from dataclasses import dataclass
from pathlib import Path

from headrace.serving.front.access import AccessError
from headrace.serving.front.tls_failures import ServerContext

STRICT = ssl.VERIFY_X509_STRICT
"""Python asks for this by default from 3.13 on. Authorities as `openssl req -x509` makes them do
not say what their keys are for, and would be refused, though Python 3.12 and other programs take
them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TlsFiles:
    """PEM files."""

    certificate: Path
    """The server's, with those between it and its authority."""
    key: Path
    client_authority: Path | None = None
    """Clients must show a certificate that one of these has signed; None: they need none."""

    def context(self, alpn: str) -> ServerContext:
        """For one port; TLS 1.2 or later.

        Raises:
            AccessError: a file cannot be used.
        """
        context = ServerContext(ssl.PROTOCOL_TLS_SERVER)
        default = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        context.verify_flags = default.verify_flags & ~STRICT
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.set_alpn_protocols([alpn])
        try:
            if self.key.is_file() and self.key.stat().st_mode & 0o077:
                raise AccessError(
                    f"serve: --tls-key {self.key}: others can read it\n"
                    f"  try    chmod 600 {self.key}"
                )
            context.load_cert_chain(self.certificate, self.key, password=_refuse_password)
        except (OSError, ssl.SSLError, _EncryptedKeyError) as error:
            raise AccessError(
                f"serve: --tls-cert {self.certificate} and --tls-key {self.key} cannot be used:"
                f" {error}"
            ) from error
        if self.client_authority is not None:
            context.verify_mode = ssl.CERT_REQUIRED
            try:
                context.load_verify_locations(self.client_authority)
            except (OSError, ssl.SSLError) as error:
                raise AccessError(
                    f"serve: --tls-client-ca {self.client_authority} cannot be used: {error}"
                ) from error
        return context


class _EncryptedKeyError(Exception):
    pass


def _refuse_password() -> str:
    # Without this, OpenSSL would ask on the terminal.
    raise _EncryptedKeyError("the key is encrypted, and a server has nobody to ask for a password")


def tls_files(
    certificate: Path | None, key: Path | None, client_authority: Path | None
) -> TlsFiles | None:
    """From options that go together.

    Raises:
        AccessError: one is missing.
    """
    if certificate is None and key is None and client_authority is None:
        return None
    if certificate is None or key is None:
        raise AccessError("serve: TLS needs both --tls-cert and --tls-key")
    return TlsFiles(certificate=certificate, key=key, client_authority=client_authority)
