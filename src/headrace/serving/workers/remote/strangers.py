"""Callers that have not proved the secret yet: who gives way.

A handshake belongs to the address that it came from (of IPv6 its /64 network). When one more has
come than may be under way, one gives way: of the address that has most, the oldest; of addresses
with equally many, one of that which was there first. So

    who calls from an address with one call gives way only where no address has two
    who calls from a stranger's own address, or where strangers have more addresses than may shake
    hands, gives way when so many more have come that all others are younger than itself: a
    handshake takes a round trip, and strangers must begin that many in this time

and whoever connects and says nothing pushes out connections of its own.
"""

import asyncio
from functools import partial

from headrace.serving.complaints import Complaints


class Strangers:
    """Handshakes under way. See the module's docstring."""

    def __init__(self, most: int, complaints: Complaints) -> None:
        self._most = most
        self._complaints = complaints
        self._by_address: dict[str, dict[asyncio.Future[None], None]] = {}
        """The oldest first."""
        self._count = 0

    def enter(self, address: str, handshake: asyncio.Future[None]) -> None:
        """It leaves when it is done; who gives way for it is cancelled."""
        self._by_address.setdefault(address, {})[handshake] = None
        self._count += 1
        handshake.add_done_callback(partial(self._leave, address))
        if self._count > self._most:
            crowd = max(self._by_address, key=lambda each: len(self._by_address[each]))
            oldest = next(iter(self._by_address[crowd]))
            self._leave(crowd, oldest)
            oldest.cancel()
            self._complaints.warn(
                crowd,
                f"more than {self._most} callers at a time that have proved nothing, most of them"
                " from there: the oldest of these give way",
            )

    def _leave(self, address: str, handshake: asyncio.Future[None]) -> None:
        own = self._by_address.get(address, {})
        if handshake in own:
            del own[handshake]
            self._count -= 1
            if not own:
                del self._by_address[address]
