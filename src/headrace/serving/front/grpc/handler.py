"""What stands above HTTP/2."""

from typing import TYPE_CHECKING, Protocol

from headrace.serving.front.grpc.call import Call
from headrace.serving.front.grpc.status import Status

if TYPE_CHECKING:
    from headrace.serving.front.grpc.http2 import Http2Connection


class Handler(Protocol):
    """Speaks gRPC; knows nothing of frames."""

    def meet(self, connection: "Http2Connection") -> None:
        """A client has come: say who it is (`introduce`), now or later."""
        ...

    def admit(self, call: Call) -> Status | None:
        """The head is there; a status refuses the call before anything else is read."""
        ...

    def message(self, call: Call, body: bytes | bytearray, compressed: bool) -> None: ...

    def whole(self, call: Call) -> None:
        """There will be no more messages."""
        ...

    def over(self, call: Call) -> None:
        """It was answered, refused, or its client went away: let go of whatever it holds."""
        ...

    def awaited(self, call: Call) -> bool:
        """Whether the client waits for what it has sent whole."""
        ...

    def drain(self, call: Call) -> None:
        """Answer what was sent, and end the call then."""
        ...

    def writable(self, call: Call) -> None:
        """All that was sent is written, after some of it had to wait for the client."""
        ...
