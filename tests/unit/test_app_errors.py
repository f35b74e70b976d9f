"""Errors of app functions: what clients are told, and what the log is."""

import functools
import logging
from collections.abc import Callable

import numpy as np
import pytest

from headrace.apps import InvalidInput, tensor
from headrace.domain.errors import DocumentError
from headrace.domain.tensors import TensorSpec
from headrace.serving.apps.api import AppFunction, checked_outputs
from headrace.serving.apps.conversion import UnfitValueError, converted
from headrace.serving.apps.error_log import AGAIN_S, ErrorLog, described
from headrace.serving.apps.runner import file_of
from headrace.serving.core.refusals import kind_of
from headrace.serving.engine.inference import Refusal
from headrace.serving.front.inferences import _refused

LOGGER = logging.getLogger("headrace.apps")


def returning(output: TensorSpec) -> AppFunction:
    async def body() -> dict[str, object]:
        return {}

    return AppFunction("app", (), (output,), body)


def test_an_error_is_logged_in_full_once_and_counted_from_then_on(
    caplog: pytest.LogCaptureFixture,
) -> None:
    now_s = 0.0
    log = ErrorLog(LOGGER, lambda: now_s)
    ids = set()
    with caplog.at_level(logging.ERROR, logger="headrace.apps"):
        for _ in range(1000):
            ids.add(log.note("ocr", "ValueError", "app.py:3", "Traceback: the whole story"))
        now_s = AGAIN_S
        ids.add(log.note("ocr", "ValueError", "app.py:3", "Traceback: the whole story"))
        other = log.note("ocr", "KeyError", "app.py:3", "Traceback: another one")
    assert len(ids) == 1
    assert other not in ids
    assert [record.getMessage().count("Traceback") for record in caplog.records] == [1, 0, 1]
    assert "1000 times more (ValueError at app.py:3)" in caplog.records[1].getMessage()


def test_the_log_remembers_no_more_errors_than_it_has_room_for(
    caplog: pytest.LogCaptureFixture,
) -> None:
    log = ErrorLog(LOGGER, lambda: 0.0)
    first = log.note("ocr", "ValueError", "app.py:0", "first")
    for line in range(1, 300):
        log.note("ocr", "ValueError", f"app.py:{line}", "x" * 100_000)
    assert log.note("ocr", "ValueError", "app.py:0", "first") != first
    assert max(len(record.getMessage()) for record in caplog.records) < 20_000


def test_an_error_is_told_apart_by_its_type_and_the_line_that_raised_it() -> None:
    try:
        raise ValueError("secret")
    except ValueError as error:
        kind, where, trace = described(error)
    assert kind == "ValueError"
    assert __file__ in where
    assert "secret" in trace


def test_errors_that_one_line_of_a_library_raises_are_told_apart_by_the_apps_own_lines() -> None:
    spec = TensorSpec(name="x", dtype="float32", item_shape=(1,))
    mistakes: list[Callable[[], object]] = [
        lambda: converted("input", spec, "text"),
        lambda: converted("input", spec, 1j),
    ]
    places = set()
    for mistake in mistakes:
        with pytest.raises(UnfitValueError) as raised:
            mistake()
        _, where, _ = described(raised.value, {__file__})
        assert where.startswith(f"{__file__}:")
        assert "conversion.py:" in where
        places.add(where)
    assert len(places) == len(mistakes)


def test_outputs_that_are_not_as_declared_are_told_apart() -> None:
    """Of two that the same line finds to be wrong, each has its traceback in the log."""
    specs = [TensorSpec(name=name, dtype="float32", item_shape=(2,)) for name in "ab"]

    async def body() -> dict[str, object]:
        return {}

    function = AppFunction("app", (), tuple(specs), body)
    results = [{"a": [1.0], "b": [1.0, 2.0]}, {"a": [1.0, 2.0], "b": [1.0]}]
    log, ids = ErrorLog(LOGGER, lambda: 0.0), []
    for result in (*results, *results):
        with pytest.raises(ValueError, match="declares") as raised:
            checked_outputs(function, result)
        kind, where, trace = described(raised.value)
        assert kind == "ValueError"
        assert trace.count("Traceback") == 1
        ids.append(log.note("app", kind, where, trace))

    assert ids[:2] == ids[2:]
    assert ids[0] != ids[1]


