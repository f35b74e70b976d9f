"""What passes between the engine and whoever submits to it: plain types, no I/O."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import msgspec
from numpy.typing import NDArray

from headrace.domain.apart import ms_apart
from headrace.domain.controls import Control
from headrace.domain.elements import item_bytes
from headrace.domain.profile import size_text
from headrace.domain.request import DropReason
from headrace.domain.tensors import TensorSpec

MANY = 1 << 62

LEAST_WAIT_US = 5_000
"""Nobody is told to come back sooner: who does that only costs the gateway another refusal."""
UNKNOWN_WAIT_US = 1_000_000
"""What clients are told where nobody knows when it gets better."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedModel:
    """A model as clients see it."""

    name: str
    version: str = "1"
    """The only one that it has."""
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    slo_us: int
    """The deadline of a request that brings no timeout of its own."""
    priority: int = 0
    """Of requests that state none."""
    fastest_us: int
    """Least time in which one item can be answered; a shorter timeout is always refused."""
    gateway_us: int = 0
    """What a request takes the gateway, by the profile; 0: it does not say."""
    max_items: int
    """Most items (batch dimension) that one inference may carry."""
    malleable: bool = False
    """Its plan says how many items a request may have, and serves it by as many slots at a time as
    others can spare."""
    planned_rps: float | None = None
    """Requests per second that the plan says it can take."""
    rate_rps: float | None = None
    """Requests per second that the problem asks for; None: as much as possible."""
    items_within: Callable[[int], int] = field(default=lambda _: MANY, compare=False)
    """Timeout, us -> the most items of one inference that can ever be answered in it."""
    least_us: Callable[[int], int] = field(default=lambda _: 0, compare=False)
    """Items -> the least timeout in which they can be answered."""
    batched: bool = True
    """False: one inference is one item; no tensor has a dimension of items."""
    states: tuple[tuple[int, int], ...] = ()
    """(input, output): what that output was in one step of a sequence is that input of the next."""
    initial_states: tuple[tuple[str, tuple[float, ...]], ...] = ()
    """By a state's input, its numbers in a sequence's first step; others: zeros."""
    controls: tuple[Control, ...] = ()
    """Inputs that the server fills in of each step."""
    sequence_idle_us: int | None = None
    """Clients ask in sequences, whose states the server keeps, until they are idle for so long."""
    dimensions: tuple[str, ...] = ()
    """Of a model of several sizes, or a bucket of one: names of its dynamic dimensions."""
    sizes: tuple[int, ...] = ()
    """Of `dimensions`, that its tensors have; of a whole model, the largest."""
    inner: tuple[TensorSpec, ...] = ()
    """Of a bucket: what crosses its cuts."""
    bucket_of: str = ""
    """The model that it is a bucket of."""
    buckets: tuple["ServedModel", ...] = ()
    """Of a whole model of several sizes, smallest first."""
    pad: bool = False
    """Inputs are filled up with zeros to the sizes of their bucket."""
    rooms: tuple[tuple[int, int], ...] = ()
    """(output, shape): outputs with room for the most that they may be, and where among those of an
    `Answer` the true shape is. Clients get what is true."""
    app: bool = False
    """Its tensors are arrays of their own shapes, where -1 is any length."""
    of_app: bool = False
    """An app calls it, of whose time a call's deadline is a part."""
    input_item_bytes: tuple[int, ...] = field(init=False)
    """Bytes of one item of each input."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "input_item_bytes", tuple(map(item_bytes, self.inputs)))

    @property
    def called(self) -> str:
        """What messages to clients call it, who do not know what the engine calls a bucket."""
        if self.bucket_of:
            return f"model {self.bucket_of!r} (size {size_text(self.sizes)})"
        return f"{'app' if self.app else 'model'} {self.name!r}"

    def as_asked(self, sequence_idle_us: int) -> "ServedModel":
        """Without what clients neither send nor get: states, of which one item is one step, and
        true shapes of outputs."""
        return self._without_states(sequence_idle_us)._without_shapes()

    def _without_shapes(self) -> "ServedModel":
        at = {spec.name: index for index, spec in enumerate(self.outputs)}
        told = [(at[spec.shape_of], i) for i, spec in enumerate(self.outputs) if spec.shape_of]
        if not told:
            return self
        # They stand behind all others, whose indices stay.
        shown = self.outputs[: len(self.outputs) - len(told)]
        return replace(self, outputs=shown, rooms=tuple(told))

    def _without_states(self, sequence_idle_us: int) -> "ServedModel":
        if not self.states:
            return self
        given, kept = zip(*self.states, strict=True)
        filled_in = {control.input for control in self.controls}
        return replace(
            self,
            inputs=tuple(
                spec
                for i, spec in enumerate(self.inputs)
                if i not in given and spec.name not in filled_in
            ),
            initial_states=(),
            controls=(),
            outputs=tuple(spec for i, spec in enumerate(self.outputs) if i not in kept),
            max_items=1,
            states=(),
            sequence_idle_us=sequence_idle_us,
        )

    def item_bytes(self, sizes: tuple[int, ...]) -> tuple[int, ...]:
        """Of each input at these sizes; none are its own."""
        if not sizes:
            return self.input_item_bytes
        at = dict(zip(self.dimensions, sizes, strict=True))
        return tuple(item_bytes(spec.at(at)) for spec in self.inputs)

    def refuse_timeout(self, timeout_us: int) -> "Refusal":
        """The refusal of a timeout that is shorter than `fastest_us`."""
        needs, allows = ms_apart(self.fastest_us, timeout_us)
        return Refusal(
            reason="deadline",
            message=f"{self.called} needs at least"
            f" {needs}, but the request allows {allows};"
            " give it a longer timeout",
            retry_after_us=0,
            never=True,
        )

    def refuse_items(self, items: int, timeout_us: int) -> "Refusal":
        """The refusal of more items than `items_within` the timeout: trying again never helps."""
        allows, needs = ms_apart(timeout_us, self.least_us(items))
        return Refusal(
            reason="deadline",
            message=f"{self.called} cannot answer {items} items within"
            f" {allows}, however idle it is; send at most"
            f" {self.items_within(timeout_us)} items at a time, or allow at least {needs}",
            retry_after_us=0,
            never=True,
        )


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    """All items were computed, perhaps late: whoever asked decides what a late answer is worth."""

    outputs: tuple[memoryview, ...]
    """In the order of `ServedModel.outputs`: C-contiguous bytes of shape (items, *item_shape).
    The receiver may keep them."""
    arrived_at_us: int
    deadline_at_us: int
    ended_at_us: int
    run_us: int = 0
    """How long slots ran for the batch that it was in, as a mean over its items where these were in
    several; at most its latency."""

    @property
    def late_us(self) -> int:
        """How long after the deadline it was ready; 0: in time."""
        return max(0, self.ended_at_us - self.deadline_at_us)


class AppAnswer(Answer, frozen=True, kw_only=True):
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
    """When trying again makes sense, from now on; 0: not known, or never."""
    passed_us: int = 0
    """From when it came, so much longer: what has passed of that time already."""
    never: bool = False
    """As things stand it cannot be answered, however idle the server is."""

    @property
    def told_wait_us(self) -> int:
        """What its client is told to wait, unless it is `never`."""
        return told_wait_us(self.retry_after_us)


def told_wait_us(retry_after_us: int) -> int:
    """What a client is told to wait where trying again makes sense after so long; 0: not known."""
    return max(LEAST_WAIT_US, retry_after_us or UNKNOWN_WAIT_US)


def try_again(retry_after_us: int) -> str:
    """The part of a sentence that says so.

    >>> try_again(30)
    'try again in 5.0 ms'
    >>> try_again(1_250_000)
    'try again in 1.2 s'
    """
    wait_us = told_wait_us(retry_after_us)
    in_ms = wait_us < 1_000_000
    return (
        f"try again in {wait_us / 1e3:.1f} ms" if in_ms else f"try again in {wait_us / 1e6:.1f} s"
    )


Buffer = bytes | bytearray | memoryview | NDArray[Any]

OnDone = Callable[[Answer | Refusal], None]


class Inference(msgspec.Struct, kw_only=True, eq=False):
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
    sizes: tuple[int, ...] = ()
    """Of a bucket's dynamic dimensions, where they are smaller than its own: its items run alone,
    at these sizes, and outputs have them too."""
    timeout_us: int | None = None
    """The request's own objective, from arrival; None: the model's."""
    priority: int = 0
    """Smaller is served first."""
    client: int = 0
    """Whoever asks, as far as fronts can tell clients apart: a connection; 0: not known."""
    peer: str = ""
    """Whom that client belongs to: a user of this machine, or an address; empty: not known."""
    arrived_at_us: int | None = None
    """When it reached this machine, on the engine's clock; its deadline counts from then. None:
    when it is submitted."""
    first_request: int = -1
    """Set by the engine: items are the dispatcher's requests first_request, first_request + 1, …"""
