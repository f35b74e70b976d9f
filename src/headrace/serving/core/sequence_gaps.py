"""Sequences of which a step has no answer, in what one client has asked in one order.

Such as a stream: its client sends steps ahead. What it had sent behind a missing step, meant to
follow it, may come after that was refused, and cannot be told from what it sends once it knows. So
in that order nothing follows a missing step but a first one.
"""

from headrace.serving.core.sequences import SequenceId, Step, name_of
from headrace.serving.core.signature import InvalidError

MOST = 1_024
"""Beyond, the one that was added longest ago is forgotten."""


class SequenceGaps:
    """Those of one stream."""

    __slots__ = ("_missing",)

    def __init__(self) -> None:
        self._missing: dict[tuple[str, SequenceId], None] = {}
        """The one that was added longest ago first."""

    def add(self, model: str, step: Step) -> None:
        """It has no answer."""
        key = model, step.sequence
        self._missing.pop(key, None)
        self._missing[key] = None
        if len(self._missing) > MOST:
            del self._missing[next(iter(self._missing))]

    def check(self, model: str, step: Step) -> None:
        """It is about to be asked; a first step fills the gap.

        Raises:
            InvalidError: it was meant to follow one that is missing.
        """
        key = model, step.sequence
        if key not in self._missing:
            return
        if not step.start:
            raise InvalidError(
                f"an earlier step of sequence {name_of(step)} in this stream has no answer: begin"
                " anew with sequence_start, or go on from that step in another stream"
            )
        del self._missing[key]
