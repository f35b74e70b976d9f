"""A command in a process of its own, so that somebody is there to tell how it ended.

What runs a model is not ours and not Python: a graph that it does not expect may end the process
(an operator that writes where nobody gave it memory), and so does the system where memory is out.
Python gets no word in. So the program forks before it has imported anything large, a few
milliseconds; the child is the command, and the parent waits, passes on what it is told, and says
what became of the child.
"""

import os
import shlex
import signal
import sys
from collections.abc import Callable

from headrace.children import die_with_parent

_PASSED_ON = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_SENT_BY_A_PROCESS = 0
"""SI_USER of `siginfo_t`. A terminal's signals come from the kernel, to every process that it has
in the foreground."""


def guarded(command: Callable[[], None]) -> None:
    """Run a command in a child; this process ends as the child does, and says so where a signal
    ended that which nobody sent to us.

    Where the system has no way to wait for signals, the command runs in this process.
    """
    if not hasattr(signal, "sigwaitinfo"):
        command()
        return
    own = os.getpid()
    awaited = {*_PASSED_ON, signal.SIGCHLD}
    # Whoever ignores it would never hear of its children.
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    before = signal.pthread_sigmask(signal.SIG_BLOCK, awaited)
    child = os.fork()
    if child == 0:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        die_with_parent(own)
        command()
        return
    code = os.waitstatus_to_exitcode(_waited(child, awaited))
    if code >= 0:
        # Nothing of the command is ours to close.
        os._exit(code)
    ended_by = signal.Signals(-code)
    if ended_by not in _PASSED_ON:
        _tell(ended_by)
        os._exit(128 + ended_by)
    signal.signal(ended_by, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, before - {ended_by})
    os.kill(own, ended_by)


def _waited(child: int, awaited: set[signal.Signals]) -> int:
    """The child's status when it has ended."""
    while True:
        found = signal.sigwaitinfo(awaited)
        if found.si_signo != signal.SIGCHLD:
            if found.si_code == _SENT_BY_A_PROCESS:
                os.kill(child, found.si_signo)
            continue
        ended, status = os.waitpid(child, os.WNOHANG)
        if ended:
            return status


def _tell(number: signal.Signals) -> None:
    from headrace.commands.output import print_error

    program = shlex.join(("headrace", *sys.argv[1:]))
    if number == signal.SIGKILL:
        text = (
            f"`{program}` was killed, by the system if memory is out (dmesg tells)\n"
            "  try       a machine or container with more memory, or a smaller --max-batch"
        )
    else:
        text = (
            f"`{program}`: what runs the model has crashed ({number.name})\n"
            "  try       the model in ONNX Runtime or PyTorch alone, which most likely ends so too;"
            " an export for\n"
            "            inference (model.eval()), with another opset; or another version of what"
            " runs it"
        )
    print_error(text)
