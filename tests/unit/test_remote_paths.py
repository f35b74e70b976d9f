"""Nodes that do not reach each other: who is left out, until when, and what becomes of tensors."""

import asyncio
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import pytest

from headrace.domain.tensors import TensorSpec
from headrace.serving.workers.arena import Allocator, Arena
from headrace.serving.workers.remote.frames import Cancel, Expect, Push
from headrace.serving.workers.remote.handshake import HandshakeError
from headrace.serving.workers.remote.link import Address
from headrace.serving.workers.remote.paths import RETRY_US
from headrace.serving.workers.remote.transport import LATE_US, OVERDUE_US, NetworkTransport
from headrace.serving.workers.stage_io import HERE, Home, Region, TensorGroup

GROUP = TensorGroup.of((TensorSpec(name="x", dtype="uint8", item_shape=(100,)),))
LONG_US = 60_000_000


class Link:
    """What a transport sees of an `AgentLink`; frames are kept."""

    def __init__(self, node: str, number: int) -> None:
        self.node, self.session = node, number
        self.address = Address(host=node, port=number)
        self.where = f"node {node!r} ({node}:{number})"
        self.home: Home = f"{node}/{number}"
        self.is_up = self.is_admitted = True
        self.allocator: Allocator | None = Allocator(1 << 16)
        self.tensors: Any = None
        self.sent: list[Any] = []
        self.reaches: set[str] = set()
        """What is pushed from here to these nodes arrives at once."""

    def send(self, frame: Any) -> None:
        self.sent.append(frame)
        if isinstance(frame, Push):
            if frame.host in self.reaches:
                self.tensors.arrived(frame.transfer)
            elif self.reaches:
                self.tensors.undelivered(frame.transfer, "nobody is there\n  try    later")

    @property
    def pushed(self) -> list[Push]:
        return [frame for frame in self.sent if isinstance(frame, Push)]

    def cut_off(self, reason: str) -> None:
        self.sent.append(reason)
        home, self.home = self.home, f"{self.node}/down"
        self.is_up = self.is_admitted = False
        self.tensors.link_down(home)


class Clock:
    """Stands still."""

    def __init__(self) -> None:
        self.us = 0

    def now_us(self) -> int:
        return self.us

    def call_at(self, at_us: int, callback: Any) -> None:
        callback()


class Scene:
    """Three nodes, of which "n0" sends to the others."""

    def __init__(self, arena: Arena) -> None:
        self.links = {f"n{i}": Link(f"n{i}", i + 1) for i in range(3)}
        self.clock = Clock()
        links: Any = self.links
        self.transport = NetworkTransport(arena, links, self.clock)
        self.transport.paths._needed = (("n0", "n1"), ("n0", "n2"))
        self.ended: list[Region | None] = []

    def move(self, to: str = "n1", until_us: int = LONG_US) -> Region:
        region = self.transport.allocate(GROUP, 1, self.links["n0"].home)
        self.transport.move(region, self.links[to].home, 0, until_us, self.ended.append)
        return region

    def after(self, us: int) -> None:
        self.clock.us += us
        self.transport.look()


@pytest.fixture
def scene() -> Iterator[Scene]:
    with closing(Arena(1 << 16)) as arena:
        yield Scene(arena)


def test_what_is_not_delivered_is_asked_for_once_more_under_another_number(scene: Scene) -> None:
    scene.move()
    n0, n1 = scene.links["n0"], scene.links["n1"]
    [first] = n0.sent
    scene.transport.undelivered(first.transfer, "the connection broke")
    assert n1.sent[1:] == [Cancel(first.transfer)], "what still comes of it goes nowhere"
    scene.after(RETRY_US - 1)
    assert len(n0.pushed) == 1
    scene.after(1)
    [_, second] = n0.pushed
    assert second == Push(second.transfer, first.offset, first.length, 2, "n1", 2)
    assert second.transfer > first.transfer
    expected = n1.sent[0].offset
    assert n1.sent[2] == Expect(second.transfer, expected, first.length)
    scene.transport.arrived(first.transfer)
    assert not scene.ended, "of the time before"
    scene.transport.arrived(second.transfer)
    [there] = scene.ended
    assert there is not None
    assert there.offset == expected


def test_what_is_not_delivered_again_cuts_its_receiver_off_and_nobody_else(scene: Scene) -> None:
    n0, n1, n2 = scene.links.values()
    scene.move("n1")
    scene.move("n1")
    scene.move("n2")
    transfers = [push.transfer for push in n0.pushed]
    for transfer in transfers[:2]:
        # Of one connection, in one moment.
        scene.transport.undelivered(transfer, "nobody is there\n  try    later")
    assert n1.is_admitted
    scene.after(RETRY_US)
    again = n0.pushed[3:]
    scene.transport.undelivered(again[0].transfer, "nobody is there\n  try    later")
    assert n1.sent[-1] == "node 'n0' does not reach it: nobody is there"
    assert scene.ended == [None, None], "both"
    assert n2.is_admitted
    scene.transport.arrived(transfers[2])
    assert scene.ended[2] is not None


