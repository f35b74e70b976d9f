"""A device for layers that move, made of the machine's own memory, and as adverse as it may be.

Copies are made only when somebody waits for them; memory that is not filled yet, and memory that
was given back, holds values that no answer survives.
"""

import threading
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import pytest

from headrace.domain.errors import NoRoomError

torch: Any = pytest.importorskip("torch", reason="needs PyTorch: `make test-all` installs it")

SPOILT = 0xFF
"""Four of them are no number."""


class LateEvent:
    def __init__(self, stream: "LateStream", place: int) -> None:
        self.stream, self.place = stream, place

    def wait(self) -> None:
        self.stream.advance(self.place)

    def us_since(self, earlier: "LateEvent") -> float:
        """A microsecond for each copy between them."""
        return float(self.place - earlier.place)


class LateStream:
    """Does what it was asked for when it is waited for."""

    def __init__(self, told: list[str], fails: Callable[[int], bool]) -> None:
        self._told, self._fails = told, fails
        self._asked: list[tuple[Any, Any]] = []
        self._one = threading.Lock()
        """Of those who wait at a time: a worker and its thread of arrivals do."""
        self.done = 0
        """Of what it was asked for."""

    def copy(
        self, transfers: Iterable[Sequence[tuple[Any, Any]]], *, timed: bool = False
    ) -> list[LateEvent]:
        marks = []
        for copies in transfers:
            for into, source in copies:
                assert into.shape == source.shape
                assert into.dtype == source.dtype
                self._asked.append((into, source))
                self._told.append(f"ask {into.numel()}")
            marks.append(self.mark())
        return marks

    def mark(self, *, timed: bool = False) -> LateEvent:
        return LateEvent(self, len(self._asked))

    def behind(self, event: LateEvent) -> None:
        self._told.append(f"behind {event.place}")
        event.wait()

    def current(self) -> AbstractContextManager[Any]:
        return nullcontext()

    def advance(self, place: int) -> None:
        with self._one:
            while self.done < place:
                if self._fails(self.done):
                    raise RuntimeError("the device has fallen off the bus")
                into, source = self._asked[self.done]
                into.copy_(source)
                self.done += 1
                self._told.append(f"copied {self.done}")

    @property
    def asked(self) -> int:
        return len(self._asked)


class LateBlock:
    def __init__(self, size_bytes: int) -> None:
        self.bytes = torch.full((size_bytes,), SPOILT, dtype=torch.uint8)
        self.seen = self.bytes


class LateDevice:
    """See `executors.streams.LayerDevice`."""

    name = "cpu"

    def __init__(self, room_bytes: int = 1 << 40, fails_at: int | None = None) -> None:
        """
        Args:
            room_bytes: of its memory.
            fails_at: the copy that fails, from 0; None: none.
        """
        self.told: list[str] = []
        self.room_bytes = room_bytes
        self.held: dict[int, Any] = {}
        """What was allocated and not given back, by address."""
        self.loading = LateStream(self.told, lambda copy: copy == fails_at)
        self.execution = LateStream(self.told, lambda copy: False)

    @property
    def held_bytes(self) -> int:
        return sum(memory.numel() for memory in self.held.values())

    def host_block(self, size_bytes: int) -> LateBlock:
        return LateBlock(size_bytes)

    def allocate(self, size_bytes: int) -> Any:
        if self.held_bytes + size_bytes > self.room_bytes:
            raise NoRoomError(f"{size_bytes} bytes do not fit: {self.room_bytes - self.held_bytes}")
        memory = torch.full((size_bytes,), SPOILT, dtype=torch.uint8)
        self.held[id(memory)] = memory
        return memory

    def give_back(self, memory: Any) -> None:
        del self.held[id(memory)]
        memory.fill_(SPOILT)
