"""Which nodes of a plan reach which: what stages leave for each other goes straight between them.

The gateway reaches all nodes, or they are down. That one reaches another, only they can tell:

    whole ──tensors are not delivered──▶ broken ──not delivered, RETRY_US later──▶ cut off
      ▲                                    │                                         │
      └──────────tensors arrive────────────┴─────────a probe arrives─────────────────┘

A node that is cut off is down for all (`AgentLink.cut_off`), so that batches go to others, as when
it is lost; of two nodes that do not reach each other, the one that was to receive. It is admitted
again when every node that is admitted and sends tensors there has sent it a byte.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass

from headrace.serving.workers.remote.handshake import HandshakeError
from headrace.serving.workers.remote.link import AgentLink

logger = logging.getLogger(__name__)

RETRY_US = 250_000
"""After that, tensors that were not delivered are sent anew."""

Ends = tuple[str, str]
"""The node that sends, and the one that receives."""


@dataclass(frozen=True, slots=True)
class _Broken:
    since_us: int
    reason: str


class Paths:
    """Of one plan that is served."""

    def __init__(
        self, links: Mapping[str, AgentLink], probe: Callable[[Ends], Awaitable[None]]
    ) -> None:
        """`probe`: send a byte along; what became of it, a note here says before it returns."""
        self._links = links
        self._probe = probe
        self._needed: tuple[Ends, ...] = ()
        self._broken: dict[Ends, _Broken] = {}

    async def require(self, needed: Iterable[Ends]) -> None:
        """Find out that all these are whole, and keep to them.

        Raises:
            HandshakeError: one is not.
        """
        needed = tuple(needed)
        await self._try(needed)
        self._needed = needed

    async def admit(self, link: AgentLink) -> None:
        """See `TensorEnd`."""
        await self._try(
            [
                (node, other)
                for node, other in self._needed
                if other == link.node and self._links[node].is_admitted
            ]
        )

    async def _try(self, paths: Iterable[Ends]) -> None:
        await asyncio.gather(*(self._probe(ends) for ends in paths))
        for node, other in paths:
            if broken := self._broken.get((node, other)):
                raise unreached((node, other), self._links[other].where, broken.reason)

    def note_whole(self, ends: Ends) -> None:
        """Tensors have arrived."""
        if self._broken and self._broken.pop(ends, None) is not None:
            logger.warning("node %r reaches node %r again", *ends)

    def note_broken(self, ends: Ends, reason: str, now_us: int) -> bool:
        """Tensors were not delivered. Returns whether they may be, if they are sent anew in a
        moment; it is logged once, until it is whole again."""
        known = self._broken.get(ends)
        reason = _first_line(reason)
        since_us = now_us if known is None else known.since_us
        self._broken[ends] = _Broken(since_us, reason)
        if known is None:
            logger.error("node %r does not reach node %r: %s", *ends, reason)
        return now_us - since_us < RETRY_US

    def note_missing(self, ends: Ends, now_us: int) -> None:
        """A probe did not arrive; if no end has said why, nobody knows."""
        if ends not in self._broken:
            self.note_broken(ends, "what is sent there does not arrive", now_us)

    def cut(self, ends: Ends) -> None:
        """It is broken for good, as far as anybody knows."""
        node, other = ends
        link = self._links.get(other)
        if ends in self._needed and link is not None and link.is_admitted:
            link.cut_off(f"node {node!r} does not reach it: {self._broken[ends].reason}")


def unreached(ends: Ends, where: str, reason: str) -> HandshakeError:
    """`where`: the receiver."""
    node, other = ends
    return HandshakeError(
        f"{where}: node {node!r} does not reach it: {_first_line(reason)}\n"
        f"  needs  what stages leave for each other goes from {node} to {other} straight\n"
        f"  try    an address of {other} that {node} reaches as this machine does; with TLS, the"
        " same authority on all nodes"
    )


def _first_line(text: str) -> str:
    return text.partition("\n")[0]
