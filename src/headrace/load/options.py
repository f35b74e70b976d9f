"""How a load run sends, beside its schedule."""

import ssl
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from headrace.domain.errors import DocumentError, HeadraceError
from headrace.serving.front.tls import STRICT

MAX_CONNECTIONS: Final = 256


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientTls:
    """Files of a client's side of TLS."""

    authority: Path | None = None
    """Whose certificates servers must show; None: one that the system trusts."""
    certificate: Path | None = None
    """The client's own, with its key; None: none is shown."""
    key: Path | None = None

    def context(self, protocol: str) -> ssl.SSLContext:
        """
        Args:
            protocol: what will be spoken, as ALPN names it.

        Raises:
            DocumentError: a file cannot be used.
        """
        if (self.certificate is None) != (self.key is None):
            raise DocumentError("load: a client's certificate needs both --tls-cert and --tls-key")
        try:
            context = ssl.create_default_context(cafile=self.authority)
            context.verify_flags &= ~STRICT
            if self.certificate is not None:
                context.load_cert_chain(self.certificate, self.key, password="")
        except (OSError, ssl.SSLError) as error:
            raise DocumentError(f"load: the files of TLS cannot be used: {error}") from error
        context.set_alpn_protocols([protocol])
        return context


class LoadError(HeadraceError):
    """The server cannot be loaded: not there, not speaking the protocol, no such model."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadOptions:
    """How to send, beside the schedule itself."""

    slo_us: int | None = None
    """Sent with every request and the yardstick of attainment; None: the server's own."""
    timeout_s: float = 30.0
    """After this long from its scheduled instant a request counts as lost."""
    connections: int = MAX_CONNECTIONS
    binary: bool = True
    """Tensors as raw bytes behind the JSON (the binary-tensor extension), not as JSON numbers."""
    items: int = 1
    """Length of the batch dimension of every request."""
    input_paths: tuple[Path, ...] = ()
    """.npy or .npz files, or folders of them, sent in turn; none: random values from the seed."""
    model_inputs: Mapping[str, tuple[Path, ...]] = field(default_factory=dict)
    """Model -> the same for this model alone, instead of `input_paths`."""
    on_answer: Callable[[int, bytes], None] | None = None
    """Gets every result (number of its arrival, body of the response), for checks; must be fast."""
    seed: int = 1
    token: str | None = None
    tls: ClientTls | None = None
    """For https:// and grpcs://; None: the system's authorities."""

    def __post_init__(self) -> None:
        if not 1 <= self.connections <= MAX_CONNECTIONS:
            raise DocumentError(
                f"load: {self.connections} connections; expected 1 to {MAX_CONNECTIONS}"
            )
        if not 1 <= self.items <= 1 << 20:
            raise DocumentError(f"load: {self.items} items; expected 1 to {1 << 20}")
        if not 0 < self.timeout_s <= 3600 or (self.slo_us is not None and self.slo_us < 1):
            raise DocumentError("load: SLO and timeout must be positive, the latter at most 1 h")
