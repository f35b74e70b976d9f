"""Bad input: one status, one clear sentence, and the server keeps serving."""

import gzip
import json
import zlib
from typing import Any, cast

import numpy as np
import pytest

from headrace.domain.errors import OverloadError
from headrace.domain.request import DropReason
from headrace.serving.engine.inference import Inference, Refusal
from headrace.serving.front.http_messages import Limits
from helpers.gateway import Bench, FakeEngine, get, post, served_model

INFER = "/v2/models/adder/infer"
LIMITS = Limits(body_bytes=1 << 20, json_bytes=1 << 18)

GOOD: dict[str, Any] = {
    "inputs": [{"name": "x", "shape": [1, 4], "datatype": "FP32", "data": [1, 2, 3, 4]}]
}


def body(**changes: Any) -> bytes:
    """The good request, with the first input's fields changed or (None) left out."""
    tensor = {**GOOD["inputs"][0], **changes}
    kept = {name: value for name, value in tensor.items() if value is not None}
    return json.dumps({"inputs": [kept]}).encode()


def with_parameters(**parameters: Any) -> bytes:
    return json.dumps({**GOOD, "parameters": parameters}).encode()


def with_outputs(*outputs: Any) -> bytes:
    return json.dumps({**GOOD, "outputs": outputs}).encode()


def raw_data(text: str) -> bytes:
    return body(data="@").replace(b'"@"', text.encode())


def binary(size: int, sent: bytes, header: object = None) -> bytes:
    """A binary request whose declared and sent sizes may differ."""
    text = body(data=None, parameters={"binary_data_size": size})
    length = len(text) if header is None else header
    return post(INFER, text + sent, f"Inference-Header-Content-Length: {length}")


TENSOR = GOOD["inputs"][0]

MEMBER = gzip.compress(b"")


def gzipped(sent: bytes) -> bytes:
    return post(INFER, sent, "Content-Encoding: gzip")


LENGTH = "Inference-Header-Content-Length"

