"""Who may ask, of one request or call: `Access` applied to a connection, whatever it speaks.

What holds for a connection is remembered there: the name by which it was addressed, that no proxy
speaks through it, that it has shown the token.
"""

from collections.abc import Mapping
from functools import partial
from typing import Protocol

from headrace.serving.front.access import THROUGH_A_PROXY, Access, Denial
from headrace.serving.front.inferences import Aside
from headrace.serving.front.seats import KNOWN, STRANGER, Peer


class Guarded(Protocol):
    """A connection, as far as access is concerned."""

    standing: int
    trusted: bool
    """Whether the other end needs no token."""
    known_host: bytes | None
    """The last name that was found to be ours."""
    known_fields: tuple[bytes, ...]
    """Names of the last header fields that were found to come from no proxy."""

    def ends(self) -> tuple[tuple[str, int], tuple[str, int]]:
        """(address, port) of the other end and of ours."""
        ...

    def origin_scheme(self) -> bytes:
        """Of the origin of a page that came by such a connection."""
        ...

    def stand(self, standing: int) -> None: ...


class Meeting(Protocol):
    """A connection that waits to know its peer."""

    def ends(self) -> tuple[tuple[str, int], tuple[str, int]]: ...

    def introduce(self, peer: Peer, trusted: bool) -> None: ...


def meet(access: Access, connection: Meeting, aside: Aside) -> None:
    """Tell a connection who its peer is: at once, or by a look-up on another thread."""
    peer, local = connection.ends()
    if access.knows_at_once(peer):
        connection.introduce(*access.identify(peer, local))
    else:
        aside(
            partial(access.identify, peer, local),
            lambda future: connection.introduce(*future.result()),
        )


def deny(
    access: Access,
    connection: Guarded,
    host: bytes | None,
    headers: Mapping[bytes, bytes],
    needs_token: bool,
) -> Denial | None:
    """Why it may not come in; `host` is the name that it was sent to."""
    origin = headers.get(b"origin")
    if host is None or host != connection.known_host or origin is not None:
        local_address = connection.ends()[1][0]
        denial = access.check_origin(host, origin, local_address, connection.origin_scheme())
        if denial is not None:
            return denial
        connection.known_host = host
    if connection.trusted:
        fields = tuple(headers)
        if fields == connection.known_fields:
            return None
        if not access.is_forwarded(fields):
            connection.known_fields = fields
            return None
        # For good: a proxy passes many clients' requests on over one connection.
        connection.trusted = False
        connection.stand(STRANGER)
    if not needs_token:
        return None
    if not access.needs_token:
        return THROUGH_A_PROXY
    denial = access.check_token(headers.get(b"authorization"))
    if denial is None and connection.standing == STRANGER:
        connection.stand(KNOWN)
    return denial
