"""TLS on both ports: certificates of the server, and of clients where they are asked for."""

import asyncio
import os
import ssl
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any, cast

import pytest
import uvloop

from headrace.load.options import ClientTls
from headrace.serving.core.protocol import ProtocolCore
from headrace.serving.front.access import Access, AccessError
from headrace.serving.front.base import Front, FrontOptions
from headrace.serving.front.grpc import frames
from headrace.serving.front.http_messages import Limits
from headrace.serving.front.table import FRONTS
from headrace.serving.front.tls import STRICT, TlsFiles, tls_files
from headrace.serving.front.tls_failures import on_failure
from helpers.certificates import Pair, authority, signed
from helpers.gateway import TOKEN, FakeEngine, get, post
from helpers.live_server import PATIENCE_S


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("certificates")


@pytest.fixture(scope="module")
def ours(folder: Path) -> Pair:
    return authority(folder)


@pytest.fixture(scope="module")
def server(folder: Path, ours: Pair) -> Pair:
    return signed(folder, "server", ours)


HTTP = b"GET /v2/health/live HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
INFER = post(
    "/v2/models/adder/infer",
    b'{"inputs":[{"name":"x","shape":[1,4],"datatype":"FP32","data":[1,2,3,4]}]}',
)
Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]
GRPC = frames.PREFACE + frames.settings(())


def front_of(
    name: str,
    tls: TlsFiles | None,
    engine: FakeEngine | None = None,
    *,
    limits: Limits | None = None,
    token: str | None = None,
) -> Front:
    options = FrontOptions(
        host="127.0.0.1",
        port=0,
        access=Access(bind_host="127.0.0.1", token=token),
        limits=limits or Limits(),
        tls=tls,
    )
    return FRONTS[name].make(ProtocolCore(engine or FakeEngine()), options)


def first_bytes(name: str, tls: TlsFiles, client: ssl.SSLContext | None) -> tuple[bytes, str]:
    """What a front says first to a client, and its address; b"" where it lets nobody in."""

    async def ask() -> tuple[bytes, str]:
        front = front_of(name, tls)
        await front.listen()
        port = int(front.address.rpartition(":")[2])
        try:
            reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=client)
            writer.write(HTTP if name == "http" else GRPC)
            told = await reader.read(9)
            writer.close()
        except (ssl.SSLError, ConnectionError):
            told = b""
        finally:
            await front.stop()
        return told, front.address

    return asyncio.run(ask())


def client_of(authority: Pair, own: Pair | None = None, alpn: str = "") -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=str(authority.certificate))
    context.verify_flags &= ~STRICT
    if own is not None:
        context.load_cert_chain(own.certificate, own.key)
    if alpn:
        context.set_alpn_protocols([alpn])
    return context


