"""The gateway's end of a control socket reports every frame, and its loss exactly once."""

import asyncio
import socket
from collections.abc import Awaitable, Callable

import pytest

from headrace.serving.workers.channel import Channel, channel_pair
from headrace.serving.workers.frames import AnyFrame, Failed, Loaded, Run, encode

WAIT_S = 300.0


class End:
    """A channel and all that it reported."""

    def __init__(self) -> None:
        ours, self.theirs = channel_pair()
        self.frames: list[AnyFrame] = []
        self.reasons: list[str] = []
        self._changed = asyncio.Event()
        self.channel = Channel(asyncio.get_running_loop(), ours, self._frame, self._closed)

    def _frame(self, frame: AnyFrame) -> None:
        self.frames.append(frame)
        self._changed.set()

    def _closed(self, reason: str) -> None:
        self.reasons.append(reason)
        self._changed.set()

    async def until(self, holds: Callable[[], bool]) -> None:
        while not holds():
            self._changed.clear()
            await self._changed.wait()


def on_loop(test: Callable[[End], Awaitable[None]]) -> None:
    async def run() -> None:
        end = End()
        try:
            await asyncio.wait_for(test(end), WAIT_S)
        finally:
            end.channel.close()
            end.theirs.close()

    asyncio.run(run())


def test_frames_pass_in_both_directions() -> None:
    async def test(end: End) -> None:
        end.theirs.sendall(encode(Loaded(1, 2)) + encode(Loaded(3, 4)))
        await end.until(lambda: len(end.frames) == 2)
        run = Run(1, 0, 0, 1, (0,), (64,))
        end.channel.send(run)
        assert end.frames == [Loaded(1, 2), Loaded(3, 4)]
        assert end.theirs.recv(1 << 16) == encode(run)

    on_loop(test)


def test_what_was_sent_before_the_end_is_heard_before_the_end() -> None:
    async def test(end: End) -> None:
        end.theirs.sendall(encode(Failed(1, 0, 0, "last words")))
        end.theirs.close()
        await end.until(lambda: bool(end.reasons))
        assert end.frames == [Failed(1, 0, 0, "last words")]
        assert end.reasons == ["it has closed its end"]

    on_loop(test)


def test_garbage_ends_the_channel_once() -> None:
    async def test(end: End) -> None:
        end.theirs.sendall(b"\xff" * 64)
        await end.until(lambda: bool(end.reasons))
        end.theirs.close()
        end.channel.send(Loaded(1, 2))
        await asyncio.sleep(0)
        assert len(end.reasons) == 1
        assert "frame announces" in end.reasons[0]

    on_loop(test)


@pytest.mark.parametrize("stuck", [True, False], ids=["stuck", "dead"])
def test_a_peer_that_cannot_take_a_frame_is_reported_but_not_from_inside_send(
    stuck: bool,
) -> None:
    async def test(end: End) -> None:
        if stuck:
            end.theirs.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1)
        else:
            end.theirs.shutdown(socket.SHUT_RD)
        for _ in range(10_000):
            end.channel.send(Failed(1, 0, 0, "x" * 1_000))
        assert end.reasons == []
        await end.until(lambda: bool(end.reasons))
        await asyncio.sleep(0)
        assert len(end.reasons) == 1
        assert end.reasons[0].startswith("cannot send")

    on_loop(test)


def test_closing_ourselves_is_no_news() -> None:
    async def test(end: End) -> None:
        end.channel.close()
        end.channel.close()
        end.theirs.close()
        await asyncio.sleep(0)
        assert end.reasons == []

    on_loop(test)
