"""The gateway's end of one worker's control socket, on the asyncio loop."""

import socket
from asyncio import AbstractEventLoop
from collections.abc import Callable

from headrace.serving.workers.frames import AnyFrame, FrameError, FrameReader, encode

_RECEIVE_BYTES = 1 << 16


class Channel:
    """Sends at once and reports every frame; says so once when the other end is gone.

    A plain non-blocking socket rather than an asyncio stream: frames are about 50 bytes and at
    most one run per slot is outstanding, so the socket's buffer never fills, and each layer of
    buffering would only add to the time in which a slot idles between two batches.
    """

    def __init__(
        self,
        loop: AbstractEventLoop,
        endpoint: socket.socket,
        on_frame: Callable[[AnyFrame], None],
        on_closed: Callable[[str], None],
    ) -> None:
        """`on_closed` gets the reason; neither callback is called after `close`."""
        endpoint.setblocking(False)
        self._loop = loop
        self._socket = endpoint
        self._on_frame = on_frame
        self._on_closed = on_closed
        self._reader = FrameReader()
        self._open = True
        loop.add_reader(endpoint, self._receive)

    @property
    def descriptor(self) -> int | None:
        """Readable when the other end has said something, or is gone; None: it is closed."""
        return self._socket.fileno() if self._open else None

    def send(self, frame: AnyFrame) -> None:
        """Send without waiting. A dead or stuck other end is reported through `on_closed`."""
        if not self._open:
            return
        data = encode(frame)
        try:
            sent = self._socket.send(data)
        except (BlockingIOError, OSError) as error:
            # Not from inside `send`: the caller is in the middle of a decision.
            self._loop.call_soon(self._fail, f"cannot send: {error}")
            return
        if sent < len(data):
            self._loop.call_soon(self._fail, "cannot send: it has stopped reading")

    def close(self) -> None:
        """Close without a report. Idempotent."""
        if self._open:
            self._open = False
            self._loop.remove_reader(self._socket)
            self._socket.close()

    def _receive(self) -> None:
        try:
            data = self._socket.recv(_RECEIVE_BYTES)
            frames = self._reader.feed(data)
        except BlockingIOError:
            return
        except (OSError, FrameError) as error:
            self._fail(str(error))
            return
        for frame in frames:
            if self._open:
                self._on_frame(frame)
        if not data:
            self._fail("it has closed its end")

    def _fail(self, reason: str) -> None:
        if self._open:
            self.close()
            self._on_closed(reason)


def channel_pair() -> tuple[socket.socket, socket.socket]:
    """Return a connected pair of stream sockets: the gateway's end and the worker's."""
    return socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