BAD_REQUESTS: dict[str, tuple[bytes, int, str]] = {
    "unknown model": (post("/v2/models/nobody/infer", body()), 404, "no model is named 'nobody'"),
    "unknown version": (post("/v2/models/adder/versions/2/infer", body()), 404, "version 1 only"),
    "unknown verb of a model": (get("/v2/models/adder/explain"), 404, "has /infer"),
    "unknown path": (get("/admin"), 404, "nothing is served"),
    "unknown v2 path": (get("/v2/secrets"), 404, "nothing is served"),
    "path characters": (post("/v2/models/../../etc/passwd/infer", body()), 404, "'..'"),
    "escaped path characters": (post("/v2/models/..%2f..%2fetc/infer", body()), 404, "no model"),
    "control characters": (get("/v2/models/%00%0a/ready"), 404, "no model"),
    "wrong method": (get(INFER), 405, "use POST"),
    "delete": (post("/v2/models/adder", b"").replace(b"POST", b"DELETE"), 405, "use GET"),
    "unloading models": (post("/v2/repository/models/adder/unload", b"{}"), 501, "always loaded"),
    "loading others": (post("/v2/repository/models/other/load", b"{}"), 404, "from the plan"),
    "loading other files": (
        post("/v2/repository/models/adder/load", b'{"parameters":{"config":"{}"}}'),
        501,
        "come from the plan",
    ),
    "loading no JSON": (post("/v2/repository/models/adder/load", b"{"), 400, "load request"),
    "shared memory": (get("/v2/systemsharedmemory/status"), 501, "shared memory"),
    "cuda shared memory": (get("/v2/cudasharedmemory/status"), 501, "shared memory"),
    "trace settings": (get("/v2/trace/setting"), 501, "trace settings"),
    "a model's trace settings": (get("/v2/models/adder/trace/setting"), 501, "trace settings"),
    "log settings": (get("/v2/logging"), 501, "log settings"),
    "empty body": (post(INFER, b""), 400, "no JSON"),
    "not JSON": (post(INFER, b"hello"), 400, "JSON is malformed"),
    "cut JSON": (post(INFER, body()[:-5]), 400, "truncated"),
    "not an object": (post(INFER, b"[1, 2]"), 400, "Expected `object`, got `array`"),
    "not UTF-8": (post(INFER, b'{"id": "\xff"}'), 400, "not UTF-8"),
    "half a character in a name": (post(INFER, body(name="\ud800")), 400, "(byte 22) has half a"),
    "half a character in the id": (
        post(INFER, json.dumps({"id": "a\\\udc00", **GOOD}).encode()),
        400,
        "a text of the JSON (byte 9) has half a character (a lone surrogate)",
    ),
    "NaN": (post(INFER, raw_data("[NaN, 1, 2, 3]")), 400, "which binary data can carry"),
    "Infinity": (post(INFER, raw_data("[1, 2, 3, -Infinity]")), 400, "no infinity, which"),
    "byte order mark": (post(INFER, b"\xef\xbb\xbf" + body()), 400, "without a byte order mark"),
    "UTF-16": (post(INFER, body().decode().encode("utf-16-le")), 400, "send UTF-8 without"),
    "binary data of unknown length": (
        post(INFER, body(data=None, parameters={"binary_data_size": 16}) + bytes(16)),
        400,
        "needs the header Inference-Header-Content-Length",
    ),
    "a number beyond float64": (post(INFER, raw_data("[1e999,1,1,1]")), 400, "out of range"),
    "a number beyond the type": (post(INFER, raw_data("[1e39,1,1,1]")), 400, "fit into FP32"),
    "a string among numbers": (post(INFER, raw_data('["1",1,1,1]')), 400, "Expected `float`"),
    "null among numbers": (post(INFER, raw_data("[null,1,1,1]")), 400, "Expected `float`"),
    "deep nesting": (post(INFER, b"[" * 50_000), 400, "Expected `object`"),
    "deep nesting in data": (post(INFER, raw_data("[" * 50_000)), 400, "nested too deeply"),
    "wrong nesting": (post(INFER, raw_data("[[1,2],[3,4]]")), 400, "nested otherwise"),
    "empty lists": (post(INFER, raw_data("[[],[],[],[]]")), 400, "nested otherwise"),
    "no inputs": (post(INFER, b"{}"), 400, "required field `inputs`"),
    "empty inputs": (post(INFER, b'{"inputs":[]}'), 400, "exactly the inputs 'x'"),
    "wrong input name": (post(INFER, body(name="z")), 400, "exactly the inputs 'x'"),
    "an input too many": (
        post(INFER, json.dumps({"inputs": [TENSOR, {**TENSOR, "name": "z"}]}).encode()),
        400,
        "exactly the inputs 'x'",
    ),
    "duplicate input": (
        post(INFER, json.dumps({"inputs": [TENSOR, TENSOR]}).encode()),
        400,
        "each once; got 'x', 'x'",
    ),
    "no name": (post(INFER, body(name=None)), 400, "missing required field `name`"),
    "no shape": (post(INFER, body(shape=None)), 400, "missing required field `shape`"),
    "no data": (post(INFER, body(data=None)), 400, "neither `data` nor"),
    "data and binary": (
        post(INFER, body(parameters={"binary_data_size": 16})),
        400,
        "both `data` and",
    ),
    "wrong shape": (post(INFER, body(shape=[1, 5])), 400, "needs shape [n, 4], got [1, 5]"),
    "wrong rank": (post(INFER, body(shape=[4])), 400, "needs shape [n, 4], got [4]"),
    "no rank": (post(INFER, body(shape=[])), 400, "needs shape [n, 4], got []"),
    "fractional shape": (post(INFER, body(shape=[1, 4.5])), 400, "Expected `int`, got `float`"),
    "text as shape": (post(INFER, body(shape="1,4")), 400, "Expected `array`"),
    "no items": (post(INFER, body(shape=[0, 4], data=[])), 400, "must lie in 1..8, got 0"),
    "negative items": (post(INFER, body(shape=[-1, 4])), 400, "must lie in 1..8, got -1"),
    "too many items": (post(INFER, body(shape=[9, 4])), 400, "must lie in 1..8, got 9"),
    "absurdly many items": (post(INFER, body(shape=[10**30, 4])), 400, "must lie in 1..8"),
    "too little data": (post(INFER, body(data=[1, 2, 3])), 400, "needs 4 numbers"),
    "too much data": (post(INFER, body(data=[1, 2, 3, 4, 5])), 400, "needs 4 numbers"),
    "data is no list": (post(INFER, body(data={"a": 1})), 400, "needs 4 numbers"),
    "wrong datatype": (post(INFER, body(datatype="INT32")), 400, "needs datatype FP32"),
    "bytes datatype": (post(INFER, body(datatype="BYTES")), 400, "needs datatype FP32"),
    "unknown datatype": (post(INFER, body(datatype="FP31\n")), 400, r"got 'FP31\n'"),
    "input in shared memory": (
        post(INFER, body(data=None, parameters={"shared_memory_region": "r"})),
        400,
        "shared memory is not served",
    ),
    "negative timeout": (
        post(INFER, with_parameters(timeout=-1)),
        400,
        "must lie in 0..3600000000",
    ),
    "endless timeout": (post(INFER, with_parameters(timeout=10**40)), 400, "a larger number"),
    "fractional timeout": (post(INFER, with_parameters(timeout=1.5)), 400, "Expected `int | null`"),
    "timeout as text": (post(INFER, with_parameters(timeout="5")), 400, "Expected `int | null`"),
    "negative priority": (post(INFER, with_parameters(priority=-1)), 400, "'priority' must lie"),
    "sequence": (
        post(INFER, with_parameters(sequence_id=7)),
        400,
        "keeps no state between requests",
    ),
    "long id": (post(INFER, json.dumps({**GOOD, "id": "i" * 300}).encode()), 400, "id is longer"),
    "numeric id": (post(INFER, json.dumps({**GOOD, "id": 7}).encode()), 400, "Expected `str"),
    "unknown output": (post(INFER, with_outputs({"name": "q"})), 400, "output 'q': unknown"),
    "outputs too many": (
        post(INFER, with_outputs({"name": "y"}, {"name": "y"})),
        400,
        "asks for 2 outputs; there are 1",
    ),
    "classification": (
        post(INFER, with_outputs({"name": "y", "parameters": {"classification": 3}})),
        400,
        "classification is not served",
    ),
    "output in shared memory": (
        post(INFER, with_outputs({"name": "y", "parameters": {"shared_memory_region": "r"}})),
        400,
        "shared memory is not served",
    ),
    "truncated tensor": (binary(16, b"1234"), 400, "ends 12 bytes before"),
    "extra bytes": (binary(16, bytes(20)), 400, "4 bytes more than its tensors need"),
    "extra bytes behind JSON": (
        post(INFER, body() + b"12", f"Inference-Header-Content-Length: {len(body())}"),
        400,
        "2 bytes more",
    ),
    "wrong binary size": (
        binary(12, bytes(12)),
        400,
        "binary_data_size is 12, shape [1, 4] needs 16",
    ),
    "negative binary size": (binary(-16, bytes(16)), 400, "binary_data_size is -16"),
    "absurd binary size": (binary(10**30, b""), 400, "binary_data_size is a larger number"),
    "header length beyond the body": (binary(16, bytes(16), 100_000), 400, "the body has"),
    "negative header length": (binary(16, bytes(16), -5), 400, "must be a whole number, got '-5'"),
    "header length not a number": (binary(16, bytes(16), "ten"), 400, "got 'ten'"),
    "header length endless": (binary(16, bytes(16), "9" * 40), 400, "must be a whole number"),
    "header length zero": (binary(16, b"", 0), 400, "binary_data_size is"),
    "header length zero and no body": (post(INFER, b"", f"{LENGTH}: 0"), 400, "no JSON"),
    "half an item without JSON": (post(INFER, bytes(24), f"{LENGTH}: 0"), 400, "[1, 4] needs 16"),
    "gzip that ends early": (gzipped(gzip.compress(body())[:-1]), 400, "too early or too late"),
    "second gzip that ends early": (gzipped(MEMBER * 2 + MEMBER[:-1]), 400, "too early"),
    "gzips without end": (gzipped(MEMBER * 4_098), 400, "too early or too late"),
    "no gzip behind gzip": (gzipped(MEMBER + b"what"), 400, "is not gzip data"),
    "deflate behind deflate": (
        post(INFER, zlib.compress(b"") * 2, "Content-Encoding: deflate"),
        400,
        "too early or too late",
    ),
    "header length inside the JSON": (binary(16, bytes(16), 10), 400, "truncated"),
    "JSON part too large": (post(INFER, b" " * (1 << 19)), 413, "most is 262144"),
    "unknown encoding": (post(INFER, body(), "Content-Encoding: br"), 415, "gzip and deflate"),
    "not gzip": (post(INFER, body(), "Content-Encoding: gzip"), 400, "is not gzip data"),
    "index request": (post("/v2/repository/index", b'{"ready": 3}'), 400, "index request"),
}


