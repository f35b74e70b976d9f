"""Who waits for a slot and who waits for a link: the order of execution."""

from collections.abc import Callable, Sequence

from headrace.dispatch.protocols import Batch, Clock


class WakeUp:
    """A callback at the earliest instant asked for; it is expected to decide afresh."""

    __slots__ = ("_at_us", "_callback", "_clock")

    def __init__(self, clock: Clock, callback: Callable[[], None]) -> None:
        self._clock = clock
        self._callback = callback
        self._at_us: int | None = None

    def at(self, at_us: int) -> None:
        """Wake at `at_us`, unless an earlier wake-up is set already."""
        if self._at_us is not None and self._at_us <= at_us:
            return
        self._at_us = at_us
        self._clock.call_at(at_us, self._wake)

    def _wake(self) -> None:
        # A wake-up that was overtaken by an earlier one still comes; deciding afresh is harmless.
        self._at_us = None
        self._callback()


class SlotLine:
    """One slot: at most one batch runs, others are ready, in the order of their promises."""

    __slots__ = ("ready", "running", "wake")

    def __init__(self, wake: WakeUp) -> None:
        self.running: Batch | None = None
        self.ready: list[Batch] = []
        self.wake = wake

    def first(self) -> Batch:
        """The ready batch with the earliest promise."""
        return min(self.ready, key=_promise)


class LinkLine:
    """All links of the cluster: a transfer needs one uplink and one downlink at the same time."""

    def __init__(self, nodes: int, wake: WakeUp) -> None:
        self.wake = wake
        self._waiting: list[Batch] = []
        self._up_idle = [True] * nodes
        self._down_idle = [True] * nodes
        self._moving: dict[tuple[int, int], tuple[int, int]] = {}
        """(batch id, attempt) -> the nodes whose links it occupies."""

    def join(self, batch: Batch) -> None:
        self._waiting.append(batch)

    def leave(self, batch: Batch) -> None:
        if batch in self._waiting:
            self._waiting.remove(batch)

    def waiting(self) -> Sequence[Batch]:
        """Batches whose tensors wait for a link, earliest promise first."""
        return sorted(self._waiting, key=_transfer_promise)

    def idle(self, from_node: int, to_node: int) -> bool:
        return self._up_idle[from_node] and self._down_idle[to_node]

    def start(self, batch: Batch, from_node: int, to_node: int) -> None:
        self._waiting.remove(batch)
        self._up_idle[from_node] = self._down_idle[to_node] = False
        self._moving[batch.id, batch.attempt] = from_node, to_node

    def end(self, batch_id: int, attempt: int) -> None:
        """A transfer ended, of whatever attempt: its links are idle again."""
        from_node, to_node = self._moving.pop((batch_id, attempt))
        self._up_idle[from_node] = self._down_idle[to_node] = True


def _promise(batch: Batch) -> tuple[int, int]:
    return batch.hops[batch.stage].start_at_us, batch.id


def _transfer_promise(batch: Batch) -> tuple[int, int]:
    return batch.hops[batch.stage].transfer_at_us, batch.id
