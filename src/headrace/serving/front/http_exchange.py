"""One request and the way to answer it; and what stands above HTTP."""

from typing import TYPE_CHECKING, Any, Protocol

import msgspec

from headrace.serving.front.http_messages import Response

if TYPE_CHECKING:
    from headrace.serving.front.http import HttpConnection


class Handler(Protocol):
    """What stands above HTTP."""

    def meet(self, connection: "HttpConnection") -> None:
        """A client has come: say who it is (`HttpConnection.introduce`), now or later. Until then
        nothing that it sends is looked at."""
        ...

    def admit(self, exchange: "HttpExchange") -> Response | None:
        """The head is complete; a response refuses the request before its body is read."""
        ...

    def handle(self, exchange: "HttpExchange") -> None:
        """The request is complete; call `exchange.respond`, now or later."""
        ...

    def abandon(self, exchange: "HttpExchange") -> None:
        """The client went away before its answer."""
        ...


Body = bytes | bytearray | memoryview


class HttpExchange(msgspec.Struct, eq=False):
    """One request on one connection, and the way to answer it."""

    connection: "HttpConnection"
    method: bytes = b""
    target: bytes = b""
    """Path and query as sent."""
    headers: dict[bytes, bytes] = {}
    """Lower-case names; a name sent twice is joined by commas."""
    body: Body = b""
    body_bytes: int | None = None
    """Most that it may have, where that is less than `Limits.body_bytes`."""
    arrived_at_us: int | None = None
    """When it reached this machine, microseconds of the loop's clock; None: just now."""
    keep_alive: bool = False
    expects_continue: bool = False
    """Its client has not been told yet that it may send the body."""
    must_name_host: bool = True
    """HTTP/1.0 has no Host, and no browser speaks it whose page could be of another origin."""
    leads: bool = False
    """What its client sends behind it may build on its answer, as a step of a sequence does."""
    refusal: Response | None = None
    """Decided before the request was complete."""
    work: Any = None
    """For the handler: what it does for this exchange; `cancel` ends it."""

    @property
    def gone(self) -> bool:
        """No answer is awaited any more: it was given, or the client left."""
        return self.connection.current is not self

    def replace_body(self, body: bytes) -> bool:
        """Put the decompressed body in place; False: the server holds too much already."""
        return self.connection.replace_body(self, body)

    def respond(self, response: Response) -> None:
        """Answer; exactly once. Without effect when the client is gone."""
        self.connection.finish(self, response)


def read_absolute(exchange: HttpExchange) -> None:
    """Of a target that is a whole URL, as for a proxy, take the path; and the name in it counts,
    not the Host header's (RFC 9112, section 3.2.2)."""
    scheme, found, rest = exchange.target.partition(b"://")
    if found and scheme.lower() in (b"http", b"https"):
        host, slash, path = rest.partition(b"/")
        exchange.target = b"/" + path if slash else b"/"
        if b"host" in exchange.headers:
            exchange.headers[b"host"] = host


def without_upgrade(exchange: HttpExchange, version: str) -> bytes:
    """The head of a request that offers to go on in another protocol, without that."""
    kept = {name: value for name, value in exchange.headers.items() if name != b"upgrade"}
    options = kept.get(b"connection", b"").split(b",")
    kept[b"connection"] = b",".join(each for each in options if each.strip().lower() != b"upgrade")
    fields = b"".join(b"%b: %b\r\n" % field for field in kept.items())
    first = b"%b %b HTTP/%b\r\n" % (exchange.method, exchange.target, version.encode())
    return first + fields + b"\r\n"
