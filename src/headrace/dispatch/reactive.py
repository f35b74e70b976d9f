"""Reactive batching: the baseline that looks no further than the next slot.

It is what serving systems do without reservations (PPipe, section 7.4, calls it reactive): a
batch is sent to the pool's slot that should be free first; the slot of the next stage is chosen
only when the batch gets there, and contention on links is suffered, not foreseen. Slots that are
equally free are taken in turn, so that consecutive batches leave through different nodes.
"""

from collections.abc import Sequence

from headrace.dispatch.protocols import Batch, Decision, Dispatch, Drop, Hop, WaitUntil
from headrace.dispatch.reservation import SLOT_RECOVERY_US
from headrace.dispatch.topology import Route, StageTable, Topology
from headrace.domain.request import DropReason, Request


class ReactivePolicy:
    """Earliest free slot, largest batch that makes it, nothing reserved."""

    def __init__(self, topology: Topology) -> None:
        self._topology = topology
        self._alive = [True] * len(topology.slots)
        self._free_at_us = [0] * len(topology.slots)
        """When the slot should have worked off all that was sent to it."""
        self._last_use = [0] * len(topology.slots)
        self._uses = 0

    def decide(self, model: int, queue: Sequence[Request], now_us: int) -> Decision:
        best: tuple[int, int, int] | None = None
        routes = self._topology.models[model].routes
        for pipeline, route in enumerate(routes):
            slot = self._freest(route.stages[0], now_us)
            if slot is not None:
                key = (max(now_us, self._free_at_us[slot]), self._last_use[slot], pipeline)
                best = key if best is None else min(best, key)
        if best is None:
            return Drop("no-slot", SLOT_RECOVERY_US)
        return self._fill(best[2], routes[best[2]], queue, now_us)

    def _fill(self, pipeline: int, route: Route, queue: Sequence[Request], now_us: int) -> Decision:
        slot = self._freest(route.stages[0], now_us)
        assert slot is not None, "decide has just found one"
        start_us = max(now_us, self._free_at_us[slot])
        deadline_at_us = min(request.deadline_at_us for request in queue[: route.batch_size])
        for size in range(route.batch_size, 0, -1):
            end_us = start_us + _path_us(route, size)
            if end_us > deadline_at_us:
                continue
            if len(queue) >= size or start_us == now_us:
                size = min(size, len(queue))
                hop = self._send(route.stages[0], slot, size, now_us)
                return Dispatch(pipeline, size, [hop])
            return WaitUntil(max(start_us, now_us + 1), size)
        return Drop("deadline", max(1, start_us + _path_us(route, 1) - deadline_at_us))

    def _freest(self, stage: StageTable, now_us: int) -> int | None:
        """The living slot that is free first; among idle ones, the one unused for longest."""
        return min(
            (slot for slot in stage.slots if self._alive[slot]),
            key=lambda slot: (max(now_us, self._free_at_us[slot]), self._last_use[slot], slot),
            default=None,
        )

    def _send(
        self, stage: StageTable, slot: int, size: int, now_us: int, transfer_us: int = 0
    ) -> Hop:
        latency_us = stage.p50_us[size - 1]
        start_us = max(now_us + transfer_us, self._free_at_us[slot])
        self._free_at_us[slot] = start_us + latency_us
        self._uses += 1
        self._last_use[slot] = self._uses
        return Hop(slot, now_us, transfer_us, start_us, latency_us)

    def on_dispatched(self, batch: Batch) -> None:
        """Nothing is promised beyond the first hop."""

    def next_hop(self, batch: Batch, now_us: int) -> DropReason | None:
        if batch.stage < len(batch.hops):
            return None if self._alive[batch.hops[batch.stage].slot] else "no-slot"
        stage = self._route(batch).stages[batch.stage]
        slot = self._freest(stage, now_us)
        if slot is None:
            return "no-slot"
        transfer_us = self._topology.transfer_us(
            batch.hops[-1].slot, slot, batch.size * stage.input_bytes
        )
        rest = self._route(batch).stages[batch.stage :]
        shortest_us = transfer_us + sum(table.p50_us[batch.size - 1] for table in rest)
        if max(now_us, self._free_at_us[slot]) + shortest_us > batch.last_deadline_at_us:
            return "deadline"
        batch.hops.append(self._send(stage, slot, batch.size, now_us, transfer_us))
        return None

    def transfer_at(self, batch: Batch, now_us: int) -> int:
        return now_us

    def start_at(self, batch: Batch, now_us: int) -> int:
        return now_us

    def on_transferred(self, batch: Batch, now_us: int) -> None:
        """Links are suffered, not foreseen."""

    def on_started(self, batch: Batch, now_us: int) -> None:
        hop = batch.hops[batch.stage]
        self._shift(hop.slot, now_us - hop.start_at_us)
        hop.start_at_us = now_us

    def on_ended(self, batch: Batch, now_us: int) -> None:
        hop = batch.hops[batch.stage]
        self._shift(hop.slot, now_us - hop.end_at_us)

    def _shift(self, slot: int, late_us: int) -> None:
        self._free_at_us[slot] += late_us

    def forget(self, batch: Batch, now_us: int) -> None:
        for hop in batch.hops[batch.stage :]:
            self._shift(hop.slot, -hop.latency_us)

    def reroute(self, batch: Batch, first_stage: int, now_us: int) -> DropReason | None:
        del batch.hops[first_stage:]
        return self.next_hop(batch, now_us) if first_stage == batch.stage else None

    def on_slot_lost(self, slot: int, now_us: int) -> None:
        self._alive[slot] = False

    def on_slot_gained(self, slot: int, now_us: int) -> None:
        self._alive[slot] = True
        self._free_at_us[slot] = now_us

    def _route(self, batch: Batch) -> Route:
        return self._topology.models[batch.model].routes[batch.pipeline]


def _path_us(route: Route, size: int) -> int:
    """Of an otherwise idle pipeline, spread included, links not foreseen."""
    return sum(stage.p50_us[size - 1] for stage in route.stages) + route.slack_us[size - 1]
