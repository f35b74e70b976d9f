"""Answers in JSON that take long to write: in turns, of which nobody's waits for ever."""

import gzip
import json
from collections.abc import Callable
from typing import Any, cast

import numpy as np
import pytest
from numpy.typing import NDArray

from headrace.serving.core.signature import InvalidError
from headrace.serving.front.answer_turns import TURN_US, AnswerTurns
from headrace.serving.front.http_exchange import HttpExchange
from headrace.serving.front.http_messages import Limits, Response, problem
from headrace.serving.front.v2_answers import LongAnswer, large_values
from helpers.gateway import Bench, FakeEngine, get
from helpers.long_answers import COUNT, LONGEST, X, Y, asked, vector, waiting, whole


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