def test_an_authority_that_does_not_say_what_its_key_is_for_is_taken_whatever_python_asks_for(
    ours: Pair, server: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    default = ssl.create_default_context

    def of_python_3_13(*arguments: Any, **options: Any) -> ssl.SSLContext:
        context = default(*arguments, **options)
        context.verify_flags |= ssl.VERIFY_X509_STRICT
        return context

    monkeypatch.setattr(ssl, "create_default_context", of_python_3_13)
    shown = TlsFiles(
        certificate=server.certificate, key=server.key, client_authority=ours.certificate
    )
    shown_by_client = ClientTls(
        authority=ours.certificate, certificate=server.certificate, key=server.key
    )
    told, _ = first_bytes("grpc", shown, shown_by_client.context("h2"))
    assert told[3] == frames.SETTINGS


@pytest.mark.parametrize("name", ["http", "grpc"])
def test_a_port_with_a_certificate_speaks_tls_and_nothing_else(
    ours: Pair, server: Pair, name: str
) -> None:
    tls = TlsFiles(certificate=server.certificate, key=server.key)
    told, address = first_bytes(name, tls, client_of(ours, alpn={"grpc": "h2"}.get(name, "")))
    assert address.startswith(f"{name}s://127.0.0.1:")
    assert told[:9] == b"HTTP/1.1 " if name == "http" else told[3] == frames.SETTINGS
    # In the clear nobody is served: a refusal of HTTP comes back, and otherwise at most an alert.
    in_the_clear = first_bytes(name, tls, None)[0]
    assert in_the_clear == b"HTTP/1.1 " if name == "http" else in_the_clear[:1] in (b"", b"\x15")


@pytest.mark.parametrize("run", [asyncio.run, uvloop.run])
def test_over_tls_a_page_of_the_same_name_in_the_clear_is_of_another_origin(
    ours: Pair, server: Pair, run: Callable[[Coroutine[Any, Any, list[bytes]]], list[bytes]]
) -> None:
    async def ask() -> list[bytes]:
        front = front_of("http", TlsFiles(certificate=server.certificate, key=server.key))
        await front.listen()
        port = int(front.address.rpartition(":")[2])
        reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=client_of(ours))
        try:
            told = []
            for scheme in ("https", "http"):
                request = get("/v2", f"Origin: {scheme}://localhost:8000")
                writer.write(request.replace(b"Host: localhost", b"Host: localhost:8000"))
                told.append((await reader.readuntil(b"\r\n\r\n"))[9:12])
                await reader.readuntil(b"}")
            writer.close()
            return told
        finally:
            await front.stop()

    assert run(ask()) == [b"200", b"403"]


@pytest.mark.parametrize("name", ["http", "grpc"])
def test_clients_show_a_certificate_where_one_is_asked_for(
    tmp_path: Path, folder: Path, ours: Pair, server: Pair, name: str
) -> None:
    tls = TlsFiles(
        certificate=server.certificate, key=server.key, client_authority=ours.certificate
    )
    known = signed(folder, f"client-{name}", ours)
    stranger = signed(tmp_path, "stranger", authority(tmp_path, "another"))
    assert first_bytes(name, tls, client_of(ours, known))[0] != b""
    assert first_bytes(name, tls, client_of(ours, stranger))[0] == b""
    assert first_bytes(name, tls, client_of(ours))[0] == b""


@pytest.mark.parametrize("run", [asyncio.run, uvloop.run])
@pytest.mark.parametrize("name", ["http", "grpc"])
@pytest.mark.parametrize(
    ("shows", "heard", "logged"),
    [
        ("nothing", "CERTIFICATE_REQUIRED", "it shows no certificate, which --tls-client-ca asks"),
        ("another's", "UNKNOWN_CA", "its certificate is not trusted (unable to get local issuer"),
    ],
    ids=["no certificate", "another's"],
)
def test_whoever_is_turned_away_hears_why_and_the_log_says_it_once(
    caplog: pytest.LogCaptureFixture,
    folder: Path,
    ours: Pair,
    server: Pair,
    run: Callable[[Coroutine[Any, Any, None]], None],
    name: str,
    shows: str,
    heard: str,
    logged: str,
) -> None:
    tls = TlsFiles(
        certificate=server.certificate, key=server.key, client_authority=ours.certificate
    )
    own = None if shows == "nothing" else signed(folder, "theirs", authority(folder, "others"))
    client = client_of(ours, own, alpn={"grpc": "h2"}.get(name, ""))

    async def listen_to(port: int) -> None:
        reader, _ = await asyncio.open_connection("127.0.0.1", port, ssl=client)
        await reader.read()

    async def ask() -> None:
        front = front_of(name, tls)
        await front.listen()
        port = int(front.address.rpartition(":")[2])
        for _ in range(2):
            with pytest.raises(ssl.SSLError, match=heard):
                await listen_to(port)
        while front.connections:
            await asyncio.sleep(0)
        await front.stop()

    run(asyncio.wait_for(ask(), PATIENCE_S))
    [record] = [each for each in caplog.records if each.name == "headrace.tls"]
    assert record.getMessage().startswith(f"127.0.0.1: turned away: {logged}")