def test_a_move_that_nobody_waits_for_is_neither_asked_for_again_nor_kept(scene: Scene) -> None:
    n0, n1 = scene.links["n0"], scene.links["n1"]
    region = scene.move(until_us=0)
    scene.after(LATE_US)
    assert not scene.ended
    scene.after(1)
    assert scene.ended == [None]
    assert n0.sent[-1] == n1.sent[-1] == Cancel(n0.sent[0].transfer)
    scene.clock.us = 10 * RETRY_US
    late = scene.move(until_us=scene.clock.us - LATE_US)
    scene.after(1)
    scene.transport.undelivered(n0.pushed[-1].transfer, "the connection broke")
    scene.after(RETRY_US)
    assert scene.ended == [None, None]
    assert len(n0.pushed) == 2
    assert n1.is_admitted, "it had no time for a second attempt"
    for each in (region, late):
        scene.transport.free(each)
    assert n1.allocator is not None
    assert n1.allocator.used_bytes == 0


def test_what_becomes_of_late_tensors_tells_of_their_path_all_the_same(scene: Scene) -> None:
    """Deadlines are shorter than the time until a connection is known to be dead."""
    n0, n1 = scene.links["n0"], scene.links["n1"]
    for _ in range(2):
        scene.move(until_us=scene.clock.us)
        scene.after(LATE_US + 1)
        scene.transport.undelivered(n0.pushed[-1].transfer, "nothing heard of it for 1.5 s")
    assert scene.ended == [None, None]
    assert n1.sent[-1] == "node 'n0' does not reach it: nothing heard of it for 1.5 s"
    scene.transport.undelivered(n0.pushed[0].transfer, "said again")


def test_whatever_its_deadline_a_move_ends(scene: Scene) -> None:
    scene.move(until_us=LONG_US)
    scene.after(OVERDUE_US - 1)
    assert not scene.ended
    scene.after(1_000)
    assert scene.ended == [None]


def test_a_path_that_is_not_whole_is_named_before_anything_is_served(scene: Scene) -> None:
    n0 = scene.links["n0"]
    n0.reaches = {"n2"}
    scene.transport.paths._needed = ()

    async def main() -> None:
        trying = asyncio.ensure_future(scene.transport.paths.require([("n0", "n2"), ("n0", "n1")]))
        while not trying.done():
            await asyncio.sleep(0)
            scene.after(RETRY_US)
        await trying

    with pytest.raises(HandshakeError) as raised:
        asyncio.run(main())
    lines = str(raised.value).splitlines()
    assert lines[0] == "node 'n1' (n1:2): node 'n0' does not reach it: nobody is there"
    assert lines[1] == ("  needs  what stages leave for each other goes from n0 to n1 straight")
    assert n0.allocator is not None
    assert n0.allocator.used_bytes == 0
    assert scene.links["n1"].is_admitted, "not cut off: nothing is served yet"


def test_a_path_on_which_nothing_arrives_is_not_whole_though_nobody_says_why(scene: Scene) -> None:
    async def main() -> None:
        trying = asyncio.ensure_future(scene.transport.paths.require([("n0", "n1")]))
        while not trying.done():
            await asyncio.sleep(0)
            scene.after(OVERDUE_US)
        await trying

    with pytest.raises(HandshakeError, match="does not reach it: what is sent there does not arr"):
        asyncio.run(main())


def test_a_node_is_admitted_when_all_that_are_admitted_reach_it(scene: Scene) -> None:
    paths, links = scene.transport.paths, scene.links
    paths._needed = (("n0", "n1"), ("n2", "n1"))
    for link in links.values():
        link.reaches = {"n0"}
    links["n1"].is_admitted = False

    async def admitted() -> bool:
        try:
            n1: Any = links["n1"]
            await paths.admit(n1)
        except HandshakeError:
            return False
        return True

    async def main() -> list[bool]:
        n0, n2 = links["n0"], links["n2"]
        found = []
        for _ in range(2):
            trying = asyncio.ensure_future(admitted())
            while not trying.done():
                await asyncio.sleep(0)
                scene.after(RETRY_US)
            found.append(await trying)
            n0.reaches.add("n1")
        n2.is_admitted = False
        found.append(await admitted())
        n2.is_admitted = True
        n2.reaches.add("n1")
        found.append(await admitted())
        return found

    assert asyncio.run(main()) == [False, False, True, True]


def test_what_lies_here_takes_no_path(scene: Scene) -> None:
    region = scene.transport.allocate(GROUP, 1, scene.links["n0"].home)
    scene.transport.move(region, HERE, 0, 0, scene.ended.append)
    scene.after(2 * OVERDUE_US)
    assert not scene.ended, "it comes over a link that is watched itself"
