"""`Transport` between machines: regions here, and in the arenas of agents.

The gateway allocates in all of them; an agent only writes and sends what it is told to. A batch's
inputs go with the order to run it (`send`); its answer comes with the report that it ran
(`allocate_answer`, `landed`); what one stage leaves for another goes straight from agent to agent
(`move`). So of a pipeline over n nodes the gateway carries its ends alone, and no tensor waits for
a round trip of its own.

A move copies: both regions stay allocated until it has ended, whatever becomes of the batch
meanwhile. Where the sender is lost in the middle of it, the receiver is told to drop what may still
come before its region is freed (`Cancel`).

    on its way ──Arrived──▶ ended: the region is there
      │  ▲
      │  └───after RETRY_US────────┐
      └───────Undelivered──────▶ waits
    in either: given up when nobody wants it any more, or one of its machines is lost or cut off,
    as the receiver is when it is not delivered again (`paths`)
"""

import asyncio
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial

from msgspec.structs import replace as with_fields

from headrace.dispatch.protocols import Clock
from headrace.domain.errors import OverloadError
from headrace.domain.tensors import TensorSpec
from headrace.serving.workers.arena import Arena
from headrace.serving.workers.frames import Run
from headrace.serving.workers.remote.connection import SILENCE_S
from headrace.serving.workers.remote.frames import Cancel, Expect, Push
from headrace.serving.workers.remote.handshake import HANDSHAKE_S
from headrace.serving.workers.remote.link import AgentLink
from headrace.serving.workers.remote.paths import RETRY_US, Ends, Paths
from headrace.serving.workers.stage_io import HERE, Home, Region, TensorGroup
from headrace.serving.workers.transport import OnMoved

logger = logging.getLogger(__name__)

OVERDUE_US = 5_000_000
"""A move that has not ended by then never will."""
LEAST_BYTES_PER_US = 10
"""Of a link that is worth waiting for: 10 MB/s."""
LATE_US = 250_000
"""So long a move may go on when nobody wants it any more: it may end in that very moment."""
MOST_LATE = 1024
PROBE_US = round((HANDSHAKE_S + SILENCE_S) * 1e6)


@dataclass(frozen=True, slots=True)
class _Move:
    source: Region
    there: Region
    length: int
    overdue_at_us: int
    on_done: OnMoved
    again_at_us: int | None = None
    """It waits; None: it is on its way."""


