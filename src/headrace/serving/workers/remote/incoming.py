"""Tensors that other agents send to a session: where they belong, and whether they are wanted.

The gateway numbers them, and numbers grow. So of a number that was not announced yet (`expect`) it
is known whether it is early, then its connection waits, or late, then it is dropped.
"""

from collections.abc import Callable
from dataclasses import dataclass

from headrace.serving.workers.frames import FrameError
from headrace.serving.workers.remote.connection import LATER, Connection, Place
from headrace.serving.workers.remote.frames import Expect


@dataclass(slots=True)
class _Expected:
    offset: int
    length: int
    by: Connection | None = None
    """Over which it is arriving."""


class IncomingTensors:
    """Of one session."""

    def __init__(self, region: Callable[[int, int], memoryview]) -> None:
        """`region`: so many bytes from an offset on; raises FrameError where they leave the
        arena."""
        self._region = region
        self._expected: dict[int, _Expected] = {}
        """By transfer."""
        self._highest = -1
        """Of the transfers that were expected."""
        self._early: list[Connection] = []
        """That wait for their Expect."""

    def begin(self) -> None:
        """For another gateway, whose numbers are its own."""
        self._highest = -1

    def expect(self, frame: Expect) -> None:
        """
        Raises:
            FrameError: it would leave the arena.
        """
        self._region(frame.offset, frame.length)
        self._expected[frame.transfer] = _Expected(frame.offset, frame.length)
        self._highest = max(self._highest, frame.transfer)
        self._resume_early()

    def cancel(self, transfer: int) -> None:
        """It goes nowhere, whether it comes late or is on its way. Idempotent."""
        cancelled = self._expected.pop(transfer, None)
        if cancelled is not None and cancelled.by is not None:
            cancelled.by.discard()

    def place(self, transfer: int, length: int, by: Connection) -> Place:
        """
        Raises:
            FrameError: it has another length than was announced.
        """
        if transfer > self._highest:
            self._early.append(by)
            return LATER
        expected = self._expected.get(transfer)
        if expected is None:
            return None
        if expected.length != length:
            raise FrameError(f"{length} bytes of tensors, {expected.length} are expected")
        expected.by = by
        return self._region(expected.offset, length)

    def arrived(self, transfer: int) -> bool:
        """All of it is here; whether anybody wants it."""
        return self._expected.pop(transfer, None) is not None

    def cut_off(self, by: Connection) -> list[int]:
        """The connection has ended; returns what was arriving over it and will not."""
        lost = [number for number, expected in self._expected.items() if expected.by is by]
        for transfer in lost:
            del self._expected[transfer]
        return lost

    def drop_all(self) -> None:
        """The gateway is gone: nothing is expected any more."""
        for expected in self._expected.values():
            if expected.by is not None:
                expected.by.discard()
        self._expected.clear()
        self._resume_early()

    def _resume_early(self) -> None:
        early, self._early = self._early, []
        for connection in early:
            connection.resume()
