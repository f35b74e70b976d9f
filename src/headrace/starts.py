"""The cost model of a start: when a model whose weights are in host memory has answered.

A start is one batch of a model that is not on its device. Layer i of the chain is

    host      executed from host memory, over the link, and never loaded (direct host access)
    primary   copied over the device's own link first, then executed in memory
    helper    copied to a second device, behind another PCIe switch, and forwarded from there

A transfer is one layer, or consecutive loaded layers of one link together; execution of a layer
waits for the whole of the transfer that brings it. Three streams copy, one executes, each in the
order of the layers, from time 0:

    primary_g = primary_{g-1} + copy_g                      ready_g = primary_g
    helper_g  = helper_{g-1} + copy_g
    forward_g = max(forward_{g-1}, helper_g) + f + sum forward_us      ready_g = forward_g
    end_i     = max(end_{i-1}, ready of its transfer) + inside_i    or   end_{i-1} + host_i

where f is `forward_copy_us`, and copy_g is `load_us` of its first layer and `load_us - saved_us` of
each other one: a layer that travels with the one before it needs no call of its own (PipeSwitch,
OSDI 2020, section 4.2). The
start takes end_n. As in the paper (DeepPlan, section 4.3) layers executed from host memory do not
slow the copies beside them down; a profile that measured them under copies states what they take.

Planners choose, and ask here; `headrace.verify` restates these rules in its own code.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from headrace.domain.errors import ProfileError
from headrace.domain.layers import LayerTimes, Residency

Ints = npt.NDArray[np.int64]

HOST, PRIMARY, HELPER = 0, 1, 2
"""Where a layer's weights are read from; of a layer without weights always HOST."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Chain:
    """What the layers of one model take at one batch size; microseconds, shape (n,) each."""

    load_us: Ints
    """To copy it alone, from host memory to the device; 0: it has no weights."""
    saved_us: Ints
    """The part of `load_us` that is not taken where it travels with the loaded layer before it."""
    inside_us: Ints
    """To execute it with its weights in device memory."""
    host_us: Ints
    """To execute it with its weights in host memory."""
    forward_us: Ints
    """To copy it from the helper to the device; zeros where there is none."""
    forward_copy_us: int = 0
    """Of each transfer from the helper, beside its layers'."""

    def __post_init__(self) -> None:
        rows = (self.load_us, self.saved_us, self.inside_us, self.host_us, self.forward_us)
        if len({len(row) for row in rows}) != 1 or not len(self.load_us):
            raise ProfileError("a start needs one figure of each kind per layer, and a layer")
        if any((row < 0).any() for row in rows) or (self.saved_us > self.load_us).any():
            raise ProfileError("a start: negative times, or more saved than a layer's load takes")

    @property
    def count(self) -> int:
        return len(self.load_us)

    @property
    def weighted(self) -> npt.NDArray[np.bool_]:
        return self.load_us > 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """How a start is made: two values for each layer."""

    source: tuple[int, ...]
    """HOST, PRIMARY or HELPER."""
    joined: tuple[bool, ...]
    """Whether it travels with the loaded layer before it, over the same link."""

    @classmethod
    def one_by_one(cls, source: Sequence[int]) -> "Choice":
        """Each loaded layer is a transfer of its own."""
        return cls(source=tuple(map(int, source)), joined=(False,) * len(source))


@dataclass(frozen=True, slots=True, kw_only=True)
class Timeline:
    """A start, layer by layer; microseconds from its beginning."""

    ready_us: tuple[int, ...]
    """When its transfer is on the device; 0 of layers that wait for none."""
    start_us: tuple[int, ...]
    end_us: tuple[int, ...]

    @property
    def total_us(self) -> int:
        return self.end_us[-1]

    @property
    def stall_us(self) -> tuple[int, ...]:
        """How long execution stands still before each layer."""
        return tuple(s - e for s, e in zip(self.start_us, (0, *self.end_us), strict=False))


def chain_of(times: LayerTimes, *, median: bool = False) -> Chain:
    """p99 of every layer, as everything that a plan promises; or all medians."""
    load, inside, host = (
        (times.load_p50_us, times.inside_p50_us, times.host_p50_us)
        if median
        else (times.load_p99_us, times.inside_p99_us, times.host_p99_us)
    )

    def row(values: tuple[int, ...]) -> Ints:
        return np.array(values or [0] * times.count, np.int64)

    return Chain(
        load_us=row(load),
        saved_us=row(times.saved_us),
        inside_us=row(inside),
        host_us=row(host),
        forward_us=row(times.forward_us),
        forward_copy_us=times.forward_call_us,
    )


def choice_of(residency: Residency, count: int) -> Choice:
    """What a plan states of a model of so many layers."""
    place = residency.by_layer(count)
    return Choice(
        source=tuple(HOST if at is None else (HELPER if at[1] else PRIMARY) for at in place),
        joined=tuple(at is not None and at[2] for at in place),
    )


def timeline(chain: Chain, choice: Choice, *, waits_for_all: bool = False) -> Timeline:
    """When each layer is on the device, begins and ends.

    Args:
        waits_for_all: execution begins when everything is loaded (on demand, Figure 1b).

    >>> chain = Chain(**{row: np.array(values) for row, values in {
    ...     "load_us": [9, 5], "saved_us": [1, 1], "inside_us": [1, 2], "host_us": [3, 8],
    ...     "forward_us": [0, 0]}.items()})
    >>> timeline(chain, Choice.one_by_one([PRIMARY, PRIMARY])).end_us
    (10, 16)
    >>> timeline(chain, Choice.one_by_one([HOST, PRIMARY])).end_us
    (3, 7)
    >>> timeline(chain, Choice(source=(PRIMARY, PRIMARY), joined=(False, True))).end_us
    (14, 16)
    """
    ready = _ready(chain, choice)
    if waits_for_all:
        ready = [max(ready)] * chain.count
    starts, ends, end = [], [], 0
    for i, source in enumerate(choice.source):
        start = max(end, ready[i])
        end = start + int(chain.host_us[i] if source == HOST else chain.inside_us[i])
        starts.append(start)
        ends.append(end)
    return Timeline(ready_us=tuple(ready), start_us=tuple(starts), end_us=tuple(ends))


def _ready(chain: Chain, choice: Choice) -> list[int]:
    """When each layer's transfer is on the device; 0 where it waits for none."""
    ready = [0] * chain.count
    free = {PRIMARY: 0, HELPER: 0}
    forwarded = 0
    for members in transfers(choice):
        source = choice.source[members[0]]
        copy = sum(int(chain.load_us[i]) for i in members)
        copy -= sum(int(chain.saved_us[i]) for i in members[1:])
        free[source] += copy
        done = free[source]
        if source == HELPER:
            sent = chain.forward_copy_us + sum(int(chain.forward_us[i]) for i in members)
            done = forwarded = max(forwarded, done) + sent
        for i in members:
            ready[i] = done
    return ready


def transfers(choice: Choice) -> list[list[int]]:
    """The loaded layers of each transfer, in order.

    Raises:
        ProfileError: a layer travels with one before it that is not there, or on another link.
    """
    found: list[list[int]] = []
    last = HOST
    for i, (source, joined) in enumerate(zip(choice.source, choice.joined, strict=True)):
        if joined and (source == HOST or source != last):
            raise ProfileError(f"a start: layer {i} joins no transfer of its link")
        if source == HOST:
            continue
        if joined:
            found[-1].append(i)
        else:
            found.append([i])
        last = source
    return found
