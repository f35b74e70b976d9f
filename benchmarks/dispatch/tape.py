"""What a dispatcher was told in a session, to tell it again without the world around it."""

import time
from collections.abc import Callable
from heapq import heappop, heappush
from itertools import count, groupby
from typing import NamedTuple

from headrace.dispatch.dispatcher import Dispatcher
from headrace.dispatch.kernel.handle import kernel_of
from headrace.dispatch.kernel.tables import Store
from headrace.dispatch.limits import QUEUE_LIMIT
from headrace.dispatch.policies import policy_named
from headrace.dispatch.protocols import Batch, EventSink
from headrace.dispatch.topology import Topology
from headrace.domain.request import DropReason, Request
from headrace.simulation.clock import SimClock

ARRIVED, RAN, TRANSFERRED, WOKEN = range(4)


class Call(NamedTuple):
    """One report to the dispatcher."""

    now_us: int
    what: int
    request: Request | None = None
    batch: int = 0
    stage: int = 0
    attempt: int = 0
    started_at_us: int = 0
    ended_at_us: int = 0


class Recorder:
    """Stands between the world and the dispatcher, and notes what passes."""

    dispatcher: Dispatcher

    def __init__(self, clock: SimClock) -> None:
        self._clock = clock
        self.calls: list[Call] = []

    def now_us(self) -> int:
        return self._clock.now_us()

    def call_at(self, at_us: int, callback: Callable[[], None]) -> None:
        def wake() -> None:
            self.calls.append(Call(self.now_us(), WOKEN))
            callback()

        self._clock.call_at(at_us, wake)

    def on_arrival(self, request: Request) -> None:
        self.calls.append(Call(self.now_us(), ARRIVED, request))
        self.dispatcher.on_arrival(request)

    def on_transferred(self, batch: Batch, stage: int, attempt: int, started_at_us: int) -> None:
        self.calls.append(
            Call(self.now_us(), TRANSFERRED, None, batch.id, stage, attempt, started_at_us)
        )
        self.dispatcher.on_transferred(batch, stage, attempt, started_at_us)

    def on_ran(
        self, batch: Batch, stage: int, attempt: int, started_at_us: int, ended_at_us: int
    ) -> None:
        self.calls.append(
            Call(self.now_us(), RAN, None, batch.id, stage, attempt, started_at_us, ended_at_us)
        )
        self.dispatcher.on_ran(batch, stage, attempt, started_at_us, ended_at_us)


class Player:
    """Clock and driver that do next to nothing."""

    def __init__(self) -> None:
        self.now = 0
        self.batches: dict[int, Batch] = {}
        self._wakes: list[tuple[int, int, Callable[[], None]]] = []
        self._sequence = count()

    def now_us(self) -> int:
        return self.now

    def call_at(self, at_us: int, callback: Callable[[], None]) -> None:
        heappush(self._wakes, (at_us, next(self._sequence), callback))

    def wake(self) -> None:
        heappop(self._wakes)[2]()

    def start_transfer(self, batch: Batch, stage: int) -> None:
        pass

    def start_stage(self, batch: Batch, stage: int) -> None:
        self.batches[batch.id] = batch

    def answer(self, batch: Batch) -> None:
        del self.batches[batch.id]

    def refuse(self, request: Request, reason: DropReason, retry_after_us: int) -> None:
        pass


Tell = Callable[..., int]


def play(
    topology: Topology,
    policy: str,
    calls: list[Call],
    sink: EventSink | None = None,
    through: Callable[[Tell], Tell] | None = None,
) -> float:
    """CPU seconds for a new dispatcher to be told all of it, the player's own among them.

    Args:
        sink: of its events; None: nobody reads them, as in a server without `--events`.
        through: put between the dispatcher and its kernel.
    """
    player = Player()
    dispatcher = Dispatcher(topology, policy, player, player, sink)
    if through is not None:
        dispatcher.tell_kernel = through(dispatcher.tell_kernel)
    started_s = time.process_time()
    for now_us, what, request, batch, stage, attempt, started_at_us, ended_at_us in calls:
        player.now = now_us
        if what == RAN:
            mine = player.batches[batch]
            dispatcher.on_ran(mine, stage, attempt, started_at_us, ended_at_us)
        elif what == TRANSFERRED:
            dispatcher.on_transferred(player.batches[batch], stage, attempt, started_at_us)
        elif request is not None:
            dispatcher.on_arrival(request)
        else:
            player.wake()
    spent_s = time.process_time() - started_s
    assert dispatcher.in_flight == 0, "every request that was recorded has ended"
    return spent_s


def kernel_s(topology: Topology, policy: str, calls: list[Call]) -> float:
    """Of those seconds, without a sink, the ones in the kernel, the way to it included."""
    told: list[tuple[int, ...]] = []

    def noting(tell: Tell) -> Tell:
        def noted(*numbers: int) -> int:
            told.append(numbers)
            return int(tell(*numbers))

        return noted

    play(topology, policy, calls, through=noting)
    chosen = policy_named(policy)
    kernel = kernel_of(chosen.module)
    store = Store(topology, chosen, queue_max=QUEUE_LIMIT, logged=False)
    spent_s = 0.0
    # The tables were elsewhere each time that they had grown.
    for i, (_, between) in enumerate(groupby(told, key=lambda numbers: numbers[0])):
        if i:
            store.grow(2 * store.rows)
        held, tell = kernel.kind.hold(store.arrays), kernel.tell
        again = [(held.where, *numbers[1:]) for numbers in between]
        started_s = time.process_time()
        for numbers in again:
            tell(*numbers)
        spent_s += time.process_time() - started_s
    assert store.state.world["requests"][0] == 0, "every request has ended here, too"
    return spent_s
