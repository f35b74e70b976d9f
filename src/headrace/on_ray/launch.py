"""`launched(PROGRAM, ARGUMENT…)` is what to run to have a process that becomes the program.

What is started on a node must not outlive the actor that holds it, however that ends: the kernel
kills it when its parent has died (`children`), which stays so when this process becomes the
program.

Ray starts all that it starts at niceness 15, at which anything else on the machine goes first; what
has deadlines must not wait for it. Where this process may, it takes that back.
"""

import os
import sys

from headrace.children import child_command


def launched(*command: str) -> list[str]:
    """From this process alone."""
    return child_command("headrace.on_ray.launch", *command)


def main() -> None:
    command = sys.argv[1:]
    if (niceness := os.getpriority(os.PRIO_PROCESS, 0)) > 0:
        try:
            os.setpriority(os.PRIO_PROCESS, 0, 0)
        except PermissionError:
            sys.stderr.write(
                f"runs at niceness {niceness}, after all else on this machine: start Ray with"
                " RAY_worker_niceness=0 in its environment\n"
            )
    os.execv(command[0], command)


if __name__ == "__main__":
    main()
