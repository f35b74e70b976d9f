"""What of a program its outputs depend on."""

from collections.abc import Collection, Sequence
from typing import Protocol, TypeVar


class Computing(Protocol):
    """A step of a program: an operator of a graph, a call."""

    @property
    def reads(self) -> Collection[str]: ...

    @property
    def writes(self) -> Collection[str]: ...


Step = TypeVar("Step", bound=Computing)


def needed(steps: Sequence[Step], outputs: Sequence[str]) -> list[Step]:
    """Those that some output depends on, in order."""
    wanted = set(outputs)
    kept = []
    for step in reversed(steps):
        if not wanted.isdisjoint(step.writes):
            wanted.update(step.reads)
            kept.append(step)
    return kept[::-1]
