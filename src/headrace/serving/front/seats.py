"""Who may hold connections, and who gives way when there is no room.

A connection has a *standing*: its owner's (the user who runs the server, on this machine), known
(it has shown the token, or none is needed), a stranger's, or, whoever it is, stalled: its TLS
handshake has failed or takes long. It belongs to a *peer*: a user of this machine, or an address
elsewhere (of IPv6 its /64 network: one host has as many addresses as it likes).

A new connection finds its seat so:

    1. a stranger's peer holds `connections_per_stranger` connections at most, those that it has
       shown the token on apart; the next one displaces one that is stalled, or else the least
       recently active of them
    2. while there are fewer than `connections`, it is seated
    3. otherwise one gives way that nobody waits on: stalled, idle, in its TLS handshake, or with a
       request that is half sent; the lowest standing first, never a higher one than the
       newcomer's; of the peer that has most, the least recently active
    4. where all are being answered: a seat of the reserve, for one request of the owner, of
       somebody with the token, or for a health probe
    5. beyond the reserve it is turned away

So whoever opens connections and sends nothing, or sends slowly, pushes out connections of its own:
a peer with few keeps them. Finding who gives way costs one look at each peer, and nothing while
there is room; activity is the order in which a peer's connections stand in its table.
"""

from collections.abc import Hashable, Iterator
from dataclasses import dataclass
from itertools import count
from typing import Literal, Protocol

from headrace.serving.front.http_messages import Limits

STALLED, STRANGER, KNOWN, OWNER = range(4)
Seat = Literal["own", "reserve", "none"]


@dataclass(frozen=True, slots=True)
class Peer:
    """Who is at the other end of a connection."""

    key: Hashable
    """User id, or address."""
    standing: int


CONNECTION_NUMBERS = count(1)
"""Tell clients apart that keep their connections, whichever front they came to."""


class Seated(Protocol):
    """A connection, as far as its seat is concerned."""

    peer: Peer | None
    standing: int

    @property
    def busy(self) -> bool:
        """Somebody waits for an answer to something that was sent whole."""
        ...

    def give_way(self) -> None:
        """Close at once; `Seats.leave` follows, perhaps later."""
        ...


class Seats:
    """All connections of one server that know their peer. See the module's docstring."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._peers: tuple[dict[Hashable, dict[Seated, None]], ...] = ({}, {}, {}, {})
        """By standing, by peer: connections, the least recently active first."""
        self._taken = 0

    def __len__(self) -> int:
        return self._taken

    def take(self, connection: Seated) -> Seat:
        """A seat for a connection that knows its peer; it is counted unless there is none."""
        limits, peer = self._limits, connection.peer
        assert peer is not None, "seats are for those who have said who they are"
        if peer.standing == STRANGER:
            own = [self._peers[each].get(peer.key, {}) for each in (STALLED, STRANGER)]
            full = sum(map(len, own)) >= limits.connections_per_stranger
            if full and not any(map(self._displace, own)):
                return "none"
        seat: Seat = "own"
        if self._taken >= limits.connections and not self._make_room(peer.standing):
            if self._taken >= limits.connections + limits.reserved_connections:
                return "none"
            seat = "reserve"
        connection.standing = peer.standing
        self._peers[peer.standing].setdefault(peer.key, {})[connection] = None
        self._taken += 1
        return seat

    def leave(self, connection: Seated) -> None:
        """Without effect for one that has no seat."""
        peer = connection.peer
        if peer is None:
            return
        table = self._peers[connection.standing]
        own = table.get(peer.key)
        if own is not None and connection in own:
            del own[connection]
            self._taken -= 1
            if not own:
                del table[peer.key]

    def stand(self, connection: Seated, standing: int) -> None:
        """It has shown the token; it turned out to speak for others; or it is stalled."""
        peer = connection.peer
        if connection.standing == standing or peer is None:
            return
        own = self._peers[connection.standing].get(peer.key)
        if own is None or connection not in own:
            return
        self.leave(connection)
        connection.standing = standing
        self._peers[standing].setdefault(peer.key, {})[connection] = None
        self._taken += 1

    def active(self, connection: Seated) -> None:
        """It has been answered: the last to give way of its peer's."""
        peer = connection.peer
        if peer is not None:
            own = self._peers[connection.standing].get(peer.key)
            if own is not None and connection in own:
                del own[connection]
                own[connection] = None

    def _make_room(self, standing: int) -> bool:
        for table in self._peers[: standing + 1]:
            for own in _largest_first(table):
                if self._displace(own):
                    return True
        return False

    def _displace(self, own: dict[Seated, None]) -> bool:
        for connection in own:
            if not connection.busy:
                self.leave(connection)
                connection.give_way()
                return True
        return False


def _largest_first(table: dict[Hashable, dict[Seated, None]]) -> Iterator[dict[Seated, None]]:
    if table:
        yield max(table.values(), key=len)
        # All of its connections are busy, which is rare: the order of the others is worth its cost.
        yield from sorted(table.values(), key=len, reverse=True)
