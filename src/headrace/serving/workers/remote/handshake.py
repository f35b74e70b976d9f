"""Who may speak between gateway and agents: those who prove that they know the cluster's secret.

    listener   MAGIC, N_l                     32 random bytes
    caller     MAGIC, role, N_c, P_c          P_c = HMAC(secret, "caller", role, N_l, N_c)
    listener   P_l                            P_l = HMAC(secret, "listener", role, N_l, N_c)

Each proves knowledge to the other over the other's fresh nonce, the secret never travels, and
neither proof is of use in the other direction or for another connection. Proofs are compared in
constant time (HMAC-SHA-256). All messages have fixed lengths and must come within HANDSHAKE_S, so
that a stranger costs a socket for a moment and no memory. What follows is neither signed nor
encrypted: where others can reach into the network, TLS is for that, and comes first.
"""

import asyncio
import contextlib
import hmac
import os
import secrets
import socket
import ssl
import struct
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Final, Literal, TypeVar

from headrace.domain.errors import HeadraceError

MAGIC: Final = b"headrace/1\n"
NONCE_BYTES = PROOF_BYTES = 32
HANDSHAKE_S = 5.0
MOST_TRIES = 5
"""Of a caller, within that time."""
LEAST_SECRET_BYTES = 16
MOST_SECRET_BYTES = 4096
SECRET_VARIABLE = "HEADRACE_CLUSTER_SECRET"

Result = TypeVar("Result")
Role = Literal["gateway", "agent"]
_ROLES: dict[bytes, Role] = {b"G": "gateway", b"A": "agent"}
_LETTERS = {role: letter for letter, role in _ROLES.items()}
_TLS_HELLO = b"\x16"
"""The first byte of whoever calls over TLS."""
_NO_TLS = ("wrong version number", "record layer failure")
"""What OpenSSL says of other bytes than TLS; the second from 3.2 on, without a name in Python."""


class HandshakeError(HeadraceError):
    """The other end is not of this cluster, or nobody answers there."""


class SupersededError(HandshakeError):
    """An agent obeys another gateway, and will not obey this one any more: see `HostGoneError`."""

    exit_code = 5

    def __init__(self, what: str) -> None:
        super().__init__(
            f"{what}\n"
            "  try    the gateway that it obeys now, which starting this one again takes it from"
        )


def read_secret(path: Path | None) -> bytes:
    """The cluster's secret, from a file or, without one, from the environment.

    Raises:
        HandshakeError: there is none, it is too short, or others can read its file.
    """
    if path is None:
        secret = os.environ.get(SECRET_VARIABLE, "").strip().encode()
        where = f"the environment variable {SECRET_VARIABLE}"
    else:
        where = str(path)
        try:
            with path.open("rb") as file:
                if os.fstat(file.fileno()).st_mode & 0o077:
                    raise HandshakeError(
                        f"{path}: others can read the cluster's secret\n  try    chmod 600 {path}"
                    )
                secret = file.read(MOST_SECRET_BYTES + 1).strip()
        except OSError as error:
            raise HandshakeError(
                f"{path}: the cluster's secret cannot be read: {error.strerror}\n"
                f"  try    (umask 077; openssl rand -hex 32 > {path}), the same file on every node"
            ) from error
    if not LEAST_SECRET_BYTES <= len(secret) <= MOST_SECRET_BYTES:
        raise HandshakeError(
            f"the cluster's secret ({where}) has {len(secret)} bytes, needs {LEAST_SECRET_BYTES} to"
            f" {MOST_SECRET_BYTES}\n  try    --secret-file with what `openssl rand -hex 32` prints,"
            " the same on every node"
        )
    return secret


def proof(secret: bytes, side: str, role: bytes, listener: bytes, caller: bytes) -> bytes:
    return hmac.digest(secret, side.encode() + role + listener + caller, "sha256")


