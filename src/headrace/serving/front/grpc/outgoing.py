"""What a connection writes, as far as the peer takes it (RFC 9113, section 5.2).

A call's answer is cut to the peer's windows, its own and the connection's. Calls that wait for a
window take turns, a frame each. What is written while a read is being handled goes out at its
end, in one piece.
"""

import asyncio
from collections.abc import Iterable

from headrace.serving.front.grpc import frames
from headrace.serving.front.grpc.call import Call
from headrace.serving.front.grpc.frames import Http2Error


class Outgoing:
    """Of one connection."""

    __slots__ = (
        "_blocked",
        "_held",
        "_opened",
        "_shrinks",
        "_table_bytes",
        "call_window",
        "closed",
        "frame_bytes",
        "paused",
        "transport",
        "window",
    )

    transport: asyncio.Transport

    def __init__(self) -> None:
        self.window = frames.DEFAULT_WINDOW
        """Bytes of all calls that the peer takes now."""
        self._opened = self.window
        """That it would take if nothing had been sent."""
        self.call_window = frames.DEFAULT_WINDOW
        """That a new call begins with."""
        self.frame_bytes = frames.DEFAULT_FRAME_BYTES
        """Most in one frame."""
        self._table_bytes = frames.DEFAULT_TABLE_BYTES
        self._shrinks = False
        """The peer has room for a smaller table than what it reads assumes."""
        self.paused = False
        """The peer does not read what was written."""
        self.closed = False
        self._blocked: dict[int, Call] = {}
        self._held: list[bytes] | None = None

    def write(self, data: bytes) -> None:
        if self._held is not None:
            self._held.append(data)
        elif not self.closed:
            self.transport.write(data)

    def cork(self) -> bool:
        """Hold what is written until `uncork`; False: it is held already."""
        if self._held is not None:
            return False
        self._held = []
        return True

    def uncork(self) -> None:
        held, self._held = self._held, None
        if held:
            self.transport.write(b"".join(held))
        if self.closed:
            self.transport.close()

    def close(self) -> None:
        """After what was written so far."""
        self.closed = True
        if self._held is None:
            self.transport.close()

    def set(self, settings: bytes, calls: Iterable[Call]) -> None:
        """What the peer says of its windows, frames and table.

        Raises:
            Http2Error: it may not say so.
        """
        call_window = self.call_window
        for number, value in frames.SETTING.iter_unpack(settings):
            if number == frames.INITIAL_WINDOW_SIZE:
                if value > frames.MAX_WINDOW:
                    raise Http2Error(frames.FLOW_CONTROL_ERROR, "a window above 2^31 - 1")
                call_window = value
            elif number == frames.MAX_FRAME_SIZE:
                if not frames.DEFAULT_FRAME_BYTES <= value <= frames.MOST_FRAME_BYTES:
                    raise Http2Error(frames.PROTOCOL_ERROR, f"a frame size of {value}")
                self.frame_bytes = min(value, 1 << 20)
            elif number == frames.HEADER_TABLE_SIZE and value < self._table_bytes:
                self._table_bytes, self._shrinks = 0, True
        if call_window != self.call_window:
            for call in calls:
                call.send_window += call_window - self.call_window
            self.call_window = call_window

    def block(self, block: bytes) -> bytes:
        """A header block that is written now. The first behind a smaller table begins with its size
        (RFC 7541, section 4.2): 0, since none of ours uses it, and once for good."""
        if not self._shrinks:
            return block
        self._shrinks = False
        return frames.NO_TABLE + block

    def widen(self, more: int) -> None:
        """The peer takes so many bytes more, of all calls.

        Raises:
            Http2Error: none, or more than there can be.
        """
        self.window += more
        self._opened += more
        if not more or self.window > frames.MAX_WINDOW:
            raise Http2Error(frames.FLOW_CONTROL_ERROR, f"a window grows by {more}")
        self.flush_blocked()

    @property
    def sent_bytes(self) -> int:
        """Of answers, in all."""
        return self._opened - self.window

    def room(self, call: Call) -> int:
        """Bytes that a call may write now, in one frame."""
        if self.paused or call.pending:
            return 0
        return min(call.send_window, self.window, self.frame_bytes)

    def flush(self, call: Call) -> None:
        """Write what is pending, as far as the windows allow."""
        while call.pending and self._write_piece(call):
            pass
        if call.pending:
            if call.id not in self._blocked:
                call.start_waiting()
                self._blocked[call.id] = call
            return
        waited = self._blocked.pop(call.id, None) is not None
        call.write_end()
        if waited and not call.over:
            call.connection.handler.writable(call)

    def resume(self) -> None:
        """The peer reads again: calls have waited for that, and not for their windows."""
        for call in self._blocked.values():
            call.start_waiting()
        self.flush_blocked()

    def flush_blocked(self) -> None:
        """In turn, a frame each."""
        while self._blocked:
            moved = False
            for call in tuple(self._blocked.values()):
                if self._write_piece(call):
                    moved = True
                if not call.pending:
                    self.flush(call)
            if not moved:
                return

    @property
    def blocked_bytes(self) -> int:
        """Of answers for which the peer has opened no window yet."""
        return sum(len(piece) for call in self._blocked.values() for piece in call.pending)

    def forget(self, call: Call) -> None:
        self._blocked.pop(call.id, None)

    def _write_piece(self, call: Call) -> bool:
        room = min(call.send_window, self.window, self.frame_bytes)
        if self.paused or room <= 0 or not call.pending:
            return False
        piece = call.pending[0]
        part = piece[:room]
        if len(part) == len(piece):
            call.pending.popleft()
        else:
            call.pending[0] = piece[room:]
        size = len(part)
        call.send_window -= size
        self.window -= size
        call.take(size)
        self.write(frames.frame_head(size, frames.DATA, 0, call.id) + part)
        return True
