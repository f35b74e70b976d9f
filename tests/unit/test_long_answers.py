"""Answers in JSON that take long to write: in turns, bounded, and with all their values."""

import gzip
import json
from collections.abc import Callable
from typing import Any, cast

import msgspec
import numpy as np
import pytest
from numpy.typing import NDArray

from headrace.apps import tensor
from headrace.domain.elements import element_dtype, pack
from headrace.domain.tensors import TensorSpec
from headrace.serving.core.signature import InvalidError, layout_of, signature_of
from headrace.serving.engine.inference import AppAnswer, ServedModel
from headrace.serving.front.answer_turns import TURN_US, AnswerTurns
from headrace.serving.front.http_exchange import HttpExchange
from headrace.serving.front.http_messages import Limits, Response
from headrace.serving.front.v2_answers import JsonValues, LongAnswer, large_values, number_bytes
from headrace.serving.front.v2_apps import codec_of
from headrace.serving.front.v2_tensors import write_json_tensor
from helpers.gateway import Bench, Client, FakeEngine, get, post, served_model

COUNT = 40_000
X = np.random.default_rng(7).standard_normal(COUNT).astype(np.float32)
Y = X + 1
LONGEST = len("-2.2250738585072014e-308,")


def vector(name: str, count: int, outputs: int = 1) -> ServedModel:
    """Gives each of its inputs, plus one."""
    tensors = tuple((f"x{i}", "float32", (count,)) for i in range(outputs))
    return served_model(name=name, inputs=tensors, outputs=tensors)


def asked(model: ServedModel, *extra: str, items: int = 1, **more: Any) -> bytes:
    """A request with X or the first of it in each input."""
    sent, inputs = [], []
    for spec in model.inputs:
        values = np.resize(X, (items, *spec.item_shape))
        size = {"binary_data_size": values.nbytes}
        shape = list(values.shape)
        inputs.append({"name": spec.name, "shape": shape, "datatype": "FP32", "parameters": size})
        sent.append(values.tobytes())
    head = json.dumps({"inputs": inputs, **more}).encode()
    length = f"Inference-Header-Content-Length: {len(head)}"
    return post(f"/v2/models/{model.name}/infer", head + b"".join(sent), length, *extra)


def app_of(*outputs: TensorSpec) -> ServedModel:
    """Takes nothing."""
    return ServedModel(
        name="app",
        inputs=(),
        outputs=outputs,
        slo_us=1,
        fastest_us=1,
        max_items=1,
        batched=False,
        app=True,
    )


def answered(
    app: ServedModel, *tensors: NDArray[Any], limits: Limits | None = None
) -> Response | LongAnswer:
    codec = codec_of(signature_of(app), limits)
    answer = AppAnswer(
        outputs=(), tensors=tensors, arrived_at_us=0, deadline_at_us=1, ended_at_us=1
    )
    return codec.encode(codec.decode(b'{"inputs":[]}', None), answer)


def waiting(bench: Bench, request: bytes) -> Client:
    """A client whose answer is still to be written."""
    client = bench.connect()
    client.send(request, turns=False)
    assert not client.replies()
    return client


# -- in turns -------------------------------------------------------------------------------------


def test_others_are_answered_while_a_long_answer_is_written() -> None:
    bench = Bench(FakeEngine(vector("long", COUNT), vector("short", 4)))
    long = waiting(bench, asked(vector("long", COUNT)))
    other = bench.connect()
    other.send(get("/v2/health/live"), turns=False)
    other.send(asked(vector("short", 4)), turns=False)
    assert [reply.status for reply in other.replies()] == [200, 200]
    assert not long.replies()

    long.take_turns()
    output = long.reply().json["outputs"][0]
    assert output["shape"] == [1, COUNT]
    assert output["data"] == Y.tolist()


def test_a_long_answer_has_its_id_all_its_outputs_and_what_is_binary_behind_them() -> None:
    model = vector("three", COUNT, outputs=3)
    wanted = [
        {"name": "x2"},
        {"name": "x1", "parameters": {"binary_data": True}},
        {"name": "x0"},
    ]
    reply = Bench(FakeEngine(model)).ask(asked(model, id="7", outputs=wanted))
    said, length = reply.json, int(reply.headers["inference-header-content-length"])
    assert said["id"] == "7"
    assert [output["name"] for output in said["outputs"]] == ["x2", "x1", "x0"]
    assert said["outputs"][0]["data"] == said["outputs"][2]["data"] == Y.tolist()
    assert reply.body[length:] == Y.tobytes()


def test_a_long_answer_is_compressed_for_whoever_asks_for_it() -> None:
    model = vector("long", COUNT)
    reply = Bench(FakeEngine(model)).ask(asked(model, "Accept-Encoding: gzip"))
    assert json.loads(gzip.decompress(reply.body))["outputs"][0]["data"] == Y.tolist()


