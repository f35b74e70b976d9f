"""How the tensors of a batch get from the memory of one stage's worker to that of the next.

A batch's tensors at one cut lie in one region (`Region`), and a region has a home: the memory that
one host's workers share. Five things are asked of a transport:

    allocate   a region at a home, for a worker there to write, or for the gateway
    move       a region to another home; `on_done` gets it as it is there
    free       it, when nobody reads it any more
    send       what lies HERE to a home, with the order that reads it; it is freed HERE
    landed     where the answer of a stage lies that has reported

The last two are the ends of a batch's way: they take no round trip of their own. A move may copy:
then `on_done` gets another region, and both are allocated until the one who asked frees them.

On one machine all memory is the arena's and nothing has to move (`SharedMemory`). Where a plan has
several nodes and this machine stands in for them, a move takes the time that the plan's link would
need (`TimedLinks`), so that dispatch meets the same links as it would between machines. Between
real machines a move copies; then `planned_us` is what the dispatcher expects of it.

Two rules make a lost worker harmless. A region is freed when the stage that reads it has ended, not
when it is sent, so that its batch can run again elsewhere. And a region may be freed, or moved
elsewhere, while it moves: its `on_done` is called all the same, and whoever asked compares the
batch's attempt.
"""

from collections.abc import Callable
from functools import partial
from typing import Protocol

from headrace.dispatch.protocols import Clock
from headrace.serving.workers.arena import Arena
from headrace.serving.workers.stage_io import Home, Region, TensorGroup

OnMoved = Callable[[Region | None], None]


class Transport(Protocol):
    """Regions of tensors, at one home or several."""

    @property
    def view(self) -> memoryview:
        """The gateway's own memory: what lies HERE, by offset."""
        ...

    def allocate(self, group: TensorGroup, size: int, home: Home) -> Region:
        """Reserve room for `size` items of these tensors.

        Raises:
            OverloadError: the memory there is full.
        """
        ...

    def allocate_answer(self, group: TensorGroup, size: int, home: Home) -> Region:
        """As `allocate`, for what is wanted HERE as soon as it is written; see `landed`."""
        ...

    def landed(self, region: Region) -> Region:
        """The answer that was written there, which its writer has reported, as it lies HERE. The
        region itself is not to be used any more."""
        ...

    def free(self, region: Region) -> None:
        """Give a region back; exactly once. One whose memory is lost is gone already."""
        ...

    def send(self, region: Region, home: Home) -> Region:
        """Bring inputs from HERE to a home, before whatever a worker there is sent from now on.

        Returns:
            The region there; the one HERE is not to be used any more.

        Raises:
            OverloadError: there is no room; the region HERE is as it was.
        """
        ...

    def move(
        self, region: Region, to: Home, planned_us: int, until_us: int, on_done: OnMoved
    ) -> None:
        """Bring a region to another home.

        Args:
            to: where its next reader runs.
            planned_us: how long the plan's link takes for it.
            until_us: when nobody wants it there any more. Where it has not come by then, it may be
                given up.
            on_done: gets the region at `to`: the same, or another one, whose bytes are the same.
                None: it cannot be brought there.
        """
        ...


class SharedMemory:
    """One machine: every worker maps the arena, so that nothing has to move."""

    def __init__(self, arena: Arena) -> None:
        self._arena = arena

    @property
    def view(self) -> memoryview:
        return self._arena.view

    def allocate(self, group: TensorGroup, size: int, home: Home) -> Region:
        """All homes are the arena."""
        return group.allocate(self._arena, size)

    def allocate_answer(self, group: TensorGroup, size: int, home: Home) -> Region:
        return self.allocate(group, size, home)

    def landed(self, region: Region) -> Region:
        return region

    def free(self, region: Region) -> None:
        self._arena.free(region.offset)

    def send(self, region: Region, home: Home) -> Region:
        return region

    def move(
        self, region: Region, to: Home, planned_us: int, until_us: int, on_done: OnMoved
    ) -> None:
        """At once, from inside this call."""
        on_done(region)


class TimedLinks:
    """Links that are not here, emulated: a move takes the planned time, then the memory's own.

    `on_done` comes from the clock, never from inside `move`; so a dispatcher may move tensors in
    the middle of a decision.
    """

    def __init__(self, memory: Transport, clock: Clock) -> None:
        self._memory = memory
        self._clock = clock
        self.allocate = memory.allocate
        self.allocate_answer = memory.allocate_answer
        self.landed = memory.landed
        self.free = memory.free
        self.send = memory.send

    @property
    def view(self) -> memoryview:
        return self._memory.view

    def move(
        self, region: Region, to: Home, planned_us: int, until_us: int, on_done: OnMoved
    ) -> None:
        self._clock.call_at(
            self._clock.now_us() + planned_us,
            partial(self._memory.move, region, to, planned_us, until_us, on_done),
        )
