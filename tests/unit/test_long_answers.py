"""Answers in JSON that take long to write: in turns, bounded, and with all their values."""

import gzip
import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any, cast

import msgspec
import numpy as np
import pytest
from numpy.typing import NDArray

from headrace.apps import tensor
from headrace.domain.elements import element_dtype, pack
from headrace.domain.tensors import TensorSpec
from headrace.serving.core.signature import InvalidError, layout_of, signature_of
from headrace.serving.engine.inference import Answer, AppAnswer, Inference, ServedModel
from headrace.serving.front.answer_turns import TURN_US, AnswerTurns
from headrace.serving.front.http_exchange import HttpExchange
from headrace.serving.front.http_messages import Limits, Response, problem
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


def waiting(bench: Bench, request: bytes, peer: tuple[str, int] = ("127.0.0.1", 1)) -> Client:
    """A client whose answer is still to be written."""
    client = bench.connect(peer)
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


def test_a_large_answer_is_written_however_many_small_ones_come_behind_it() -> None:
    large, small, circle = Told(), [Told()], Circle()
    circle.write(numbers(2 * COUNT), large)
    circle.write(numbers(COUNT), small[0])
    for _ in range(200):
        if large.responses:
            break
        circle.turn()
        if small[-1].responses:
            small.append(Told())
            circle.write(numbers(COUNT), small[-1])
    assert [response.status for response in large.responses] == [200]
    assert len(small) == 2


def test_an_answer_whose_client_leaves_is_given_up_and_others_are_written() -> None:
    model = vector("long", COUNT)
    bench = Bench(FakeEngine(model))
    leaves, stays = waiting(bench, asked(model)), waiting(bench, asked(model))
    leaves.transport.close()
    stays.take_turns()
    assert stays.reply().status == 200
    assert not leaves.transport.written


def test_for_a_client_that_leaves_nothing_is_kept_or_written() -> None:
    model = vector("long", COUNT)
    bench = Bench(FakeEngine(model), limits=Limits(untaken_bytes=3 * COUNT * LONGEST))
    for _ in range(10):  # of which more than 2 at a time would be refused
        waiting(bench, asked(model)).transport.close()
    stays = waiting(bench, asked(model))
    stays.take_turns()
    assert stays.reply().status == 200


def test_what_waits_to_be_written_is_bounded_and_its_place_is_free_afterwards() -> None:
    model = vector("long", COUNT)
    both_bytes = 2 * (COUNT * LONGEST + X.nbytes + 200)
    bench = Bench(FakeEngine(model), limits=Limits(untaken_bytes=both_bytes))
    first, second, third = (bench.connect() for _ in range(3))
    for client in (first, second, third):
        client.send(asked(model), turns=False)
    refused = third.reply()
    assert (refused.status, refused.headers["retry-after"]) == (503, "1")
    assert (refused.json["reason"], refused.json["retry_after_ms"]) == ("queue-full", 1000)
    assert bench.core.counters["long"].answered == 2
    assert bench.core.counters["long"].refused == {"queue-full": 1}
    first.take_turns()
    assert [first.reply().status, second.reply().status] == [200, 200]
    assert bench.ask(asked(model)).status == 200


def test_a_client_whose_answers_hold_most_gives_way_to_others_until_all_hold_as_much() -> None:
    model = vector("long", COUNT)
    one_bytes = COUNT * LONGEST + X.nbytes + 200
    bench = Bench(FakeEngine(model), limits=Limits(untaken_bytes=4 * one_bytes))
    many = [bench.connect(("10.0.0.1", port)) for port in range(4)]
    few = [bench.connect(("10.0.0.2", port)) for port in range(3)]
    for client in (*many, *few):
        client.send(asked(model), turns=False)
    assert few[2].reply().status == 503, "two of each wait"
    many[0].take_turns()
    assert [client.reply().status for client in few[:2]] == [200, 200]
    told = [client.reply() for client in many]
    assert sorted(reply.status for reply in told) == [200, 200, 503, 503]
    assert {reply.json["reason"] for reply in told if reply.status == 503} == {"queue-full"}
    counters = bench.core.counters["long"]
    assert (counters.answered, counters.refused) == (4, {"queue-full": 3})


def test_nobody_gives_way_to_an_answer_that_finds_no_room_all_the_same() -> None:
    small, large = vector("small", COUNT), vector("large", 2 * COUNT + 100)
    one_bytes = COUNT * LONGEST + X.nbytes + 200
    bench = Bench(FakeEngine(small, large), limits=Limits(untaken_bytes=5 * one_bytes))
    for number, count in enumerate((3, 2)):
        for port in range(count):
            waiting(bench, asked(small), (f"10.0.0.{number}", port))
    refused = bench.connect(("10.0.0.9", 1))
    refused.send(asked(large), turns=False)
    assert refused.reply().status == 503
    refused.take_turns()
    assert bench.core.counters["small"].answered == 5


