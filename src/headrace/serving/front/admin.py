"""The owner's requests, on a Unix socket that nobody else can reach.

`POST /admin/migrate` gives the server another plan. It is HTTP on a Unix socket and nowhere else:
on a TCP port, a proxy's word or a page in a browser may come from anywhere. Three locks, each
enough: the socket lies in a folder that only the owner can enter, its mode is 0600, and the kernel
says whose the other end is (SO_PEERCRED) before a byte is read.
"""

import asyncio
import errno
import logging
import os
import socket
import stat
import struct
from pathlib import Path

import msgspec

from headrace.dispatch.changes.migration import How
from headrace.domain.base import JSON_ERRORS, Record
from headrace.domain.errors import HeadraceError
from headrace.serving.core.protocol import ProtocolCore
from headrace.serving.front.access import default_folder
from headrace.serving.front.base import AddressError, FrontOptions, Migrate
from headrace.serving.front.http import HttpConnection
from headrace.serving.front.http_exchange import HttpExchange
from headrace.serving.front.http_messages import (
    Limits,
    Response,
    internal_error,
    json_response,
    problem,
)
from headrace.serving.front.http_server import HttpServer
from headrace.serving.front.seats import OWNER, Peer

logger = logging.getLogger(__name__)

PATH = b"/admin/migrate"
_LIMITS = Limits(body_bytes=1 << 14, connections=8, reserved_connections=0)
_SWEEP_S = 0.5
_CREDENTIALS = struct.Struct("3i")
_ROOT = 0
_KINDS = {
    stat.S_IFREG: "a file",
    stat.S_IFDIR: "a folder",
    stat.S_IFLNK: "a link",
    stat.S_IFIFO: "a pipe",
}


class MigrationRequest(Record, frozen=True, kw_only=True):
    """The body."""

    plan: str
    """Absolute path of the plan file on the server's machine."""
    how: How = "drain"


def socket_path(folder: Path, port: int) -> Path:
    """Of the server that listens on this port."""
    return folder / f"admin-{port}.sock"


class AdminHandler:
    """An `http_exchange.Handler`. Answers when the migration is over, or refused."""

    def __init__(self, migrate: Migrate | None) -> None:
        self._migrate = migrate
        self._tasks: set[asyncio.Task[None]] = set()

    def meet(self, connection: HttpConnection) -> None:
        own = connection.transport.get_extra_info("socket")
        raw = own.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
        _, user, _ = _CREDENTIALS.unpack(raw)
        if user in (os.geteuid(), _ROOT):
            connection.introduce(Peer(user, OWNER), trusted=True)
        else:
            connection.transport.abort()

    def admit(self, exchange: HttpExchange) -> Response | None:
        return None

    def abandon(self, exchange: HttpExchange) -> None:
        """The migration is the server's, not its caller's: it goes on."""

    def handle(self, exchange: HttpExchange) -> None:
        if exchange.target != PATH:
            exchange.respond(problem(404, f"the admin interface has {PATH.decode()} only"))
            return
        if exchange.method != b"POST":
            exchange.respond(problem(405, "use POST here", b"Allow: POST\r\n"))
            return
        if self._migrate is None:
            exchange.respond(problem(409, "this server keeps the plan that it began with"))
            return
        try:
            asked = msgspec.json.decode(exchange.body, type=MigrationRequest)
        except JSON_ERRORS as error:
            exchange.respond(problem(400, f"the request is not as it should be: {error}"))
            return
        path = Path(asked.plan)
        if "\x00" in asked.plan or not path.is_absolute():
            exchange.respond(problem(400, "`plan` must be an absolute path"))
            return
        run = self._run(self._migrate, exchange, path, asked.how)
        task = asyncio.get_running_loop().create_task(run)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _run(self, migrate: Migrate, exchange: HttpExchange, path: Path, how: How) -> None:
        try:
            report = await migrate(path, how)
        except HeadraceError as error:
            logger.warning("the plan stays: %s", error)
            exchange.respond(problem(409, str(error), plan=str(path)))
        except Exception:
            exchange.respond(internal_error())
        else:
            exchange.respond(json_response(report))


