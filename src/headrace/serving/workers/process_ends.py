"""Waiting, on the event loop, for a process that we started to end.

Not in a thread: a server that stops may get none any more.
"""

import asyncio
from subprocess import Popen

_POLL_S = 0.005


async def until_ended(process: Popen[bytes]) -> int:
    """Return its exit status."""
    while (status := process.poll()) is None:
        await asyncio.sleep(_POLL_S)
    return status


async def ended_within(process: Popen[bytes], limit_s: float) -> bool:
    try:
        await asyncio.wait_for(until_ended(process), limit_s)
    except TimeoutError:
        return False
    return True
