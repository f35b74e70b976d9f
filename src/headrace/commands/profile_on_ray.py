"""`headrace profile --cluster ray`: the same command on every kind of node of a cluster."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headrace.commands.output import notices
from headrace.commands.profile_besides import step_s, with_besides
from headrace.domain.errors import ClusterError, DocumentError

if TYPE_CHECKING:
    from headrace.domain.profile import Profile
    from headrace.on_ray.kinds import Kind
    from headrace.profiling.one_device import ProfileTask

Bars = Callable[[Sequence[str]], Any]
"""Device types -> a context manager of their progress, by name."""


def profile_on_ray(
    model: Path, task: "ProfileTask", device: str | None, address: str | None, bars: Bars
) -> "Profile":
    """Times of every kind of device there, or of `device` alone, in one profile.

    What a batch and a request cost besides is measured from here, where the gateway will be, to an
    agent on a node of each kind.

    Raises:
        DocumentError: an option is about this machine.
        ClusterError: no cluster there, or a node is not as needed.
        ModelError, ProfileError: as `headrace profile`.
    """
    from headrace.on_ray.agents import one_agent
    from headrace.on_ray.connection import connected
    from headrace.on_ray.kinds import kinds_of, processors_of
    from headrace.on_ray.nodes import nodes_of
    from headrace.on_ray.profiling import place_on_ray, profile_kinds
    from headrace.profiling.kinds import combined
    from headrace.serving.engine.overhead import NODE

    if task.core_counts:
        raise DocumentError(
            "--cores: measures the machine that it runs on; leave it out, or --cluster"
        )
    with connected(address) as ray:
        there = nodes_of(ray)
        kinds = chosen(kinds_of(there, processors_of(ray, there)), device)
        for line in described(kinds):
            notices.print(line, soft_wrap=True)
        with bars([kind.name for kind in kinds]) as progress:
            found = profile_kinds(
                model, task, kinds, lambda kind: place_on_ray(ray, kind), progress
            )
        measured = combined(found)
        for kind in kinds:
            node = next((node for node in kind.nodes if node.cpus), None)
            if node is not None:
                with one_agent(ray, node, NODE) as agent:
                    measured = with_besides(
                        measured, kind.name, step_s(task.options.budget_s), agent=agent
                    )
    return measured


def chosen(kinds: "Sequence[Kind]", device: str | None) -> "tuple[Kind, ...]":
    """Those measured as this device, or all.

    Raises:
        ClusterError: there is none.
    """
    found = tuple(kind for kind in kinds if device in (None, kind.device, kind.name))
    if found:
        return found
    has = ", ".join(kind.name for kind in kinds) or "no CPU and no GPU"
    raise ClusterError(
        f"--device {device}: no node of the cluster has one\n  has       {has}"
        if device is not None
        else "--cluster ray: no node of the cluster has a CPU or a GPU to measure on\n"
        "  needs     at least 1\n  try       `ray status`"
    )


def described(kinds: "Sequence[Kind]") -> list[str]:
    """Which nodes are of which kind."""
    return [f"{kind.name}: {', '.join(node.name for node in kind.nodes)}" for kind in kinds]
