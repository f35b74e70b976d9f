"""A process that works beside a server, which goes first."""

import asyncio
import contextlib
import os

from headrace.children import LOWEST_PRIORITY, child_command
from headrace.domain.errors import SystemLimitError
from headrace.serving.workers.descriptors import descriptor_limit, open_descriptors


async def started_beside(
    what: str, module: str, *arguments: str, stdout: int, stderr: int | None = None
) -> asyncio.subprocess.Process:
    """Start a module of ours at the lowest priority; it ends with this process at the latest.

    Args:
        what: it is, for the error.

    Raises:
        SystemLimitError: it cannot be started, for lack of descriptors, say.
    """
    try:
        process = await asyncio.create_subprocess_exec(
            *child_command(module, *arguments),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=stdout,
            stderr=stderr,
        )
    except OSError as error:
        # Where descriptors lack, uvloop knows no reason: error -1.
        why = error.strerror if (error.errno or 0) > 0 else "the system does not say why"
        raise SystemLimitError(
            f"{what} cannot be started: {why}\n"
            f"  has    {open_descriptors():,} descriptors open, of at most {descriptor_limit():,}\n"
            "  try    a higher limit where few are left (ulimit -Hn, LimitNOFILE), or fewer"
            " connections"
        ) from error
    with contextlib.suppress(OSError):
        os.setpriority(os.PRIO_PROCESS, process.pid, LOWEST_PRIORITY)
    return process