async def call(
    host: str, port: int, secret: bytes, role: Role, tls: ssl.SSLContext | None
) -> socket.socket:
    """Connect to an agent and shake hands. Where that end closes the connection first, try again:
    this may have been one of so many callers that it had to give way.

    Raises:
        HandshakeError: nobody answers there, or not with this secret.
    """
    where = f"{host}:{port}"
    endpoint: socket.socket | None = None
    greeting, tries = b"", 0
    try:
        async with asyncio.timeout(HANDSHAKE_S):
            while True:
                tries += 1
                try:
                    endpoint = await _connected(host, port)
                    if tls is not None:
                        endpoint = await _wrapped(endpoint, tls, server=False)
                    greeting = await _exactly(endpoint, len(MAGIC) + NONCE_BYTES)
                    await _shake_as_caller(endpoint, greeting, secret, role, where)
                    return endpoint
                except (OSError, EOFError) as error:
                    if not _closed_there(error) or tries == MOST_TRIES:
                        raise
                    _close(endpoint)
    except TimeoutError:
        _close(endpoint)
        how, besides = f"within {HANDSHAKE_S:g} s", ""
        if tls is None and endpoint is not None and not greeting:
            how += ", though the connection stands: it may speak TLS"
            besides = "; or --cluster-ca here, if that agent has --tls-cert"
        raise _no_agent(where, how, besides) from None
    except (OSError, EOFError) as error:
        _close(endpoint)
        if _closed_there(error):
            raise HandshakeError(
                f"{where}: the connection is closed there before the handshake is over"
                f" ({_said(error)}), {tries} times: callers without the secret may crowd the agent,"
                " or what listens there is no agent\n"
                "  try    the agent's log, which says whom it does not let in; where none runs,"
                " `headrace agent` on that node, and the address that it prints"
            ) from error
        if _speaks_no_tls(error):
            besides = "; --tls-cert, --tls-key and --tls-ca there, or no --cluster-ca here"
        elif tls is not None:
            besides = "; the authority of --cluster-ca must have signed its certificate"
        else:
            besides = ""
        raise _no_agent(where, f"there: {_said(error)}", besides) from error
    except BaseException:
        _close(endpoint)
        raise


def _no_agent(where: str, how: str, besides: str) -> HandshakeError:
    """Of other agents that call, the first line alone is shown (`paths.unreached`)."""
    return HandshakeError(
        f"{where}: no agent answers {how}\n"
        f"  try    `headrace agent` on that node, and the address that it prints{besides}"
    )


async def _connected(host: str, port: int) -> socket.socket:
    loop = asyncio.get_running_loop()
    found = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    family, kind, protocol, _, address = found[0]
    endpoint = socket.socket(family, kind, protocol)
    try:
        endpoint.setblocking(False)
        endpoint.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        await loop.sock_connect(endpoint, address)
    except BaseException:
        endpoint.close()
        raise
    return endpoint


async def _shake_as_caller(
    endpoint: socket.socket, greeting: bytes, secret: bytes, role: Role, where: str
) -> None:
    if greeting[: len(MAGIC)] != MAGIC:
        raise HandshakeError(f"{where}: what answers there is no Headrace agent of this version")
    theirs, ours = greeting[len(MAGIC) :], secrets.token_bytes(NONCE_BYTES)
    letter = _LETTERS[role]
    await _send(endpoint, MAGIC + letter + ours + proof(secret, "caller", letter, theirs, ours))
    try:
        answer = await _exactly(endpoint, PROOF_BYTES)
    except EOFError:
        # An agent that refuses it has read all of it, so that its end is never a reset; that of a
        # handshake that gives way always is.
        raise HandshakeError(
            f"{where}: the agent refuses this cluster's secret, or something between has closed the"
            " connection; the agent's log says which\n"
            f"  try    the same --secret-file, or {SECRET_VARIABLE}, here and there"
        ) from None
    if not hmac.compare_digest(answer, proof(secret, "listener", letter, theirs, ours)):
        raise HandshakeError(f"{where}: who answers there does not know the cluster's secret")


