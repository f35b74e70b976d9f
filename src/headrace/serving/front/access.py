"""Who may ask, whatever the protocol: loopback by default, a token always, no stray browsers.

The owner's own programs on this machine need no token: the kernel tells which user owns the
other end of a loopback connection. Everybody else needs `Authorization: Bearer TOKEN`. A
browser runs as the owner too, so Host and Origin are checked: a page from elsewhere can then
neither rebind a name to this server nor post to it. A proxy on this machine may run as the owner
too: what it passes on says so in its header fields, and needs the token.
"""

import hmac
import ipaddress
import os
import re
import secrets
import socket
import stat
import tempfile
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from headrace.catalog.regular_file import open_regular
from headrace.domain.errors import HeadraceError
from headrace.serving.addresses import peer_key
from headrace.serving.front.peer_user import End, answers_at_once, peer_user
from headrace.serving.front.seats import KNOWN, OWNER, STRANGER, Peer

_TOKEN = re.compile(r"[A-Za-z0-9._~+/=-]{16,512}")
MAX_TOKEN_FILE_BYTES = 1024
_FORWARDING = frozenset(
    (
        b"forwarded",
        b"via",
        b"x-real-ip",
        b"x-client-ip",
        b"x-cluster-client-ip",
        b"true-client-ip",
        b"cf-connecting-ip",
        b"x-envoy-external-address",
    )
)
"""Header fields that proxies add; X-Forwarded-… and X-Original-… besides."""
_LOCAL_NAMES = ("localhost", "127.0.0.1", "[::1]")


class AccessError(HeadraceError):
    """The server would be open to others, or its token cannot be used."""


@dataclass(frozen=True, slots=True)
class Denial:
    """Why a request may not come in."""

    status: int
    sentence: str


_NO_TOKEN = Denial(
    401,
    "this connection needs `Authorization: Bearer TOKEN`; `headrace serve` names the file with"
    " the token when it starts",
)
_BAD_TOKEN = Denial(401, "the token is wrong; `headrace serve` names its file when it starts")
THROUGH_A_PROXY = Denial(
    403,
    "this request came through a proxy; without a token (--no-auth) only programs on the server's"
    " own machine are served",
)
_NO_HOST = Denial(400, "the Host header is missing")
_FOREIGN_ORIGIN = Denial(403, "requests from web pages of another origin are not served")


class Access:
    """Decides for one listening address. Cheap: what holds for a connection is looked up once."""

    def __init__(
        self,
        *,
        bind_host: str,
        token: str | None,
        allow_hosts: Iterable[str] = (),
        trust_owner: bool = True,
    ) -> None:
        """`token` None: no authentication. `trust_owner` False: the owner's programs on this
        machine need the token too, as where a proxy runs as the same user.

        Raises:
            AccessError: others could reach the address and no token protects it.
        """
        if token is None and not is_loopback(bind_host):
            raise AccessError(
                f"serve: --no-auth on {bind_host}, which other machines can reach\n"
                "  try    --host 127.0.0.1, or leave --no-auth away"
            )
        allow_hosts = tuple(allow_hosts)
        for name in allow_hosts:
            if name.count(":") == 1 or "/" in name:
                raise AccessError(
                    f"serve: --allow-host {name}: is not a name\n"
                    "  try    the name alone, without protocol or port: any port will do"
                )
        names = (*_LOCAL_NAMES, bind_host, *allow_hosts)
        self._names = frozenset(_bracketed(name).lower().encode() for name in names)
        self._trust_owner = trust_owner
        self._authorization = None if token is None else f"Bearer {token}".encode()

    def check_origin(
        self, host: bytes | None, origin: bytes | None, local_address: str, scheme: bytes
    ) -> Denial | None:
        """Whether the request was meant for this server, by a program or a page of its own.

        Args:
            local_address: this end of the connection: as an address, it cannot be rebound.
            scheme: of this server's origins, `https` where the connection speaks TLS. A page that
                came in the clear is of another origin: whoever is in between may have written it.
        """
        if host is None:
            return _NO_HOST
        if not self._is_known(host, local_address):
            return Denial(
                421,
                f"this server does not go by the name {host[:80].decode('latin-1')!r};"
                " start it with --allow-host NAME if it should",
            )
        if origin is not None and origin.lower() != b"%b://%b" % (scheme, host.lower()):
            return _FOREIGN_ORIGIN
        return None

    def check_token(self, authorization: bytes | None) -> Denial | None:
        """Whether the token is right; `identify` says who needs none."""
        if self._authorization is None:
            return None
        if authorization is None:
            return _NO_TOKEN
        # The scheme's name is case-insensitive; the token is not.
        given = b"Bearer " + authorization[7:] if authorization[:7].lower() == b"bearer " else b""
        return None if hmac.compare_digest(given, self._authorization) else _BAD_TOKEN

    def knows_at_once(self, peer: End) -> bool:
        """Whether `identify` takes microseconds; otherwise call it on another thread."""
        return answers_at_once() or not is_local(peer[0])

    def identify(self, peer: End, local: End) -> tuple[Peer, bool]:
        """Who is at the other end of a connection, and whether that one needs no token: this user
        on this machine, or anybody where there is none."""
        user = peer_user(peer, local) if is_local(peer[0]) else None
        key = peer_key(peer[0]) if user is None else user
        if user is not None and user == os.geteuid() and self._trust_owner:
            return Peer(key, OWNER), True
        free = self._authorization is None
        return Peer(key, KNOWN if free else STRANGER), free

    def is_forwarded(self, fields: Iterable[bytes]) -> bool:
        """Whether header fields, by lower-case name, say that a proxy speaks for somebody else."""
        return any(
            name in _FORWARDING or name.startswith((b"x-forwarded-", b"x-original-"))
            for name in fields
        )

    @property
    def needs_token(self) -> bool:
        """Whether there is one at all."""
        return self._authorization is not None

    def _is_known(self, host: bytes, local_address: str) -> bool:
        name = _without_port(host.lower())
        return name in self._names or name == _bracketed(local_address).encode()


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach `host`: every address it stands for is loopback.

    >>> is_loopback("127.0.0.1"), is_loopback("::1"), is_loopback("0.0.0.0")
    (True, True, False)
    """
    try:
        found = [ipaddress.ip_address(host)]
    except ValueError:
        try:
            answers = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
        except (OSError, UnicodeError):  # Unicode: no name that a host can have.
            return False
        found = [ipaddress.ip_address(answer[4][0]) for answer in answers]
    return all(_unmapped(address).is_loopback for address in found)


@lru_cache(1024)
def is_local(address: str) -> bool:
    """Whether an address, not a name, is this machine's loopback."""
    try:
        return _unmapped(ipaddress.ip_address(address.partition("%")[0])).is_loopback
    except ValueError:
        return False


