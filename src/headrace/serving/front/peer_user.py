"""Whose the other end of a local TCP connection is: the kernel is asked, nothing sent is believed.

The kernel answers by the four numbers of a connection (addresses and ports), seen from the peer's
end: its own address is our peer, its peer is us. Two ways to ask:

    sock_diag(7)     one netlink message with exactly these four; about 10 us, whatever else the
                     machine has open.
    /proc/net/tcp    every connection of the machine as text, milliseconds where there are many.
                     For systems that forbid netlink; ask on another thread.

Only a socket that a process holds is believed, which has an inode: one that was closed has lost its
owner, and is reported as root's.

Linux only.
"""

import ipaddress
import logging
import os
import socket
import struct
import sys
from functools import cache, lru_cache
from pathlib import Path

logger = logging.getLogger(__name__)

End = tuple[str, int]
"""Address and port."""

_NETLINK_SOCK_DIAG = 4
_SOCK_DIAG_BY_FAMILY, _NLM_F_REQUEST = 20, 1
_ESTABLISHED, _FIN_WAIT1, _FIN_WAIT2 = 1, 4, 5
_HELD = (_ESTABLISHED, _FIN_WAIT1, _FIN_WAIT2)
"""States in which a process may still read what we send, whether or not it sends more."""
_ORDER = sys.byteorder
_HEADER = struct.Struct("=IHHII")
"""nlmsghdr: length, type, flags, sequence number, port."""
_REQUEST = struct.Struct("=BBBxI")
"""inet_diag_req_v2 before the addresses: family, protocol, extensions, states."""
_ANY_INTERFACE_NO_COOKIE = struct.pack("=III", 0, 0xFFFFFFFF, 0xFFFFFFFF)
_STATE_AT, _USER_AT, _INODE_AT = 16 + 1, 16 + 64, 16 + 68
"""In the answer: behind nlmsghdr, fields of inet_diag_msg."""


def peer_user(peer: End, local: End) -> int | None:
    """User id behind the other end of a local TCP connection; None where it is not known.

    Args:
        peer: the other end's address and port.
        local: ours.
    """
    kernel = _kernel()
    return _from_tables(peer, local) if kernel is None else kernel.user(peer, local)


def answers_at_once() -> bool:
    """Whether `peer_user` takes microseconds; otherwise it may take milliseconds."""
    return _kernel() is not None


class SockDiag:
    """One netlink socket; its answers are there when `send` returns."""

    def __init__(self) -> None:
        """
        Raises:
            OSError: not permitted here.
        """
        kind = socket.SOCK_RAW | socket.SOCK_CLOEXEC | socket.SOCK_NONBLOCK
        self._socket = socket.socket(socket.AF_NETLINK, kind, _NETLINK_SOCK_DIAG)
        self._number = 0

    def user(self, peer: End, local: End) -> int | None:
        theirs, ours = _plain(peer[0]), _plain(local[0])
        if theirs.version != ours.version:
            return None
        family = socket.AF_INET if theirs.version == 4 else socket.AF_INET6
        self._number = self._number % 0xFFFFFFFF + 1
        body = b"".join(
            (
                _REQUEST.pack(family, socket.IPPROTO_TCP, 0, sum(1 << state for state in _HELD)),
                struct.pack("!HH", peer[1], local[1]),
                theirs.packed.ljust(16, b"\0"),
                ours.packed.ljust(16, b"\0"),
                _ANY_INTERFACE_NO_COOKIE,
            )
        )
        head = _HEADER.pack(
            _HEADER.size + len(body), _SOCK_DIAG_BY_FAMILY, _NLM_F_REQUEST, self._number, 0
        )
        try:
            self._socket.send(head + body)
            while True:
                answer = self._socket.recv(1024)
                _, kind, _, number, _ = _HEADER.unpack_from(answer)
                if number == self._number:
                    break
        except OSError:
            return None
        if kind != _SOCK_DIAG_BY_FAMILY or answer[_STATE_AT] not in _HELD:
            return None
        # The kernel reads the inode last: where there is one, the user was still the owner.
        if not int.from_bytes(answer[_INODE_AT : _INODE_AT + 4], _ORDER):
            return None
        return int.from_bytes(answer[_USER_AT : _USER_AT + 4], _ORDER)

    def works(self) -> bool:
        """Whether it knows a connection that this process makes."""
        try:
            with socket.create_server(("127.0.0.1", 0)) as listener:
                address = listener.getsockname()
                with socket.create_connection(address, timeout=1.0) as ours:
                    return self.user(ours.getsockname(), address) == os.geteuid()
        except OSError:
            return False


@cache
def _kernel() -> SockDiag | None:
    """None: not permitted here, or not as it should be; the log says so, once."""
    try:
        asked = SockDiag()
        if asked.works():
            return asked
        why = "its answers are not as they should be"
    except OSError as error:
        why = str(error.strerror)
    logger.warning(
        "the kernel cannot be asked by netlink whose a local connection is (%s): the table of all"
        " connections is read for each, which takes milliseconds where there are many; permit"
        " AF_NETLINK to this service",
        why,
    )
    return None


@lru_cache(1024)
def _plain(address: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address:
    found = ipaddress.ip_address(address.partition("%")[0])
    return getattr(found, "ipv4_mapped", None) or found


def _from_tables(peer: End, local: End) -> int | None:
    six = ":" in peer[0]
    ends = b"%b %b " % (_kernel_address(peer), _kernel_address(local))
    tables = ("/proc/net/tcp6",) if six else ("/proc/net/tcp", "/proc/net/tcp6")
    for table in tables:
        if table.endswith("6") and not six:
            # A client may reach an IPv4 server through an IPv6 socket (::ffff:127.0.0.1).
            ends = b"%b %b " % (_kernel_address(_mapped(peer)), _kernel_address(_mapped(local)))
        try:
            lines = Path(table).read_bytes()
        except OSError:
            continue
        at = lines.find(ends)
        if at >= 0:
            # The state, queues, timer, retransmits, user id, probes, and the inode.
            state, _, _, _, user, _, inode = lines[at + len(ends) :].split(maxsplit=7)[:7]
            return int(user) if int(state, 16) in _HELD and inode != b"0" else None
    return None


def _kernel_address(end: End) -> bytes:
    """As /proc/net/tcp writes it: 32-bit words of the address in host order, then the port."""
    packed = ipaddress.ip_address(end[0].partition("%")[0]).packed
    words = (packed[i : i + 4][::-1] for i in range(0, len(packed), 4))
    return b"%b:%04X" % (b"".join(words).hex().upper().encode(), end[1])


def _mapped(end: End) -> End:
    return f"::ffff:{end[0]}", end[1]
