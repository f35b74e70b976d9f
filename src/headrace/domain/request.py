"""A request on its way, and how it ended."""

from dataclasses import dataclass
from typing import Literal

import msgspec

DropReason = Literal[
    "deadline",
    "no-slot",
    "draining",
    "queue-full",
    "failed",
    "cancelled",
    "invalid-input",
    "app-error",
    "app-lost",
]
"""Why a request was dropped before it was answered:

deadline    even alone and at once it would end after its deadline
no-slot     a stage that it needs has lost all its slots, or the server has not loaded it yet
draining    the server is shutting down
queue-full  more requests wait than the queue may hold
failed      it could not be computed, for reasons that lie with the server
cancelled   the client went away
invalid-input  it cannot be computed as it is, though others can: an executor or an app says so
app-error   the code of the app failed
app-lost    the process of the app's code died
"""


class Request(msgspec.Struct, frozen=True, kw_only=True):
    """One inference. Instants are microseconds on the dispatcher's clock."""

    id: int
    model: int
    """Index of the model among the plan's deployments."""
    arrived_at_us: int
    deadline_at_us: int
    priority: int = 0
    """Smaller is served first."""
    apart: bool = False
    """It runs in a batch of its own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """How one request ended, as seen by whoever measured it."""

    arrived_at_us: int
    deadline_at_us: int
    ended_at_us: int | None
    """When it was answered; None: dropped or failed."""
    reason: str = ""
    """Why it was not answered; empty when it was."""

    @property
    def in_time(self) -> bool:
        return self.ended_at_us is not None and self.ended_at_us <= self.deadline_at_us
