"""A server has a list of fronts; one more is a file (line_front.py) and a row in a table."""

import asyncio
import dataclasses
import errno
import os
import socket
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from headrace.serving.core.protocol import ProtocolCore
from headrace.serving.engine.inference import Refusal
from headrace.serving.front.access import Access
from headrace.serving.front.base import AddressError, Front, FrontOptions, FrontsAsked
from headrace.serving.front.table import FRONTS, FrontKind, fronts_for_all, fronts_of
from headrace.serving.lifecycle import Server
from headrace.serving.workers.host import HostGoneError
from helpers.gateway import Reply, StartedEngine, get, parse_reply, post
from helpers.line_front import LineFront
from helpers.live_server import PATIENCE_S

JSON = b'{"inputs":[{"name":"x","shape":[1,4],"datatype":"FP32","data":[1,2,3,4]}]}'


class Fronts:
    """A server with the fronts named, in a folder for sockets."""

    def __init__(self, names: list[str], folder: Path, engine: StartedEngine) -> None:
        self.engine = engine
        self.core = ProtocolCore(engine)
        self.socket = str(folder / "lines.sock")
        access = Access(bind_host="127.0.0.1", token=None)
        hosts = {"line": self.socket}
        self.fronts: list[Front] = [
            FRONTS[name].make(
                self.core,
                FrontOptions(host=hosts.get(name, "127.0.0.1"), port=0, access=access),
            )
            for name in names
        ]
        self.server = Server(engine, self.fronts)

    def run(self, ask: Callable[["Fronts"], Awaitable[None]]) -> None:
        """Serve until `ask` has returned, then drain."""
        asyncio.run(self._run(ask))

    async def _run(self, ask: Callable[["Fronts"], Awaitable[None]]) -> None:
        async def ask_and_stop() -> None:
            try:
                await ask(self)
            finally:
                self.server.stop()

        asking: list[asyncio.Task[None]] = []
        await self.server.run(lambda _: asking.append(asyncio.create_task(ask_and_stop())))
        await asyncio.gather(*asking)

    async def line(self, line: str) -> str:
        reader, writer = await asyncio.open_unix_connection(self.socket)
        try:
            writer.write(line.encode() + b"\n")
            return (await reader.readline()).decode().strip()
        finally:
            writer.close()

    async def http(self, request: bytes) -> bytes:
        host, _, port = self.fronts[0].address.removeprefix("http://").rpartition(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        writer.write(request.replace(b"Host:", b"Connection: close\r\nHost:"))
        told = await reader.read()
        writer.close()
        reply, _ = parse_reply(told)
        return reply.body


@pytest.fixture(autouse=True)
def _one_more_row(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(
        FRONTS, "line", FrontKind(make=LineFront, options=lambda asked: asked.common)
    )


def test_two_fronts_serve_the_same_models_and_share_one_count(tmp_path: Path) -> None:
    served = Fronts(["http", "line"], tmp_path, StartedEngine())

    async def ask(served: Fronts) -> None:
        assert await served.line("adder 1 2 3 4") == "ok 2.0 3.0 4.0 5.0"
        assert b"[2.0,3.0,4.0,5.0]" in await served.http(post("/v2/models/adder/infer", JSON))
        metrics = await served.http(get("/metrics"))
        assert b'headrace_requests_total{model="adder",outcome="answered"} 2.0' in metrics

    served.run(ask)
    assert served.core.counters["adder"].answered == 2
    assert served.engine.life == ["start", "drain", "stop"]


def test_a_row_of_the_table_is_all_that_a_server_needs_to_start_another_front() -> None:
    access = Access(bind_host="127.0.0.1", token=None)
    asked = FrontsAsked(common=FrontOptions(host="127.0.0.1", port=0, access=access))
    core = ProtocolCore(StartedEngine())

    assert list(fronts_of(core, asked)) == ["http", "admin", "line"]
    assert fronts_for_all(asked) == 2

    asked = dataclasses.replace(asked, grpc_port=0)
    assert list(fronts_of(core, asked)) == ["http", "grpc", "admin", "line"]
    assert fronts_for_all(asked) == 3


def test_a_server_that_will_never_answer_again_ends_and_says_why(tmp_path: Path) -> None:
    served = Fronts(["http", "line"], tmp_path, StartedEngine())

    async def test() -> None:
        with pytest.raises(HostGoneError, match="refused by all agents"):
            await served.server.run(lambda _: served.engine.gone.set())
        assert served.engine.life == ["start", "stop"]
        # From Python 3.13 on its file is gone with it.
        with pytest.raises((ConnectionRefusedError, FileNotFoundError)):
            await asyncio.open_unix_connection(served.socket)

    asyncio.run(asyncio.wait_for(test(), PATIENCE_S))


def connected(served: Fronts) -> socket.socket:
    """A client whom the kernel has let in; the server does not know yet."""
    host, _, port = served.fronts[0].address.removeprefix("http://").rpartition(":")
    return socket.create_connection((host, int(port)))


async def told(client: socket.socket) -> tuple[int, str | None]:
    """The status, and what becomes of the connection."""
    reader, writer = await asyncio.open_connection(sock=client)
    reply, _ = parse_reply(await reader.read())
    writer.close()
    return reply.status, reply.headers.get("connection")


def test_who_has_connected_when_the_listener_is_closed_is_answered(tmp_path: Path) -> None:
    served = Fronts(["http"], tmp_path, StartedEngine())

    async def ask(served: Fronts) -> None:
        clients = [connected(served) for _ in range(3)]
        for client in clients:
            client.sendall(post("/v2/models/adder/infer", JSON))
        served.server.stop()
        assert await asyncio.gather(*map(told, clients)) == [(200, "close")] * 3
        with pytest.raises(ConnectionRefusedError):
            connected(served)

    served.run(ask)
    assert served.core.counters["adder"].answered == 3


def test_a_server_without_descriptors_stops_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    served = Fronts(["http"], tmp_path, StartedEngine())

    def none_left(_: int) -> int:
        raise OSError(errno.EMFILE, "Too many open files")

    async def ask(served: Fronts) -> None:
        assert b"outputs" in await served.http(post("/v2/models/adder/infer", JSON))
        monkeypatch.setattr(os, "dup", none_left)

    served.run(ask)
    with pytest.raises(ConnectionRefusedError):
        connected(served)


def test_what_an_idle_client_has_sent_before_the_server_drains_is_answered(tmp_path: Path) -> None:
    served = Fronts(["http"], tmp_path, StartedEngine())

    async def ask(served: Fronts) -> None:
        client, idle = connected(served), connected(served)
        while served.fronts[0].connections < 2:
            await asyncio.sleep(0)
        client.sendall(post("/v2/models/adder/infer", JSON))
        for front in served.fronts:
            front.drain()
        assert await told(client) == (200, "close")
        assert idle.recv(1) == b""
        idle.close()

    served.run(ask)


def test_a_new_front_tells_every_ending_and_counts_none_itself(tmp_path: Path) -> None:
    served = Fronts(["line"], tmp_path, StartedEngine(at_once=False))
    engine = served.engine

    async def ask(served: Fronts) -> None:
        assert (await served.line("nobody 1")).startswith("invalid no model is named 'nobody'")
        assert "needs shape [n, 4], got [1, 2]" in await served.line("adder 1 2")
        assert "could not convert" in await served.line("adder 1 2 3 x")
        late = asyncio.create_task(served.line("adder 1 2 3 4"))
        await opened(engine)
        engine.finish(engine.answer_to(engine.open[0], ended_at_us=200_000))
        assert await late == "late"
        refused = asyncio.create_task(served.line("adder 1 2 3 4"))
        await opened(engine)
        engine.finish(Refusal(reason="no-slot", message="lost", retry_after_us=5))
        assert await refused == "refused no-slot"
        left = asyncio.create_task(served.line("adder 1 2 3 4"))
        await opened(engine)
        left.cancel()
        while not engine.cancelled:
            await asyncio.sleep(0)

    served.run(ask)
    counters = served.core.counters["adder"]
    assert (counters.answered, counters.late) == (0, 1)
    assert counters.refused == {"bad-request": 2, "no-slot": 1, "cancelled": 1}


async def opened(engine: StartedEngine) -> None:
    while not engine.open:
        await asyncio.sleep(0)


def test_a_front_that_cannot_listen_stops_those_that_do_and_starts_nothing(tmp_path: Path) -> None:
    served = Fronts(["line", "http"], tmp_path, StartedEngine())
    options = FrontOptions(
        host="no.such.host.invalid", port=0, access=Access(bind_host="127.0.0.1", token=None)
    )
    served.fronts[1] = FRONTS["http"].make(served.core, options)

    async def never(served: Fronts) -> None:
        pytest.fail("it is not ready")

    with pytest.raises(AddressError, match="cannot listen"):
        served.run(never)
    assert served.engine.life == []
    line = served.fronts[0]
    assert isinstance(line, LineFront)
    assert line._listener is not None
    assert not line._listener.is_serving()


def test_a_retired_server_still_answers_and_says_that_it_is_not_ready(tmp_path: Path) -> None:
    served = Fronts(["http", "line"], tmp_path, StartedEngine())
    served.server._lame_duck_s = 600.0
    told: list[bytes] = []

    async def ask(served: Fronts) -> None:
        assert b'"ready":true' in await served.http(get("/v2/health/ready"))
        host, _, port = served.fronts[0].address.removeprefix("http://").rpartition(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        served.server.retire()
        while served.core.ready:
            await asyncio.sleep(0)
        assert b"not ready" in await served.http(get("/v2/health/ready"))
        assert await served.line("adder 1 2 3 4") == "ok 2.0 3.0 4.0 5.0"
        writer.write(post("/v2/models/adder/infer", JSON))
        told.append(await reader.read())
        writer.close()
        assert served.engine.life == ["start"]

    served.run(ask)
    [reply] = told
    assert reply.startswith(b"HTTP/1.1 200 ")
    assert b"Connection: close" in reply
    assert served.engine.life == ["start", "drain", "stop"]


def answer_at_the_end(served: Fronts) -> tuple[Reply, bytes]:
    """Of a request that is open when the server is told to stop, and what comes behind it."""
    clients: list[socket.socket] = []

    async def ask(served: Fronts) -> None:
        clients.append(connected(served))
        clients[0].sendall(post("/v2/models/adder/infer", JSON))
        await opened(served.engine)

    served.run(ask)
    with clients[0] as client:
        return parse_reply(client.recv(1 << 16))


def test_what_is_open_when_the_time_to_drain_is_over_is_refused_and_told_so(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Its client has allowed more time than a server has that is told to stop."""
    served = Fronts(["http"], tmp_path, StartedEngine(at_once=False))

    reply, rest = answer_at_the_end(served)

    assert (reply.status, reply.json["reason"]) == (503, "draining")
    assert (reply.headers["retry-after"], rest) == ("1", b"")
    assert served.core.counters["adder"].refused == {"draining": 1}
    assert "1 inferences are still open, and are refused" in caplog.text


def test_a_server_that_is_told_to_end_at_once_refuses_what_is_open(tmp_path: Path) -> None:
    served = Fronts(["http"], tmp_path, StartedEngine(at_once=False))

    async def drains_for_ever(grace_s: float) -> bool:
        served.server.stop()
        await asyncio.Event().wait()
        return True

    served.engine.drain = drains_for_ever  # type: ignore[method-assign]

    reply, _ = answer_at_the_end(served)

    assert (reply.status, reply.json["reason"]) == (503, "draining")


def test_a_server_that_drains_begins_no_other_plan(tmp_path: Path) -> None:
    served = Fronts(["http"], tmp_path, StartedEngine())
    life = served.engine.life

    class Changing:
        async def reload(self) -> None:
            life.append("reload")
            try:
                await asyncio.Event().wait()
            finally:
                life.append("no reload")

    served.server._changeover = Changing()  # type: ignore[assignment]

    async def ask(served: Fronts) -> None:
        served.server.reload()
        while life[-1] != "reload":
            await asyncio.sleep(0)

    served.run(ask)
    assert life == ["start", "reload", "no reload", "drain", "stop"]
