"""Tensors between machines: what is late, stale or of another session is nobody's."""

import asyncio
import socket
from collections.abc import Awaitable, Callable
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from headrace.domain.tensors import TensorSpec
from headrace.executors.mps import MpsService
from headrace.serving.engine.inference import Answer, Refusal
from headrace.serving.workers.arena import Allocator, Arena
from headrace.serving.workers.remote.agent import Agent, AgentOptions
from headrace.serving.workers.remote.arrivals import Arrivals
from headrace.serving.workers.remote.cluster import ClusterAddresses, close_links
from headrace.serving.workers.remote.connection import Connection
from headrace.serving.workers.remote.files import FileStore
from headrace.serving.workers.remote.frames import Cancel, Expect, Open, Push, Tensors
from headrace.serving.workers.remote.link import Address, AgentLink
from headrace.serving.workers.remote.peers import Peers
from headrace.serving.workers.remote.session import Session
from headrace.serving.workers.remote.transport import NetworkTransport
from headrace.serving.workers.stage_io import HERE, Region, TensorGroup
from headrace.serving.workers.worker_process import WorkerLimits
from headrace.simulation.clock import SimClock
from helpers.agents import opened_links
from helpers.served import plan_by_hand
from property.test_several_machines import STAGE_US, Machine, World

PATIENCE_S = 60.0
SECRET = b"a secret of sixteen bytes"
GROUP = TensorGroup.of((TensorSpec(name="x", dtype="uint8", item_shape=(100,)),))

APART = plan_by_hand([1, 2, 1], 4, 400_000, STAGE_US, "cpu", nodes=3, gbps=0.01)
"""No stage has a slot where the one before it has."""


class Fixed:
    """A script without chance: `way_us` is long, everything else takes a millisecond."""

    def draw(self, strategy: Any, label: str) -> int:
        return 20_000 if label == "way_us" else 1_000


def machines(transport_of: Arena) -> tuple[NetworkTransport, Machine, Machine, list[Any]]:
    """Two, whose frames are kept and go nowhere."""
    world: Any = type("Nothing", (), {"sessions": 0, "workers": []})()
    one, other = Machine("n0", 0, world), Machine("n1", 1, world)
    sent: list[Any] = []
    for each in (one, other):
        each.send = partial(_kept, sent, each.node)  # type: ignore[method-assign]
    links: Any = {"n0": one, "n1": other}
    return NetworkTransport(transport_of, links, SimClock()), one, other, sent


def test_where_the_sender_is_lost_the_receiver_is_told_before_its_memory_is_anybody_elses() -> None:
    with closing(Arena(1 << 16)) as arena:
        transport, one, other, sent = machines(arena)
        freed = list[int]()

        class Watched(Allocator):
            def free(self, offset: int) -> None:
                freed.append(len(sent))
                super().free(offset)

        other.allocator = Watched(1 << 16)
        region, ended = transport.allocate(GROUP, 1, one.home), list[Region | None]()
        transport.move(region, other.home, 0, 0, ended.append)
        [(_, expect), (_, push)] = sent
        assert isinstance(expect, Expect)
        assert isinstance(push, Push)
        one.lose()
        assert sent[2:] == [("n1", Cancel(expect.transfer))]
        assert freed == [3], "after it was told"
        assert ended == [None]
        assert other.allocator.used_bytes == 0


def _kept(sent: list[Any], node: str, frame: Any) -> None:
    sent.append((node, frame))


def on_a_session(scene: Callable[[Session, Connection], Awaitable[None]], folder: Path) -> None:
    async def main() -> None:
        ours, theirs = socket.socketpair()
        connection = Connection(ours)
        opened = Open(1, "g", "key", 1 << 16, None)
        arrivals = Arrivals(FileStore(folder))
        session = Session(
            opened, WorkerLimits(), MpsService(), arrivals, Peers(SECRET, None), lambda: 0
        )
        try:
            await session.attach(connection, 1)
            await scene(session, connection)
        finally:
            await session.close()
            theirs.close()

    asyncio.run(asyncio.wait_for(main(), PATIENCE_S))


