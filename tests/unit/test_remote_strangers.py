"""Who calls an agent without the secret keeps nobody out who has it, and does not fill the log."""

import asyncio
import logging
import math
import socket
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from headrace.serving.complaints import AGAIN_S, MOST_SENTENCES, Complaints
from headrace.serving.workers.remote import handshake
from headrace.serving.workers.remote.agent import MOST_STRANGERS, Agent, AgentOptions
from headrace.serving.workers.remote.handshake import (
    MAGIC,
    MOST_TRIES,
    NONCE_BYTES,
    answer,
    call,
    proof,
)
from headrace.serving.workers.remote.strangers import Strangers

PATIENCE_S = 60.0
SECRET = b"a secret of sixteen bytes"
HERE, ELSEWHERE = "127.0.0.1", "127.0.0.2"
"""Both are this machine's loopback, and two addresses to an agent."""
QUIET = logging.getLogger("tests.quiet")

Handshake = asyncio.Future[None]


@pytest.fixture(autouse=True)
def _without_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    """However busy this machine is, nobody's time is over."""
    monkeypatch.setattr(handshake, "HANDSHAKE_S", PATIENCE_S)
    monkeypatch.setattr("headrace.serving.complaints.AGAIN_S", math.inf)


class Caller:
    """Of an agent; it has been accepted and greeted."""

    def __init__(self, endpoint: socket.socket, greeting: bytes) -> None:
        self._endpoint = endpoint
        self._greeting = greeting

    @classmethod
    async def greeted(cls, port: int, address: str) -> "Caller":
        loop = asyncio.get_running_loop()
        endpoint = socket.socket()
        endpoint.setblocking(False)
        endpoint.bind((address, 0))
        await loop.sock_connect(endpoint, (HERE, port))
        greeting = b""
        while len(greeting) < len(MAGIC) + NONCE_BYTES:
            greeting += await loop.sock_recv(endpoint, len(MAGIC) + NONCE_BYTES - len(greeting))
        return cls(endpoint, greeting)

    async def proves(self) -> bytes:
        """The first of what it gets for that."""
        loop, ours = asyncio.get_running_loop(), bytes(NONCE_BYTES)
        proved = proof(SECRET, "caller", b"G", self._greeting[len(MAGIC) :], ours)
        await loop.sock_sendall(self._endpoint, MAGIC + b"G" + ours + proved)
        return await self.said()

    async def said(self) -> bytes:
        return await asyncio.get_running_loop().sock_recv(self._endpoint, 1)

    def close(self) -> None:
        self._endpoint.close()


def play(scene: Callable[[int], Awaitable[None]], folder: Path) -> None:
    """Over an agent that listens on that port."""

    async def main() -> None:
        agent = Agent(AgentOptions(name="n0", host=HERE, port=0, secret=SECRET, cache=folder))
        _, port = agent.open()
        serving = asyncio.ensure_future(agent.serve())
        try:
            await scene(port)
        finally:
            serving.cancel()
            await asyncio.gather(serving, return_exceptions=True)

    asyncio.run(asyncio.wait_for(main(), PATIENCE_S))


@pytest.mark.parametrize("address", [HERE, ELSEWHERE], ids=["from its address", "from elsewhere"])
def test_a_gateway_comes_in_however_many_connect_and_say_nothing(
    address: str, tmp_path: Path
) -> None:
    async def scene(port: int) -> None:
        crowd = [await Caller.greeted(port, address) for _ in range(2 * MOST_STRANGERS)]
        (await call(HERE, port, SECRET, "gateway", None)).close()
        for each in crowd:
            each.close()

    play(scene, tmp_path)


def test_one_call_from_an_address_stays_however_slow_it_is_and_however_many_come_from_another(
    tmp_path: Path,
) -> None:
    async def scene(port: int) -> None:
        slow = await Caller.greeted(port, HERE)
        crowd = [await Caller.greeted(port, ELSEWHERE) for _ in range(3 * MOST_STRANGERS)]
        assert await slow.proves()
        for each in (slow, *crowd):
            each.close()

    play(scene, tmp_path)


