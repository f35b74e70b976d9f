"""The fronts that there are: one row each."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from importlib import import_module

from headrace.serving.core.protocol import ProtocolCore
from headrace.serving.front.base import Front, FrontOptions, FrontsAsked, MakeFront


@dataclass(frozen=True, slots=True, kw_only=True)
class FrontKind:
    """One row: all that a server knows of a kind of front."""

    make: MakeFront
    options: Callable[[FrontsAsked], FrontOptions | None]
    """Its own, of what is asked for; None: it is not wanted."""
    is_for_all: bool = True
    """Its clients may be anybody, and it has a part of the server's connections. False: they are
    the owner's, and few."""


def _front(module: str, name: str) -> MakeFront:
    """Imported when a server is to have it."""

    def make(core: ProtocolCore, options: FrontOptions) -> Front:
        front: Front = getattr(import_module(f"headrace.serving.front.{module}"), name)(
            core, options
        )
        return front

    return make


def _of_http(asked: FrontsAsked) -> FrontOptions:
    return asked.common


def _of_grpc(asked: FrontsAsked) -> FrontOptions | None:
    return None if asked.grpc_port is None else replace(asked.common, port=asked.grpc_port)


def _of_admin(asked: FrontsAsked) -> FrontOptions:
    return replace(asked.common, host=str(asked.admin_socket or ""), migrate=asked.migrate)


FRONTS: dict[str, FrontKind] = {
    "http": FrontKind(make=_front("http_front", "HttpFront"), options=_of_http),
    "grpc": FrontKind(make=_front("grpc.front", "GrpcFront"), options=_of_grpc),
    "admin": FrontKind(make=_front("admin", "AdminFront"), options=_of_admin, is_for_all=False),
}
"""Name -> front, in the order in which they listen: a new one is one new file, and one row here."""


def fronts_of(core: ProtocolCore, asked: FrontsAsked) -> dict[str, Front]:
    """Those that are wanted, by name; none listens yet."""
    made: dict[str, Front] = {}
    for name, kind in FRONTS.items():
        options = kind.options(asked)
        if options is not None:
            first = next(iter(made.values()), None)
            made[name] = kind.make(core, replace(options, beside=first))
    return made


def fronts_for_all(asked: FrontsAsked) -> int:
    """How many of those that are wanted divide the server's connections."""
    return sum(kind.is_for_all and kind.options(asked) is not None for kind in FRONTS.values())