def test_requests_behind_a_long_answer_on_its_connection_are_answered_after_it() -> None:
    model = vector("long", COUNT)
    bench = Bench(FakeEngine(model))
    client = waiting(bench, asked(model) + asked(model) + get("/v2"))
    client.take_turns()
    assert [reply.status for reply in client.replies()] == [200, 200, 200]


def test_the_answer_of_which_least_is_left_is_written_first() -> None:
    models = [vector(f"of{count}", count) for count in (4 * COUNT, COUNT, 2 * COUNT)]
    bench = Bench(FakeEngine(*models))
    clients = {model.name: waiting(bench, asked(model)) for model in models}
    ended: list[str] = []
    while bench.later:
        bench.later.popleft()()
        ended += [n for n, each in clients.items() if n not in ended and each.replies()]
    assert ended == [f"of{count}" for count in (COUNT, 2 * COUNT, 4 * COUNT)]


def test_an_answer_whose_client_leaves_is_given_up_and_others_are_written() -> None:
    model = vector("long", COUNT)
    bench = Bench(FakeEngine(model))
    leaves, stays = waiting(bench, asked(model)), waiting(bench, asked(model))
    leaves.transport.close()
    stays.take_turns()
    assert stays.reply().status == 200
    assert not leaves.transport.written


def test_for_a_client_that_has_left_nothing_is_written() -> None:
    told, written = Told(), 0
    told.gone = True

    def listed(part: NDArray[Any]) -> list[Any]:
        nonlocal written
        written += len(part)
        return []

    in_turns(told, listed)
    assert (told.responses, written) == ([], 0)


class Told:
    """Whom an answer is for."""

    gone = False

    def __init__(self) -> None:
        self.responses: list[Response] = []

    def respond(self, response: Response) -> None:
        self.responses.append(response)


def in_turns(
    told: Told, listed: Callable[[NDArray[Any]], list[Any]], now_us: Callable[[], int] = lambda: 0
) -> int:
    """Write X; the longest turn, microseconds."""
    later: list[Callable[[], None]] = []
    turns = AnswerTurns(later.append, now_us)
    values = large_values(X, listed)
    assert values is not None
    longest_us = 0
    turns.write(LongAnswer([values], []), cast(HttpExchange, told), told.respond)
    while later:
        began_at_us = now_us()
        later.pop()()
        longest_us = max(longest_us, now_us() - began_at_us)
    return longest_us


def test_a_turn_is_over_after_the_piece_in_which_its_time_is() -> None:
    told = Told()
    clock_us = 0

    def listed(part: NDArray[Any]) -> list[Any]:
        nonlocal clock_us
        clock_us += 300
        return cast("list[Any]", part.tolist())

    longest_us = in_turns(told, listed, lambda: clock_us)
    assert longest_us == -(-TURN_US // 300) * 300
    [response] = told.responses
    assert json.loads(b"".join([response.body, *response.tail])) == X.tolist()


def test_a_bug_while_an_answer_is_written_is_told_and_holds_up_nobody() -> None:
    def listed(part: NDArray[Any]) -> list[Any]:
        raise ValueError("a secret detail")

    told = Told()
    in_turns(told, listed)
    assert [response.status for response in told.responses] == [500]


def test_a_bug_while_a_long_answer_is_handed_over_is_told_and_holds_up_nobody() -> None:
    model = vector("long", COUNT)
    bench = Bench(FakeEngine(model))

    def no_thread(*_: object) -> None:
        raise RuntimeError("can't start new thread")

    for handler in bench.gateway._handlers.values():
        handler.aside = no_thread
    first = waiting(bench, asked(model, "Accept-Encoding: gzip"))
    behind = waiting(bench, asked(model))
    behind.take_turns()
    assert first.reply().status == 500
    assert behind.reply().status == 200


def test_nan_among_many_numbers_is_refused_before_they_are_written() -> None:
    model = vector("long", COUNT)
    bench = Bench(FakeEngine(model))
    with_nan = bytearray(asked(model))
    with_nan[-4:] = np.float32(np.nan).tobytes()
    client = bench.connect()
    client.send(bytes(with_nan), turns=False)
    assert client.reply().status == 422
    assert bench.core.counters["long"].refused == {"not-representable": 1}


# -- bounded --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("items", "binary", "status"), [(2, False, 200), (3, False, 400), (3, True, 200)]
)
def test_more_json_than_the_most_is_refused_before_it_is_computed(
    items: int, binary: bool, status: int
) -> None:
    model = vector("long", 100)
    bench = Bench(FakeEngine(model), limits=Limits(answer_json_bytes=2 * 100 * LONGEST))
    parameters = {"binary_data_output": binary}
    reply = bench.ask(asked(model, items=items, parameters=parameters))
    assert reply.status == status
    assert len(bench.engine.submitted) == (status == 200)
    if status == 400:
        assert "may have 7500 bytes, the most is 5000; ask for binary data" in reply.error