def test_who_gives_way_can_tell_that_from_a_refusal(tmp_path: Path) -> None:
    async def scene(port: int) -> None:
        crowd = [await Caller.greeted(port, HERE) for _ in range(MOST_STRANGERS + 1)]
        with pytest.raises(ConnectionResetError):
            await crowd[0].said()
        for each in crowd:
            each.close()

    play(scene, tmp_path)


def test_the_log_says_once_that_strangers_crowd_an_agent_and_from_where(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def scene(port: int) -> None:
        for _ in range(2):
            crowd = [await Caller.greeted(port, ELSEWHERE) for _ in range(2 * MOST_STRANGERS)]
            for each in crowd:
                each.close()
            # By then all that has ended before is known to the agent.
            (await call(HERE, port, SECRET, "gateway", None)).close()

    with caplog.at_level(logging.WARNING, "headrace.agent"):
        play(scene, tmp_path)
    lines = [record.getMessage() for record in caplog.records if record.name == "headrace.agent"]
    assert sum(f"{ELSEWHERE}: more than {MOST_STRANGERS} callers" in line for line in lines) == 1
    assert len(lines) == len(set(lines)) < 5


def test_of_addresses_the_one_with_most_gives_way_and_of_equals_the_first() -> None:
    async def main() -> None:
        door, loop = Strangers(4, Complaints(QUIET)), asyncio.get_running_loop()

        def enter(address: str) -> Handshake:
            entered: Handshake = loop.create_future()
            door.enter(address, entered)
            return entered

        one, *crowd = [enter(address) for address in ("a", "b", "b", "b")]
        two = enter("c")
        assert [each.cancelled() for each in crowd] == [True, False, False]
        crowd[1].set_result(None)
        await asyncio.sleep(0)  # Its callbacks: there is room again.
        three = enter("d")
        assert not any(each.cancelled() for each in (one, crowd[2], two, three))
        four = enter("e")
        assert one.cancelled()
        assert not any(each.cancelled() for each in (crowd[2], two, three, four))

    asyncio.run(main())


def test_complaints_are_as_few_as_addresses_and_never_more_than_so_many(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("headrace.serving.complaints.AGAIN_S", AGAIN_S)
    now_s = 0.0
    complaints = Complaints(QUIET, lambda: now_s)

    def lines() -> list[str]:
        found = [record.getMessage() for record in caplog.records]
        caplog.clear()
        return found

    for _ in range(100):
        complaints.warn("a", "has proved nothing")
        complaints.warn("a", "does not know the secret")
        complaints.warn("b", "has proved nothing")
    assert lines() == [
        "a: has proved nothing",
        "a: does not know the secret",
        "b: has proved nothing",
    ]
    for number in range(1000):
        complaints.warn(f"c{number}", "has proved nothing")
    assert len(lines()) == MOST_SENTENCES - 3
    now_s = AGAIN_S
    complaints.warn("a", "has proved nothing")
    unsaid = 3 * 99 + 1000 - (MOST_SENTENCES - 3)
    assert lines() == [
        f"{unsaid} more complaints of callers within the last 60 s",
        "a: has proved nothing",
    ]


def test_a_call_that_had_to_give_way_is_made_again() -> None:
    """By somebody who listens as an agent does."""

    async def main() -> None:
        loop = asyncio.get_running_loop()
        with socket.create_server((HERE, 0)) as listener:
            listener.setblocking(False)
            calling = loop.create_task(
                call(HERE, listener.getsockname()[1], SECRET, "gateway", None)
            )
            for _ in range(MOST_TRIES - 1):
                endpoint, _ = await loop.sock_accept(listener)
                answering = loop.create_task(answer(endpoint, SECRET, None))
                await asyncio.sleep(0)  # It has begun.
                answering.cancel()
            endpoint, _ = await loop.sock_accept(listener)
            answered, role = await answer(endpoint, SECRET, None)
            assert role == "gateway"
            (await calling).close()
            answered.close()

    asyncio.run(asyncio.wait_for(main(), PATIENCE_S))