def test_a_client_that_finds_the_certificate_expired_is_in_the_log(
    caplog: pytest.LogCaptureFixture, ours: Pair, server: Pair
) -> None:
    client = client_of(ours)
    client.maximum_version = ssl.TLSVersion.TLSv1_2
    hello = ssl.MemoryBIO()
    with pytest.raises(ssl.SSLWantReadError):
        client.wrap_bio(ssl.MemoryBIO(), hello, server_hostname="localhost").do_handshake()

    async def ask() -> None:
        front = front_of("http", TlsFiles(certificate=server.certificate, key=server.key))
        await front.listen()
        port = int(front.address.rpartition(":")[2])
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(hello.read())
        await reader.read(1)
        writer.write(b"\x15\x03\x03\0\x02\x02\x2d")  # an alert: certificate_expired
        await reader.read()
        await front.stop()

    asyncio.run(asyncio.wait_for(ask(), PATIENCE_S))
    assert "it says that --tls-cert has expired" in caplog.text


CLIENT_HELLO = b"\x01\0\0\x29\x03\x02" + bytes(32) + b"\0\0\x02\0\x2f\x01\0"
OF_TLS_1_1 = b"\x16\x03\x01\0\x2d" + CLIENT_HELLO
PROTOCOL_VERSION = b"\x15\x03\x02\0\x02\x02\x46"


@pytest.mark.parametrize("run", [asyncio.run, uvloop.run])
@pytest.mark.parametrize(
    ("sent", "heard", "logged"),
    [
        (HTTP, b"HTTP/1.1 400 Bad Request\r\n", "it speaks no TLS, and this port nothing else"),
        (INFER, b"HTTP/1.1 400 Bad Request\r\n", "it speaks no TLS, and this port nothing else"),
        (OF_TLS_1_1, PROTOCOL_VERSION, "it speaks only TLS older than 1.2"),
    ],
    ids=["HTTP", "HTTP with a body", "TLS 1.1"],
)
def test_a_client_that_cannot_be_understood_is_told_and_hung_up_on_when_it_goes_on_for_long(
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    server: Pair,
    run: Callable[[Coroutine[Any, Any, None]], None],
    sent: bytes,
    heard: bytes,
    logged: str,
) -> None:
    monkeypatch.setattr("headrace.serving.front.tls_failures._DROPPED_BYTES", len(b"more"))

    async def ask() -> None:
        front = front_of("http", TlsFiles(certificate=server.certificate, key=server.key))
        await front.listen()
        port = int(front.address.rpartition(":")[2])
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(sent)
        told = await reader.readexactly(len(heard))
        assert front.connections == 1, "until it hangs up, what it sent is no reason for a reset"
        writer.write(b"more and more")
        told += await reader.read()
        assert told.startswith(heard)
        assert (b"this port speaks TLS: ask for https://" in told) == heard.startswith(b"HTTP")
        while front.connections:
            await asyncio.sleep(0)
        writer.close()
        await front.stop()

    run(asyncio.wait_for(ask(), PATIENCE_S))
    [record] = [each for each in caplog.records if each.name == "headrace.tls"]
    assert record.getMessage() == f"127.0.0.1: turned away: {logged}"


@pytest.mark.parametrize("segment_bytes", [1, 2, 3, 4, 5, 7, 1 << 20])
@pytest.mark.parametrize("method", [b"GET", b"PUT", b"HEAD", b"POST", b"DELETE", b"OPTIONS"])
def test_a_request_in_the_clear_is_answered_whatever_segments_it_comes_in(
    server: Pair, method: bytes, segment_bytes: int
) -> None:
    request = HTTP.replace(b"GET", method)
    context = TlsFiles(certificate=server.certificate, key=server.key).context("http/1.1")
    logged: list[str] = []
    on_failure.set(logged.append)
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    tls = context.wrap_bio(incoming, outgoing, server_side=True)
    for start in range(0, len(request), segment_bytes):
        incoming.write(request[start : start + segment_bytes])
        with pytest.raises(ssl.SSLWantReadError):  # it is not hung up on
            tls.do_handshake()
    assert outgoing.read().startswith(b"HTTP/1.1 400 Bad Request\r\n")
    assert logged == ["turned away: it speaks no TLS, and this port nothing else"]


