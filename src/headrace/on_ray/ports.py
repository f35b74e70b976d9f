"""Ports for agents, which listen a moment after their ports were looked for, and again after a
crash: where they were, or the gateway would not find them.

So not one that the system gives to whoever asks for any (`ip_local_port_range`), nor one of Ray's
workers (10002 to 19999, by its defaults): drawn at random between these, and free now. Nodes that
are one machine each look for as many as all of them need, and whoever starts them gives none twice.
"""

import random
import socket
from contextlib import ExitStack
from pathlib import Path

FIRST = 20_000
LEAST_ROOM = 1_000
"""Ports to draw from; where there are fewer, the system chooses."""
DRAWS = 50
"""For each port, until the system chooses."""
RANGE = Path("/proc/sys/net/ipv4/ip_local_port_range")


def free_ports(address: str, count: int, given_from: int | None = None) -> list[int]:
    """Different ones that nobody listens on at an address of this machine.

    Args:
        given_from: the least that the system gives to whoever asks for any; None: as it says.

    Raises:
        OSError: that is no address of this machine.

    >>> len(set(free_ports("127.0.0.1", 3)))
    3
    """
    end = _given_from() if given_from is None else given_from
    draws = DRAWS * count if end >= FIRST + LEAST_ROOM else 0
    chance = random.SystemRandom()
    found: list[int] = []
    with ExitStack() as stack:
        while len(found) < count:
            port = chance.randrange(FIRST, end) if draws > 0 else 0
            draws -= 1
            listening = stack.enter_context(socket.socket())
            try:
                listening.bind((address, port))
            except OSError:
                if port == 0:
                    raise
                continue
            found.append(listening.getsockname()[1])
    return found


def _given_from() -> int:
    try:
        return int(RANGE.read_text(encoding="ascii").split()[0])
    except (OSError, ValueError, IndexError):
        return 0
