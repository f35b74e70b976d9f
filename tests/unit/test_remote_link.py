"""A link that breaks: when it is tried again, and who answers there then."""

import asyncio
import errno
import os
import socket
from collections.abc import Awaitable, Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from headrace import __version__
from headrace.serving.workers.activity import Activity
from headrace.serving.workers.frames import Finished, Run
from headrace.serving.workers.host import HostGoneError
from headrace.serving.workers.remote import agent as agent_module
from headrace.serving.workers.remote import link as link_module
from headrace.serving.workers.remote.agent import Agent, AgentOptions
from headrace.serving.workers.remote.cluster import (
    ClusterAddresses,
    close_links,
    connect_links,
    open_links,
)
from headrace.serving.workers.remote.frames import (
    ActivityOf,
    Hello,
    Open,
    Opened,
    Order,
    Ping,
    Pong,
    RunsFor,
)
from headrace.serving.workers.remote.handshake import HandshakeError, SupersededError
from headrace.serving.workers.remote.link import DELAYED_S, RECONNECT_S, Address, AgentLink
from headrace.serving.workers.remote.orders import Orders
from headrace.serving.workers.remote.session import Session
from helpers.agents import opened_links

PATIENCE_S = 60.0
SECRET = b"a secret of sixteen bytes"
EARLY_S = 0.001
"""By so much a timer may be early for its clock."""


class OneAgent:
    """In this process, and started anew at the same address."""

    def __init__(self, cache: Path) -> None:
        self._cache = cache
        self.address = Address(host="127.0.0.1", port=0)
        self._serving: asyncio.Future[None]

    def start(self, cores: tuple[int, ...] = ()) -> None:
        host, port = self.address.host, self.address.port
        options = AgentOptions(
            name="n0", host=host, port=port, secret=SECRET, cache=self._cache, cores=cores
        )
        self.agent = Agent(options)
        host, port = self.agent.open()
        self.address = Address(host=host, port=port)
        self._serving = asyncio.ensure_future(self.agent.serve())

    async def end(self) -> None:
        self._serving.cancel()
        await asyncio.gather(self._serving, return_exceptions=True)


def linked(folder: Path, test: Callable[[AgentLink, OneAgent], Awaitable[None]]) -> None:
    async def main() -> None:
        agent = OneAgent(folder)
        agent.start()
        cluster = ClusterAddresses(nodes={"n0": agent.address}, secret=SECRET)
        links = await opened_links(cluster, "n0")
        try:
            await test(links["n0"], agent)
        finally:
            await close_links(links)
            await agent.end()

    asyncio.run(asyncio.wait_for(main(), PATIENCE_S))


@pytest.mark.parametrize("last", [Hello("n0", __version__, 1, False, (), ""), Opened(7)])
def test_who_leaves_behind_a_word_was_never_there(last: Hello | Opened, tmp_path: Path) -> None:
    """Both come in one turn of the loop, before whoever waits for the word has read it."""

    async def test(link: AgentLink, agent: OneAgent) -> None:
        asking: asyncio.Future[Any]
        link.on_closed("it breaks")
        if isinstance(last, Opened):
            await link.connect()
            assert link._open_frame is not None
            asking = asyncio.ensure_future(link.open(link._open_frame))
        else:
            asking = asyncio.ensure_future(link.reach([agent.address]))
            with pytest.raises(HandshakeError, match="has left before a session was opened"):
                await asking
            await link.connect()
            asking = asyncio.ensure_future(link.reach([agent.address]))
        while link._said is None or link._said.done():
            await asyncio.sleep(0)
        link.on_frame(last)
        link.on_closed("it breaks")
        with pytest.raises(HandshakeError, match=r"has left$"):
            await asking
        assert not link.is_up
        await link.close()

    linked(tmp_path, test)


