"""The event loop of servers, which end as they should where no thread can be started any more."""

from collections.abc import Callable, Coroutine
from typing import Any

import uvloop

from headrace.domain.errors import ProcessLimitError


class ServerLoop(uvloop.Loop):  # type: ignore[misc]
    """Needs no thread to end, and says so where it gets none for what is done aside."""

    def run_in_executor(self, executor: Any, func: Callable[..., Any], *args: Any) -> Any:
        """
        Raises:
            ProcessLimitError: no thread is idle, and none can be started.
        """
        try:
            return super().run_in_executor(executor, func, *args)
        except RuntimeError as error:
            if ProcessLimitError.is_meant_by(error):
                raise ProcessLimitError("a thread") from error
            raise

    async def shutdown_default_executor(self, timeout: float | None = None) -> None:
        """Not here, in a thread more: the interpreter ends these threads when it ends."""


def run(server: Coroutine[Any, Any, None]) -> None:
    """As `uvloop.run`, on a `ServerLoop`."""
    uvloop.run(server, loop_factory=ServerLoop)