def test_what_was_cancelled_goes_nowhere_when_it_comes_late_or_is_on_its_way(
    tmp_path: Path,
) -> None:
    async def scene(session: Session, connection: Connection) -> None:
        discarded = list[str]()
        connection.discard = lambda: discarded.append("the rest")  # type: ignore[method-assign]
        for transfer in (1, 2, 3):
            session.on_frame(Expect(transfer, 0, 64))
        session.on_frame(Cancel(1))
        assert session.place_tensors(Tensors(1, 1), 64, connection) is None
        # In the middle of it.
        assert isinstance(session.place_tensors(Tensors(1, 2), 64, connection), memoryview)
        session.on_frame(Cancel(2))
        assert discarded == ["the rest"]
        assert isinstance(session.place_tensors(Tensors(1, 3), 64, connection), memoryview)

    on_a_session(scene, tmp_path)


def test_memory_of_an_earlier_session_is_neither_read_nor_freed_in_the_next(
    tmp_path: Path,
) -> None:
    async def main() -> None:
        options = AgentOptions(name="n0", host="127.0.0.1", port=0, secret=SECRET, cache=tmp_path)
        agent = Agent(options)
        host, port = agent.open()
        serving = asyncio.ensure_future(agent.serve())
        cluster = ClusterAddresses(nodes={"n0": Address(host=host, port=port)}, secret=SECRET)
        links = await opened_links(cluster, "n0")
        link: AgentLink = links["n0"]
        with closing(Arena(1 << 16)) as arena:
            clock = SimClock()
            transport = NetworkTransport(arena, links, clock)
            link.keep()
            before = transport.allocate(GROUP, 1, link.home)
            link.on_closed("the network is cut")
            await link.until_up()
            after = transport.allocate(GROUP, 1, link.home)
            assert after.offset == before.offset
            transport.free(before)
            assert link.allocator is not None
            assert link.allocator.used_bytes > 0, "that of the session now"
            ended = list[Region | None]()
            transport.move(before, HERE, 0, 0, ended.append)
            clock.run()
            assert ended == [None]
            transport.free(after)
            await close_links(links)
        serving.cancel()
        await asyncio.gather(serving, return_exceptions=True)

    asyncio.run(asyncio.wait_for(main(), PATIENCE_S))


@pytest.mark.parametrize("slot", [1, 2])
def test_a_slot_that_is_lost_while_its_tensors_come_costs_no_answer_and_no_memory(
    slot: int,
) -> None:
    """Again and again."""
    with closing(Arena(1 << 20)) as arena:
        script: Any = Fixed()
        world, moved = World(APART, arena, script), list[bool]()
        for number in range(4):
            world.clock.call_at(number, partial(world.submit, number, 4))

        def lose() -> None:
            if world.transport._moves:
                moved.append(True)
                world.lose_worker(slot)

        for at_us in range(2_000, 60_000, 2_000):
            world.clock.call_at(at_us, lose)
        world.clock.run()
        assert moved
        for number, [result] in world.results.items():
            assert isinstance(result, Answer)
            assert set(result.outputs[0]) == {number + 3}
        assert arena.used_bytes == 0
        for machine in world.machines.values():
            assert machine.allocator is not None
            assert machine.allocator.used_bytes == 0


def test_what_arrives_when_its_batch_was_dropped_is_given_back() -> None:
    """The one slot that it moved to was lost on the way, and the machine was not."""
    with closing(Arena(1 << 20)) as arena:
        plan = plan_by_hand([1, 1, 1], 4, 400_000, STAGE_US, "cpu", nodes=3, gbps=0.01)
        script: Any = Fixed()
        world, lost = World(plan, arena, script), list[int]()

        def lose() -> None:
            if world.transport._moves and not lost:
                lost.append(world.clock.now_us())
                world.workers[1].lose()

        world.submit(0, 4)
        for at_us in range(1_000, 60_000, 1_000):
            world.clock.call_at(at_us, lose)
        world.clock.run()
        assert lost
        [result] = world.results[0]
        assert isinstance(result, Refusal)
        assert arena.used_bytes == 0
        for machine in world.machines.values():
            assert machine.allocator is not None
            assert machine.allocator.used_bytes == 0