class NetworkTransport:
    """Regions HERE and at the links' homes."""

    def __init__(self, arena: Arena, links: Mapping[str, AgentLink], clock: Clock) -> None:
        """`links`: by node."""
        self._arena = arena
        self._links = links
        self._clock = clock
        self._landing: dict[tuple[Home, int], Region] = {}
        """Where an answer that is written there comes to lie HERE."""
        self._moves: dict[int, _Move] = {}
        self._late: dict[int, Ends] = {}
        """Moves that were given up, the last ones: what becomes of them tells of their path."""
        self._transfers = 0
        self.paths = Paths(links, self._probe)
        for link in links.values():
            link.tensors = self

    @property
    def view(self) -> memoryview:
        return self._arena.view

    def allocate(self, group: TensorGroup, size: int, home: Home) -> Region:
        """
        Raises:
            OverloadError: the memory there is full, or out of reach.
        """
        if home == HERE:
            return group.allocate(self._arena, size)
        link = self._link(home)
        if link is None or link.allocator is None:
            raise OverloadError(f"the tensor memory of {home!r} is out of reach")
        return group.allocate(link.allocator, size, home)

    def allocate_answer(self, group: TensorGroup, size: int, home: Home) -> Region:
        there = self.allocate(group, size, home)
        if home != HERE:
            try:
                self._landing[home, there.offset] = group.allocate(self._arena, size)
            except OverloadError:
                self.free(there)
                raise
        return there

    def landed(self, region: Region) -> Region:
        here = self._landing.pop((region.home, region.offset), None)
        if here is None:
            return region
        self.free(region)
        return here

    def free(self, region: Region) -> None:
        if region.home == HERE:
            self._arena.free(region.offset)
            return
        here = self._landing.pop((region.home, region.offset), None)
        if here is not None:
            self._arena.free(here.offset)
        link = self._link(region.home)
        if link is not None and link.allocator is not None:
            link.allocator.free(region.offset)

    def send(self, region: Region, home: Home) -> Region:
        """Bring a region from HERE to where an order to that home may name it, at once.

        Raises:
            OverloadError: there is no room; the region is as it was.
        """
        if home == HERE:
            return region
        there = self._like(region, home)
        self._put(region, there, partial(self._arena.free, region.offset), more=True)
        return there

    def move(
        self, region: Region, to: Home, planned_us: int, until_us: int, on_done: OnMoved
    ) -> None:
        """Never calls back from inside; None: it is lost, or does not get there in time."""
        if region.home == to:
            self._soon(on_done, region)
            return
        source = self._link(region.home)
        try:
            if region.home != HERE and source is None:
                raise OverloadError("what lay there is lost")
            there = self._like(region, to)
        except OverloadError as error:
            logger.info("tensors cannot be moved: %s", error)
            self._soon(on_done, None)
            return
        if source is None:
            sent = partial(self._soon, on_done, there)
            self._put(region, there, sent, more=False)
            return
        length, now_us = self._length(region), self._clock.now_us()
        overdue_at_us = min(
            now_us + OVERDUE_US + length // LEAST_BYTES_PER_US, max(now_us, until_us) + LATE_US
        )
        self._ask_for(_Move(region, there, length, overdue_at_us, on_done), source)

    def _ask_for(self, move: _Move, source: AgentLink) -> None:
        """Under a number of its own: what still comes under an older one goes nowhere."""
        self._transfers += 1
        self._moves[self._transfers] = move
        push = Push(self._transfers, move.source.offset, move.length)
        target = self._link(move.there.home)
        if target is None:
            source.send(push)
            return
        target.send(Expect(self._transfers, move.there.offset, move.length))
        address = target.address
        source.send(with_fields(push, session=target.session, host=address.host, port=address.port))

    async def admit(self, link: AgentLink) -> None:
        """See `TensorEnd`."""
        await self.paths.admit(link)

    async def _probe(self, ends: Ends) -> None:
        link, target = (self._links[node] for node in ends)
        ended: asyncio.Future[Region | None] = asyncio.get_running_loop().create_future()
        try:
            region = self.allocate(_PROBE, 1, link.home)
        except OverloadError:
            return  # it is busy, or away

        def on_done(there: Region | None) -> None:
            if not ended.done():
                ended.set_result(there)

        until_us = self._clock.now_us() + PROBE_US
        self.move(region, target.home, 0, until_us, on_done)
        there = await ended
        if there is None and link.is_up and target.is_up:
            self.paths.note_missing(ends, self._clock.now_us())
        for each in (region, there):
            if each is not None:
                self.free(each)

    def answer_bytes(self, home: Home, run: Run) -> int:
        """Of what a run writes there, how much is to come with its report."""
        if not run.output_offsets:
            return 0
        here = self._landing.get((home, run.output_offsets[0]))
        return 0 if here is None else self._arena.length_of(here.offset)

    # -- what a link tells: a `TensorEnd` ---------------------------------------------------------

    def place_answer(self, home: Home, offset: int, length: int) -> memoryview | None:
        here = self._landing.get((home, offset))
        return None if here is None else self.view[here.offset : here.offset + length]

    def place_moved(self, transfer: int, length: int) -> memoryview | None:
        move = self._moves.get(transfer)
        if move is None or move.there.home != HERE or move.length != length:
            return None
        return self.view[move.there.offset : move.there.offset + length]

    def arrived(self, transfer: int) -> None:
        move = self._moves.pop(transfer, None)
        if move is not None:
            self.paths.note_whole(_ends(move))
            move.on_done(move.there)

    def undelivered(self, transfer: int, reason: str) -> None:
        move, now_us = self._moves.get(transfer), self._clock.now_us()
        ends = self._late.pop(transfer, None) if move is None else _ends(move)
        if ends is None:
            return
        again_at_us = now_us + RETRY_US
        if not self.paths.note_broken(ends, reason, now_us):
            self.paths.cut(ends)  # which gives it up, with all that goes there
        elif move is not None and again_at_us <= move.overdue_at_us:
            self._cancel(transfer, move)
            self._moves[transfer] = replace(move, again_at_us=again_at_us)
            return
        if transfer in self._moves:
            self._give_up(transfer)

    def look(self) -> None:
        if not self._moves:
            return
        now_us = self._clock.now_us()
        for transfer, move in list(self._moves.items()):
            if self._moves.get(transfer) is not move:
                continue  # given up with another
            # What comes HERE comes over a link that is watched itself.
            if move.overdue_at_us < now_us and move.there.home != HERE:
                logger.info("tensors from %s to %s are overdue", *_ends(move))
                self._late[transfer] = _ends(move)
                if len(self._late) > MOST_LATE:
                    del self._late[next(iter(self._late))]
                self._give_up(transfer)
            elif move.again_at_us is not None and move.again_at_us <= now_us:
                del self._moves[transfer]
                source = self._link(move.source.home)
                assert source is not None, "else it would have been given up"
                self._ask_for(replace(move, again_at_us=None), source)

    def link_down(self, home: Home) -> None:
        for key in [key for key in self._landing if key[0] == home]:
            self._arena.free(self._landing.pop(key).offset)
        for transfer, move in list(self._moves.items()):
            if home in (move.source.home, move.there.home):
                self._give_up(transfer)

    def _give_up(self, transfer: int) -> None:
        move = self._moves.pop(transfer)
        self._cancel(transfer, move)
        self.free(move.there)
        move.on_done(None)

    def _cancel(self, transfer: int, move: _Move) -> None:
        """The receiver first: what it drops, nobody else is told of."""
        for home in (move.there.home, move.source.home):
            if (link := self._link(home)) is not None:
                link.send(Cancel(transfer))

    # -- beneath -----------------------------------------------------------------------------------

    def _soon(self, on_done: OnMoved, region: Region | None) -> None:
        """Not from inside a call: a dispatcher may be in the middle of a step."""
        self._clock.call_at(self._clock.now_us(), partial(on_done, region))

    def _link(self, home: Home) -> AgentLink | None:
        """Of a session that lives."""
        link = self._links.get(home.partition("/")[0])
        return link if link is not None and link.home == home and link.is_up else None

    def _length(self, region: Region) -> int:
        if region.home == HERE:
            return self._arena.length_of(region.offset)
        link = self._link(region.home)
        assert link is not None, "its memory is there"
        assert link.allocator is not None, "its memory is there"
        return link.allocator.length_of(region.offset)

    def _like(self, region: Region, home: Home) -> Region:
        """Raises OverloadError: there is no room at `home`."""
        length = self._length(region)
        if home == HERE:
            offset = self._arena.allocate(length)
        else:
            link = self._link(home)
            if link is None or link.allocator is None:
                raise OverloadError(f"the tensor memory of {home!r} is out of reach")
            offset = link.allocator.allocate(length)
        shift = offset - region.offset
        return Region(offset, tuple(at + shift for at in region.tensor_offsets), home)

    def _put(
        self, region: Region, there: Region, on_sent: Callable[[], object], more: bool
    ) -> None:
        link = self._link(there.home)
        assert link is not None, "room was found there"
        payload = self.view[region.offset : region.offset + self._length(region)]
        link.put(there.offset, payload, on_sent, more)


_PROBE = TensorGroup.of((TensorSpec(name="probe", dtype="uint8", item_shape=(1,)),))


def _ends(move: _Move) -> tuple[str, str]:
    return move.source.home.partition("/")[0] or "here", move.there.home.partition("/")[0] or "here"
