"""Reservation-based adaptive batching (PPipe, section 5.4 and appendix A.3).

`probe` walks a pipeline stage by stage and takes, in each pool, the slot on which the stage ends
first, given what is promised on slots and links. A batch is dispatched only when its whole path
ends, with the profile's spread on top, before its tightest deadline; then the path is reserved.

What differs from the paper, each for a reason:
- The tables hold intervals and gaps are filled (the paper's Algorithm 2 says so as well).
- A deadline is compared with the medians' sum plus the p99 spread of the path, because a path
  that only makes it by medians misses half of the time.
- When the least-waiting pipeline cannot meet the deadline the next one is asked before the
  request is dropped.
- With `fill="idle"` a partial batch starts at once when its whole path is idle: waiting for more
  requests saves capacity only when capacity is short, and then the path is not idle.
- Feedback re-places the rest of a path whenever reality left the promise, and may pick another
  slot of the pool: the tensors are reachable from each of them.
"""

from collections.abc import Sequence
from typing import Literal

from headrace.dispatch.protocols import Batch, Decision, Dispatch, Drop, Hop, WaitUntil
from headrace.dispatch.tables import Path, ReservationTables
from headrace.dispatch.topology import Route, Topology
from headrace.domain.request import DropReason, Request

SLOT_RECOVERY_US = 1_000_000
"""When to try again after a pool has lost all its slots: about a worker's restart."""


