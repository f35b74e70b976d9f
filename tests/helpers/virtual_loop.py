"""An asyncio loop whose time jumps to the next timer instead of passing."""

import asyncio
import selectors
from collections.abc import Callable, Coroutine, Mapping
from selectors import SelectorKey
from typing import Any


class _JumpingSelector(selectors.BaseSelector):
    """Never waits: what would be a wait moves the loop's time to its next timer."""

    def __init__(self) -> None:
        self._real = selectors.DefaultSelector()
        self.loop: VirtualTimeLoop | None = None

    def select(self, timeout: float | None = None) -> list[tuple[SelectorKey, int]]:
        ready = self._real.select(0)
        if not ready and self.loop is not None and (timeout is None or timeout > 0):
            self.loop.on_nothing_ready()
        return ready

    def register(self, fileobj: Any, events: int, data: Any = None) -> SelectorKey:
        return self._real.register(fileobj, events, data)

    def unregister(self, fileobj: Any) -> SelectorKey:
        return self._real.unregister(fileobj)

    def get_map(self) -> Mapping[Any, SelectorKey]:
        return self._real.get_map()

    def close(self) -> None:
        self._real.close()


class VirtualTimeLoop(asyncio.SelectorEventLoop):
    """Starts at time 0 and runs as fast as it can."""

    def __init__(self) -> None:
        selector = _JumpingSelector()
        self._virtual_s = 0.0
        super().__init__(selector)
        selector.loop = self

    def time(self) -> float:
        return self._virtual_s

    def on_nothing_ready(self) -> None:
        """Go to the next timer, exactly; without one, end `run_until_idle`."""
        timers = self._scheduled  # type: ignore[attr-defined]
        if timers:
            self._virtual_s = max(self._virtual_s, timers[0].when())
        else:
            self.stop()

    def pass_by(self, seconds: float) -> None:
        """Time in which the process was stopped: timers fall due unseen."""
        self._virtual_s += seconds

    def run_until_idle(self) -> None:
        """Run until no timer is left."""
        self.run_forever()


def on_virtual_time(test: Callable[[], Coroutine[Any, Any, None]]) -> None:
    loop = VirtualTimeLoop()
    try:
        loop.run_until_complete(test())
    finally:
        loop.close()
