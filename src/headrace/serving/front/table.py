"""The fronts that there are: one row each."""

from importlib import import_module

from headrace.serving.core.protocol import ProtocolCore
from headrace.serving.front.base import Front, FrontOptions, MakeFront


def _front(module: str, name: str) -> MakeFront:
    """Imported when a server is to have it."""

    def make(core: ProtocolCore, options: FrontOptions) -> Front:
        front: Front = getattr(import_module(f"headrace.serving.front.{module}"), name)(
            core, options
        )
        return front

    return make


FRONTS: dict[str, MakeFront] = {
    "http": _front("http_front", "HttpFront"),
    "grpc": _front("grpc.front", "GrpcFront"),
    "admin": _front("admin", "AdminFront"),
}
"""Name -> front: a new one is one new file, and one line here."""
