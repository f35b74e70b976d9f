"""What passes between the engine and whoever submits to it: plain types, no I/O."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headrace.domain.profile import TensorSpec
from headrace.domain.request import DropReason


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedModel:
    """A model as clients see it."""

    name: str
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    slo_us: int
    """The deadline of a request that brings no timeout of its own."""
    fastest_us: int
    """Least time in which one item can be answered; a shorter timeout is always refused."""
    max_items: int
    """Most items (batch dimension) that one inference may carry."""
    planned_rps: float | None = None
    """Requests per second that the plan says it can take."""
    rate_rps: float | None = None
    """Requests per second that the problem asks for; None: as much as possible."""
    batched: bool = True
    """False: an app. Its tensors have no batch dimension, and -1 in a shape is any length."""
    input_item_bytes: tuple[int, ...] = field(init=False)
    """Bytes of one item of each input."""

    def __post_init__(self) -> None:
        sizes = tuple(spec.item_count * np.dtype(spec.dtype).itemsize for spec in self.inputs)
        object.__setattr__(self, "input_item_bytes", sizes)

    def refuse_timeout(self, timeout_us: int, retry_after_us: int = 0) -> "Refusal":
        """The refusal of a timeout that is shorter than `fastest_us`."""
        return Refusal(
            reason="deadline",
            message=f"{'model' if self.batched else 'app'} {self.name!r} needs at least"
            f" {self.fastest_us / 1000:.1f} ms, but the request allows {timeout_us / 1000:.1f} ms;"
            " give it a longer timeout",
            retry_after_us=retry_after_us,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """All items were computed, perhaps late: whoever asked decides what a late answer is worth."""

    outputs: tuple[memoryview, ...]
    """In the order of `ServedModel.outputs`: C-contiguous bytes of shape (items, *item_shape).
    The receiver may keep them."""
    arrived_at_us: int
    deadline_at_us: int
    ended_at_us: int

    @property
    def late_us(self) -> int:
        """How long after the deadline it was ready; 0: in time."""
        return max(0, self.ended_at_us - self.deadline_at_us)


@dataclass(frozen=True, slots=True, kw_only=True)
class AppAnswer(Answer):
    """What an app returned; `outputs` is empty."""

    tensors: tuple[NDArray[Any], ...]
    """In the order of `ServedModel.outputs`; strings as `bytes` objects."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Refusal:
    """There will be no answer."""

    reason: DropReason
    message: str
    """One sentence for the client: why, and what would help."""
    retry_after_us: int
    """When trying again makes sense; 0: at once, or never for this request."""


Buffer = bytes | bytearray | memoryview | NDArray[Any]

OnDone = Callable[[Answer | Refusal], None]


@dataclass(slots=True, kw_only=True, eq=False)
class Inference:
    """`items` rows for one model, answered together.

    Names, data types and shapes were checked before; the engine checks sizes only.
    """

    model: str
    items: int
    """Length of the batch dimension, 1 or more."""
    inputs: tuple[Buffer, ...]
    """In the order of `ServedModel.inputs`: C-contiguous, items x item bytes each. Not copied
    before a batch is formed, so they must not change until `on_done`."""
    on_done: OnDone
    """Called exactly once, on the loop's thread, never from inside `submit`. It must not raise.
    Not called after `Engine.cancel`."""
    timeout_us: int | None = None
    """The request's own objective, from arrival; None: the model's."""
    priority: int = 0
    """Smaller is served first."""
    client: int = 0
    """Whoever asks, as far as fronts can tell clients apart; 0: not known."""
    arrived_at_us: int | None = None
    """When it reached this machine, on the engine's clock; its deadline counts from then. None:
    when it is submitted."""
    first_request: int = field(default=-1, init=False)
    """Set by the engine: items are the dispatcher's requests first_request, first_request + 1, …"""
