"""The Open Inference Protocol over gRPC, as a front."""

from headrace.serving.core.protocol import ProtocolCore
from headrace.serving.front.base import FrontOptions
from headrace.serving.front.grpc.handler import Handler
from headrace.serving.front.grpc.http2 import Http2Connection
from headrace.serving.front.grpc.service import GrpcService
from headrace.serving.front.http_messages import Limits
from headrace.serving.front.http_server import Connections, Soon
from headrace.serving.front.tcp_front import TcpFront


class GrpcServer(Connections[Http2Connection]):
    """Give `connect` to `loop.create_server`."""

    def __init__(
        self, handler: Handler, limits: Limits | None = None, soon: Soon | None = None
    ) -> None:
        super().__init__(limits, soon)
        self.handler = handler

    def connect(self) -> Http2Connection:
        return Http2Connection(self)

    def sweep(self, now_s: float) -> None:
        super().sweep(now_s)
        for connection in tuple(self.connections):
            connection.sweep()

    def retire(self) -> None:
        """Ask every client to open its next calls elsewhere. Whoever comes back is not asked again,
        or it would connect anew for each call."""
        for connection in tuple(self.connections):
            connection.ask_to_leave()


class GrpcFront(TcpFront):
    """A `Front`."""

    scheme = "grpc"
    alpn = "h2"
    another = "--grpc-port 0"

    def __init__(self, core: ProtocolCore, options: FrontOptions) -> None:
        super().__init__(core, options)
        service = GrpcService(core, options.access, self.aside, options.limits)
        self._server = GrpcServer(service, options.limits)

    @property
    def server(self) -> GrpcServer:
        return self._server

    def connect(self) -> Http2Connection:
        return self._server.connect()
