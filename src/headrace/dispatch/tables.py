"""All promises of a cluster, and the probe that finds the next path among them.

`probe` and `reserve` are PPipe's (section 5.4; appendix A.3, Algorithm 2).
"""

from collections.abc import Sequence
from dataclasses import dataclass

from headrace.dispatch.intervals import IntervalTable, earliest_common
from headrace.dispatch.protocols import Hop
from headrace.dispatch.topology import StageTable, Topology

NEVER_US = 1 << 62


@dataclass(frozen=True, slots=True)
class Path:
    """What a probe found."""

    hops: list[Hop]
    waiting_us: int
    """Sum of the delays before links and slots (PPipe: waitTime)."""
    end_at_us: int


class ReservationTables:
    """Who is promised which slot and link, when; and which slots are there at all."""

    def __init__(self, topology: Topology) -> None:
        self._topology = topology
        self._slots = [IntervalTable() for _ in topology.slots]
        self._uplinks = [IntervalTable() for _ in topology.nodes]
        self._downlinks = [IntervalTable() for _ in topology.nodes]
        self._alive = [True] * len(topology.slots)
        self._running: list[Hop | None] = [None] * len(topology.slots)
        self._moved: list[Hop] = []
        self._next_end_us = NEVER_US
        """No running batch is expected to end before; a bound, not always the tightest."""
        self._has_links = any(speed is not None for speed in topology.node_bytes_per_us)

    def is_alive(self, slot: int) -> bool:
        return self._alive[slot]

    def set_alive(self, slot: int, alive: bool) -> None:
        self._alive[slot] = alive
        self._running[slot] = None

    # -- probing -------------------------------------------------------------------------------

    def probe(
        self,
        stages: Sequence[StageTable],
        size: int,
        at_us: int,
    ) -> Path | None:
        """Find, stage by stage, the slot on which a batch of `size` ends first from `at_us` on.

        Returns:
            The path, not yet reserved; None: some pool has no slot left.
        """
        waiting_us = 0
        from_slot = -1
        hops: list[Hop] = []
        for stage in stages:
            hop = self._earliest_hop(stage, size, at_us, from_slot)
            if hop is None:
                return None
            waiting_us += hop.start_at_us - at_us - hop.transfer_us
            at_us = hop.start_at_us + hop.latency_us
            from_slot = hop.slot
            hops.append(hop)
        return Path(hops, waiting_us, at_us)

    def _earliest_hop(self, stage: StageTable, size: int, at_us: int, from_slot: int) -> Hop | None:
        # The innermost loop of every decision: plain locals, and the calls that can be avoided are.
        latency_us = stage.p50_us[size - 1]
        crosses = from_slot >= 0 and stage.input_bytes > 0 and self._has_links
        alive, tables = self._alive, self._slots
        best_slot, best_start_us, best_transfer = -1, 0, (at_us, 0)
        transfers: dict[int, tuple[int, int]] = {}
        transfer = (at_us, 0)
        for slot in stage.slots:
            if not alive[slot]:
                continue
            if crosses:
                # Slots of one node share its downlink: look its transfer up once.
                node = self._topology.slot_node[slot]
                found = transfers.get(node)
                if found is None:
                    size_bytes = size * stage.input_bytes
                    found = self._earliest_transfer(from_slot, slot, at_us, size_bytes)
                    transfers[node] = found
                transfer = found
            ready_us = transfer[0] + transfer[1]
            table = tables[slot]
            # What `earliest` would say, without the call.
            start_us = (
                ready_us if table.free_from_us <= ready_us else table.earliest(ready_us, latency_us)
            )
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
        """(start, duration) of moving `size_bytes` over both links at once."""
        transfer_us = self._topology.transfer_us(from_slot, to_slot, size_bytes)
        if transfer_us == 0:
            return at_us, 0
        uplink, downlink = self._links(from_slot, to_slot)
        return earliest_common(uplink, downlink, at_us, transfer_us), transfer_us

    # -- promising -----------------------------------------------------------------------------

    def reserve(self, hops: Sequence[Hop], from_slot: int = -1) -> None:
        """Promise a probed path."""
        for hop in hops:
            self._slots[hop.slot].reserve(hop.start_at_us, hop.end_at_us, hop)
            if hop.transfer_us:
                end_us = hop.transfer_at_us + hop.transfer_us
                for link in self._links(from_slot, hop.slot):
                    link.reserve(hop.transfer_at_us, end_us, hop)
            from_slot = hop.slot

    def place_anew(
        self, stage: StageTable, size: int, at_us: int, from_slot: int, old: Hop
    ) -> Hop | None:
        """Promise one stage of a batch anew, whose promise `old` has been released.

        The slot on which it starts first; but on its old slot it keeps its place, and those that
        are promised behind it move. Otherwise a batch that is a little late would fall behind
        others that are still on their way, and wait for them beside an idle slot.

        Returns:
            The new promise; None: the pool has no slot left.
        """
        hop = self._earliest_hop(stage, size, at_us, from_slot)
        if hop is None:
            return None
        if self._alive[old.slot]:
            transfer_at_us, transfer_us = at_us, 0
            if from_slot >= 0 and stage.input_bytes:
                size_bytes = size * stage.input_bytes
                transfer_at_us, transfer_us = self._earliest_transfer(
                    from_slot, old.slot, at_us, size_bytes
                )
            ready_us = transfer_at_us + transfer_us
            kept_us = self._slots[old.slot].behind(old.start_at_us, ready_us)
            if kept_us < hop.start_at_us:
                hop = Hop(old.slot, transfer_at_us, transfer_us, kept_us, hop.latency_us)
        hop.batch = old.batch
        self.reserve([hop], from_slot)
        self._moved += self._slots[hop.slot].push_back()
        return hop

    def release(self, hops: Sequence[Hop], from_slot: int = -1) -> None:
        """Take back what a path still holds."""
        for hop in hops:
            self.release_slot(hop)
            self.release_links(hop, from_slot)
            from_slot = hop.slot

    def release_slot(self, hop: Hop) -> None:
        self._slots[hop.slot].release(hop)
        if self._running[hop.slot] is hop:
            self._running[hop.slot] = None

    def release_links(self, hop: Hop, from_slot: int) -> None:
        if hop.transfer_us and from_slot >= 0:
            for link in self._links(from_slot, hop.slot):
                link.release(hop)

    def move(self, hop: Hop, start_at_us: int) -> None:
        """The slot is used at another time than promised; those behind move with it."""
        table = self._slots[hop.slot]
        table.release(hop)
        hop.start_at_us = start_at_us
        table.reserve(start_at_us, hop.end_at_us, hop)
        self._moved.append(hop)
        self._moved += table.push_back()

    def stretch(self, hop: Hop, end_at_us: int) -> None:
        """The slot is used until then instead; those behind it move if they must."""
        table = self._slots[hop.slot]
        table.release(hop)
        hop.latency_us = end_at_us - hop.start_at_us
        table.reserve(hop.start_at_us, end_at_us, hop)
        self._moved.append(hop)
        self._moved += table.push_back()

    def take_moved(self) -> list[Hop]:
        """Hops that have moved since the last call: what follows them must move as well."""
        moved, self._moved = self._moved, []
        return moved

    def extend_overruns(self, now_us: int) -> None:
        """Batches that run past their promises are still there: expect them to end a bit later."""
        if now_us <= self._next_end_us:
            return
        running = [hop for hop in self._running if hop is not None]
        for hop in running:
            if hop.end_at_us < now_us:
                self.stretch(hop, now_us + max(1, hop.latency_us >> 3))
        self._next_end_us = min((hop.end_at_us for hop in running), default=NEVER_US)

    def run(self, hop: Hop) -> None:
        """The slot is in use by `hop` from now on, until that is released."""
        self._running[hop.slot] = hop
        self._next_end_us = min(self._next_end_us, hop.end_at_us)

    # -- starting early ------------------------------------------------------------------------

    def slot_free_for(self, hop: Hop, start_us: int) -> bool:
        """Whether starting at `start_us` takes nothing from what is promised to others."""
        return self._slots[hop.slot].free_for(hop, start_us, start_us + hop.latency_us)

    def links_free_for(self, hop: Hop, from_slot: int, start_us: int) -> bool:
        """The same for the transfer into `hop`."""
        end_us = start_us + hop.transfer_us
        return all(
            link.free_for(hop, start_us, end_us) for link in self._links(from_slot, hop.slot)
        )

    def _links(self, from_slot: int, to_slot: int) -> tuple[IntervalTable, IntervalTable]:
        node = self._topology.slot_node
        return self._uplinks[node[from_slot]], self._downlinks[node[to_slot]]
