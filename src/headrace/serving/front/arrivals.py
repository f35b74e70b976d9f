"""When the bytes of a request reached this machine, however late the gateway came to read them.

The kernel stamps what it receives (SO_TIMESTAMPNS, set on the listener, inherited by connections).
Looking at the stamp of the first unread byte (recvmsg with MSG_PEEK) costs a system call, so not
every read pays for it: the *lag*, how long bytes have waited for the gateway, is looked at once in
`_SAMPLE_US`, and what is read in between is taken to have waited as long. A loop that works through
a backlog reads in the order of arrival, so the lag changes little from one read to the next. After
a stop, or a sleep (`engine.moderation`), it does not, and a wrong guess would cost a request its
answer: while the lag is above `_LONG_LAG_US`, every read is looked at.

A connection that we ourselves stopped reading (a long pipeline, a peer not known yet) waited for
that reason and not for the loop's: it is looked at alone, and says nothing of others.

A request has arrived when its last byte has: the instant is that of the read that completed it. A
client that sends slowly does not use up its own deadline; one whose bytes wait for us does.
"""

import socket
import struct
import time

from headrace.serving.engine.timer import monotonic_us

SO_TIMESTAMPNS = 35
"""Of Linux; Python does not name it."""
_SAMPLE_US = 500
_LONG_LAG_US = 2_000
_LONGEST_US = 60_000_000
"""Stamps are wall clock: whoever sets it must not cost every request its answer for long."""
_STAMP = struct.Struct("@ll")
_PEEK = socket.MSG_PEEK | socket.MSG_DONTWAIT
_ROOM = socket.CMSG_SPACE(_STAMP.size)


def stamp_arrivals(listener: socket.socket) -> None:
    """From now on what its connections receive is stamped; without effect where that is unknown."""
    try:
        listener.setsockopt(socket.SOL_SOCKET, SO_TIMESTAMPNS, 1)
    except OSError:
        return


class Arrivals:
    """The lag of one loop; all its connections share it."""

    __slots__ = ("_fresh_until_us", "_lag_us")

    def __init__(self) -> None:
        self._lag_us = 0
        self._fresh_until_us = 0

    def before_read(self, connection: socket.socket | None, alone: bool) -> int:
        """When the bytes that are about to be read arrived, microseconds of the loop's clock.

        Args:
            connection: None: of one whose stamps cannot be seen.
            alone: it waited for a reason of its own.
        """
        now_us = monotonic_us()
        if connection is None:
            return now_us
        if alone:
            return now_us - (_lag_us(connection) or 0)
        if now_us >= self._fresh_until_us or self._lag_us > _LONG_LAG_US:
            lag_us = _lag_us(connection)
            if lag_us is not None:
                self._lag_us = lag_us
                self._fresh_until_us = now_us + _SAMPLE_US
        return now_us - self._lag_us


def _lag_us(connection: socket.socket) -> int | None:
    """How long its first unread byte has waited; None: there is none, or it has no stamp."""
    try:
        _, ancillary, _, _ = connection.recvmsg(1, _ROOM, _PEEK)
    except OSError:
        return None
    for level, kind, data in ancillary:
        if (level, kind) == (socket.SOL_SOCKET, SO_TIMESTAMPNS) and len(data) == _STAMP.size:
            seconds, nanoseconds = _STAMP.unpack(data)
            waited_us: int = (time.time_ns() - seconds * 1_000_000_000 - nanoseconds) // 1_000
            return min(max(0, waited_us), _LONGEST_US)
    return None
