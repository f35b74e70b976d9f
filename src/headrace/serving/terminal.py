"""The terminal that a server was started from, and the signal that comes when it goes.

SIGHUP means two things: `kill -HUP` has a server read its plan again, and a terminal that goes ends
what was started from it. Who sends it does not tell them apart, since shells hand the second one on
to their jobs, as `kill` would. When it comes does: with the terminal's end, or not.
"""

import asyncio
import errno
import os
from collections.abc import Callable

LOOK_S = 1.0
"""How often a server looks whether its terminal is still there."""
SETTLE_S = 2.0
"""A shell hands the signal on within milliseconds, of a busy machine perhaps later."""


def has_terminal() -> bool:
    """Whether a terminal controls this process, and is still there, or this cannot be found out,
    for want of descriptors."""
    try:
        os.close(os.open("/dev/tty", os.O_RDWR | os.O_NOCTTY))
    except OSError as error:
        return error.errno in (errno.EMFILE, errno.ENFILE)
    return True


class Terminal:
    """That of this process, from birth on; `watch` it until the process ends."""

    def __init__(self, is_there: Callable[[], bool] = has_terminal) -> None:
        self._is_there = is_there
        self._may_hang_up = is_there()

    @property
    def hangs_up(self) -> bool:
        """Whether a SIGHUP that comes now is the terminal's, which is going: it was there when the
        process began, is gone, and was still there `SETTLE_S` ago."""
        return self._may_hang_up and not self._is_there()

    async def watch(self) -> None:
        """Returns when there is none, or the process has outlived it."""
        if self._may_hang_up:
            while self._is_there():
                await asyncio.sleep(LOOK_S)
            await asyncio.sleep(SETTLE_S)
            self._may_hang_up = False