class ReservationPolicy:
    """Probe, reserve, wait or drop; corrected by what really happened."""

    def __init__(self, topology: Topology, *, fill: Literal["idle", "deadline"] = "idle") -> None:
        self._topology = topology
        self._tables = ReservationTables(topology)
        self._batches: dict[int, Batch] = {}
        self._fill = fill

    # -- deciding ------------------------------------------------------------------------------

    def decide(self, model: int, queue: Sequence[Request], now_us: int) -> Decision:
        self._tables.extend_overruns(now_us)
        self._follow_moved()
        routes = self._topology.models[model].routes
        full_paths = [
            (path.waiting_us, pipeline, path)
            for pipeline, route in enumerate(routes)
            if (path := self._tables.probe(route.stages, route.batch_size, now_us)) is not None
        ]
        if not full_paths:
            return Drop("no-slot", SLOT_RECOVERY_US)
        if len(full_paths) > 1:
            full_paths.sort(key=lambda entry: entry[:2])
        for _, pipeline, full_path in full_paths:
            route = routes[pipeline]
            for size in range(route.batch_size, 0, -1):
                path = full_path if size == route.batch_size else self._probe(route, size, now_us)
                if path.end_at_us + route.slack_us[size - 1] <= _tightest(queue, size):
                    return self._settle(pipeline, path, size, queue, now_us)
        usable = [routes[pipeline] for _, pipeline, _ in full_paths]
        return Drop("deadline", self._backlog_us(usable, queue, now_us))

    def _settle(
        self, pipeline: int, path: Path, size: int, queue: Sequence[Request], now_us: int
    ) -> Decision:
        """A batch of `size` makes it: send it, or wait for more requests to fill it."""
        route = self._topology.models[queue[0].model].routes[pipeline]
        waiting = len(queue)
        if waiting >= size:
            return self._dispatch(pipeline, path, size)
        if self._fill == "idle":
            partial = self._probe(route, waiting, now_us)
            if partial.waiting_us == 0:
                return self._dispatch(pipeline, partial, waiting)
        # Until a batch of `size` would be late. While it waits anyway for slots and links, waiting
        # for requests costs nothing. Then the next smaller size is the largest that makes it.
        spare_us = _tightest(queue, waiting) - path.end_at_us - route.slack_us[size - 1]
        return WaitUntil(now_us + max(1, spare_us + path.waiting_us), size)

    def _dispatch(self, pipeline: int, path: Path, size: int) -> Dispatch:
        self._tables.reserve(path.hops)
        return Dispatch(pipeline, size, path.hops)

    def _backlog_us(self, routes: Sequence[Route], queue: Sequence[Request], now_us: int) -> int:
        """How much the backlog must shrink before a request like the first could make it."""
        ends = [self._probe(route, 1, now_us).end_at_us + route.slack_us[0] for route in routes]
        return max(1, min(ends) - queue[0].deadline_at_us)

    def _probe(self, route: Route, size: int, now_us: int) -> Path:
        path = self._tables.probe(route.stages, size, now_us)
        assert path is not None, "the same pools gave a path for the planned size"
        return path

    def on_dispatched(self, batch: Batch) -> None:
        self._batches[batch.id] = batch
        for hop in batch.hops:
            hop.batch = batch.id

    # -- order of execution --------------------------------------------------------------------

    def next_hop(self, batch: Batch, now_us: int) -> DropReason | None:
        if not self._tables.is_alive(batch.hops[batch.stage].slot):
            return self.reroute(batch, batch.stage, now_us)
        # By medians: what is probably late for everybody is not worth a slot's time.
        return None if batch.hops[-1].end_at_us <= batch.last_deadline_at_us else "deadline"

    def transfer_at(self, batch: Batch, now_us: int) -> int:
        """At its promise, or earlier where that delays nobody."""
        hop = batch.hops[batch.stage]
        if hop.transfer_at_us <= now_us:
            return now_us
        early = self._tables.links_free_for(hop, batch.hops[batch.stage - 1].slot, now_us)
        return now_us if early else hop.transfer_at_us

    def start_at(self, batch: Batch, now_us: int) -> int:
        """At its promise, or earlier where that delays nobody."""
        hop = batch.hops[batch.stage]
        if hop.start_at_us <= now_us:
            return now_us
        return now_us if self._tables.slot_free_for(hop, now_us) else hop.start_at_us

    # -- feedback ------------------------------------------------------------------------------

    def on_transferred(self, batch: Batch, now_us: int) -> None:
        hop = batch.hops[batch.stage]
        self._tables.release_links(hop, batch.hops[batch.stage - 1].slot)
        if hop.start_at_us < now_us:
            self._tables.move(hop, now_us)
            self._follow_moved()

    def on_started(self, batch: Batch, now_us: int) -> None:
        hop = batch.hops[batch.stage]
        if hop.start_at_us != now_us:
            self._tables.move(hop, now_us)
        self._tables.run(hop)
        self._follow_moved()

    def on_ended(self, batch: Batch, now_us: int) -> None:
        hop = batch.hops[batch.stage]
        if hop.end_at_us != now_us:
            self._tables.stretch(hop, now_us)
        self._tables.release_slot(hop)
        self._follow_moved()

    def forget(self, batch: Batch, now_us: int) -> None:
        self._tables.release(batch.hops[batch.stage :], _slot_before(batch, batch.stage))
        self._batches.pop(batch.id, None)

    def _follow_moved(self) -> None:
        """Promise anew what follows hops that moved, in the order of those hops.

        All of it is released first: what a batch was promised before it moved must not stand in
        the way of one that is now ahead of it. Ends, because each round moves later stages.
        """
        while moved := self._tables.take_moved():
            first_stages: dict[int, int] = {}
            for hop in moved:
                batch = self._batches.get(hop.batch)
                if batch is None:
                    continue
                following = _stage_of(hop, batch) + 1
                if batch.stage < following < len(batch.hops):
                    first_stages[batch.id] = min(following, first_stages.get(batch.id, following))
            for batch_id, first_stage in first_stages.items():
                batch = self._batches[batch_id]
                self._tables.release(batch.hops[first_stage:], _slot_before(batch, first_stage))
            for batch_id, first_stage in first_stages.items():
                batch = self._batches[batch_id]
                self._place_anew(batch, first_stage, batch.hops[first_stage - 1].end_at_us)

    def _place_anew(self, batch: Batch, first_stage: int, ready_at_us: int) -> bool:
        """Promise the path from `first_stage` on anew; False: some pool has no slot left.

        What was promised from there on must have been released.
        """
        stages = self._topology.models[batch.model].routes[batch.pipeline].stages
        from_slot, at_us = _slot_before(batch, first_stage), ready_at_us
        for stage in range(first_stage, len(batch.hops)):
            old = batch.hops[stage]
            hop = self._tables.place_anew(stages[stage], batch.size, at_us, from_slot, old)
            if hop is None:
                return False
            batch.hops[stage] = hop
            from_slot, at_us = hop.slot, hop.end_at_us
        return True

    # -- slots lost and gained -----------------------------------------------------------------

    def reroute(self, batch: Batch, first_stage: int, now_us: int) -> DropReason | None:
        before = batch.hops[first_stage - 1] if first_stage > batch.stage else None
        ready_at_us = max(now_us, before.end_at_us) if before else now_us
        self._tables.release(batch.hops[first_stage:], _slot_before(batch, first_stage))
        placed = self._place_anew(batch, first_stage, ready_at_us)
        self._follow_moved()
        if not placed:
            return "no-slot"
        return None if batch.hops[-1].end_at_us <= batch.last_deadline_at_us else "deadline"

    def on_slot_lost(self, slot: int, now_us: int) -> None:
        self._tables.set_alive(slot, False)

    def on_slot_gained(self, slot: int, now_us: int) -> None:
        self._tables.set_alive(slot, True)


def _slot_before(batch: Batch, stage: int) -> int:
    return batch.hops[stage - 1].slot if stage else -1


def _stage_of(hop: Hop, batch: Batch) -> int:
    """-1: the batch has another path by now."""
    return next((stage for stage, other in enumerate(batch.hops) if other is hop), -1)


def _tightest(queue: Sequence[Request], size: int) -> int:
    """The earliest deadline among the first `size` requests.

    The queue is in order of priority first, so the first request need not be the most urgent.
    """
    deadline_at_us = queue[0].deadline_at_us
    for i in range(1, min(size, len(queue))):
        if queue[i].deadline_at_us < deadline_at_us:
            deadline_at_us = queue[i].deadline_at_us
    return deadline_at_us
