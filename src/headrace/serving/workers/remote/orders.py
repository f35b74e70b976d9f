"""What a gateway has ordered of an agent, and for how long each batch has been with its worker.

    sent ──▶ on its way ──▶ with its worker ──▶ its answer on the way ──▶ reported

Only the third is the worker's time, and the agent tells it with each Pong: an order waits behind
what was sent before it, its inputs at least, and its report behind other tensors.

Frames of a connection are handled in order. So a Pong that answers a Ping which was sent behind an
order comes from an agent that has had it, and what ended there was reported before. If it knows
nothing of the order all the same, it is lost there, and the batch counts from when it was sent.
"""

from collections.abc import Iterable

from headrace.serving.workers.frames import Failed, Finished
from headrace.serving.workers.remote.frames import Order, RunsFor


class Orders:
    """Of one session, one per worker and slot. Instants on our clock."""

    def __init__(self) -> None:
        self._sent: dict[tuple[int, int], tuple[Order, int]] = {}
        """What runs, and since when it was sent."""
        self._busy_us: dict[tuple[int, int], int] = {}
        """Also of the last one that ended."""

    def add(self, order: Order, now_us: int) -> None:
        key = order.worker, order.run.slot
        self._sent[key], self._busy_us[key] = (order, now_us), 0

    def that_ended(self, worker: int, said: Finished | Failed) -> Order | None:
        """The order that this is the end of; None: there is none."""
        order, _ = self._sent.get((worker, said.slot), (None, 0))
        if order is None:
            return None
        ordered, ended = ((each.batch, each.attempt, each.stage) for each in (order.run, said))
        return order if ordered == ended else None

    def remove(self, order: Order) -> None:
        del self._sent[order.worker, order.run.slot]

    def told(self, runs: Iterable[RunsFor], asked_at_us: int, now_us: int) -> None:
        """What the agent has, by the answer to a Ping of that instant."""
        busy_us = {(each.worker, each.slot): each.us for each in runs}
        for key, (_, sent_at_us) in self._sent.items():
            if key in busy_us:
                self._busy_us[key] = busy_us[key]
            elif sent_at_us < asked_at_us:
                self._busy_us[key] = now_us - sent_at_us

    def busy_us(self, worker: int, slot: int) -> int | None:
        """For how long a worker is known to have had what a slot runs, or ran last; None: it was
        never ordered anything."""
        return self._busy_us.get((worker, slot))

    def clear(self) -> None:
        self._sent.clear()
        self._busy_us.clear()
