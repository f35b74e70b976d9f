"""Load the compiled dispatcher, and say so where that takes long."""

from headrace.commands.output import notices


def load_kernel(policy: str, *, simulator: bool) -> None:
    """Before anything waits for it. The first time on a machine it is compiled.

    Args:
        policy: whose kernel; variants of a policy share it.
        simulator: its loop as well.

    Raises:
        PlanError: no policy has this name.
    """
    from headrace.simulation.warm_up import warm_up

    warm_up((policy,), simulator=simulator, say=notices.print)