class AdminFront:
    """A `Front`."""

    def __init__(self, core: ProtocolCore, options: FrontOptions) -> None:
        self._options = options
        self._http = HttpServer(AdminHandler(options.migrate), _LIMITS)
        self._listener: asyncio.Server | None = None
        self._sweeper: asyncio.Task[None] | None = None
        self._path: Path | None = None
        self.address = ""
        """Path of the socket."""

    @property
    def connections(self) -> int:
        return len(self._http.connections)

    async def listen(self) -> None:
        """
        Raises:
            AddressError: the socket cannot be made, or not where only the owner comes.
        """
        path = self._socket_path()
        own = _bound(path)
        self._path = path
        self._listener = await asyncio.get_running_loop().create_unix_server(
            self._http.connect, sock=own
        )
        self.address = str(path)
        self._sweeper = asyncio.get_running_loop().create_task(self._sweep())

    def retire(self) -> None:
        self._http.closing = True

    def close(self) -> None:
        if self._listener is not None:
            self._listener.close()
        if self._path is not None:
            self._path.unlink(missing_ok=True)
            self._path = None

    def drain(self) -> None:
        self._http.drain()

    async def stop(self) -> None:
        self.close()
        self._http.abort()
        if self._sweeper is not None:
            self._sweeper.cancel()

    def _socket_path(self) -> Path:
        beside = self._options.beside
        if self._options.host or beside is None:
            return Path(self._options.host)
        return socket_path(default_folder(), int(beside.address.rpartition(":")[2]))

    async def _sweep(self) -> None:
        while True:
            self._http.sweep(asyncio.get_running_loop().time())
            await asyncio.sleep(_SWEEP_S)


def try_socket(path: Path) -> None:
    """
    Raises:
        AddressError: a server that began now could not listen there.
    """
    _bound(path).close()
    path.unlink(missing_ok=True)


def _bound(path: Path) -> socket.socket:
    """A listening socket of mode 0600, in a folder that only the owner can enter.

    Raises:
        AddressError: there is a folder that others can enter, a server that listens there, or
            something else in the socket's place.
    """
    own = socket.socket(socket.AF_UNIX)
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        _refuse_other_kinds(path)
        folder = path.parent.stat()
        if folder.st_uid != os.geteuid() or stat.S_IMODE(folder.st_mode) & 0o077:
            raise AddressError(
                f"serve: {path.parent}: others can enter this folder, which is for the admin socket"
                f"\n  try    {_instead_of(path.parent, folder)}"
            )
        _remove_stale(path)
        # Nobody may connect between binding and a later chmod; nothing else runs here meanwhile.
        before = os.umask(0o177)
        try:
            own.bind(str(path))
        finally:
            os.umask(before)
        own.listen(16)
        own.setblocking(False)
    except OSError as error:
        own.close()
        if error.errno == errno.EADDRINUSE:
            sentence = f"serve: {path} is in use by another server"
        else:
            sentence = f"serve: cannot make the admin socket {path}: {error}"
        raise AddressError(f"{sentence}\n  try    --admin-socket PATH") from error
    except BaseException:
        own.close()
        raise
    return own


def _refuse_other_kinds(path: Path) -> None:
    """
    Raises:
        AddressError: the path is there, and is no socket.
    """
    try:
        mode = path.lstat().st_mode
    except FileNotFoundError:
        return
    if not stat.S_ISSOCK(mode):
        kind = _KINDS.get(stat.S_IFMT(mode), "a device")
        raise AddressError(
            f"serve: {path} is {kind}, and no socket\n  try    --admin-socket with another name"
        )


def _instead_of(path: Path, folder: os.stat_result) -> str:
    """What to do about a folder that others can enter, which may be there for them: not where
    everybody writes, and of root's none is known to be nobody else's."""
    instead = "--admin-socket in a folder that only you can enter, of mode 700"
    shared = folder.st_mode & (stat.S_ISVTX | stat.S_IWOTH)
    if shared or folder.st_uid != os.geteuid() or folder.st_uid == _ROOT:
        return instead
    return f"chmod 700 {path}, or {instead}"


def _remove_stale(path: Path) -> None:
    """A server that was killed leaves its socket behind."""
    with socket.socket(socket.AF_UNIX) as probe:
        try:
            probe.connect(str(path))
        except FileNotFoundError:
            return
        except ConnectionRefusedError:
            path.unlink(missing_ok=True)
