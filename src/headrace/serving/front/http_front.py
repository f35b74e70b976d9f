"""The Open Inference Protocol over HTTP, as a front."""

from headrace.serving.core.protocol import ProtocolCore
from headrace.serving.front.base import FrontOptions
from headrace.serving.front.gateway import Gateway
from headrace.serving.front.http import HttpConnection
from headrace.serving.front.http_server import HttpServer
from headrace.serving.front.tcp_front import TcpFront


class HttpFront(TcpFront):
    """A `Front`."""

    scheme = "http"
    alpn = "http/1.1"
    another = "--port 0"

    def __init__(self, core: ProtocolCore, options: FrontOptions) -> None:
        super().__init__(core, options)
        gateway = Gateway(core, options.access, self.aside, options.limits)
        self._server = HttpServer(gateway, options.limits)

    @property
    def server(self) -> HttpServer:
        return self._server

    def connect(self) -> HttpConnection:
        return self._server.connect()