def test_a_scalar_of_an_app_is_refused_with_how_one_number_is_declared() -> None:
    with pytest.raises(DocumentError, match=r"shape \[\] needs 1 to 8 dim.*one number: \[1\]"):
        tensor("score", "float32", ())


def test_the_file_of_a_function_is_known_however_it_was_made() -> None:
    async def body(size: int) -> dict[str, object]:
        return {}

    @functools.wraps(body)
    async def wrapper(size: int) -> dict[str, object]:
        return await body(size)

    for made in (body, wrapper, functools.partial(body, 3)):
        assert file_of(AppFunction("app", (), (), made)) == __file__


def test_what_an_app_says_of_an_input_is_one_printable_sentence() -> None:
    sentence = str(InvalidInput("a\r\nSet-Cookie: b\x00\x1b[31m" + "z" * 10_000))
    assert sentence.startswith("a Set-Cookie: b??[31mzzz")
    assert len(sentence) == 300
    assert sentence.isprintable()


def test_nothing_said_of_an_input_is_still_a_sentence() -> None:
    assert str(InvalidInput(" \n")) == "the input is not valid"


def test_outputs_are_converted_only_where_nothing_is_cut_off() -> None:
    function = returning(TensorSpec(name="count", dtype="uint8", item_shape=(2,)))

    assert checked_outputs(function, {"count": [True, 7]})[0].tolist() == [1, 7]
    with pytest.raises(ValueError, match="output 'count': float64 where uint8 is declared"):
        checked_outputs(function, {"count": [1.7, 7]})


@pytest.mark.parametrize(
    ("declared", "returned", "answered"),
    [
        ((-1, -1), np.zeros((0, 3)), (0, 3)),
        ((-1, -1), np.zeros((3, 0)), (3, 0)),
        ((-1, -1, 4), [[], []], (2, 0, 4)),
        ((-1, -1, 4), [], (0, 0, 4)),
        ((2, -1), [], (2, 0)),
    ],
)
@pytest.mark.parametrize("dtype", ["float32", "bytes"])
def test_an_empty_output_keeps_its_sizes_and_gets_those_that_a_list_cannot_have(
    dtype: str, declared: tuple[int, ...], returned: object, answered: tuple[int, ...]
) -> None:
    function = returning(TensorSpec(name="found", dtype=dtype, item_shape=declared))

    (array,) = checked_outputs(function, {"found": returned})

    assert array.shape == answered


@pytest.mark.parametrize(
    ("declared", "returned"), [((2,), []), ((-1, 4), np.zeros((3, 0))), ((-1,), np.zeros((3, 0)))]
)
def test_an_empty_output_that_cannot_be_as_declared_is_the_apps_error(
    declared: tuple[int, ...], returned: object
) -> None:
    function = returning(TensorSpec(name="found", dtype="float32", item_shape=declared))

    with pytest.raises(ValueError, match="output 'found': shape"):
        checked_outputs(function, {"found": returned})


@pytest.mark.parametrize(
    ("reason", "kind", "status"),
    [("invalid-input", "invalid", 400), ("app-error", "broken", 500), ("failed", "failed", 503)],
)
def test_only_what_may_go_better_next_time_says_when_to_try_again(
    reason: str, kind: str, status: int
) -> None:
    refusal = Refusal(reason=reason, message="no", retry_after_us=0)  # type: ignore[arg-type]
    response = _refused(refusal)
    assert kind_of(refusal) == kind
    assert response.status == status
    assert (b"Retry-After" in response.headers) == (status == 503)