def test_an_answer_that_waits_alone_is_written_however_large_it_is() -> None:
    model = vector("long", COUNT)
    bench = Bench(FakeEngine(model), limits=Limits(untaken_bytes=1))
    assert bench.ask(asked(model)).status == 200


class Told:
    """Whom an answer is for."""

    def __init__(self) -> None:
        self.responses: list[Response] = []

    def respond(self, response: Response) -> None:
        self.responses.append(response)


class Circle:
    """Turns whose clock goes on by `PIECE_US` with each piece of numbers."""

    PIECE_US = 300

    def __init__(self) -> None:
        self.now_us = 0
        self.later: list[Callable[[], None]] = []
        self._turns = AnswerTurns(self.later.append, 1 << 30, self._tell)

    def _tell(self) -> int:
        self.now_us += self.PIECE_US
        return self.now_us

    def write(
        self, answer: LongAnswer, told: Told, then: Callable[[Response], None] | None = None
    ) -> None:
        self._turns.write(answer, cast(HttpExchange, told), "", then or told.respond, untold)

    def turn(self) -> int:
        """How long it took, microseconds."""
        began_at_us = self.now_us
        self.later.pop()()
        return self.now_us - began_at_us


def untold(error: InvalidError) -> Response:
    return problem(422, str(error))


def plain(part: NDArray[Any]) -> list[Any]:
    return cast("list[Any]", part.tolist())


def numbers(count: int, listed: Callable[[NDArray[Any]], list[Any]] = plain) -> LongAnswer:
    values = large_values(np.resize(X, count), listed, "y", 1 << 30)
    assert values is not None
    return LongAnswer([values], [], 1 << 30)


def whole(response: Response) -> bytes:
    return b"".join([response.body, *response.tail])