def test_a_client_that_leaves_without_a_word_is_not_in_the_log(
    caplog: pytest.LogCaptureFixture, server: Pair
) -> None:
    async def ask() -> None:
        front = front_of("http", TlsFiles(certificate=server.certificate, key=server.key))
        await front.listen()
        port = int(front.address.rpartition(":")[2])
        gone = (await asyncio.open_connection("127.0.0.1", port))[1]
        while not front.connections:
            await asyncio.sleep(0)
        gone.close()
        while front.connections:
            await asyncio.sleep(0)
        await front.stop()

    uvloop.run(asyncio.wait_for(ask(), PATIENCE_S))
    assert caplog.records == []


@pytest.mark.parametrize("name", ["http", "grpc"])
@pytest.mark.parametrize("half_open", [True, False])
def test_strangers_that_send_nothing_by_tls_hold_their_seats_and_no_more(
    monkeypatch: pytest.MonkeyPatch, ours: Pair, server: Pair, name: str, half_open: bool
) -> None:
    elsewhere = "127.0.0.2"
    monkeypatch.setattr(
        "headrace.serving.front.access.peer_user",
        lambda peer, _: 4_321 if peer[0] == elsewhere else os.geteuid(),
    )
    client = client_of(ours, alpn={"grpc": "h2"}.get(name, ""))
    probe = get("/v2/health/live") if name == "http" else GRPC

    async def ask() -> tuple[list[bytes], list[int]]:
        tls = TlsFiles(certificate=server.certificate, key=server.key)
        front = front_of(name, tls, limits=Limits(connections_per_stranger=3), token=TOKEN)
        await front.listen()
        port = int(front.address.rpartition(":")[2])
        told, held, all_writers = [], [], []
        for _ in range(8):
            reader, writer = await asyncio.open_connection(
                "127.0.0.1", port, local_addr=(elsewhere, 0)
            )
            if not half_open:
                await writer.start_tls(client, server_hostname="localhost")
                writer.write(probe)
                assert await reader.read(9)
                # Nor does it say goodbye when it is hung up on.
                cast("asyncio.Transport", writer.transport).pause_reading()
            mine = await asyncio.open_connection("127.0.0.1", port, ssl=client)
            mine[1].write(probe)
            told.append(await mine[0].read(9))
            held.append(front.connections)
            all_writers += [writer, mine[1]]
        await front.stop()
        for writer in all_writers:
            writer.close()
        return told, held

    told, held = uvloop.run(asyncio.wait_for(ask(), PATIENCE_S))
    assert all(told), "the owner is answered"
    assert held == [min(came, 3) + came for came in range(1, 9)], "strangers' and the owner's"


@pytest.mark.parametrize(
    "limits",
    [Limits(connections=3, reserved_connections=0), Limits(connections_per_stranger=3)],
    ids=["of all", "of a stranger"],
)
@pytest.mark.parametrize("sent", [HTTP, b""], ids=["failed", "slow"])
def test_a_handshake_that_has_failed_or_is_slow_gives_way_before_a_connection_that_is_idle(
    monkeypatch: pytest.MonkeyPatch, ours: Pair, server: Pair, limits: Limits, sent: bytes
) -> None:
    monkeypatch.setattr("headrace.serving.front.access.peer_user", lambda *_: 4_321)
    monkeypatch.setattr("headrace.serving.front.handshake._STALLED_S", PATIENCE_S if sent else 0.0)

    async def ask() -> list[bytes]:
        tls = TlsFiles(certificate=server.certificate, key=server.key)
        front = front_of("http", tls, limits=limits, token=TOKEN)
        await front.listen()
        port = int(front.address.rpartition(":")[2])

        async def live(ssl: ssl.SSLContext | None) -> Streams:
            return await asyncio.open_connection("127.0.0.1", port, ssl=ssl)

        async def probe(streams: Streams) -> bytes:
            streams[1].write(get("/v2/health/live"))
            return await streams[0].readuntil(b"}")

        idle = [await live(client_of(ours))]
        told = [await probe(idle[0])]
        stalled, writer = await live(None)
        writer.write(sent)
        if sent:
            await stalled.readuntil(b"https://")
        while front.connections < 2:
            await asyncio.sleep(0)
        for _ in range(2):
            idle.append(await live(client_of(ours)))
            told.append(await probe(idle[-1]))
        await stalled.read()  # it has been hung up on
        told += [await probe(streams) for streams in idle]
        await front.stop()
        for _, each in (*idle, (stalled, writer)):
            each.close()
        return told

    told = uvloop.run(asyncio.wait_for(ask(), PATIENCE_S))
    assert [each[:12] for each in told] == [b"HTTP/1.1 200"] * 6


