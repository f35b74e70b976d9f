"""One sequence of HTTP bytes to the gateway, on fakes.

Valid requests are changed as bytes, as JSON and in their headers, put one after another, and sent
in pieces that end anywhere. What may happen: whole responses, errors that explain themselves, and
the connection's end. Whatever happened, nothing is held for it afterwards, the next client is
served rightly, and who has no token got nothing but health checks.
"""

import gzip
import json
import logging
import random
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

from fuzz.mutate import mutated, mutated_bytes
from headrace.serving.front.http_messages import Limits
from helpers.gateway import TOKEN, Bench, Client, FakeEngine, Reply, get, post, served_model

LIMITS = Limits(body_bytes=4096, head_bytes=2048, head_fields=20, target_bytes=256)
CASES_PER_SERVER = 500
"""A server that met many bad clients must be as good as a new one."""
PEER = ("10.0.0.9", 40_000)
INFER = "/v2/models/adder/infer"
BINARY: dict[str, Any] = {
    "id": "7",
    "parameters": {"timeout": 5000, "priority": 1, "binary_data_output": True},
    "inputs": [
        {
            "name": "x",
            "shape": [1, 4],
            "datatype": "FP32",
            "parameters": {"binary_data_size": 16},
        }
    ],
    "outputs": [{"name": "y", "parameters": {"binary_data": True}}],
}
PLAIN: dict[str, Any] = {
    "inputs": [{"name": "x", "shape": [2, 4], "datatype": "FP32", "data": [0, 1, 2, 3, 4, 5, 6, 7]}]
}
FLAGS: dict[str, Any] = {
    "inputs": [{"name": "f", "shape": [1, 2], "datatype": "BOOL", "data": [True, False]}]
}
TEXT = json.dumps(BINARY).encode()
DOCUMENTS = (
    (INFER, BINARY, bytes(16)),
    (INFER, PLAIN, b""),
    ("/v2/models/flags/infer", FLAGS, b""),
)
GETS = (
    "/v2",
    "/v2/health/live",
    "/v2/health/ready",
    "/v2/models/adder",
    "/v2/models/adder/config",
    "/v2/models/adder/stats",
    "/v2/models/stats",
    "/v2/models/nobody/ready",
    "/metrics",
)
HEADERS = (
    f"Authorization: Bearer {TOKEN}",
    "Authorization: Bearer a-wrong-token-of-some-length",
    "Expect: 100-continue",
    "Connection: close",
    "Content-Encoding: gzip",
    "Content-Encoding: deflate",
    "Transfer-Encoding: chunked",
    "Accept-Encoding: gzip",
    "Inference-Header-Content-Length: 3",
    "Inference-Header-Content-Length: -1",
    "Content-Length: 1",
    "Origin: http://elsewhere",
    "Host: elsewhere",
    "X: " + "y" * 300,
)
OPEN = (b"/v2/health/live", b"/v2/health/ready")


def chunked(path: str, body: bytes, pieces: Sequence[int]) -> bytes:
    head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n"
    places = sorted({0, len(body), *(p % (len(body) + 1) for p in pieces)})
    chunks = [b"%x\r\n%b\r\n" % (b - a, body[a:b]) for a, b in pairwise(places)]
    return head.encode() + b"".join(chunks) + b"0\r\n\r\n"


WHOLE = post(INFER, TEXT + bytes(16), f"Inference-Header-Content-Length: {len(TEXT)}")
ALLOWED = WHOLE.replace(b"\r\n", f"\r\nAuthorization: Bearer {TOKEN}\r\n".encode(), 1)
REQUESTS = (
    WHOLE,
    post(INFER, json.dumps(PLAIN).encode()),
    post("/v2/models/flags/infer", json.dumps(FLAGS).encode()),
    post(INFER, gzip.compress(json.dumps(PLAIN).encode(), mtime=0), "Content-Encoding: gzip"),
    chunked(INFER, json.dumps(PLAIN).encode(), (5, 50)),
    post("/v2/repository/index", b'{"ready": true}'),
    *(get(path) for path in GETS),
)


