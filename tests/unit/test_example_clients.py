"""The examples' clients before a server that refuses: they ask again, but not for ever."""

import asyncio
from collections.abc import Callable
from itertools import chain, repeat
from pathlib import Path
from typing import TypeVar

import msgspec
import numpy as np
import pytest
from examples.demo.client import Client
from examples.demo.shell import exit_code
from examples.ocr.client import Client as PictureClient
from examples.ocr.client import Line
from examples.patience import TOO_BUSY, InferenceError, Patience, TooBusyError

from helpers.fake_v2_server import FakeServer, fake_server, response

Told = TypeVar("Told")
ROW = np.arange(4, dtype=np.float32).reshape(1, 4)
PICTURE = np.zeros((2, 3, 3), np.uint8)
ANSWER = response(
    200,
    msgspec.json.encode(
        {"outputs": [{"name": "y", "shape": [1, 4], "datatype": "FP32", "data": [5, 6, 7, 8]}]}
    ),
)


def strings(*texts: str) -> bytes:
    return b"".join(len(text).to_bytes(4, "little") + text.encode() for text in texts)


def picture_answer() -> bytes:
    tensors = {
        "texts": ("BYTES", [1], strings("Gate B42")),
        "scores": ("FP32", [1], np.ones(1, "<f4").tobytes()),
        "boxes": ("FP32", [1, 1, 2], np.zeros(2, "<f4").tobytes()),
    }
    outputs = [
        {
            "name": name,
            "datatype": datatype,
            "shape": shape,
            "parameters": {"binary_data_size": len(data)},
        }
        for name, (datatype, shape, data) in tensors.items()
    ]
    body = msgspec.json.encode({"outputs": outputs}) + b"".join(t[2] for t in tensors.values())
    return response(200, body)


def refusal(status: int, retry_after_s: int = 2) -> bytes:
    body = msgspec.json.encode({"error": "too much work", "reason": "deadline"})
    return response(status, body, b"Retry-After: %d\r\n" % retry_after_s)


class Asked:
    """A client's pauses, taken in no time."""

    def __init__(self) -> None:
        self.pauses_s: list[float] = []

    def patience(self, **limits: float) -> Patience:
        return Patience(sleep=self.pauses_s.append, **limits)  # type: ignore[arg-type]


def before(replies: list[bytes], ask: Callable[[str], Told]) -> tuple[Told, FakeServer]:
    """What `ask`, given the URL, makes of a server with these replies, the last for ever."""
    rest = chain(replies, repeat(replies[-1]))

    async def session() -> tuple[Told, FakeServer]:
        async with fake_server(lambda call: call.reply(next(rest))) as server:
            return await asyncio.to_thread(ask, server.url), server

    return asyncio.run(session())


def infer(url: str, patience: Patience, timeout_us: int | None = None) -> np.ndarray:
    client = Client(url, patience)
    try:
        return client.infer("m", "x", ROW, timeout_us)
    finally:
        client.close()


@pytest.mark.parametrize("refused", [0, 1, 5])
@pytest.mark.parametrize("status", [429, 503])
def test_a_refused_request_is_asked_again_when_the_server_says(status: int, refused: int) -> None:
    asked = Asked()
    replies = [refusal(status, 2 + number) for number in range(refused)]

    answer, server = before([*replies, ANSWER], lambda url: infer(url, asked.patience()))

    assert np.array_equal(answer, [[5, 6, 7, 8]])
    assert asked.pauses_s == [2.0, 3.0, 4.0, 5.0, 6.0][:refused]
    assert len(server.calls) == refused + 1
    assert len({call.body for call in server.calls}) == 1, "it asks the same again"


def test_a_picture_that_was_refused_is_asked_for_again() -> None:
    asked = Asked()

    def read(url: str) -> list[Line]:
        client = PictureClient(url, asked.patience())
        try:
            return client.read(PICTURE)
        finally:
            client.close()

    lines, server = before([refusal(429), refusal(503), picture_answer()], read)

    assert lines == [Line("Gate B42", 1.0, ((0.0, 0.0),))]
    assert asked.pauses_s == [2.0, 2.0]
    assert len(server.calls) == 3


def test_an_answer_that_came_too_late_is_asked_for_again_after_a_second() -> None:
    asked = Asked()

    _, server = before(
        [response(504, b'{"error":"3 ms late"}'), ANSWER], lambda url: infer(url, asked.patience())
    )

    assert asked.pauses_s == [1.0]
    assert len(server.calls) == 2


@pytest.mark.parametrize(
    ("limits", "pauses"),
    [
        ({"attempts": 4}, [2.0] * 3),
        ({"wait_s": 7.0}, [2.0] * 3),
        ({"wait_s": 1.9}, []),
        ({"attempts": 1}, []),
    ],
)
def test_patience_ends_with_the_count_or_the_wait_and_the_last_reason_is_told(
    limits: dict[str, float], pauses: list[float]
) -> None:
    asked = Asked()

    def ask(url: str) -> None:
        with pytest.raises(TooBusyError, match="503 deadline: too much work") as told:
            infer(url, asked.patience(**limits))
        assert f"refused {len(pauses) + 1} times" in str(told.value)

    _, server = before([refusal(503)], ask)

    assert asked.pauses_s == pauses
    assert len(server.calls) == len(pauses) + 1


@pytest.mark.parametrize(
    "reply",
    [response(400, b'{"error":"bad shape"}'), response(500, b"<html>bad shape</html>")],
)
def test_what_waiting_does_not_mend_is_told_at_once(reply: bytes) -> None:
    asked = Asked()

    def ask(url: str) -> None:
        with pytest.raises(InferenceError, match="bad shape") as told:
            infer(url, asked.patience())
        assert not isinstance(told.value, TooBusyError)

    _, server = before([reply], ask)

    assert asked.pauses_s == []
    assert len(server.calls) == 1


def test_a_demo_on_a_machine_that_stays_too_busy_says_so_and_ends_with_its_own_exit_code(
    capsys: pytest.CaptureFixture[str],
) -> None:
    asked = Asked()

    def story(url: str) -> str:
        infer(url, asked.patience(attempts=3))
        return ""

    code, server = before([refusal(429)], lambda url: exit_code("demo", lambda: story(url)))

    said = " ".join(capsys.readouterr().out.split())
    assert code == TOO_BUSY
    assert "this machine is too busy" in said
    assert "refused 3 times in 4 s of waiting; 429 deadline: too much work" in said
    assert len(server.calls) == 3


@pytest.mark.parametrize(("wrong", "code"), [("", 0), ("2 of 12 lines were misread", 1)])
def test_a_demo_ends_with_1_only_if_something_was_wrong(
    wrong: str, code: int, capsys: pytest.CaptureFixture[str]
) -> None:
    assert exit_code("demo", lambda: wrong) == code
    assert wrong in capsys.readouterr().out


def test_every_example_that_asks_a_server_asks_with_patience() -> None:
    """Nothing under `examples` opens a connection of its own."""
    examples = Path(__file__).parents[2] / "examples"
    opens = {
        file.relative_to(examples).as_posix()
        for file in examples.rglob("*.py")
        if "http.client" in file.read_text()
    }
    assert opens == {"patience.py"}
