"""What a front is: one protocol on one address, made from the protocol core.

A server holds a list of fronts and leads each through its life, in this order:

    listen   clients may come; what they ask for is refused until the engine has started
    retire   everything is served as before, but clients are told to go elsewhere: readiness is
             refused, and where the protocol can say so connections are to be made anew
    close    nobody new is let in
    drain    what was accepted is answered, then each connection ends
    stop     whatever is left ends at once

A new front is a class with these methods in a file of its own, and its row in `table.FRONTS`.
"""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from headrace.dispatch.changes.migration import How
from headrace.domain.errors import HeadraceError
from headrace.serving.core.protocol import ProtocolCore
from headrace.serving.engine.live_migration import MigrationReport
from headrace.serving.front.access import Access
from headrace.serving.front.http_messages import Limits
from headrace.serving.front.tls import TlsFiles

Migrate = Callable[[Path, How], Awaitable[MigrationReport]]
"""Takes a plan file into service."""


class AddressError(HeadraceError):
    """The server cannot listen where it was told to."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FrontOptions:
    """What fronts are made from besides the core."""

    host: str
    """A name or address; of a front that listens elsewhere, what it understands. AdminFront: the
    path of its socket; empty: in the default folder, named after the port of `beside`."""
    port: int
    """0: any free one."""
    access: Access
    """Who may ask."""
    limits: Limits = field(default_factory=Limits)
    tls: TlsFiles | None = None
    """None: the port speaks in the clear."""
    migrate: Migrate | None = None
    """Changes the plan; None: the server keeps the one it began with."""
    beside: "Front | None" = None
    """The front that listens first, for one that takes its name from it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FrontsAsked:
    """Which fronts a server is to have, and what they are made from (`table.FrontKind.options`)."""

    common: FrontOptions
    """Those of HTTP, which every server has; the others' are made from these."""
    grpc_port: int | None = None
    """None: gRPC is not served."""
    admin_socket: Path | None = None
    """None: in the default folder, named after HTTP's port."""
    migrate: Migrate | None = None
    """For the owner; None: the server keeps the plan that it began with."""


class Front(Protocol):
    """Translates one protocol to the core and back."""

    @property
    def address(self) -> str:
        """Where clients find it, once it listens."""
        ...

    @property
    def connections(self) -> int:
        """Clients that have not been answered or let go yet."""
        ...

    async def listen(self) -> None:
        """
        Raises:
            AddressError: the address cannot be listened on.
        """
        ...

    def retire(self) -> None: ...

    def close(self) -> None: ...

    def drain(self) -> None: ...

    async def stop(self) -> None:
        """Idempotent; also when it never listened."""
        ...


MakeFront = Callable[[ProtocolCore, FrontOptions], Front]