def test_an_agent_that_is_heard_and_answers_nothing_is_lost(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Its workers' beats come, and nothing of what it is asked reaches it."""

    async def test(link: AgentLink, agent: OneAgent) -> None:
        assert link._connection is not None
        first = link.session
        send = link._connection.send
        link._connection.send = lambda frame, *rest: (  # type: ignore[method-assign]
            None if isinstance(frame, Ping) else send(frame, *rest)
        )
        link.keep()
        while link.session == first:
            link._connection.heard_at_s = asyncio.get_running_loop().time()
            await asyncio.sleep(0)
        await link.until_up()

    linked(tmp_path, test)
    assert "it has answered nothing" in caplog.text


def test_whatever_fails_a_link_is_connected_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def test(link: AgentLink, agent: OneAgent) -> None:
        connect, tries = link.connect, list[int]()

        async def fail_once() -> Hello:
            tries.append(1)
            if len(tries) == 1:
                raise KeyError("a bug")
            return await connect()

        monkeypatch.setattr(link, "connect", fail_once)
        link.keep()
        link.on_closed("it breaks")
        await link.until_up()

    linked(tmp_path, test)
    assert "could not be connected" in caplog.text


def test_a_link_that_breaks_in_ever_other_steps_says_each_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(link_module, "RECONNECT_S", 0.0)

    async def test(link: AgentLink, agent: OneAgent) -> None:
        connect, tries = link.connect, list[int]()

        async def resets() -> Hello:
            tries.append(1)
            if len(tries) <= 6:
                raise HandshakeError(("it is reset", "nobody answers")[len(tries) % 2])
            return await connect()

        monkeypatch.setattr(link, "connect", resets)
        link.keep()
        link.on_closed("it breaks")
        await link.until_up()

    linked(tmp_path, test)
    said = [each for each in caplog.messages if each in ("it is reset", "nobody answers")]
    assert sorted(said) == ["it is reset", "nobody answers"]


def test_a_gateway_whose_nodes_do_not_reach_each_other_takes_none_from_another(
    tmp_path: Path,
) -> None:
    async def test(link: AgentLink, agent: OneAgent) -> None:
        link.keep()
        with socket.create_server(("127.0.0.1", 0)) as nobody:
            port = nobody.getsockname()[1]
        addresses = {"n0": agent.address, "n1": Address(host="127.0.0.1", port=port)}
        cluster = ClusterAddresses(nodes=addresses, secret=SECRET)
        links = await connect_links(cluster, ["n0"], lambda: 0)
        links["n1"] = AgentLink("n1", addresses["n1"], SECRET, None, lambda: 0)
        with pytest.raises(HandshakeError) as raised:
            await open_links(links, cluster.gateway, "plan", 1 << 16, None, [("n0", "n1")])
        assert f"node 'n1' (127.0.0.1:{port}): node 'n0' does not reach it" in str(raised.value)
        await close_links(links)
        assert link.is_up, "it is obeyed as before"
        again = await connect_links(cluster, ["n0"], lambda: 0)
        await open_links(again, cluster.gateway, "plan", 1 << 16, None, [("n0", "n0")])
        assert again["n0"].is_up
        await close_links(again)

    linked(tmp_path, test)


def cluster_of(agent: OneAgent) -> ClusterAddresses:
    """As one more gateway sees it."""
    return ClusterAddresses(nodes={"n0": agent.address}, secret=SECRET)


def test_a_plan_that_grows_finds_a_node_that_has_served_others_meanwhile(tmp_path: Path) -> None:
    async def main() -> None:
        agent = OneAgent(tmp_path)
        agent.start()
        ours = cluster_of(agent)
        await close_links(await opened_links(ours, "n0"))  # the next plan does without it
        for _ in range(2):
            await close_links(await opened_links(cluster_of(agent), "n0"))
        grown = await opened_links(ours, "n0")
        assert grown["n0"].is_up
        await close_links(grown)
        await agent.end()

    asyncio.run(asyncio.wait_for(main(), PATIENCE_S))


def test_a_plan_that_grows_takes_no_node_from_another_gateway(tmp_path: Path) -> None:
    async def main() -> None:
        agent = OneAgent(tmp_path)
        agent.start()
        ours = cluster_of(agent)
        await close_links(await opened_links(ours, "n0"))
        theirs = await opened_links(cluster_of(agent), "n0")
        with pytest.raises(HandshakeError, match=r"n0.*serves another gateway\n  try"):
            await opened_links(ours, "n0")
        assert theirs["n0"].is_up
        await close_links(theirs)
        await agent.end()

    asyncio.run(asyncio.wait_for(main(), PATIENCE_S))


def test_whom_another_gateway_has_superseded_does_not_come_back_with_another_plan(
    tmp_path: Path,
) -> None:
    async def main() -> None:
        agent = OneAgent(tmp_path)
        agent.start()
        ours = cluster_of(agent)
        before = await opened_links(ours, "n0")
        theirs = await opened_links(cluster_of(agent), "n0")
        with pytest.raises(
            SupersededError, match=r"another gateway, of epoch 2, has taken over.*\n  try  "
        ) as raised:
            await opened_links(ours, "n0")
        assert raised.value.exit_code == HostGoneError.exit_code, "a service manager leaves it"
        assert theirs["n0"].is_up
        for links in (before, theirs):
            await close_links(links)
        await agent.end()

    asyncio.run(asyncio.wait_for(main(), PATIENCE_S))


@pytest.mark.parametrize(("arena_bytes", "kept"), [(1 << 16, True), (1 << 17, False)])
def test_a_gateway_that_follows_finds_the_workers_however_often_their_plan_was_served(
    tmp_path: Path, arena_bytes: int, kept: bool
) -> None:
    async def main() -> None:
        agent = OneAgent(tmp_path)
        agent.start()
        ours = cluster_of(agent)
        served = await opened_links(ours, "n0")
        again = await opened_links(ours, "n0")
        await close_links(served)
        while len(agent.agent.sessions()) > 1:
            await asyncio.sleep(0)
        [before] = agent.agent.sessions()
        follows = cluster_of(agent)
        links = await opened_links(follows, "n0", arena_bytes=arena_bytes)
        [session] = agent.agent.sessions()
        assert (session is before) == kept
        links["n0"].keep()
        links["n0"].on_closed("it breaks")
        await links["n0"].until_up()
        assert agent.agent.sessions() == [session], "a link that breaks finds it too"
        for each in (again, links):
            await close_links(each)
        await agent.end()

    asyncio.run(asyncio.wait_for(main(), PATIENCE_S))


def test_a_link_that_ends_as_soon_as_it_is_up_is_tried_at_measured_intervals(
    tmp_path: Path,
) -> None:
    async def test(link: AgentLink, agent: OneAgent) -> None:
        tried_at_s, connect = list[float](), link.connect

        async def noted() -> Hello:
            tried_at_s.append(asyncio.get_running_loop().time())
            return await connect()

        link.connect = noted  # type: ignore[method-assign]
        link.keep()
        for _ in range(4):
            link.on_closed("it breaks")
            await link.until_up()
        gaps_s = [after - before for before, after in pairwise(tried_at_s)]
        assert len(gaps_s) == 3
        assert min(gaps_s) >= RECONNECT_S - EARLY_S

    linked(tmp_path, test)


def test_an_agent_that_lacks_memory_for_a_moment_is_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only who is refused for ever leaves it at that."""
    whole, refused = Agent._new_session, list[int]()

    def short_of_memory(self: Agent, frame: Open) -> Session:
        if len(refused) < 2:
            refused.append(frame.arena_bytes)
            raise OSError(errno.ENOMEM, os.strerror(errno.ENOMEM))
        return whole(self, frame)

    async def test(link: AgentLink, agent: OneAgent) -> None:
        link.keep()
        monkeypatch.setattr(Agent, "_new_session", short_of_memory)
        await agent.end()
        agent.start()
        while link.is_up:
            await asyncio.sleep(0)
        await link.until_up()
        assert refused == [1 << 16] * 2
        assert not link.refused

    linked(tmp_path, test)


def test_an_agent_that_was_only_cut_off_is_told_from_one_that_was_started_anew(
    tmp_path: Path,
) -> None:
    async def test(link: AgentLink, agent: OneAgent) -> None:
        link.keep()
        seen = [link.incarnation]
        for died in (False, True, False):
            if died:
                await agent.end()
                agent.start()
            else:
                link.on_closed("it breaks")
            while link.is_up:
                await asyncio.sleep(0)
            await link.until_up()
            seen.append(link.incarnation)
        first, cut_off, anew, cut_off_again = seen
        assert first == cut_off
        assert cut_off != anew
        assert anew == cut_off_again

    linked(tmp_path, test)


def test_while_the_agent_answers_late_silence_counts_against_no_worker(tmp_path: Path) -> None:
    """Its words wait behind tensors, say: those are heard, and its workers' beats are not."""

    async def test(link: AgentLink, agent: OneAgent) -> None:
        loop = asyncio.get_running_loop()
        stopped = ActivityOf(4, runnable=False, ran_us=7)
        pong = Pong(0, 0, None, (stopped,))
        link.on_frame(pong)
        assert link.activity(4) == Activity(runnable=False, ran_us=7)
        assert link.activity(5) is None
        assert link._connection is not None
        link._connection.heard_at_s = link._connection._payload_at_s = loop.time()
        link._answered_at_s = loop.time() - 2 * DELAYED_S
        assert link.activity(4) == Activity(runnable=True, ran_us=7)
        assert link.activity(5) == Activity(runnable=True, ran_us=0)
        link.on_frame(pong)
        assert link.activity(4) == Activity(runnable=False, ran_us=7)

    linked(tmp_path, test)


def test_a_batch_is_with_its_worker_for_as_long_as_the_agent_says() -> None:
    run = Run(1, 1, 0, 1, (), (), slot=3)
    order, orders = Order(4, run), Orders()
    assert orders.busy_us(4, 3) is None
    orders.add(order, now_us=1_000)
    orders.told((), asked_at_us=900, now_us=800_000)
    assert orders.busy_us(4, 3) == 0, "it was on its way when the agent said so"
    orders.told((RunsFor(4, 3, 70_000),), asked_at_us=2_000, now_us=900_000)
    assert orders.busy_us(4, 3) == 70_000
    assert orders.that_ended(4, Finished(2, 1, 0, 0, 0, slot=3)) is None
    assert orders.that_ended(4, Finished(1, 1, 0, 0, 0, slot=3)) == order
    assert orders.busy_us(4, 3) == 70_000, "its answer is on the way"
    orders.remove(order)
    assert orders.that_ended(4, Finished(1, 1, 0, 0, 0, slot=3)) is None
    assert orders.busy_us(4, 3) == 70_000, "so long it took"


def test_a_batch_that_the_agent_should_have_and_does_not_know_counts_from_its_order() -> None:
    """It was damaged on the way, say."""
    orders = Orders()
    orders.add(Order(4, Run(1, 1, 0, 1, (), (), slot=3)), now_us=1_000)
    orders.told((RunsFor(5, 3, 7),), asked_at_us=1_001, now_us=901_000)
    assert orders.busy_us(4, 3) == 900_000


def test_an_agent_that_comes_back_with_other_cores_is_said_to(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(agent_module, "cores_left", lambda cores: cores or (0, 1))

    async def test(link: AgentLink, agent: OneAgent) -> None:
        link.keep()
        for cores in ((), (1,)):
            await agent.end()
            agent.start(cores)
            while link.is_up:
                await asyncio.sleep(0)
            await link.until_up()

    linked(tmp_path, test)
    [said] = [each for each in caplog.messages if "cores" in each]
    assert "may be kept on the cores [1] now, and its slots were dealt [0, 1]" in said