class Errors(logging.Handler):
    """Bad input is never a bug of ours: nothing may be logged as an error."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.found: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.found.append(self.format(record))


class Protocol:
    """Runs cases; the same number gives the same bytes."""

    name = "protocol"

    def __init__(self, seed: int) -> None:
        self._seed = seed
        self._errors = Errors()
        logging.getLogger().addHandler(self._errors)
        # What a server says of bad input below that is not shown, and not made either.
        logging.getLogger("headrace").setLevel(logging.ERROR)
        self._benches = [_bench(None), _bench(TOKEN)]
        self._right = _answer(self._benches[0]).body
        self._cases = 0

    def content(self, number: int) -> bytes:
        return b"".join(self._pieces(random.Random(f"protocol {self._seed} {number}")))

    def run(self, number: int) -> str:
        """What became of the case.

        Raises:
            AssertionError: a finding.
        """
        self._cases += 1
        if self._cases % CASES_PER_SERVER == 0:
            self._benches = [_bench(None), _bench(TOKEN)]
        rng = random.Random(f"protocol {self._seed} {number}")
        pieces = self._pieces(rng)
        guarded = rng.random() < 0.2
        bench = self._benches[guarded]
        engine = bench.engine
        assert isinstance(engine, FakeEngine)
        engine.at_once = rng.random() < 0.7
        client = bench.connect(PEER if guarded else ("127.0.0.1", 40_000))
        for piece in pieces:
            client.send(piece)
            if engine.open and rng.random() < 0.5:
                engine.finish()
        while engine.open and rng.random() < 0.8:
            engine.finish()
        statuses = self._check(bench, client, b"".join(pieces), guarded=guarded)
        return " ".join(map(str, statuses[:1])) or "no answer"

    def _check(self, bench: Bench, client: Client, sent: bytes, *, guarded: bool) -> list[int]:
        replies = client.replies()
        for reply in replies:
            assert reply.status in (100, 200) or reply.error, "an error without a reason"
            assert reply.status != 500, f"500: {reply.body[:200]!r}"
        if guarded and TOKEN.encode() not in sent:
            served = sum(sent.count(path) for path in OPEN)
            let_in = sum(reply.status == 200 for reply in replies)
            assert let_in <= served, "served without a token"
        client.transport.close()
        engine = bench.engine
        assert isinstance(engine, FakeEngine)
        assert not engine.open, "an inference outlived its client"
        engine.submitted.clear()
        engine.cancelled.clear()
        assert bench.server.buffered_bytes == 0, "bytes are held for nobody"
        assert not bench.server.connections, "a connection outlived its client"
        assert not self._errors.found, f"logged: {self._errors.found}"
        engine.at_once = True
        after = _answer(bench)
        assert (after.status, after.body) == (200, self._right), (
            "the next client got another answer"
        )
        return [reply.status for reply in replies]

    def _pieces(self, rng: random.Random) -> list[bytes]:
        requests = [_request(rng) for _ in range(rng.choice((1, 1, 1, 2, 4)))]
        data = b"".join(requests)
        if rng.random() < 0.3:
            data = mutated_bytes(rng, data, rng.choice(REQUESTS))
        cuts = {rng.randint(0, len(data)) for _ in range(rng.choice((0, 0, 1, 2, 5)))}
        places = sorted(cuts | {0, len(data)})
        return [data[a:b] for a, b in pairwise(places)]


def _bench(token: str | None) -> Bench:
    flags = served_model("flags", (("f", "bool", (2,)),), (("y", "bool", (2,)),))
    return Bench(FakeEngine(served_model(), flags), limits=LIMITS, token=token)


def _answer(bench: Bench) -> Reply:
    """To a right request of a client of its own, which leaves."""
    client = bench.connect()
    client.send(ALLOWED)
    client.transport.close()
    return client.reply()


def _request(rng: random.Random) -> bytes:
    """Valid, or with something changed."""
    match rng.randrange(6):
        case 0:
            return rng.choice(REQUESTS)
        case 1:
            return mutated_bytes(rng, rng.choice(REQUESTS), rng.choice(REQUESTS))
        case 2:
            return _with_headers(rng, rng.choice(REQUESTS))
        case 3:
            return rng.randbytes(rng.choice((1, 10, 100))) + rng.choice((b"", b"\r\n\r\n"))
        case _:
            return _other_document(rng)


def _with_headers(rng: random.Random, request: bytes) -> bytes:
    head, separator, body = request.partition(b"\r\n\r\n")
    lines = head.split(b"\r\n")
    for _ in range(rng.choice((1, 1, 2))):
        lines.insert(rng.randint(1, len(lines)), rng.choice(HEADERS).encode())
    if rng.random() < 0.2:
        del lines[rng.randrange(len(lines))]
    return b"\r\n".join(lines) + separator + body


def _other_document(rng: random.Random) -> bytes:
    """A changed JSON document, with its right length, and tensor bytes behind it or not."""
    path, document, tail = rng.choice(DOCUMENTS)
    changed = mutated(rng, document, [other for _, other, _ in DOCUMENTS])
    text = json.dumps(changed).encode()
    if tail or rng.random() < 0.2:
        tail = mutated_bytes(rng, tail) if rng.random() < 0.3 else tail
        length = f"Inference-Header-Content-Length: {len(text)}"
        if rng.random() < 0.3:
            return _with_headers(rng, post(path, text + tail, length))
        return post(path, text + tail, length)
    if rng.random() < 0.2:
        return chunked(path, text, [rng.randrange(len(text) + 1) for _ in range(3)])
    return post(path, text)
