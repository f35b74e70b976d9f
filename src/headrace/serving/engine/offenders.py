"""Clients whose inputs often cannot be computed: their requests run in batches of their own.

A batch of b requests with one bad one costs all b the time of up to 2 log2 b batches more
(`dispatch.kernel.splitting`); b requests that run alone cost only their own client time. With a
share r of bad requests, b r of them are in each batch, so from about r = 1/8 on a client is better
kept apart. Per client,

    share <- share + (bad - share) / 16     after each inference, bad being 0 or 1

so three bad ones in a row put a client apart, and at most 32 good ones bring it back. One client in
twelve bad requests stays with the others.
"""

WEIGHT = 1 / 16
APART_FROM = 1 / 8
_FORGOTTEN_BELOW = 1 / 1024
_CLIENTS_MAX = 4096
"""Remembered at once; the one that was remembered first is forgotten first."""


class Offenders:
    """Shares of bad inputs, by client. Costs nothing per inference while all are good."""

    def __init__(self) -> None:
        self._share: dict[int, float] = {}

    def __contains__(self, client: int) -> bool:
        return self._share.get(client, 0.0) > APART_FROM

    def note(self, client: int, *, bad: bool) -> None:
        """An inference of the client was answered, or its input could not be computed."""
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
