"""Who often does harm: bad inputs, or inputs for which batches overrun.

Clients whose inputs often cannot be computed: their requests run in batches of their own.

A batch of b requests with one bad one costs all b the time of up to 2 log2 b batches more
(`dispatch.kernel.splitting`); b requests that run alone cost only their own client time. With a
share r of bad requests, b r of them are in each batch, so from about r = 1/8 on a client is better
kept apart. Per client,

    share <- share + (bad - share) / 16     after each inference, bad being 0 or 1

so three bad ones in a row put a client apart, and at most 32 good ones bring it back. One client in
twelve bad requests stays with the others.

Clients whose batches overrun: a batch that takes far longer than planned, or loses its worker,
holds a slot from others, so a client that often has such batches waits before the dispatcher like
those that have time (`waiting_room`). It is not known whose request of a batch was to blame: where
they belong to several clients, all are put apart first, which shows it.
"""

from collections.abc import Hashable

WEIGHT = 1 / 16
APART_FROM = 1 / 8
_FORGOTTEN_BELOW = 1 / 1024
_CLIENTS_MAX = 4096
"""Remembered at once; the one that was remembered first is forgotten first."""


class Offenders:
    """Shares of harm, by client. Costs nothing per inference while all are good."""

    def __init__(self) -> None:
        self._share: dict[Hashable, float] = {}

    def __bool__(self) -> bool:
        """Whether there may be any."""
        return bool(self._share)

    def __contains__(self, client: Hashable) -> bool:
        return self._share.get(client, 0.0) > APART_FROM

    def note(self, client: Hashable, *, bad: bool) -> None:
        """Something of the client's ended well, or did harm; 0, "": of nobody known."""
        share = self._share.get(client)
        if share is None and not bad:
            return
        if not client:
            return  # not known: perhaps everybody
        share = (share or 0.0) * (1 - WEIGHT) + (WEIGHT if bad else 0.0)
        if share < _FORGOTTEN_BELOW:
            del self._share[client]
            return
        if client not in self._share and len(self._share) >= _CLIENTS_MAX:
            del self._share[next(iter(self._share))]
        self._share[client] = share
