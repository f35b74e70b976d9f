"""Compile, or load, what a session needs, before somebody waits for it."""

from collections.abc import Callable
from threading import Timer

from headrace.dispatch.kernel.handle import kernel_of
from headrace.dispatch.policies import policy_named
from headrace.simulation.loop import loop_of

SILENT_S = 1.5


def warm_up(
    policies: tuple[str, ...],
    *,
    simulator: bool = True,
    say: Callable[[str], object] = lambda text: None,
) -> None:
    """A fraction of a second; some ten seconds per policy the first time on a machine.

    Args:
        simulator: its loop as well; a server does not need it.
        say: told, from another thread, where it takes long.

    Raises:
        PlanError: no policy has this name.
    """
    text = "compiling the dispatcher: once per machine and version, about half a minute"
    notice = Timer(SILENT_S, say, (text,))
    notice.daemon = True
    notice.start()
    try:
        for name in policies:
            module = policy_named(name).module
            kernel_of(module)
            if simulator:
                loop_of(module)
    finally:
        notice.cancel()
