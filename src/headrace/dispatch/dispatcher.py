"""The one dispatcher: queues, batches under way, and the order on slots and links.

It never awaits, knows time only through its clock, and acts only through its driver, so that the
simulator and the server run the very same object. The policy says where and when; this says what
happens next.
"""

from bisect import insort
from functools import partial

from headrace.dispatch.lines import LinkLine, SlotLine, WakeUp
from headrace.dispatch.protocols import (
    Batch,
    Clock,
    Dispatch,
    Driver,
    Drop,
    EventSink,
    Policy,
    WaitUntil,
)
from headrace.dispatch.topology import Topology
from headrace.domain.events import (
    Answered,
    Arrived,
    Dispatched,
    Dropped,
    Ran,
    Reservation,
    SlotGained,
    SlotLost,
    Transferred,
)
from headrace.domain.request import DropReason, Request

RETRY_US = 1_000_000
"""Advice to clients where the policy has no better estimate."""


class Dispatcher:
    """Turns arrivals and completions into batches on paths.

    A driver reports through the `on_…` methods. An exception in the driver or the policy is a bug
    of ours: it propagates.
    """

    def __init__(
        self,
        topology: Topology,
        policy: Policy,
        clock: Clock,
        driver: Driver,
        sink: EventSink,
        queue_limit: int = 10_000,
    ) -> None:
        self._topology = topology
        self._policy = policy
        self._clock = clock
        self._driver = driver
        self._sink = sink
        self._queue_limit = queue_limit
        self._queues: list[list[Request]] = [[] for _ in topology.models]
        self._wakes = [
            WakeUp(clock, partial(self._decide, model)) for model in range(len(topology.models))
        ]
        self._fill: list[WaitUntil | None] = [None] * len(topology.models)
        """What each model's queue waits for, unless a decision is due."""
        self._batches: dict[int, Batch] = {}
        self._next_batch = 0
        self._draining = False
        self._slot_lines = [
            SlotLine(WakeUp(clock, partial(self._advance_slot, slot)))
            for slot in range(len(topology.slots))
        ]
        self._links = LinkLine(len(topology.nodes), WakeUp(clock, self._advance_links))

    # -- what others may ask -------------------------------------------------------------------

    @property
    def in_flight(self) -> int:
        """Accepted requests that have no answer yet."""
        return self.queued + sum(batch.size for batch in self._batches.values())

    @property
    def queued(self) -> int:
        """Accepted requests that are in no batch yet."""
        return sum(len(queue) for queue in self._queues)

    # -- arrivals ------------------------------------------------------------------------------

    def on_arrival(self, request: Request) -> None:
        """Take a request; from here on it is answered or refused exactly once."""
        self._sink(
            Arrived(request.arrived_at_us, request.id, request.model, request.deadline_at_us)
        )
        if self._draining:
            self._refuse(request, "draining", RETRY_US)
            return
        queue = self._queues[request.model]
        if len(queue) >= self._queue_limit:
            self._refuse(request, "queue-full", RETRY_US)
            return
        if queue and _urgency(request) < _urgency(queue[-1]):
            insort(queue, request, key=_urgency)
        else:
            queue.append(request)
            fill = self._fill[request.model]
            tighter = request.deadline_at_us < queue[0].deadline_at_us
            if fill and len(queue) < fill.size and not tighter:
                return  # the last decision stands
        self._decide(request.model)

    def cancel(self, request_id: int) -> None:
        """The client went away. Work that is already in a batch goes on."""
        for queue in self._queues:
            for i, request in enumerate(queue):
                if request.id == request_id:
                    del queue[i]
                    self._refuse(request, "cancelled", 0)
                    return

    def drain(self) -> None:
        """Refuse what arrives from now on; what was accepted is still answered."""
        self._draining = True

    def _decide(self, model: int) -> None:
        queue = self._queues[model]
        self._fill[model] = None
        while queue:
            now_us = self._clock.now_us()
            match self._policy.decide(model, queue, now_us):
                case Dispatch(pipeline, size, hops):
                    requests = tuple(queue[:size])
                    del queue[:size]
                    batch = Batch(self._next_batch, model, pipeline, requests, hops)
                    self._next_batch += 1
                    self._batches[batch.id] = batch
                    self._policy.on_dispatched(batch)
                    self._log_path(batch, 0, now_us)
                    self._enter_stage(batch)
                case Drop(reason, retry_after_us):
                    self._refuse(queue.pop(0), reason, retry_after_us)
                case WaitUntil(at_us) as fill:
                    self._fill[model] = fill
                    self._wakes[model].at(at_us)
                    return

    def _decide_all(self) -> None:
        for model, queue in enumerate(self._queues):
            if queue:
                self._decide(model)

    # -- a batch on its path -------------------------------------------------------------------

    def _enter_stage(self, batch: Batch) -> None:
        """The batch is ready for `batch.stage`: cross the network first where it must."""
        now_us = self._clock.now_us()
        hopeless = self._policy.next_hop(batch, now_us)
        if hopeless is not None:
            self._abandon(batch, hopeless)
            return
        hop = batch.hops[batch.stage]
        if hop.transfer_us:
            self._links.join(batch)
            self._advance_links()
        else:
            self._join_slot(batch)

    def _join_slot(self, batch: Batch) -> None:
        slot = batch.hops[batch.stage].slot
        self._slot_lines[slot].ready.append(batch)
        self._advance_slot(slot)

    def _advance_slot(self, slot: int) -> None:
        """Start the batch whose turn it is, if the slot is idle and the time has come."""
        line = self._slot_lines[slot]
        if line.running is not None or not line.ready:
            return
        now_us = self._clock.now_us()
        batch = line.first()
        start_at_us = self._policy.start_at(batch, now_us)
        if start_at_us > now_us:
            line.wake.at(start_at_us)
            return
        line.ready.remove(batch)
        line.running = batch
        self._policy.on_started(batch, now_us)
        self._driver.start_stage(batch, batch.stage)

    def _advance_links(self) -> None:
        """Start every transfer whose two links are idle and whose time has come."""
        now_us = self._clock.now_us()
        for batch in self._links.waiting():
            from_node, to_node = self._hop_nodes(batch)
            if not self._links.idle(from_node, to_node):
                continue
            start_at_us = self._policy.transfer_at(batch, now_us)
            if start_at_us > now_us:
                self._links.wake.at(start_at_us)
                continue
            self._links.start(batch, from_node, to_node)
            self._driver.start_transfer(batch, batch.stage)

    def _hop_nodes(self, batch: Batch) -> tuple[int, int]:
        node = self._topology.slot_node
        return node[batch.hops[batch.stage - 1].slot], node[batch.hops[batch.stage].slot]

    def on_transferred(self, batch: Batch, stage: int, attempt: int, started_at_us: int) -> None:
        """The tensors that enter `stage` have reached their node."""
        self._links.end(batch.id, attempt)
        if self._is_current(batch, stage, attempt):
            now_us = self._clock.now_us()
            from_slot, to_slot = batch.hops[stage - 1].slot, batch.hops[stage].slot
            self._sink(Transferred(now_us, batch.id, stage, from_slot, to_slot, started_at_us))
            self._policy.on_transferred(batch, now_us)
            self._join_slot(batch)
        self._advance_links()

    def on_ran(
        self, batch: Batch, stage: int, attempt: int, started_at_us: int, ended_at_us: int
    ) -> None:
        """`stage` has run; the instants are the worker's own."""
        if not self._is_current(batch, stage, attempt):
            return
        slot = batch.hops[stage].slot
        self._sink(Ran(ended_at_us, batch.id, stage, slot, started_at_us))
        self._leave_slot(batch, slot)
        if stage + 1 < len(self._stages(batch)):
            batch.stage = stage + 1
            self._enter_stage(batch)
        else:
            self._finish(batch)
        self._advance_slot(slot)
        self._decide_all()

    def on_failed(self, batch: Batch, stage: int, attempt: int) -> None:
        """The executor could not run the batch, and would not be able to elsewhere."""
        if not self._is_current(batch, stage, attempt):
            return
        slot = batch.hops[stage].slot
        self._leave_slot(batch, slot)
        batch.stage += 1  # this stage is over: only what follows is still to be released
        self._abandon(batch, "failed")
        self._advance_slot(slot)
        self._decide_all()

    def _leave_slot(self, batch: Batch, slot: int) -> None:
        self._slot_lines[slot].running = None
        self._policy.on_ended(batch, self._clock.now_us())

    def _finish(self, batch: Batch) -> None:
        now_us = self._clock.now_us()
        batch.stage += 1  # all stages are over: nothing is left to release
        self._policy.forget(batch, now_us)
        del self._batches[batch.id]
        for request in batch.requests:
            self._sink(Answered(now_us, request.id, batch.id))
        self._driver.answer(batch)

    def _abandon(self, batch: Batch, reason: DropReason) -> None:
        """Drop all requests of a batch that is under way."""
        self._policy.forget(batch, self._clock.now_us())
        del self._batches[batch.id]
        for request in batch.requests:
            self._refuse(request, reason, RETRY_US)

    # -- slots lost and gained -----------------------------------------------------------------

    def on_slot_lost(self, slot: int) -> None:
        """The slot is gone with all it ran; its batches run elsewhere if their deadlines allow."""
        now_us = self._clock.now_us()
        self._sink(SlotLost(now_us, slot))
        self._policy.on_slot_lost(slot, now_us)
        self._slot_lines[slot].running = None
        for batch in list(self._batches.values()):
            stages = range(batch.stage, len(batch.hops))
            lost = next((s for s in stages if batch.hops[s].slot == slot), None)
            if lost == batch.stage:
                self._restart_stage(batch, now_us)
            elif lost is not None and self._policy.reroute(batch, lost, now_us) is None:
                # Without a new path the batch is dropped when its current stage has ended:
                # until then the slot may come back.
                self._log_path(batch, lost, now_us)
        self._decide_all()

    def _restart_stage(self, batch: Batch, now_us: int) -> None:
        """The stage that the batch was in, or about to enter, must run on another slot."""
        self._withdraw(batch)
        if batch.stage == 0:
            # Nothing is computed yet: any pipeline will do, so decide afresh.
            self._policy.forget(batch, now_us)
            del self._batches[batch.id]
            for request in batch.requests:
                insort(self._queues[batch.model], request, key=_urgency)
            return
        hopeless = self._policy.reroute(batch, batch.stage, now_us)
        if hopeless is not None:
            self._abandon(batch, hopeless)
            return
        self._log_path(batch, batch.stage, now_us)
        self._enter_stage(batch)

    def _withdraw(self, batch: Batch) -> None:
        """Take the batch out of every line; what its current work reports is stale from now on."""
        batch.attempt += 1
        self._links.leave(batch)
        line = self._slot_lines[batch.hops[batch.stage].slot]
        if batch in line.ready:
            line.ready.remove(batch)

    def on_slot_gained(self, slot: int) -> None:
        """The slot is (back) in service, idle."""
        now_us = self._clock.now_us()
        self._sink(SlotGained(now_us, slot))
        self._policy.on_slot_gained(slot, now_us)
        self._decide_all()

    # -- helpers -------------------------------------------------------------------------------

    def _is_current(self, batch: Batch, stage: int, attempt: int) -> bool:
        current = self._batches.get(batch.id) is batch
        return current and batch.stage == stage and batch.attempt == attempt

    def _stages(self, batch: Batch) -> tuple[object, ...]:
        return self._topology.models[batch.model].routes[batch.pipeline].stages

    def _refuse(self, request: Request, reason: DropReason, retry_after_us: int) -> None:
        self._sink(Dropped(self._clock.now_us(), request.id, reason, retry_after_us))
        self._driver.refuse(request, reason, retry_after_us)

    def _log_path(self, batch: Batch, first_stage: int, now_us: int) -> None:
        self._sink(
            Dispatched(
                now_us,
                batch.id,
                batch.model,
                batch.pipeline,
                first_stage,
                tuple(request.id for request in batch.requests),
                tuple(
                    Reservation(
                        hop.slot,
                        hop.transfer_at_us,
                        hop.transfer_us,
                        hop.start_at_us,
                        hop.latency_us,
                    )
                    for hop in batch.hops[first_stage:]
                ),
            )
        )


def _urgency(request: Request) -> tuple[int, int, int]:
    return request.priority, request.deadline_at_us, request.id
