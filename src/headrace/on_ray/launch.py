"""`python -m headrace.on_ray.launch PARENT PROGRAM ARGUMENT…`: become the program.

What is started on a node must not outlive the actor that holds it, however that ends: the kernel
kills it when its parent has died, which stays so when this process becomes the program.
"""

import ctypes
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1


def main() -> None:
    parent, *command = sys.argv[1:]
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != int(parent):
        sys.exit("the parent has ended already")
    os.execv(command[0], command)


if __name__ == "__main__":
    main()
