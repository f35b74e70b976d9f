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
from dataclasses import dataclass
from typing import Literal

from headrace.dispatch.intervals import IntervalTable, earliest_common
from headrace.dispatch.protocols import Batch, Decision, Dispatch, Drop, Hop, WaitUntil
from headrace.dispatch.topology import Route, StageTable, Topology
from headrace.domain.request import DropReason, Request

SLOT_RECOVERY_US = 1_000_000
"""When to try again after a pool has lost all its slots: about a worker's restart."""


@dataclass(frozen=True, slots=True)
class Path:
    """What a probe found."""

    pipeline: int
    hops: list[Hop]
    waiting_us: int
    """Sum of the delays before links and slots (PPipe: waitTime)."""
    end_at_us: int


class ReservationPolicy:
    """Probe, reserve, wait or drop; corrected by what really happened."""

    def __init__(self, topology: Topology, *, fill: Literal["idle", "deadline"] = "idle") -> None:
        self._topology = topology
        self._fill = fill
        self._slots = [IntervalTable() for _ in topology.slots]
        self._uplinks = [IntervalTable() for _ in topology.nodes]
        self._downlinks = [IntervalTable() for _ in topology.nodes]
        self._alive = [True] * len(topology.slots)
        self._running: list[Hop | None] = [None] * len(topology.slots)

    # -- deciding ------------------------------------------------------------------------------

    def decide(self, model: int, queue: Sequence[Request], now_us: int) -> Decision:
        routes = self._topology.models[model].routes
        paths = [
            path
            for i, route in enumerate(routes)
            if (path := self._probe(i, route, route.batch_size, now_us)) is not None
        ]
        if not paths:
            return Drop("no-slot", SLOT_RECOVERY_US)
        if len(paths) > 1:
            paths.sort(key=lambda path: path.waiting_us)
        for full in paths:
            route = routes[full.pipeline]
            for size in range(route.batch_size, 0, -1):
                path = full
                if size < route.batch_size:
                    found = self._probe(full.pipeline, route, size, now_us)
                    if found is None:
                        break
                    path = found
                if path.end_at_us + route.slack_us[size - 1] <= _tightest(queue, size):
                    return self._settle(path, route, size, queue, now_us)
        return Drop("deadline", self._backlog_us(paths, routes, queue, now_us))

    def _settle(
        self, path: Path, route: Route, size: int, queue: Sequence[Request], now_us: int
    ) -> Decision:
        """A batch of `size` makes it: send it, or wait for more requests to fill it."""
        waiting = len(queue)
        if waiting >= size:
            return self._reserved(path, size)
        partial = self._probe(path.pipeline, route, waiting, now_us)
        assert partial is not None, "the same pools served a larger batch a moment ago"
        if self._fill == "idle" and partial.waiting_us == 0:
            return self._reserved(partial, waiting)
        # While it waits anyway for slots and links, waiting for requests costs nothing.
        spare_us = _tightest(queue, waiting) - partial.end_at_us - route.slack_us[waiting - 1]
        last_at_us = now_us + spare_us + partial.waiting_us
        if last_at_us <= now_us:
            return self._reserved(partial, waiting)
        return WaitUntil(last_at_us)

    def _reserved(self, path: Path, size: int) -> Dispatch:
        route_from = -1
        for hop in path.hops:
            self._reserve(hop, route_from)
            route_from = hop.slot
        return Dispatch(path.pipeline, size, path.hops)

    def _backlog_us(
        self,
        paths: Sequence[Path],
        routes: Sequence[Route],
        queue: Sequence[Request],
        now_us: int,
    ) -> int:
        """How much the backlog must shrink before a request like the first could make it."""
        ends = [
            path.end_at_us + routes[full.pipeline].slack_us[0]
            for full in paths
            if (path := self._probe(full.pipeline, routes[full.pipeline], 1, now_us)) is not None
        ]
        return max(1, min(ends) - queue[0].deadline_at_us) if ends else SLOT_RECOVERY_US

    # -- probing -------------------------------------------------------------------------------

    def _probe(
        self,
        pipeline: int,
        route: Route,
        size: int,
        now_us: int,
        *,
        first_stage: int = 0,
        from_slot: int = -1,
        ready_at_us: int | None = None,
    ) -> Path | None:
        """Find the path on which each stage ends first; None: some pool has no slot left."""
        at_us = now_us if ready_at_us is None else ready_at_us
        waiting_us = 0
        hops: list[Hop] = []
        for stage in route.stages[first_stage:]:
            hop = self._earliest_hop(stage, size, at_us, from_slot, now_us)
            if hop is None:
                return None
            waiting_us += hop.start_at_us - at_us - hop.transfer_us
            at_us = hop.start_at_us + hop.latency_us
            from_slot = hop.slot
            hops.append(hop)
        return Path(pipeline, hops, waiting_us, at_us)

    def _earliest_hop(
        self, stage: StageTable, size: int, at_us: int, from_slot: int, now_us: int
    ) -> Hop | None:
        latency_us = stage.p50_us[size - 1]
        local = from_slot < 0 or not stage.input_bytes
        best_slot, best_start_us, best_transfer = -1, 0, (at_us, 0)
        transfers: dict[int, tuple[int, int]] = {}
        for slot in stage.slots:
            if not self._alive[slot]:
                continue
            transfer = (at_us, 0)
            if not local:
                node = self._topology.slot_node[slot]
                known = transfers.get(node)
                if known is None:
                    known = self._earliest_transfer(
                        from_slot, slot, at_us, size * stage.input_bytes
                    )
                    transfers[node] = known
                transfer = known
            if self._running[slot] is not None:
                self._extend_overrun(slot, now_us)
            start_us = self._slots[slot].earliest(transfer[0] + transfer[1], latency_us)
            if best_slot < 0 or start_us < best_start_us:
                best_slot, best_start_us, best_transfer = slot, start_us, transfer
                if start_us == at_us:
                    break  # nothing can start earlier
        if best_slot < 0:
            return None
        return Hop(best_slot, best_transfer[0], best_transfer[1], best_start_us, latency_us)

    def _earliest_transfer(
        self, from_slot: int, to_slot: int, at_us: int, size_bytes: int
    ) -> tuple[int, int]:
        transfer_us = self._topology.transfer_us(from_slot, to_slot, size_bytes)
        if transfer_us == 0:
            return at_us, 0
        start_us = earliest_common(
            self._uplinks[self._topology.slot_node[from_slot]],
            self._downlinks[self._topology.slot_node[to_slot]],
            at_us,
            transfer_us,
        )
        return start_us, transfer_us

    def _extend_overrun(self, slot: int, now_us: int) -> None:
        """A batch that runs past its promise is still there: expect it to end a little later."""
        hop = self._running[slot]
        if hop is not None and hop.end_at_us <= now_us:
            table = self._slots[slot]
            table.release(hop)
            hop.latency_us = now_us - hop.start_at_us + max(1, hop.latency_us >> 3)
            table.reserve(hop.start_at_us, hop.end_at_us, hop)

    # -- tables --------------------------------------------------------------------------------

    def _reserve(self, hop: Hop, from_slot: int) -> None:
        self._slots[hop.slot].reserve(hop.start_at_us, hop.end_at_us, hop)
        if hop.transfer_us:
            end_us = hop.transfer_at_us + hop.transfer_us
            uplink = self._uplinks[self._topology.slot_node[from_slot]]
            uplink.reserve(hop.transfer_at_us, end_us, hop)
            downlink = self._downlinks[self._topology.slot_node[hop.slot]]
            downlink.reserve(hop.transfer_at_us, end_us, hop)

    def _release(self, hop: Hop, from_slot: int) -> None:
        self._slots[hop.slot].release(hop)
        if self._running[hop.slot] is hop:
            self._running[hop.slot] = None
        self._release_links(hop, from_slot)

    def _release_links(self, hop: Hop, from_slot: int) -> None:
        if hop.transfer_us and from_slot >= 0:
            self._uplinks[self._topology.slot_node[from_slot]].release(hop)
            self._downlinks[self._topology.slot_node[hop.slot]].release(hop)

    def _route(self, batch: Batch) -> Route:
        return self._topology.models[batch.model].routes[batch.pipeline]

    def _replace_rest(self, batch: Batch, first_stage: int, ready_at_us: int, now_us: int) -> bool:
        """Reserve the path from `first_stage` on anew; False: some pool has no slot left."""
        for stage in range(first_stage, len(batch.hops)):
            self._release(batch.hops[stage], batch.hops[stage - 1].slot if stage else -1)
        from_slot = batch.hops[first_stage - 1].slot if first_stage else -1
        path = self._probe(
            batch.pipeline,
            self._route(batch),
            batch.size,
            now_us,
            first_stage=first_stage,
            from_slot=from_slot,
            ready_at_us=ready_at_us,
        )
        if path is None:
            return False
        for hop in path.hops:
            self._reserve(hop, from_slot)
            from_slot = hop.slot
        batch.hops[first_stage:] = path.hops
        return True

    # -- feedback ------------------------------------------------------------------------------

    def next_hop(self, batch: Batch, now_us: int) -> DropReason | None:
        if not self._alive[batch.hops[batch.stage].slot]:
            return self.reroute(batch, batch.stage, now_us)
        # By medians: what is probably late for everybody is not worth a slot's time.
        return None if batch.hops[-1].end_at_us <= batch.last_deadline_at_us else "deadline"

    def transfer_at(self, batch: Batch, now_us: int) -> int:
        """When the transfer into `batch.stage` may start without delaying one promised earlier."""
        hop = batch.hops[batch.stage]
        if hop.transfer_at_us <= now_us:
            return now_us
        end_us = now_us + hop.transfer_us
        node = self._topology.slot_node
        uplink = self._uplinks[node[batch.hops[batch.stage - 1].slot]]
        downlink = self._downlinks[node[hop.slot]]
        early = uplink.free_for(hop, now_us, end_us) and downlink.free_for(hop, now_us, end_us)
        return now_us if early else hop.transfer_at_us

    def start_at(self, batch: Batch, now_us: int) -> int:
        """When `batch.stage` may run: at its promise, or earlier where that delays nobody."""
        hop = batch.hops[batch.stage]
        if hop.start_at_us <= now_us:
            return now_us
        early = self._slots[hop.slot].free_for(hop, now_us, now_us + hop.latency_us)
        return now_us if early else hop.start_at_us

    def on_transferred(self, batch: Batch, now_us: int) -> None:
        hop = batch.hops[batch.stage]
        self._release_links(hop, batch.hops[batch.stage - 1].slot)
        if hop.start_at_us < now_us:
            self._move(batch, now_us)

    def on_started(self, batch: Batch, now_us: int) -> None:
        hop = batch.hops[batch.stage]
        self._running[hop.slot] = hop
        if hop.start_at_us != now_us:
            self._move(batch, now_us)

    def _move(self, batch: Batch, start_at_us: int) -> None:
        """The current hop starts at another time than promised; so does all that follows."""
        hop = batch.hops[batch.stage]
        table = self._slots[hop.slot]
        table.release(hop)
        hop.start_at_us = start_at_us
        table.reserve(start_at_us, hop.end_at_us, hop)
        if batch.stage + 1 < len(batch.hops):
            self._replace_rest(batch, batch.stage + 1, hop.end_at_us, start_at_us)

    def on_ended(self, batch: Batch, now_us: int) -> None:
        hop = batch.hops[batch.stage]
        self._slots[hop.slot].release(hop)
        self._running[hop.slot] = None
        if batch.stage + 1 < len(batch.hops) and hop.end_at_us != now_us:
            self._replace_rest(batch, batch.stage + 1, now_us, now_us)

    def forget(self, batch: Batch, now_us: int) -> None:
        for stage in range(batch.stage, len(batch.hops)):
            self._release(batch.hops[stage], batch.hops[stage - 1].slot if stage else -1)

    def reroute(self, batch: Batch, first_stage: int, now_us: int) -> DropReason | None:
        before = batch.hops[first_stage - 1] if first_stage > batch.stage else None
        ready_at_us = max(now_us, before.end_at_us) if before else now_us
        if not self._replace_rest(batch, first_stage, ready_at_us, now_us):
            return "no-slot"
        return None if batch.hops[-1].end_at_us <= batch.last_deadline_at_us else "deadline"

    def on_slot_lost(self, slot: int, now_us: int) -> None:
        self._alive[slot] = False
        self._running[slot] = None

    def on_slot_gained(self, slot: int, now_us: int) -> None:
        self._alive[slot] = True


def _tightest(queue: Sequence[Request], size: int) -> int:
    """The earliest deadline among the first `size` requests.

    The queue is in order of priority first, so the first request need not be the most urgent.
    """
    deadline_at_us = queue[0].deadline_at_us
    for i in range(1, min(size, len(queue))):
        if queue[i].deadline_at_us < deadline_at_us:
            deadline_at_us = queue[i].deadline_at_us
    return deadline_at_us