def test_only_the_outputs_that_are_asked_for_in_json_count() -> None:
    model = vector("two", 100, outputs=2)
    bench = Bench(FakeEngine(model), limits=Limits(answer_json_bytes=100 * LONGEST))
    binary = {"name": "x1", "parameters": {"binary_data": True}}
    assert bench.ask(asked(model)).status == 400
    assert bench.ask(asked(model, outputs=[{"name": "x0"}])).status == 200
    assert bench.ask(asked(model, outputs=[{"name": "x0"}, binary])).status == 200


@pytest.mark.parametrize("kind", ["float32", "bytes"])
def test_an_apps_answer_that_turns_out_to_be_longer_than_the_most_is_told_so(kind: str) -> None:
    app, limits = app_of(tensor("y", kind, (-1,))), Limits(answer_json_bytes=200_000)
    array = X if kind == "float32" else np.array([b"weir"] * COUNT, dtype=object)
    with pytest.raises(InvalidError, match="the most is 200000; ask for binary") as raised:
        answered(app, array, limits=limits)
    assert raised.value.fault == "not-representable"


@pytest.mark.parametrize("bits", [8, 16, 32, 64])
def test_no_number_is_longer_than_it_is_reckoned_with(bits: int) -> None:
    rng = np.random.default_rng(bits)
    raw = rng.integers(0, 256, 20_000 * bits // 8, dtype=np.uint8)
    for kind in ("int", "uint", *(["float"] if bits > 8 else [])):
        dtype = np.dtype(f"{kind}{bits}")
        values = raw.view(dtype)
        if kind == "float":
            extremes = (np.finfo(dtype).min, np.finfo(dtype).smallest_subnormal)
            values = np.append(values[np.isfinite(values)], np.array(extremes, dtype))
        else:
            values = np.append(values, np.array([np.iinfo(dtype).min, np.iinfo(dtype).max], dtype))
        longest = max(len(msgspec.json.encode(value)) for value in values.tolist())
        assert longest + 1 <= number_bytes(dtype)
        assert kind == "float" or longest + 1 == number_bytes(dtype)


# -- the same values ------------------------------------------------------------------------------

SHAPE = (300, 100)


@pytest.mark.parametrize("dtype", ["bool", "uint8", "int64", "float16", "bfloat16", "float64"])
@pytest.mark.parametrize("batch_axis", [0, 1])
def test_pieces_have_the_values_that_the_whole_has(dtype: str, batch_axis: int) -> None:
    spec = TensorSpec(name="y", dtype=dtype, item_shape=SHAPE, batch_axis=batch_axis)
    numbers = np.random.default_rng(3).integers(0, 100, (2, *SHAPE)).astype(element_dtype(spec))
    layout = layout_of(0, spec)
    data = memoryview(numbers.tobytes())
    written = write_json_tensor(layout, data, 2)
    assert isinstance(written, JsonValues)
    assert json.loads(b"".join(written.pieces())) == layout.as_values(data, 2)


def test_pieces_of_strings_have_the_texts_that_the_whole_has() -> None:
    spec = TensorSpec(name="y", dtype="bytes", item_shape=(COUNT,), max_bytes=8)
    layout = layout_of(0, spec)
    rooms = np.zeros(COUNT, layout.dtype)
    texts = [("weir", 'Mü"\\', "")[i % 3] for i in range(COUNT)]
    pack([text.encode() for text in texts], rooms)
    written = write_json_tensor(layout, memoryview(rooms.tobytes()), 1)
    assert isinstance(written, JsonValues)
    assert json.loads(b"".join(written.pieces())) == texts


def test_a_string_of_many_that_is_no_text_is_found_before_anything_is_written() -> None:
    spec = TensorSpec(name="y", dtype="bytes", item_shape=(COUNT,), max_bytes=8)
    layout = layout_of(0, spec)
    rooms = np.zeros(COUNT, layout.dtype)
    pack([b"weir"] * (COUNT - 1) + [b"\xff"], rooms)
    with pytest.raises(InvalidError, match="bytes that are not UTF-8"):
        write_json_tensor(layout, memoryview(rooms.tobytes()), 1)
    app = app_of(tensor("texts", "bytes", (-1,)))
    with pytest.raises(InvalidError, match="bytes that are not UTF-8"):
        answered(app, np.array([b"weir"] * COUNT + [b"\xff"], dtype=object))


def test_an_apps_long_answer_is_written_in_turns_too() -> None:
    texts = np.array([b"weir", "Mühle".encode()] * COUNT, dtype=object)
    app = app_of(tensor("texts", "bytes", (-1,)), tensor("boxes", "float32", (-1, 2)))
    long = answered(app, texts, X.reshape(-1, 2))
    assert isinstance(long, LongAnswer)
    response = long.write(lambda: False)
    assert response is not None
    said = json.loads(b"".join([response.body, *response.tail]))["outputs"]
    assert said[0]["data"] == ["weir", "Mühle"] * COUNT
    assert (said[1]["shape"], said[1]["data"]) == ([COUNT // 2, 2], X.tolist())
