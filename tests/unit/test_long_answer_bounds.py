"""How long an answer in JSON may be, and when that is known."""

from typing import Any

import msgspec
import numpy as np
import pytest

from headrace.apps import tensor
from headrace.serving.core.signature import InvalidError
from headrace.serving.front.http_messages import Limits
from headrace.serving.front.v2_answers import LongAnswer, number_bytes
from helpers.gateway import Bench, FakeEngine
from helpers.long_answers import COUNT, LONGEST, X, answered, app_of, asked, vector


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