@pytest.mark.parametrize("name", BAD_REQUESTS)
def test_bad_input_gets_one_clear_sentence_and_the_connection_goes_on(name: str) -> None:
    request, status, sentence = BAD_REQUESTS[name]
    bench = Bench(limits=LIMITS)
    client = bench.connect()
    client.send(request)
    client.send(post(INFER, body()))
    bad, good = client.replies()
    assert (bad.status, good.status) == (status, 200)
    assert sentence in bad.error
    assert "\n" not in bad.error
    assert len(bad.error) < 400
    assert list(bad.json) == ["error"]
    assert bench.server.buffered_bytes == 0


HEAD = b"POST " + INFER.encode() + b" HTTP/1.1\r\nHost: localhost\r\n"

HOPELESS_REQUESTS: dict[str, tuple[bytes, int, str]] = {
    "two gigabytes claimed": (HEAD + b"Content-Length: 2147483648\r\n\r\nabc", 413, "larger than"),
    "endless length": (HEAD + b"Content-Length: 99999999999999999999999\r\n\r\n", 400, "HTTP/1.1"),
    "negative length": (HEAD + b"Content-Length: -5\r\n\r\n", 400, "not HTTP/1.1"),
    "two lengths": (
        HEAD + b"Content-Length: 1\r\nContent-Length: 2\r\n\r\nab",
        400,
        "not HTTP/1.1",
    ),
    "length and chunks": (
        HEAD + b"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        400,
        "not HTTP/1.1",
    ),
    "bad chunk": (HEAD + b"Transfer-Encoding: chunked\r\n\r\nzz\r\nabc\r\n", 400, "not HTTP/1.1"),
    "other transfer encoding": (
        HEAD + b"Transfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n",
        501,
        "chunked",
    ),
    "endless chunks": (
        HEAD + b"Transfer-Encoding: chunked\r\n\r\n" + b"40000\r\n" + b"x" * 262144 + b"\r\n"
        b"C0001\r\n" + b"x" * 786433,
        413,
        "larger than",
    ),
    "not HTTP": (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", 400, "not HTTP/1.1"),
    "HTTP/2": (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 400, "HTTP/1.1"),
    "unknown method": (b"STEAL / HTTP/1.1\r\nHost: localhost\r\n\r\n", 400, "not HTTP/1.1"),
    "connect": (b"CONNECT a:1 HTTP/1.1\r\nHost: localhost\r\n\r\n", 400, "no proxy"),
    "connect with an offer": (
        b"CONNECT a:1 HTTP/1.1\r\nHost: localhost\r\nConnection: Upgrade\r\nUpgrade: h2c\r\n\r\n",
        400,
        "no proxy",
    ),
    "length and chunks behind an offer": (
        HEAD + b"Connection: Upgrade\r\nUpgrade: TLS/1.2\r\n"
        b"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        400,
        "not HTTP/1.1",
    ),
    "offer in another version": (
        b"GET /v2 HTTP/2.0\r\nHost: localhost\r\nConnection: Upgrade\r\nUpgrade: h2c\r\n\r\n",
        505,
        "HTTP/2.0",
    ),
    "long URL": (b"GET /" + b"a" * 5000 + b" HTTP/1.1\r\n", 414, "4096"),
    "large header": (HEAD + b"X: " + b"y" * 40_000 + b"\r\n\r\n", 431, "32768 bytes"),
    "unfinished large header": (HEAD + b"X: " + b"y" * 40_000, 431, "32768 bytes"),
    "many headers": (HEAD + b"".join(b"X%d: 1\r\n" % i for i in range(200)), 431, "100 fields"),
    "space before a colon": (HEAD + b"X : 1\r\n\r\n", 400, "not HTTP/1.1"),
    "bare line feed in a header": (HEAD + b"X: a\nY: b\r\n\r\n", 400, "not HTTP/1.1"),
    "no host": (b"GET /v2 HTTP/1.1\r\n\r\n", 400, "Host header is missing"),
    "two hosts": (HEAD + b"Host: localhost\r\n\r\n", 400, "stands there twice"),
    "strange expectation": (HEAD + b"Expect: a-pony\r\n\r\n", 417, "100-continue"),
    "large body for nobody": (
        b"POST /nowhere HTTP/1.1\r\nHost: localhost\r\nContent-Length: 900000\r\n\r\n",
        404,
        "nothing is served",
    ),
}


@pytest.mark.parametrize("name", HOPELESS_REQUESTS)
def test_what_cannot_be_read_on_is_answered_and_closed(name: str) -> None:
    request, status, sentence = HOPELESS_REQUESTS[name]
    bench = Bench(limits=LIMITS)
    client = bench.connect()
    client.send(request)
    reply = client.reply()
    assert reply.status == status
    assert sentence in reply.error
    assert reply.headers["connection"] == "close"
    assert client.transport.half_closed or client.transport.closed
    assert bench.server.buffered_bytes == 0
    assert bench.ask(post(INFER, body())).status == 200


@pytest.mark.parametrize("name", [*BAD_REQUESTS, *HOPELESS_REQUESTS])
def test_bad_input_is_the_same_bad_input_in_single_bytes(name: str) -> None:
    request, status, sentence = (BAD_REQUESTS | HOPELESS_REQUESTS)[name]
    if len(request) > 20_000:
        pytest.skip("too long to be sent in single bytes")
    client = Bench(limits=LIMITS).connect()
    for i in range(len(request)):
        client.send(request[i : i + 1])
    replies = client.replies()
    assert replies[0].status == status
    assert sentence in replies[0].error


def test_nothing_is_submitted_for_bad_input() -> None:
    bench = Bench(limits=LIMITS)
    for request, _, _ in BAD_REQUESTS.values():
        bench.ask(request)
    assert bench.engine.submitted == []


@pytest.mark.parametrize(
    ("reason", "status"),
    [("deadline", 429), ("queue-full", 429), ("no-slot", 503), ("draining", 503), ("failed", 503)],
)
def test_a_refusal_says_why_and_when_to_come_back(reason: DropReason, status: int) -> None:
    engine = FakeEngine(at_once=False)
    client = Bench(engine).connect()
    client.send(post(INFER, body()))
    engine.finish(Refusal(reason=reason, message="no, because", retry_after_us=1_250_500))
    reply = client.reply()
    assert reply.status == status
    assert reply.headers["retry-after"] == "2"
    assert reply.json == {"error": "no, because", "reason": reason, "retry_after_ms": 1250.5}


def test_an_input_that_cannot_be_computed_is_a_400_that_asks_nobody_to_come_back() -> None:
    engine = FakeEngine(at_once=False)
    client = Bench(engine).connect()
    client.send(post(INFER, body()))
    engine.finish(Refusal(reason="invalid-input", message="no, because", retry_after_us=0))
    reply = client.reply()
    assert reply.status == 400
    assert "retry-after" not in reply.headers
    assert reply.json == {"error": "no, because", "reason": "invalid-input"}


def test_requests_of_one_connection_and_of_no_other_are_one_clients() -> None:
    engine = FakeEngine()
    bench = Bench(engine)
    for client in (bench.connect(), bench.connect()):
        for _ in range(2):
            client.send(post(INFER, body()))
    first, again, other, _ = (inference.client for inference in engine.submitted)
    assert first == again != other
    assert 0 not in (first, other)


def test_a_late_answer_is_withheld_and_says_how_late_it_was() -> None:
    engine = FakeEngine(at_once=False)
    client = Bench(engine).connect()
    client.send(post(INFER, with_parameters(timeout=50_000)))
    engine.finish(engine.answer_to(engine.open[0], ended_at_us=62_345))
    reply = client.reply()
    assert reply.status == 504
    assert reply.error.startswith("the answer was ready 12.3 ms after its deadline of 50 ms")
    assert reply.json["late_ms"] == 12.345


def test_an_overloaded_engine_is_a_429() -> None:
    class Full(FakeEngine):
        def submit(self, inference: Inference) -> None:
            raise OverloadError("the arena is full")

    reply = Bench(Full()).ask(post(INFER, body()))
    assert (reply.status, reply.error) == (429, "the arena is full")


def test_our_own_bug_is_opaque_but_logged_under_an_id(caplog: pytest.LogCaptureFixture) -> None:
    class Broken(FakeEngine):
        def submit(self, inference: Inference) -> None:
            raise ValueError("a secret detail")

    bench = Bench(Broken())
    reply = bench.ask(post(INFER, body()))
    assert reply.status == 500
    assert "secret" not in reply.error
    log_id = reply.error.split()[-1]
    assert log_id in caplog.text
    assert "a secret detail" in caplog.text
    assert bench.ask(get("/v2")).status == 200


def test_json_bools_are_not_numbers() -> None:
    model = served_model(inputs=(("x", "bool", (2,)),), outputs=(("y", "bool", (2,)),))
    tensor = {"name": "x", "shape": [1, 2], "datatype": "BOOL"}
    numbers = json.dumps({"inputs": [{**tensor, "data": [1, 0]}]}).encode()
    assert "Expected `bool`" in Bench(FakeEngine(model)).ask(post(INFER, numbers)).error


def test_binary_bools_of_any_byte_are_read_as_zero_and_one() -> None:
    engine = FakeEngine(
        served_model(inputs=(("x", "bool", (2,)),), outputs=(("y", "bool", (2,)),)), at_once=False
    )
    tensor = {"name": "x", "shape": [2, 2], "datatype": "BOOL"}
    text = json.dumps({"inputs": [{**tensor, "parameters": {"binary_data_size": 4}}]}).encode()
    header = f"Inference-Header-Content-Length: {len(text)}"
    Bench(engine).connect().send(post(INFER, text + b"\x01\x00\x80\x02", header))
    (inference,) = engine.submitted
    assert bytes(memoryview(cast(Any, inference.inputs[0])).cast("B")) == b"\1\0\1\1"


@pytest.mark.parametrize(
    ("dtype", "name", "value"),
    [
        ("int8", "INT8", 128),
        ("uint8", "UINT8", -1),
        ("uint64", "UINT64", 1 << 64),
        ("int64", "INT64", -(1 << 63) - 1),
        ("int64", "INT64", 10**50),
    ],
)
def test_whole_numbers_that_do_not_fit_are_refused(dtype: str, name: str, value: int) -> None:
    model = served_model(inputs=(("x", dtype, (1,)),), outputs=(("y", dtype, (1,)),))
    tensor = {"name": "x", "shape": [1, 1], "datatype": name, "data": [value]}
    reply = Bench(FakeEngine(model)).ask(post(INFER, json.dumps({"inputs": [tensor]}).encode()))
    assert reply.status == 400
    assert f"does not fit into {name}" in reply.error


@pytest.mark.parametrize("count", [1, 1000])
@pytest.mark.parametrize(("dtype", "name"), [("float16", "FP16"), ("float32", "FP32")])
@pytest.mark.parametrize("sign", [1, -1])
def test_a_float_is_refused_from_the_first_number_that_is_rounded_to_infinity(
    count: int, dtype: str, name: str, sign: int
) -> None:
    info = np.finfo(dtype)
    first = float(info.max) + float(info.max - np.nextafter(info.max, 0, dtype=dtype)) / 2
    model = served_model(inputs=(("x", dtype, (count,)),), outputs=(("y", dtype, (count,)),))
    tensor = {"name": "x", "shape": [1, count], "datatype": name}
    for value, status in ((np.nextafter(first, 0), 200), (first, 400)):
        data = [0.0] * (count - 1) + [sign * float(value)]
        body = json.dumps({"inputs": [{**tensor, "data": data}]}).encode()
        engine = FakeEngine(model, at_once=False)
        Bench(engine).connect().send(post(INFER, body))
        assert bool(engine.submitted) == (status == 200)
        if status == 200:
            held = np.frombuffer(cast(Any, engine.submitted[0].inputs[0]), dtype)
            assert held[-1] == sign * info.max
