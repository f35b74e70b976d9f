"""Whom the gateway's end of a link tells what comes."""

from typing import TYPE_CHECKING, Protocol

from headrace.serving.workers.remote.frames import Missing, Ready, Report
from headrace.serving.workers.stage_io import Home

if TYPE_CHECKING:
    from headrace.serving.workers.remote.link import AgentLink


class RemoteWorkerEnd(Protocol):
    """What a link tells of a worker."""

    def ready(self, frame: Ready) -> None: ...

    def missing(self, frame: Missing) -> None: ...

    def reported(self, frame: Report) -> None: ...

    def lost(self, reason: str) -> None:
        """It, or its agent."""
        ...

    def ended(self, status: int) -> None: ...


class TensorEnd(Protocol):
    """What a link tells of tensors."""

    def place_answer(self, home: Home, offset: int, length: int) -> memoryview | None:
        """Where the answer that lies there belongs HERE; None: nobody wants it."""
        ...

    def place_moved(self, transfer: int, length: int) -> memoryview | None: ...

    def arrived(self, transfer: int) -> None: ...

    def undelivered(self, transfer: int, reason: str) -> None: ...

    def look(self) -> None:
        """From time to time: is anything overdue?"""
        ...

    async def admit(self, link: "AgentLink") -> None:
        """Return when all nodes that send tensors there have done so.

        Raises:
            HandshakeError: one cannot.
        """
        ...

    def link_down(self, home: Home) -> None: ...