def default_folder() -> Path:
    """Where the token and admin sockets lie unless options say otherwise; it need not exist yet.

    Not in XDG_RUNTIME_DIR: that folder is removed when its user logs out, which servers outlive,
    and a shell that is no login's does not know it.

    Raises:
        AccessError: this user has no home.
    """
    config = os.environ.get("XDG_CONFIG_HOME")
    try:
        return (Path(config) if config else Path.home() / ".config") / "headrace"
    except RuntimeError as error:  # a number that is no user's, as containers have
        raise AccessError(
            f"there is no folder for the token and the admin socket: user {os.getuid()} has no"
            " home\n"
            "  try       set HOME or XDG_CONFIG_HOME, or name files with --token-file and"
            " --admin-socket"
        ) from error


def default_token_path() -> Path:
    """Where the token is kept unless --token-file says otherwise.

    Raises:
        AccessError: as `default_folder`.
    """
    return default_folder() / "token"


def read_or_create_token(path: Path) -> str:
    """Read the token, or write a new one that only this user can read.

    Raises:
        AccessError: others can read or change the file, or it holds no token.
    """
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with suppress(FileExistsError):
            return _new_token(path)
    except OSError as error:
        raise AccessError(
            f"token file {path}: {error.strerror}; name another with --token-file"
        ) from error
    return _read_token(path)


def _new_token(path: Path) -> str:
    """The file has its name when it is whole: others may read it at once, or the disk be full.

    Raises:
        FileExistsError: somebody else has made it.
    """
    if os.path.lexists(path):
        raise FileExistsError
    token = secrets.token_urlsafe(32)
    with tempfile.NamedTemporaryFile("w", dir=path.parent, prefix=f".{path.name}.") as file:
        file.write(token + "\n")
        file.flush()
        os.link(file.name, path)
    return token


def _read_token(path: Path) -> str:
    try:
        with open_regular(path, MAX_TOKEN_FILE_BYTES) as file:
            mode = os.fstat(file.fileno()).st_mode
            token = file.read(MAX_TOKEN_FILE_BYTES).decode().strip()
    except (OSError, UnicodeDecodeError) as error:
        raise AccessError(f"token file {path}: cannot be read: {error}") from error
    if mode & (stat.S_IRWXO | stat.S_IWGRP):
        raise AccessError(
            f"token file {path}: other users can read or change it\n  try    chmod 600 {path}"
        )
    if not _TOKEN.fullmatch(token):
        raise AccessError(
            f"token file {path}: holds no token (16 to 512 letters, digits and ._~+/=-)\n"
            "  try    removing the file: a new token is then made"
        )
    return token


def _unmapped(
    address: ipaddress.IPv4Address | ipaddress.IPv6Address,
) -> ipaddress.IPv4Address | ipaddress.IPv6Address:
    return getattr(address, "ipv4_mapped", None) or address


def _bracketed(host: str) -> str:
    return f"[{host}]" if ":" in host and not host.startswith("[") else host


def _without_port(host: bytes) -> bytes:
    name, colon, port = host.rpartition(b":")
    return name if colon and port.isdigit() else host
