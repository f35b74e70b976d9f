"""A server that gets no thread any more still ends, and says what it lacks."""

import asyncio
import pickle
import threading

import pytest

from headrace.commands import event_loop
from headrace.domain.errors import ProcessLimitError


@pytest.fixture
def no_threads(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """Once it is undone there are some again."""

    def refuse(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    return monkeypatch


def test_a_server_that_has_used_threads_ends_though_it_gets_no_more(
    monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    done: list[int] = []

    async def server() -> None:
        done.append(await asyncio.to_thread(int, "1"))
        request.getfixturevalue("no_threads")
        done.append(await asyncio.to_thread(int, "2"))

    event_loop.run(server())
    assert done == [1, 2]


def test_what_cannot_be_done_aside_names_the_limit(no_threads: pytest.MonkeyPatch) -> None:
    async def server() -> None:
        await asyncio.to_thread(int, "1")

    with pytest.raises(ProcessLimitError, match="a thread cannot be started: a limit of processes"):
        event_loop.run(server())


def test_a_limit_of_processes_says_the_same_in_another_process() -> None:
    error = ProcessLimitError("a thread")

    assert str(pickle.loads(pickle.dumps(error))) == str(error)
    assert str(error).count("cannot be started") == 1
