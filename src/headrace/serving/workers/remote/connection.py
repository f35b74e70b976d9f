"""A socket between gateway and agents: frames, and tensors straight between it and the arena.

What arrives is read into a small buffer until a frame is whole. If a payload follows, its receiver
is asked where it belongs (`Handler.place`), and the socket then reads into that memory itself, so
that of a large tensor nothing but the first few kilobytes is copied. On the way out, `sendmsg`
takes header, body and payload from where they lie. Neither side asks for memory because a length
was announced: a payload goes into memory that was reserved before, or into none.

A payload whose place is not known yet makes the connection wait (`LATER`): it reads nothing until
`resume`. One that nobody wants any more, also in the middle of it, is read and dropped (`discard`).
"""

import asyncio
import contextlib
import logging
import socket
import ssl
import struct
import termios
from collections import deque
from collections.abc import Callable
from fcntl import ioctl
from typing import Final, Literal, Protocol

from headrace.serving.workers.frames import FrameError
from headrace.serving.workers.remote.frames import (
    HEADER,
    AnyRemoteFrame,
    decode,
    encode,
    read_header,
)

logger = logging.getLogger("headrace.cluster")

BUFFER_BYTES = 1 << 14
"""Small: what of a payload comes with its frame is copied once more."""
SOCKET_BYTES = 4 << 20
"""Of the system's buffers, so that a tensor crosses in few turns of either loop."""
UNHEARD_MS = 5_000
"""So long the other machine may acknowledge nothing of what was sent, before it counts as gone."""
SILENCE_S = 1.5
"""So long a gateway waits for a word of an agent, and agents of each other. An agent answers
fifteen Pings in that time. With TCP's least time of 0.2 s before it sends anew, two losses of one
packet in a row are not enough."""
_DROPPED_BYTES = 1 << 18
_STIR_BYTES = 1 << 16
"""More than all that is said between two looks: an end that takes so much of what waits for it
lives. The system alone takes small frames for a process that stands still."""
_TURNS = 16
"""Reads in a row before others of the loop have theirs."""
_PIECES = 64
"""That one `sendmsg` takes."""

LATER: Final = "later"
Place = memoryview | None | Literal["later"]
"""Where a payload belongs; None: nowhere, read it and drop it; LATER: it is not known yet."""


class Handler(Protocol):
    """Who receives."""

    def place(self, frame: AnyRemoteFrame, length: int) -> Place:
        """Where the payload of this frame goes: memory of exactly that length.

        Raises:
            FrameError: this frame has no payload, or not such a one.
        """
        ...

    def on_frame(self, frame: AnyRemoteFrame) -> None:
        """A frame, and its payload if it has one, is here.

        Raises:
            FrameError: it must not come now.
        """
        ...

    def on_closed(self, reason: str) -> None:
        """The other end is gone, or sent what is no frame. Not after `close`."""
        ...


