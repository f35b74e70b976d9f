"""Who may ask, whatever the protocol: loopback by default, a token always, no stray browsers.

The owner's own programs on this machine need no token: the kernel tells which user owns the
other end of a loopback connection. Everybody else needs `Authorization: Bearer TOKEN`. A
browser runs as the owner too, so Host and Origin are checked: a page from elsewhere can then
neither rebind a name to this server nor post to it.
"""

import hmac
import ipaddress
import os
import re
import secrets
import socket
import stat
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from headrace.catalog.regular_file import open_regular
from headrace.domain.errors import HeadraceError

_TOKEN = re.compile(r"[A-Za-z0-9._~+/=-]{16,512}")
MAX_TOKEN_FILE_BYTES = 1024
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
_FROM_ELSEWHERE = Denial(403, "the plan is changed from the server's own machine only")
_NOT_OWNER = Denial(403, "without a token, only the user who runs the server changes its plan")
_NO_HOST = Denial(400, "the Host header is missing")
_FOREIGN_ORIGIN = Denial(403, "requests from web pages of another origin are not served")


class Access:
    """Decides for one listening address. Cheap: what holds for a connection is looked up once."""

    def __init__(
        self, *, bind_host: str, token: str | None, allow_hosts: Iterable[str] = ()
    ) -> None:
        """`token` None: no authentication.

        Raises:
            AccessError: others could reach the address and no token protects it.
        """
        if token is None and not is_loopback(bind_host):
            raise AccessError(
                f"serve: --no-auth on {bind_host}, which other machines can reach\n"
                "  try    --host 127.0.0.1, or leave --no-auth away"
            )
        names = (*_LOCAL_NAMES, bind_host, *allow_hosts)
        self._names = frozenset(_bracketed(name).lower().encode() for name in names)
        self._authorization = None if token is None else f"Bearer {token}".encode()

    def check_origin(
        self, host: bytes | None, origin: bytes | None, local_address: str
    ) -> Denial | None:
        """Whether the request was meant for this server, by a program or a page of its own.

        `local_address` is this end of the connection: as an address, it cannot be rebound.
        """
        if host is None:
            return _NO_HOST
        if not self._is_known(host, local_address):
            return Denial(
                421,
                f"this server does not go by the name {host[:80].decode('latin-1')!r};"
                " start it with --allow-host NAME if it should",
            )
        if origin is not None and origin.lower() != b"http://" + host.lower():
            return _FOREIGN_ORIGIN
        return None

    def check_token(self, authorization: bytes | None) -> Denial | None:
        """Whether the token is right; `trusts` says who needs none."""
        if self._authorization is None:
            return None
        if authorization is None:
            return _NO_TOKEN
        # The scheme's name is case-insensitive; the token is not.
        given = b"Bearer " + authorization[7:] if authorization[:7].lower() == b"bearer " else b""
        return None if hmac.compare_digest(given, self._authorization) else _BAD_TOKEN

    def trusts(self, peer: tuple[str, int], local: tuple[str, int]) -> bool:
        """Whether the other end of a connection needs no token: this user, on this machine."""
        if self._authorization is None:
            return True
        return is_loopback(peer[0]) and peer_user(peer, local) == os.geteuid()

    def check_administrator(
        self, authorization: bytes | None, peer: tuple[str, int], local: tuple[str, int]
    ) -> Denial | None:
        """Whether the caller may change what is served: from this machine only, and the owner of
        this process or somebody with the token. `--no-auth` opens models to others, not this."""
        if not is_loopback(peer[0]):
            return _FROM_ELSEWHERE
        if peer_user(peer, local) == os.geteuid():
            return None
        return _NOT_OWNER if self._authorization is None else self.check_token(authorization)

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


def peer_user(peer: tuple[str, int], local: tuple[str, int]) -> int | None:
    """User id behind the other end of a local TCP connection; None where it is not known.

    The kernel lists every TCP socket of this machine with its owner; the other end is the one
    whose own address is our peer and whose peer is us. Linux only.
    """
    six = ":" in peer[0]
    ends = b"%b %b 01 " % (_kernel_address(peer), _kernel_address(local))
    tables = ("/proc/net/tcp6",) if six else ("/proc/net/tcp", "/proc/net/tcp6")
    for table in tables:
        if table.endswith("6") and not six:
            # A client may reach an IPv4 server through an IPv6 socket (::ffff:127.0.0.1).
            ends = b"%b %b 01 " % (_kernel_address(_mapped(peer)), _kernel_address(_mapped(local)))
        try:
            lines = Path(table).read_bytes()
        except OSError:
            continue
        at = lines.find(ends)
        if at >= 0:
            # …then queues, timer, retransmits, and the user id.
            return int(lines[at + len(ends) :].split(maxsplit=4)[3])
    return None


def default_token_path() -> Path:
    """Where the token is kept unless --token-file says otherwise."""
    runtime = os.environ.get("XDG_RUNTIME_DIR")
    if runtime:
        return Path(runtime) / "headrace" / "token"
    config = os.environ.get("XDG_CONFIG_HOME")
    return (Path(config) if config else Path.home() / ".config") / "headrace" / "token"


def read_or_create_token(path: Path) -> str:
    """Read the token, or write a new one that only this user can read.

    Raises:
        AccessError: others can read or change the file, or it holds no token.
    """
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        return _read_token(path)
    except OSError as error:
        raise AccessError(
            f"token file {path}: {error.strerror}; name another with --token-file"
        ) from error
    token = secrets.token_urlsafe(32)
    with os.fdopen(descriptor, "w") as file:
        file.write(token + "\n")
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


def _kernel_address(end: tuple[str, int]) -> bytes:
    """As /proc/net/tcp writes it: 32-bit words of the address in host order, then the port."""
    packed = ipaddress.ip_address(end[0].partition("%")[0]).packed
    words = (packed[i : i + 4][::-1] for i in range(0, len(packed), 4))
    return b"%b:%04X" % (b"".join(words).hex().upper().encode(), end[1])


def _mapped(end: tuple[str, int]) -> tuple[str, int]:
    return f"::ffff:{end[0]}", end[1]


def _unmapped(
    address: ipaddress.IPv4Address | ipaddress.IPv6Address,
) -> ipaddress.IPv4Address | ipaddress.IPv6Address:
    return getattr(address, "ipv4_mapped", None) or address


def _bracketed(host: str) -> str:
    return f"[{host}]" if ":" in host and not host.startswith("[") else host


def _without_port(host: bytes) -> bytes:
    name, colon, port = host.rpartition(b":")
    return name if colon and port.isdigit() else host
