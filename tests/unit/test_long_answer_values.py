"""Answers in JSON that are written in pieces have all their values."""

import json
from dataclasses import replace

import numpy as np
import pytest

from headrace.apps import tensor
from headrace.domain.elements import element_dtype, pack
from headrace.domain.tensors import TensorSpec
from headrace.serving.core.signature import InvalidError, layout_of
from headrace.serving.engine.inference import Answer, Inference
from headrace.serving.front.v2_answers import JsonValues, LongAnswer
from headrace.serving.front.v2_tensors import write_json_tensor
from helpers.gateway import Bench, FakeEngine, served_model
from helpers.long_answers import COUNT, X, answered, app_of, asked, waiting, whole

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
