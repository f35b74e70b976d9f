"""Processes of ours that do not outlive the process of ours that started them.

    python -P -m headrace.children PARENT MODULE ARGUMENT…

runs a module as `python -m` does, once the kernel has been asked to kill it when its parent ends,
however that happens. To the kernel a parent is a thread: the one that starts a process has to live
for as long as the process is wanted.
"""

import os
import runpy
import signal
import sys

LOWEST_PRIORITY = 19
"""For what is done beside a server, which goes first."""

_PR_SET_PDEATHSIG = 1


def child_command(module: str, *arguments: str) -> list[str]:
    """What to run, from this process alone, for a module that ends with it at the latest."""
    own = [sys.executable, "-P", "-m", "headrace.children", str(os.getpid())]
    return [*own, module, *arguments]


def die_with_parent(parent: int) -> None:
    """Have the kernel kill this process when its parent ends; end now where it has ended already.

    Nothing where the system is not Linux.

    Args:
        parent: process id of whoever started this process.
    """
    if sys.platform != "linux":
        return
    import ctypes

    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        sys.exit("the process that started this one has ended already")


def main() -> None:
    _, parent, module, *arguments = sys.argv
    die_with_parent(int(parent))
    sys.argv[1:] = arguments
    runpy.run_module(module, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