def test_a_turn_is_over_after_the_piece_in_which_its_time_is() -> None:
    circle, told = Circle(), Told()
    circle.write(numbers(COUNT), told)
    longest_us = max(circle.turn() for _ in iter(lambda: bool(circle.later), False))
    # The clock is read once before the pieces.
    assert longest_us == circle.PIECE_US + -(-TURN_US // circle.PIECE_US) * circle.PIECE_US
    [response] = told.responses
    assert json.loads(whole(response)) == X.tolist()


def raises(_: object) -> Any:
    raise ValueError("a secret detail")


@pytest.mark.parametrize("where", ["while it is written", "while it is handed over"])
def test_a_bug_in_one_long_answer_is_told_and_holds_up_nobody(where: str) -> None:
    circle, told, behind = Circle(), Told(), Told()
    if where == "while it is written":
        circle.write(numbers(COUNT, raises), told)
    else:
        circle.write(numbers(COUNT), told, raises)
    circle.write(numbers(COUNT), behind)
    while circle.later:
        circle.turn()
    assert [response.status for response in told.responses] == [500]
    assert [response.status for response in behind.responses] == [200]


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


@pytest.mark.parametrize("texts", [[b"\x01" * 150_000], [b"\x01" * 4] * COUNT], ids=["one", "many"])
def test_escapes_count_as_they_are_written(texts: list[bytes]) -> None:
    app, limits = app_of(tensor("y", "bytes", (-1,))), Limits(answer_json_bytes=400_000)
    long = answered(app, np.array(texts, dtype=object), limits=limits)
    assert isinstance(long, LongAnswer)
    with pytest.raises(InvalidError, match="the most is 400000; ask for binary") as raised:
        long.write(lambda: False)
    assert raised.value.fault == "not-representable"


def test_escapes_of_a_short_answer_count_too() -> None:
    app, limits = app_of(tensor("y", "bytes", (-1,))), Limits(answer_json_bytes=10_000)
    with pytest.raises(InvalidError, match="the most is 10000; ask for binary"):
        answered(app, np.array([b"\x01" * 4_000], dtype=object), limits=limits)


@pytest.mark.parametrize("count", [40_000, 50_000])
def test_an_apps_strings_count_with_what_its_answer_holds_however_many_they_are(count: int) -> None:
    app, length = app_of(tensor("y", "bytes", (-1,))), 1_000
    long = answered(app, np.array([bytes(length)] * count, dtype=object))
    assert isinstance(long, LongAnswer)
    text_bytes = min(Limits().answer_json_bytes, count * length)
    assert long.held_bytes >= text_bytes + count * length


def test_an_apps_numbers_are_not_looked_at_when_they_are_too_many() -> None:
    app, limits = app_of(tensor("y", "float32", (-1,))), Limits(answer_json_bytes=200_000)
    with pytest.raises(InvalidError, match="the most is 200000; ask for binary"):
        answered(app, np.full(COUNT, np.nan, np.float32), limits=limits)


def test_strings_are_not_made_texts_before_their_turn() -> None:
    app, looked_at = app_of(tensor("y", "bytes", (-1,))), 0

    class Watched(bytes):
        def decode(self, *_: Any) -> str:
            nonlocal looked_at
            looked_at += 1
            return "weir"

    array = np.array([Watched()] * 50_000, dtype=object)
    long = answered(app, array)
    assert isinstance(long, LongAnswer)
    assert looked_at == 0
    assert long.write(lambda: True) is None  # what stands before
    assert long.write(lambda: True) is None
    assert 0 < looked_at < len(array) / 4
    with pytest.raises(InvalidError):
        answered(app, array, limits=Limits(answer_json_bytes=100_000))
    assert looked_at < len(array) / 4


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
    written = write_json_tensor(layout, data, 2, 1 << 30)
    assert isinstance(written, JsonValues)
    assert json.loads(b"".join(written.pieces())) == layout.as_values(data, 2)


def test_pieces_of_strings_have_the_texts_that_the_whole_has() -> None:
    spec = TensorSpec(name="y", dtype="bytes", item_shape=(COUNT,), max_bytes=8)
    layout = layout_of(0, spec)
    rooms = np.zeros(COUNT, layout.dtype)
    texts = [("weir", 'Mü"\\', "")[i % 3] for i in range(COUNT)]
    pack([text.encode() for text in texts], rooms)
    written = write_json_tensor(layout, memoryview(rooms.tobytes()), 1, 1 << 30)
    assert isinstance(written, JsonValues)
    assert json.loads(b"".join(written.pieces())) == texts


class Strings(FakeEngine):
    """Gives these, whatever it is given."""

    def __init__(self, texts: list[bytes]) -> None:
        spec = TensorSpec(name="y", dtype="bytes", item_shape=(len(texts),), max_bytes=8)
        plain = served_model(name="strings", inputs=(("x", "float32", (1,)),))
        super().__init__(replace(plain, outputs=(spec,)))
        rooms = np.zeros(len(texts), element_dtype(spec))
        pack(texts, rooms)
        self.given = memoryview(rooms.tobytes())

    def answer_to(self, inference: Inference, *, ended_at_us: int = 5_000) -> Answer:
        return Answer(outputs=(self.given,), arrived_at_us=0, deadline_at_us=9, ended_at_us=5)


@pytest.mark.parametrize("bad", [b"\xff", b"\xc3"])
def test_a_string_of_many_that_is_no_text_is_told_in_the_turn_that_finds_it(bad: bytes) -> None:
    engine = Strings([b"weir"] * COUNT + [bad])
    bench = Bench(engine)
    client = waiting(bench, asked(engine.models["strings"]))
    client.take_turns()
    reply = client.reply()
    assert reply.status == 422
    assert "output 'y' holds bytes that are not UTF-8" in reply.error
    assert bench.core.counters["strings"].refused == {"not-representable": 1}
    assert bench.core.counters["strings"].answered == 0


def test_one_long_string_is_cut_between_pieces_as_any_text() -> None:
    texts = ["short", "Mü\u2603\U0001f30a" * 20_000, "", '\\"\x01\n' * 20_000, "weir"]
    app = app_of(tensor("y", "bytes", (-1,)))
    long = answered(app, np.array([text.encode() for text in texts], dtype=object))
    assert isinstance(long, LongAnswer)
    turns = 1
    while (response := long.write(lambda: True)) is None:
        turns += 1
    assert json.loads(whole(response))["outputs"][0]["data"] == texts
    assert turns > sum(len(text.encode()) for text in texts) // (1 << 15)


def test_a_long_string_that_ends_in_the_middle_of_a_character_is_no_text() -> None:
    app = app_of(tensor("y", "bytes", (-1,)))
    long = answered(app, np.array([b"a" * 200_000 + b"\xc3"], dtype=object))
    assert isinstance(long, LongAnswer)
    with pytest.raises(InvalidError, match="bytes that are not UTF-8"):
        long.write(lambda: False)


def test_an_apps_long_answer_is_written_in_turns_too() -> None:
    texts = np.array([b"weir", "Mühle".encode()] * COUNT, dtype=object)
    app = app_of(tensor("texts", "bytes", (-1,)), tensor("boxes", "float32", (-1, 2)))
    long = answered(app, texts, X.reshape(-1, 2))
    assert isinstance(long, LongAnswer)
    response = long.write(lambda: False)
    assert response is not None
    said = json.loads(whole(response))["outputs"]
    assert said[0]["data"] == ["weir", "Mühle"] * COUNT
    assert (said[1]["shape"], said[1]["data"]) == ([COUNT // 2, 2], X.tolist())