def test_a_client_without_a_seat_is_not_let_into_its_handshake(ours: Pair, server: Pair) -> None:
    engine = FakeEngine(at_once=False)

    async def ask() -> None:
        tls = TlsFiles(certificate=server.certificate, key=server.key)
        limits = Limits(connections=1, reserved_connections=0)
        front = front_of("http", tls, engine, limits=limits)
        await front.listen()
        port = int(front.address.rpartition(":")[2])
        busy = (await asyncio.open_connection("127.0.0.1", port, ssl=client_of(ours)))[1]
        busy.write(INFER)
        while not engine.open:
            await asyncio.sleep(0)
        with pytest.raises((ConnectionError, ssl.SSLError)):
            await asyncio.open_connection("127.0.0.1", port, ssl=client_of(ours))
        assert front.connections == 1
        await front.stop()
        busy.close()

    uvloop.run(asyncio.wait_for(ask(), PATIENCE_S))


def test_a_client_in_the_middle_of_its_handshake_is_waited_for_when_the_server_drains(
    ours: Pair, server: Pair
) -> None:
    async def ask() -> tuple[int, int, bytes, int]:
        front = front_of("http", TlsFiles(certificate=server.certificate, key=server.key))
        await front.listen()
        port = int(front.address.rpartition(":")[2])
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        gone = (await asyncio.open_connection("127.0.0.1", port))[1]
        while (let_in := front.connections) < 2:
            await asyncio.sleep(0)
        front.retire()
        front.close()
        front.drain()
        gone.close()  # in the middle of its own
        while (waited_for := front.connections) > 1:
            await asyncio.sleep(0)
        await writer.start_tls(client_of(ours), server_hostname="localhost")
        writer.write(HTTP)
        told = await reader.read()
        writer.close()
        while front.connections:
            await asyncio.sleep(0)
        await front.stop()
        return let_in, waited_for, told, front.connections

    let_in, waited_for, told, left = uvloop.run(asyncio.wait_for(ask(), PATIENCE_S))
    assert (let_in, waited_for, left) == (2, 1, 0)
    assert told.startswith(b"HTTP/1.1 200")


def test_files_that_cannot_be_used_are_said_before_anything_is_started(
    tmp_path: Path, server: Pair
) -> None:
    assert tls_files(None, None, None) is None
    with pytest.raises(AccessError, match="both --tls-cert and --tls-key"):
        tls_files(server.certificate, None, None)
    other = authority(tmp_path, "other")
    text = tmp_path / "text"
    text.write_text("no certificate")
    text.chmod(0o600)
    for files, sentence in (
        (TlsFiles(certificate=server.certificate, key=other.key), "cannot be used"),
        (TlsFiles(certificate=text, key=text), "cannot be used"),
        (TlsFiles(certificate=tmp_path / "none", key=server.key), "cannot be used"),
        (
            TlsFiles(certificate=server.certificate, key=tmp_path / ("x" * 300)),
            "cannot be used: .*File name too long",
        ),
        (
            TlsFiles(certificate=server.certificate, key=server.key, client_authority=text),
            "--tls-client-ca",
        ),
    ):
        with pytest.raises(AccessError, match=sentence):
            files.context("h2")
    other.key.chmod(0o644)
    with pytest.raises(AccessError, match="others can read it"):
        TlsFiles(certificate=other.certificate, key=other.key).context("h2")