class Connection:
    """One of them, after the handshake. Set `handler`, then call `start`."""

    handler: Handler

    def __init__(self, endpoint: socket.socket) -> None:
        """Takes the socket over; an `ssl.SSLSocket` has shaken hands."""
        endpoint.setblocking(False)
        self._loop = asyncio.get_running_loop()
        self._socket = endpoint
        self._tls = endpoint if isinstance(endpoint, ssl.SSLSocket) else None
        self._number = endpoint.fileno()
        self._buffer = memoryview(bytearray(BUFFER_BYTES))
        self._dropped = memoryview(b"")
        self._start = self._end = 0
        """What of the buffer is not used yet."""
        self._large: bytearray | None = None
        """A body that is longer than the buffer, as far as it has come."""
        self._frame: AnyRemoteFrame | None = None
        """Whose payload is being read, or waits to be."""
        self._target: memoryview | None = None
        """Where the rest of it goes; None: nowhere."""
        self._left = 0
        self._parked = False
        self._outgoing: deque[tuple[memoryview, Callable[[], object] | None]] = deque()
        self._writing = False
        self._handling = False
        """Frames that have come are being handled; what is said meanwhile leaves together."""
        self._drained: asyncio.Future[None] | None = None
        self.heard_at_s = self._loop.time()
        """When the other end was last heard."""
        self._payload_at_s = 0.0
        """The same, of a part of a payload."""
        self._waits_since_s = 0.0
        self.taking_since_s = self.heard_at_s
        """When it was last seen to take what waits for it; see `silent_s`."""
        self._sent_bytes = 0
        self._taken_bytes = 0
        self.open = True

    @property
    def descriptor(self) -> int | None:
        """Readable when the other end has said something; None: it is closed."""
        return self._number if self.open else None

    @property
    def waits_s(self) -> float:
        """For how long it has waited for a place that is LATER; 0: it does not."""
        return self._loop.time() - self._waits_since_s if self._waits_since_s else 0.0

    def start(self) -> None:
        self._loop.add_reader(self._number, self._receive)
        if self._tls is not None and self._tls.pending():
            self._loop.call_soon(self._receive)

    # -- sending -----------------------------------------------------------------------------------

    def send(
        self,
        frame: AnyRemoteFrame,
        payload: memoryview | None = None,
        on_sent: Callable[[], object] | None = None,
        more: bool = False,
    ) -> None:
        """Send without waiting; a dead other end is reported through `on_closed`.

        Args:
            payload: must stay as it is until it was sent.
            on_sent: called when the system has all of it, or the connection is closed.
            more: another frame follows in this very step, and takes this one with it.
        """
        if not self.open:
            if on_sent is not None:
                on_sent()
            return
        self._sent_bytes += 0 if payload is None else payload.nbytes
        if payload is None:
            self._outgoing.append((memoryview(encode(frame)), on_sent))
        else:
            self._outgoing.append((memoryview(encode(frame, payload.nbytes)), None))
            self._outgoing.append((payload, on_sent))
        if not more and not self._writing and not self._handling:
            self._flush()

    async def drained(self) -> None:
        """All that was sent is on its way. At once where the connection is closed."""
        while self._outgoing and self.open:
            if self._drained is None:
                self._drained = self._loop.create_future()
            await self._drained

    def silent_s(self, answered_at_s: float | None = None) -> float:
        """For how long the other end was not heard, and was not seen to take what waits for it: a
        large tensor on a slow network is no silence. Ask again and again: it is seen only then.

        Args:
            answered_at_s: when it last answered what it was asked, which alone counts then, and
                payloads that come; None: whatever it says counts.
        """
        now_s = self._loop.time()
        if self._is_taking():
            self.taking_since_s = now_s
        heard_at_s = self.heard_at_s if answered_at_s is None else answered_at_s
        return now_s - max(heard_at_s, self._payload_at_s, self.taking_since_s)

    def _is_taking(self) -> bool:
        """Whether it has taken _STIR_BYTES of payloads since it last had."""
        if self._sent_bytes - self._taken_bytes < _STIR_BYTES or not self.open:
            return False
        taken_bytes = self._sent_bytes - self._untaken_bytes()
        if taken_bytes - self._taken_bytes < _STIR_BYTES:
            return False
        self._taken_bytes = taken_bytes
        return True

    def _untaken_bytes(self) -> int:
        """Here and in the system: what the other machine has not acknowledged."""
        waiting_bytes = sum(piece.nbytes for piece, _ in self._outgoing)
        with contextlib.suppress(OSError):  # of a socket that does not tell
            waiting_bytes += struct.unpack("i", ioctl(self._number, termios.TIOCOUTQ, bytes(4)))[0]
        return waiting_bytes

    def _flush(self) -> None:
        outgoing = self._outgoing
        try:
            while outgoing:
                self._sent(self._write())
        except (BlockingIOError, ssl.SSLWantWriteError, ssl.SSLWantReadError):
            if not self._writing:
                self._writing = True
                self._loop.add_writer(self._number, self._flush)
            return
        except OSError as error:
            # Not from inside `send`: the caller is in the middle of a decision.
            self._loop.call_soon(self._fail, f"cannot send: {error}")
            return
        if self._writing:
            self._writing = False
            self._loop.remove_writer(self._number)
        self._wake_drained()

    def _write(self) -> int:
        if self._tls is not None:
            return self._tls.send(self._outgoing[0][0])
        if len(self._outgoing) == 1:
            return self._socket.send(self._outgoing[0][0])
        return self._socket.sendmsg([piece for piece, _ in list(self._outgoing)[:_PIECES]])

    def _sent(self, count: int) -> None:
        outgoing = self._outgoing
        while outgoing:
            piece, on_sent = outgoing[0]
            if count < piece.nbytes:
                if count:
                    outgoing[0] = (piece[count:], on_sent)
                return
            count -= piece.nbytes
            outgoing.popleft()
            if on_sent is not None:
                on_sent()

    def _wake_drained(self) -> None:
        waiting, self._drained = self._drained, None
        if waiting is not None and not waiting.done():
            waiting.set_result(None)

    # -- receiving ---------------------------------------------------------------------------------

    def resume(self) -> None:
        """The place of a payload that was LATER is known now, or it is to be dropped."""
        if self._parked and self.open:
            self._loop.call_soon(self._go_on)

    def discard(self) -> None:
        """What is still to come of the payload that is being read goes nowhere."""
        self._target = None

    def _go_on(self) -> None:
        # Only now may the socket be read: a loop may see that it is readable before it calls this,
        # and what lies in the buffer comes before what is read.
        if self.open and self._parked:
            self._parked = False
            self._loop.add_reader(self._number, self._receive)
            self._guarded(self._placed_and_parsed)

    def _placed_and_parsed(self) -> None:
        self._ask_for_place()
        self._parse()
        if self._tls is not None and self._tls.pending():
            self._loop.call_soon(self._receive)

    def _receive(self) -> None:
        self._guarded(self._read)

    def _guarded(self, act: Callable[[], None]) -> None:
        self._handling = True
        try:
            act()
        except (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError):
            pass
        except (FrameError, OSError) as error:
            self._fail(str(error))
        except Exception:
            # Where in the stream it stands is not known any more.
            logger.exception("what was received cannot be handled")
            self._fail("this end has failed")
        finally:
            self._handling = False
        if self._outgoing and not self._writing and self.open:
            self._flush()

    def _read(self) -> None:
        for _ in range(_TURNS):
            if not self.open or self._parked:
                return
            into = self._room()
            count = self._socket.recv_into(into)
            if not count:
                self._fail("it has closed its end")
                return
            self.heard_at_s = self._loop.time()
            if self._left:
                self._payload_at_s = self.heard_at_s
            self._take(count)
            if count < into.nbytes and self._tls is None:
                return
        if self._tls is not None and self.open:
            # What TLS has decrypted already makes no descriptor readable.
            self._loop.call_soon(self._receive)

    def _room(self) -> memoryview:
        """Where the next bytes go."""
        if not self._left:
            if self._start == self._end:
                self._start = self._end = 0
            return self._buffer[self._end :]
        if self._target is not None:
            return self._target
        if not self._dropped:
            self._dropped = memoryview(bytearray(_DROPPED_BYTES))
        return self._dropped[: self._left]

    def _take(self, count: int) -> None:
        if not self._left:
            self._end += count
            self._parse()
            return
        self._left -= count
        if self._target is not None:
            self._target = self._target[count:]
        if not self._left:
            self._payload_ended()

    def _payload_ended(self) -> None:
        frame, self._frame, self._target = self._frame, None, None
        assert frame is not None, "a payload follows its frame"
        self.handler.on_frame(frame)

    def _parse(self) -> None:
        """Hand over all frames that are whole."""
        while self.open and not self._left and not self._parked:
            held = self._end - self._start
            if self._large is None:
                if held < HEADER.size:
                    break
                body_bytes, payload_bytes = read_header(self._buffer[self._start :])
                if HEADER.size + body_bytes > BUFFER_BYTES:
                    self._large = bytearray()
                elif held < HEADER.size + body_bytes:
                    break
            if self._large is not None:
                body = self._more_of_large()
                if body is None:
                    return
                body_bytes, payload_bytes = read_header(body)
                frame = decode(memoryview(body)[HEADER.size :])
            else:
                first = self._start + HEADER.size
                frame = decode(self._buffer[first : first + body_bytes])
                self._start = first + body_bytes
            if payload_bytes:
                self._frame, self._left = frame, payload_bytes
                self._ask_for_place()
            else:
                self.handler.on_frame(frame)
        if self._start and not self._left and not self._parked:
            # Half a frame: room for its rest.
            held = self._end - self._start
            self._buffer[:held] = bytes(self._buffer[self._start : self._end])
            self._start, self._end = 0, held

    def _more_of_large(self) -> bytearray | None:
        """Header and body of a frame that the buffer cannot hold; None: not all of it is here."""
        large = self._large
        assert large is not None, "a large frame has begun"
        held = self._buffer[self._start : self._end]
        wanted = HEADER.size
        if len(large) >= HEADER.size:
            wanted += read_header(large)[0]
        elif held.nbytes + len(large) >= HEADER.size:
            wanted += read_header(bytes(large) + bytes(held[: HEADER.size]))[0]
        part = held[: wanted - len(large)]
        large += part
        self._start += part.nbytes
        if len(large) < wanted:
            self._start = self._end = 0
            return None
        self._large = None
        return large

    def _ask_for_place(self) -> None:
        """For a payload that follows; takes what of it is here already."""
        if self._frame is None:
            return
        place = self.handler.place(self._frame, self._left)
        if place == LATER:
            self._parked = True
            self._waits_since_s = self._waits_since_s or self._loop.time()
            self._loop.remove_reader(self._number)
            return
        assert not isinstance(place, str), "the only word is LATER"
        self._waits_since_s = 0.0
        if place is not None and place.nbytes != self._left:
            raise FrameError(f"a payload of {self._left} bytes for a place of {place.nbytes}")
        self._target = place
        here = min(self._left, self._end - self._start)
        if place is not None:
            place[:here] = self._buffer[self._start : self._start + here]
            self._target = place[here:]
        self._start += here
        self._left -= here
        if not self._left:
            self._payload_ended()

    # -- the end -----------------------------------------------------------------------------------

    def close(self) -> None:
        """Close without a report. Idempotent."""
        if not self.open:
            return
        self.open = False
        self._loop.remove_reader(self._number)
        if self._writing:
            self._loop.remove_writer(self._number)
        self._socket.close()
        self._target = None
        while self._outgoing:
            _, on_sent = self._outgoing.popleft()
            if on_sent is not None:
                on_sent()
        self._wake_drained()

    def _fail(self, reason: str) -> None:
        if self.open:
            self.close()
            self.handler.on_closed(reason)


def tuned(endpoint: socket.socket) -> socket.socket:
    """The same socket, for small frames at once and large tensors in few turns."""
    endpoint.setblocking(False)
    if endpoint.family in (socket.AF_INET, socket.AF_INET6):
        endpoint.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if hasattr(socket, "TCP_USER_TIMEOUT"):
            endpoint.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, UNHEARD_MS)
    endpoint.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SOCKET_BYTES)
    endpoint.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, SOCKET_BYTES)
    return endpoint
