"""Who does not prove the cluster's secret is not let in, and costs nothing."""

import asyncio
import socket
import struct
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from headrace.domain.errors import DocumentError, PlanError
from headrace.serving.workers.remote.cluster import (
    ClusterAddresses,
    parse_address,
    parse_nodes,
    read_agents,
)
from headrace.serving.workers.remote.connection import Connection, Place, tuned
from headrace.serving.workers.remote.frames import AnyRemoteFrame, Put
from headrace.serving.workers.remote.handshake import (
    LEAST_SECRET_BYTES,
    MAGIC,
    NONCE_BYTES,
    PROOF_BYTES,
    SECRET_VARIABLE,
    HandshakeError,
    answer,
    call,
    proof,
    read_secret,
)
from headrace.serving.workers.remote.link import Address
from headrace.serving.workers.remote.tls import agent_contexts, calling
from helpers.certificates import authority, signed

SECRET, OTHER = b"the secret of this cluster", b"the secret of another one"
PATIENCE_S = 60.0

Caller = Callable[[int], Awaitable[object]]


def meet(caller: Caller, **listens: object) -> tuple[object, object]:
    """What becomes of the listener, who knows SECRET, and of a caller; exceptions are results."""

    async def main() -> tuple[object, object]:
        loop = asyncio.get_running_loop()
        with socket.create_server(("127.0.0.1", 0)) as listener:
            listener.setblocking(False)

            async def listen() -> object:
                endpoint, _ = await loop.sock_accept(listener)
                shaken, role = await answer(endpoint, SECRET, listens.get("tls"))  # type: ignore[arg-type]
                shaken.close()
                return role

            async def called() -> object:
                result = await caller(listener.getsockname()[1])
                if isinstance(result, socket.socket):
                    result.close()
                    return "let in"
                return result

            both = asyncio.gather(listen(), called(), return_exceptions=True)
            listened, called_back = await asyncio.wait_for(both, PATIENCE_S)
            return listened, called_back

    return asyncio.run(main())


def test_both_know_the_secret() -> None:
    for role in ("gateway", "agent"):
        found = meet(lambda port, role=role: call("127.0.0.1", port, SECRET, role, None))  # type: ignore[misc]
        assert found == (role, "let in")


def test_a_caller_with_another_secret_is_refused_and_told_so() -> None:
    listened, called = meet(lambda port: call("127.0.0.1", port, OTHER, "gateway", None))
    assert "does not know the cluster's secret" in str(listened)
    assert "refuses this cluster's secret, or something between" in str(called)


@pytest.mark.parametrize(
    "said",
    [
        pytest.param(lambda greeting: b"", id="nothing"),
        pytest.param(lambda greeting: b"GET / HTTP/1.1\r\n\r\n" + bytes(90), id="http"),
        pytest.param(
            lambda greeting: (
                MAGIC
                + b"X"
                + bytes(NONCE_BYTES)
                + proof(SECRET, "caller", b"X", greeting[len(MAGIC) :], bytes(NONCE_BYTES))
            ),
            id="unknown role",
        ),
        pytest.param(
            # Its own greeting, sent back as if it were a caller's.
            lambda greeting: MAGIC + b"G" + greeting[len(MAGIC) :] + bytes(PROOF_BYTES),
            id="reflected",
        ),
        pytest.param(
            lambda greeting: (
                MAGIC
                + b"G"
                + bytes(NONCE_BYTES)
                + proof(SECRET, "listener", b"G", greeting[len(MAGIC) :], bytes(NONCE_BYTES))
            ),
            id="the other side's proof",
        ),
        pytest.param(
            lambda greeting: (
                MAGIC
                + b"G"
                + bytes(NONCE_BYTES)
                + proof(SECRET, "caller", b"G", bytes(NONCE_BYTES), bytes(NONCE_BYTES))
            ),
            id="an old proof",
        ),
    ],
)
def test_who_does_not_prove_it_now_gets_no_byte_more(said: Callable[[bytes], bytes]) -> None:
    async def stranger(port: int) -> bytes:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        greeting = await reader.readexactly(len(MAGIC) + NONCE_BYTES)
        writer.write(said(greeting))
        writer.write_eof()
        try:
            return await reader.read()
        except ConnectionError:
            return b""
        finally:
            writer.close()

    listened, got = meet(stranger)
    assert isinstance(listened, HandshakeError)
    assert got == b""


