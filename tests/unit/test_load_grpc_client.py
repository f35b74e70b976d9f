"""The load generator's gRPC client against a peer that is written out frame by frame."""

from typing import Any

import msgspec

from headrace.load.client import ConnectionPool, Endpoint, SentRequest
from headrace.load.grpc_client import GrpcConnection, header_block
from headrace.serving.front.grpc import frames
from helpers.gateway import FakeTransport

OPENING = len(frames.PREFACE) + len(frames.settings(((4, frames.MAX_WINDOW),))) + 13
BLOCK = header_block("localhost", b"/s/M", None, False)


class Pool(ConnectionPool):
    """Notes what it is told."""

    def __init__(self) -> None:
        super().__init__(Endpoint(host="localhost", port=1), 1)
        self.told: list[str] = []

    def on_free(self, connection: Any) -> None:
        self.told.append("free")

    def on_closed(self, connection: Any) -> None:
        self.told.append("closed")


def begun(message: bytes) -> tuple[GrpcConnection, FakeTransport, SentRequest, Pool]:
    pool, transport = Pool(), FakeTransport()
    connection = GrpcConnection(pool)
    transport.protocol = connection
    connection.connection_made(transport)
    exchange = SentRequest([BLOCK, message], lambda _: None, keep_body=True)
    connection.start(exchange)
    return connection, transport, exchange, pool


def data_sent(transport: FakeTransport) -> list[tuple[int, bytes]]:
    """(flags, payload) of each DATA frame."""
    at, found, written = OPENING, [], bytes(transport.written)
    while at < len(written):
        high, low, kind, flags, _ = frames.HEADER.unpack_from(written, at)
        end = at + 9 + (high << 16 | low)
        if kind == frames.DATA:
            found.append((flags, written[at + 9 : end]))
        at = end
    return found


def headers(fields: dict[str, str], flags: int) -> bytes:
    block = frames.header_block((k.encode(), v.encode()) for k, v in fields.items())
    return frames.frame(frames.HEADERS, frames.END_HEADERS | flags, 1, block)


ENDED = {"grpc-status": "0"}


def test_a_message_goes_out_as_the_windows_let_it() -> None:
    message = bytes(range(256)) * 300
    connection, transport, _, _ = begun(message)
    first = b"".join(piece for _, piece in data_sent(transport))
    assert len(first) == frames.DEFAULT_WINDOW

    connection.data_received(frames.window_update(0, 100_000))
    assert b"".join(piece for _, piece in data_sent(transport)) == first, "the stream has none left"
    connection.data_received(frames.window_update(1, 1_000))
    connection.data_received(frames.settings(((frames.INITIAL_WINDOW_SIZE, 90_000),)))

    sent = data_sent(transport)
    assert b"".join(piece for _, piece in sent) == b"\0" + len(message).to_bytes(4) + message
    assert all(len(piece) <= frames.DEFAULT_FRAME_BYTES for _, piece in sent)
    assert [flags for flags, _ in sent] == [0] * (len(sent) - 1) + [frames.END_STREAM]


def test_an_answer_is_taken_however_it_is_cut() -> None:
    connection, _, exchange, pool = begun(b"x")
    answer = headers({":status": "200"}, 0)
    answer += frames.frame(frames.DATA, 0, 1, b"\0\0\0\0\3a")
    answer += frames.frame(frames.DATA, 0, 1, b"bc") + headers(ENDED, frames.END_STREAM)
    for byte in answer:
        connection.data_received(bytes((byte,)))
    assert (exchange.status, exchange.body, exchange.error) == (200, b"abc", "")
    assert pool.told == ["free"]


def test_a_refusal_reads_like_https() -> None:
    connection, _, exchange, _ = begun(b"x")
    fields = {"grpc-status": "8", "grpc-message": "too%20late", "headrace-reason": "deadline"}
    connection.data_received(headers(fields, frames.END_STREAM))
    assert exchange.status == 429
    assert msgspec.json.decode(exchange.body) == {"error": "too late", "reason": "deadline"}


def test_a_ping_is_answered_and_a_reset_ends_the_request() -> None:
    connection, transport, exchange, _ = begun(b"x")
    connection.data_received(frames.frame(frames.PING, 0, 0, b"12345678"))
    assert bytes(transport.written).endswith(frames.frame(frames.PING, frames.ACK, 0, b"12345678"))
    connection.data_received(frames.reset(1, frames.CANCEL))
    assert (exchange.status, exchange.error) == (0, "closed")


def test_what_is_no_http2_ends_the_request() -> None:
    connection, transport, exchange, _ = begun(b"x")
    connection.data_received(frames.frame(frames.HEADERS, frames.END_HEADERS, 1, b"\xff\xff\xff"))
    assert (exchange.status, exchange.error) == (0, "protocol")
    assert transport.aborted
