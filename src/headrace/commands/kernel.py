"""Load the compiled dispatcher, and say so where that takes long."""

from threading import Timer

from headrace.commands.output import notices

SILENT_S = 1.5


def load_kernel(policy: str, *, simulator: bool) -> None:
    """Before anything waits for it. The first time on a machine it is compiled.

    Args:
        policy: whose kernel; variants of a policy share it.
        simulator: its loop as well.

    Raises:
        PlanError: no policy has this name.
    """
    from headrace.simulation.warm_up import warm_up

    notice = Timer(SILENT_S, _say_so)
    notice.daemon = True
    notice.start()
    try:
        warm_up((policy,), simulator=simulator)
    finally:
        notice.cancel()


def _say_so() -> None:
    notices.print("compiling the dispatcher: once per machine and version, about half a minute")
