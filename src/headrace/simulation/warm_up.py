"""Compile, or load, what a session needs, before somebody waits for it."""

from headrace.dispatch.kernel.handle import kernel_of
from headrace.dispatch.policies import policy_named
from headrace.simulation.loop import loop_of


def warm_up(policies: tuple[str, ...], *, simulator: bool = True) -> None:
    """A fraction of a second; some ten seconds per policy the first time on a machine.

    Args:
        simulator: its loop as well; a server does not need it.

    Raises:
        PlanError: no policy has this name.
    """
    for name in policies:
        module = policy_named(name).module
        kernel_of(module)
        if simulator:
            loop_of(module)