async def answer(
    endpoint: socket.socket, secret: bytes, tls: ssl.SSLContext | None
) -> tuple[socket.socket, Role]:
    """Shake hands with a caller; returns the socket to go on with, and who it is.

    When cancelled, it resets the connection: the caller learns that it was not refused.

    Raises:
        HandshakeError: it does not know the secret, or is too slow; the socket is closed.
    """
    try:
        async with asyncio.timeout(HANDSHAKE_S):
            if tls is not None:
                endpoint = await _wrapped(endpoint, tls, server=True)
            ours = secrets.token_bytes(NONCE_BYTES)
            await _send(endpoint, MAGIC + ours)
            said = await _exactly(endpoint, len(MAGIC) + 1 + NONCE_BYTES + PROOF_BYTES)
            if tls is None and said.startswith(_TLS_HELLO):
                raise HandshakeError(
                    "a caller speaks TLS, and this agent does not: it has no --tls-cert, --tls-key"
                    " and --tls-ca"
                )
            magic, rest = said[: len(MAGIC)], said[len(MAGIC) :]
            letter, theirs = rest[:1], rest[1 : 1 + NONCE_BYTES]
            expected = proof(secret, "caller", letter, ours, theirs)
            if (
                magic != MAGIC
                or letter not in _ROLES
                or not hmac.compare_digest(rest[1 + NONCE_BYTES :], expected)
            ):
                raise HandshakeError("a caller does not know the cluster's secret")
            await _send(endpoint, proof(secret, "listener", letter, ours, theirs))
            return endpoint, _ROLES[letter]
    except (OSError, EOFError) as error:
        _close(endpoint)
        what = f"a caller has proved nothing: {_said(error)}"
        silent = isinstance(error, TimeoutError | ConnectionError | ssl.SSLEOFError)
        if silent and tls is not None and not isinstance(endpoint, ssl.SSLSocket):
            what += "; it may speak no TLS (a gateway does with --cluster-ca)"
        raise HandshakeError(what) from error
    except BaseException as error:
        if isinstance(error, asyncio.CancelledError):
            _reset_when_closed(endpoint)
        _close(endpoint)
        raise


# -- bytes -----------------------------------------------------------------------------------------


async def _wrapped(endpoint: socket.socket, tls: ssl.SSLContext, *, server: bool) -> socket.socket:
    wrapped = tls.wrap_socket(endpoint, server_side=server, do_handshake_on_connect=False)
    try:
        await _when_possible(wrapped, wrapped.do_handshake)
    except BaseException:
        wrapped.close()
        raise
    return wrapped


async def _exactly(endpoint: socket.socket, count: int) -> bytes:
    """
    Raises:
        EOFError: the other end has closed before that.
    """
    found = bytearray()
    while len(found) < count:
        part = await _when_possible(endpoint, partial(endpoint.recv, count - len(found)))
        if not part:
            raise EOFError("it has closed its end")
        found += part
    return bytes(found)


async def _send(endpoint: socket.socket, data: bytes) -> None:
    while data:
        sent = await _when_possible(endpoint, partial(endpoint.send, data))
        data = data[sent:]


async def _when_possible(endpoint: socket.socket, act: Callable[[], Result]) -> Result:
    """What `act` returns once it need not wait. asyncio's own calls take no TLS sockets."""
    loop, number = asyncio.get_running_loop(), endpoint.fileno()
    while True:
        add, remove = loop.add_reader, loop.remove_reader
        try:
            return act()
        except ssl.SSLWantWriteError:
            add, remove = loop.add_writer, loop.remove_writer
        except (ssl.SSLWantReadError, BlockingIOError):
            pass  # so few bytes always fit into a fresh socket: it is a read that waits
        ready = asyncio.Event()
        add(number, ready.set)
        try:
            await ready.wait()
        finally:
            remove(number)


def _close(endpoint: socket.socket | None) -> None:
    if endpoint is not None:
        with contextlib.suppress(OSError):
            endpoint.close()


def _reset_when_closed(endpoint: socket.socket) -> None:
    with contextlib.suppress(OSError):
        endpoint.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))


def _closed_there(error: BaseException) -> bool:
    """Of a connection that was made."""
    closed = isinstance(error, EOFError | ConnectionError | ssl.SSLEOFError)
    return closed and not isinstance(error, ConnectionRefusedError)


def _speaks_no_tls(error: BaseException) -> bool:
    return isinstance(error, ssl.SSLError) and any(each in str(error) for each in _NO_TLS)


def _said(error: BaseException) -> str:
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"its certificate is not trusted ({error.verify_message})"
    if _speaks_no_tls(error):
        return "it speaks no TLS"
    if isinstance(error, ssl.SSLEOFError):
        return "it has closed its end"
    if isinstance(error, TimeoutError):
        return f"it takes more than {HANDSHAKE_S:g} s"
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return str(error) or type(error).__name__