def test_a_listener_that_does_not_know_the_secret_is_found_out() -> None:
    async def main() -> None:
        async def impostor(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            writer.write(MAGIC + bytes(NONCE_BYTES))
            await reader.readexactly(len(MAGIC) + 1 + NONCE_BYTES + PROOF_BYTES)
            writer.write(bytes(PROOF_BYTES))
            writer.close()

        server = await asyncio.start_server(impostor, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        with pytest.raises(HandshakeError, match="does not know the cluster's secret"):
            await call("127.0.0.1", port, SECRET, "gateway", None)
        server.close()

    asyncio.run(asyncio.wait_for(main(), PATIENCE_S))


def test_a_connection_that_is_reset_says_nothing_of_the_secret() -> None:
    async def main() -> None:
        async def between(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            writer.write(MAGIC + bytes(NONCE_BYTES))
            await reader.readexactly(len(MAGIC) + 1 + NONCE_BYTES + PROOF_BYTES)
            # Closed without a wait for anything: that is a reset.
            at_once = struct.pack("ii", 1, 0)
            writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, at_once)
            writer.close()

        server = await asyncio.start_server(between, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        with pytest.raises(
            HandshakeError, match=r"over \(Connection reset.*callers without the secret may"
        ):
            await call("127.0.0.1", port, SECRET, "gateway", None)
        server.close()

    asyncio.run(asyncio.wait_for(main(), PATIENCE_S))


@pytest.mark.parametrize("text", ["", "short", "x" * (LEAST_SECRET_BYTES - 1)])
def test_a_secret_that_can_be_guessed_is_no_secret(
    text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(SECRET_VARIABLE, text)
    with pytest.raises(HandshakeError, match="needs 16"):
        read_secret(None)
    path = tmp_path / "secret"
    path.write_text(text + "\n")
    path.chmod(0o600)
    with pytest.raises(HandshakeError, match="needs 16"):
        read_secret(path)


def test_a_secret_that_others_can_read_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "secret"
    path.write_bytes(SECRET + b"\n")
    path.chmod(0o640)
    with pytest.raises(HandshakeError, match="chmod 600"):
        read_secret(path)
    path.chmod(0o600)
    assert read_secret(path) == SECRET
    with pytest.raises(HandshakeError, match="openssl rand"):
        read_secret(tmp_path / "none")


def test_addresses_are_read_and_what_is_none_is_named(tmp_path: Path) -> None:
    assert parse_nodes(["a=1.2.3.4:70", "b=local", "c=[::1]:7070"]) == {
        "a": Address(host="1.2.3.4", port=70),
        "b": None,
        "c": Address(host="::1", port=7070),
    }
    for wrong in (
        ["a"],
        ["=x:1"],
        ["a=x"],
        ["a=x:y"],
        ["a=:1"],
        ["a=x:70000"],
        ["a=l:1", "a=l:2"],
        ["a=x..y:1"],
    ):
        with pytest.raises(DocumentError, match="--node"):
            parse_nodes(wrong)
    path = tmp_path / "agents.yaml"
    path.write_text("nodes:\n  n0: 10.0.0.1:7070\n  n1: local\n")
    assert read_agents(path) == {"n0": parse_address("10.0.0.1:7070", ""), "n1": None}
    for text in (
        "nodes: {a: 'x:1'}\nnodes: {b: 'y:1'}",
        "",
        "[]",
        "nodes: [a]",
        "nodes: {a: 1}",
        "nodes: {'a b': 'x:1'}",
        "nodes: {a: x}",
        f"nodes: {{a: '{'x' * 64}:1'}}",
    ):
        path.write_text(text)
        with pytest.raises(DocumentError, match=r"agents\.yaml"):
            read_agents(path)


def test_a_plan_whose_nodes_nobody_serves_says_which() -> None:
    cluster = ClusterAddresses(nodes={"n0": None}, secret=SECRET)
    cluster.require(["n0", "n0"])
    with pytest.raises(PlanError, match="nodes n1, n2"):
        cluster.require(["n2", "n0", "n1"])
    assert SECRET.decode() not in repr(cluster)


class Receiver:
    """Of one payload."""

    def __init__(self) -> None:
        self.payload = bytearray()
        self.done: asyncio.Future[str] = asyncio.get_running_loop().create_future()

    def place(self, frame: AnyRemoteFrame, length: int) -> Place:
        self.payload = bytearray(length)
        return memoryview(self.payload)

    def on_frame(self, frame: AnyRemoteFrame) -> None:
        self.done.set_result("arrived")

    def on_closed(self, reason: str) -> None:
        if not self.done.done():
            self.done.set_result(reason)


def test_tensors_cross_tls_and_an_agent_of_another_authority_is_not_believed(
    tmp_path: Path,
) -> None:
    ours = authority(tmp_path)
    pair = signed(tmp_path, "agent", ours)
    listens, calls = agent_contexts(pair.certificate, pair.key, ours.certificate)
    content = bytes(range(256)) * 20_000

    async def main() -> None:
        loop = asyncio.get_running_loop()
        with socket.create_server(("127.0.0.1", 0)) as listener:
            listener.setblocking(False)
            port = listener.getsockname()[1]

            async def listen() -> socket.socket:
                endpoint, _ = await loop.sock_accept(listener)
                return (await answer(endpoint, SECRET, listens))[0]

            listened, called = await asyncio.gather(
                listen(), call("127.0.0.1", port, SECRET, "agent", calls)
            )
            receiving, sending = Connection(tuned(listened)), Connection(tuned(called))
            receiver = receiving.handler = Receiver()
            sending.handler = Receiver()
            receiving.start()
            sending.start()
            sending.send(Put(0), memoryview(content))
            assert await receiver.done == "arrived"
            assert receiver.payload == content
            receiving.close()
            sending.close()

    asyncio.run(asyncio.wait_for(main(), PATIENCE_S))
    strangers = calling(authority(tmp_path, "strangers").certificate)
    listened, called = meet(
        lambda port: call("127.0.0.1", port, SECRET, "gateway", strangers), tls=listens
    )
    assert isinstance(listened, HandshakeError)
    assert "certificate is not trusted" in str(called)
    with pytest.raises(HandshakeError, match="all three"):
        agent_contexts(pair.certificate, None, None)


def without_limit(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """Handshakes have time until what is returned is called: then it is over."""
    limits: list[asyncio.Timeout] = []

    def timeout(delay_s: float) -> asyncio.Timeout:
        limits.append(asyncio.timeout_at(None))
        return limits[-1]

    def end() -> None:
        for limit in limits:
            limit.reschedule(asyncio.get_running_loop().time())

    monkeypatch.setattr(asyncio, "timeout", timeout)
    return end


def test_where_the_agent_alone_speaks_tls_both_ends_say_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ours = authority(tmp_path)
    pair = signed(tmp_path, "agent", ours)
    listens, _ = agent_contexts(pair.certificate, pair.key, ours.certificate)

    async def leaves_at_once(port: int) -> None:
        _, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.close()

    listened, _ = meet(leaves_at_once, tls=listens)
    assert "it has closed its end; it may speak no TLS" in str(listened)

    end, waiting = without_limit(monkeypatch), list[object]()
    add_reader = asyncio.SelectorEventLoop.add_reader

    def wait(loop: asyncio.SelectorEventLoop, *given: Any) -> None:
        add_reader(loop, *given)
        waiting.append(given)
        if len(waiting) == 2:  # each for the other
            end()

    monkeypatch.setattr(asyncio.SelectorEventLoop, "add_reader", wait)
    listened, called = meet(
        lambda port: call("127.0.0.1", port, SECRET, "gateway", None), tls=listens
    )
    assert "it takes more than 5 s; it may speak no TLS" in str(listened)
    assert "--cluster-ca" in str(listened)
    assert "within 5 s, though the connection stands: it may speak TLS" in str(called)
    assert "--cluster-ca here, if that agent has --tls-cert" in str(called)


def test_where_the_caller_alone_speaks_tls_both_ends_say_so(tmp_path: Path) -> None:
    calls = calling(authority(tmp_path).certificate)
    listened, called = meet(lambda port: call("127.0.0.1", port, SECRET, "gateway", calls))
    assert "a caller speaks TLS, and this agent does not" in str(listened)
    assert "no agent answers there: it speaks no TLS" in str(called)
    assert "--tls-cert, --tls-key and --tls-ca there, or no --cluster-ca here" in str(called)


def test_an_agent_that_has_greeted_and_then_says_nothing_speaks_no_tls(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    end = without_limit(monkeypatch)

    async def main() -> None:
        async def stops(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            writer.write(MAGIC + bytes(NONCE_BYTES))
            await reader.readexactly(len(MAGIC) + 1 + NONCE_BYTES + PROOF_BYTES)
            end()
            await reader.read()
            writer.close()

        server = await asyncio.start_server(stops, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        with pytest.raises(HandshakeError, match="no agent answers within 5 s\n"):
            await call("127.0.0.1", port, SECRET, "gateway", None)
        server.close()

    asyncio.run(asyncio.wait_for(main(), PATIENCE_S))
