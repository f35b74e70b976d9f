"""From one plan to the next in a running server: load first, then let devices change hands.

    load     the new plan's workers start beside the old one's, at a low priority, while the old
             plan serves alone. If one cannot load, nothing has changed for anybody.
    switch   arrivals go to the new plan where it has room, and devices change hands in steps, each
             when the old plan is done with its own (`dispatch.changes.migration` decides which and
             when; "drain" waits for the old plan's batches, and no accepted request is lost)
    over     the old plan has nothing left, and its workers end

Where memory does not hold both plans' weights (`memory_short_of`), the new workers of a step's
devices start only after the old ones have ended. From then on there is no way back, so that a
worker that cannot load is tried again for as long as it takes, and the other slots serve meanwhile.
Workers of models that come and go start with none of them: they load beside the old ones, and the
old ones end before the first model comes.

Memory is counted on every planned device, and on the machine that the workers run on:

    sum over devices d of copies(d) * weights(d)  +  sum over slots of process_bytes
        <=  (1 - KEPT_FREE) * what the machine would give

with copies and process bytes of the kind of executor that serves the device.
"""

import asyncio
import contextlib
import logging
from collections import defaultdict
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from headrace.dispatch.changes.handover import Device
from headrace.dispatch.changes.migration import How, Migration, only_flushed
from headrace.dispatch.protocols import Clock
from headrace.domain.base import Record
from headrace.domain.errors import HeadraceError, ModelError
from headrace.executors.table import AUTO, ExecutorChoice, executor, kind_for
from headrace.serving.engine.inference import Inference
from headrace.serving.engine.plan_in_service import PlanInService
from headrace.serving.engine.served_plan import ServedPlan

logger = logging.getLogger("headrace.migrate")

LOADING_NICENESS = 10
"""While new workers load, the old plan's serve on the same cores. They get a tenth of a core where
these want all of it; at 19 it is 1/70, and a plan that is to relieve an overloaded one would take
minutes to load."""
SERVING_NICENESS = 0
KEPT_FREE = 0.1
"""Part of the memory that a migration leaves free."""


class MigrationError(HeadraceError):
    """The server stays with its plan; the message says why."""

    exit_code = 4


class MigrationReport(Record, frozen=True, kw_only=True):
    """How a migration went."""

    how: How
    steps: int
    """In how many steps devices changed hands."""
    devices: int
    """That changed hands."""
    preloaded: bool
    """False: memory did not hold both plans, so workers were exchanged step by step."""
    load_us: int
    """Until all new workers had loaded; 0 where they were not preloaded."""
    switch_us: int
    """From the first arrival for the new plan to the end of the old one."""
    began_at_us: int
    """When the switch began, on the event logs' clock."""
    slots_out: tuple[str, ...]
    """Whose workers could not load yet; they are tried again until they can."""


@dataclass(frozen=True, slots=True)
class Shortage:
    """What a new plan needs beside the old one, and what there is."""

    where: str
    needed_bytes: int
    available_bytes: int


class LiveMigration:
    """Leads `old` to `new`, which is prepared and not started."""

    def __init__(
        self,
        old: PlanInService,
        new: PlanInService,
        clock: Clock,
        how: How,
        executor: ExecutorChoice,
    ) -> None:
        assert old.plane is not None, "the old plan serves"
        assert new.plane is not None, "the new plan is prepared"
        self._old = old
        self._new = new
        self._old_plane = old.plane
        self._new_plane = new.plane
        self._clock = clock
        self._executor = executor
        self._over = asyncio.Event()
        self._tasks: set[asyncio.Task[None]] = set()
        self._preloaded = True
        self._load_us = 0
        self._began_at_us = 0
        self.how: How = "flush" if only_flushed(old.served.plan, new.served.plan) else how
        for slot in range(len(new.topology.slots)):
            self._new_plane.draining.close(slot)
        self.core = Migration(
            self._old_plane.epoch,
            self._new_plane.epoch,
            clock,
            how=self.how,
            on_done=self._over.set,
            prepare=self._prepare,
        )

    async def load(self) -> None:
        """Start the new workers beside the old ones, if there is memory for both.

        Raises:
            MigrationError: a worker cannot load; nothing of the new plan is left running.
        """
        here_bytes, node_bytes = self._new.available_memory_bytes()
        short = memory_short_of(
            self._old.served, self._new.served, self._executor, here_bytes, node_bytes
        )
        if short is not None:
            self._preloaded = False
            logger.warning(
                "both plans do not fit into the memory of %s (needs %d MB, has %d MB): workers"
                " are exchanged step by step, and devices idle while theirs load",
                short.where,
                short.needed_bytes >> 20,
                short.available_bytes >> 20,
            )
            return
        began_at_us = self._clock.now_us()
        try:
            await self._at_low_priority(self._new.start())
        except ModelError as error:
            raise MigrationError(f"the new plan cannot be loaded: {error}") from error
        self._load_us = self._clock.now_us() - began_at_us

    async def switch(self) -> MigrationReport:
        """Let devices change hands; returns when the old plan has nothing left."""
        self._began_at_us = self._clock.now_us()
        self.core.start()
        if self.how == "flush":
            for request in self._old_plane.room.leave():
                self.core.submit(self._old_plane.epoch, (request,))
        else:
            self._old_plane.room.open()
        try:
            await self._over.wait()
        finally:
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)
        return MigrationReport(
            how=self.how,
            steps=len(self.core.steps),
            devices=sum(map(len, self.core.steps)),
            preloaded=self._preloaded,
            load_us=self._load_us,
            switch_us=self._clock.now_us() - self._began_at_us,
            began_at_us=self._began_at_us,
            slots_out=tuple(slot.name for slot in self._new.slots() if slot.outage),
        )

    def submit(self, inference: Inference) -> None:
        """As `DataPlane.submit`, to whichever plan has room."""
        model = self._new.models[inference.model]
        epoch = self.core.epoch_for(model.name)
        plane = self._old_plane if epoch is self._old_plane.epoch else self._new_plane
        self.core.submit(epoch, plane.pending.open(inference, plane.number[model.name], model))

    # -- without memory for both -------------------------------------------------------------------

    def _prepare(self, slots: Sequence[int], ready: Callable[[Sequence[int]], None]) -> None:
        if self._preloaded and not self._new.served.plan.is_provisioned:
            ready(slots)
            return
        task = asyncio.get_running_loop().create_task(self._exchange(slots, ready))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _exchange(self, slots: Sequence[int], ready: Callable[[Sequence[int]], None]) -> None:
        """Stop the old workers of these slots' devices, then start the new ones that have not been.

        There is no way back: where a new worker cannot load, its supervisor tries again, and the
        slot serves as soon as it has one.
        """
        devices = {self._new_plane.epoch.placed.devices[slot] for slot in slots}
        draining = self._old_plane.draining
        left = [
            slot
            for slot in self._old_plane.epoch.placed.slots_on(devices)
            if not draining.in_use(slot)
        ]
        assert self._old.supervisor is not None, "the old plan is in service until its last slot"
        await self._old.supervisor.stop_slots(left)
        if self._preloaded:
            ready(slots)
            return
        await self._at_low_priority(self._new.insist(slots, ready))

    async def _at_low_priority(self, loading: Coroutine[Any, Any, None]) -> None:
        """Let workers load at a low priority; raise it when they have."""
        starting = asyncio.ensure_future(loading)
        try:
            while not starting.done():
                self._renice()
                await asyncio.wait({starting}, timeout=0.02)
            await starting
        except asyncio.CancelledError:
            starting.cancel()
            await asyncio.gather(starting, return_exceptions=True)
            raise
        self._renice()

    def _renice(self) -> None:
        supervised = self._new.supervisor.slots if self._new.supervisor else ()
        niceness = {
            (slot.host, slot.process_id): SERVING_NICENESS if slot.up else LOADING_NICENESS
            for slot in supervised
            if slot.process_id is not None
        }
        for (host, process), wanted in niceness.items():
            # Raising a priority again may be denied; then all workers of the new plan, and only
            # they, stay at the low one, which is the same among themselves.
            with contextlib.suppress(OSError):
                host.set_niceness(process, wanted)


def memory_short_of(
    old: ServedPlan,
    new: ServedPlan,
    choice: ExecutorChoice = AUTO,
    here_bytes: int | None = None,
    node_bytes: Mapping[str, int | None] | None = None,
) -> Shortage | None:
    """Where the memory does not hold both plans' weights at once; None: it does everywhere.

    Args:
        old: the plan in service.
        new: the one that is to follow it.
        choice: what their stages run on.
        here_bytes: what this machine would give to new processes; None: it does not say.
        node_bytes: the same of the plan's nodes that are other machines.
    """
    kinds = {
        slot.device: executor(kind_for(slot.device, choice))
        for slot in (*old.plan.slots, *new.plan.slots)
    }
    sizes = {kind.name: kind.memory_bytes for kind in new.plan.cluster.device_types}
    held, wanted = _weights(old), _weights(new)
    if old.plan.is_provisioned:  # as much of them as a device may hold
        held = {device: min(size, sizes.get(device[1]) or size) for device, size in held.items()}
    if new.plan.is_provisioned:  # none, until the old plan's are gone
        wanted = dict.fromkeys(wanted, 0)
    for device, new_bytes in wanted.items():
        available = sizes.get(device[1])
        needed = new_bytes + held.get(device, 0)
        if new_bytes and available is not None and needed > available:
            return Shortage(f"{device[1]} {device[2]} of {device[0]}", needed, available)
    elsewhere = node_bytes or {}
    machines: list[tuple[str | None, int | None]] = [(None, here_bytes), *elsewhere.items()]
    for machine, has_bytes in machines:
        if has_bytes is None:
            continue
        nodes = {node for node, _, _ in wanted if (node if node in elsewhere else None) == machine}
        needed = sum(
            kinds[device[1]].process_memory_per_weight * weights
            for device, weights in wanted.items()
            if device[0] in nodes
        ) + sum(kinds[slot.device].process_bytes for slot in new.plan.slots if slot.node in nodes)
        available = round(has_bytes * (1 - KEPT_FREE))
        if needed > available:
            where = "this machine" if machine is None else f"node {machine}"
            return Shortage(where, needed, available)
    return None


def _weights(served: ServedPlan) -> dict[Device, int]:
    """Device -> bytes of the weights of all stages that its slots run; with depths of all blocks of
    any, since their stages share them."""
    slots, found = served.plan.slots, defaultdict[Device, int](int)
    for deployment in served.plan.deployments:
        blocks = served.profiles[deployment.model].blocks
        held: defaultdict[str, list[int]] = defaultdict(list)
        for pipeline in deployment.pipelines:
            for stage in pipeline.stages:
                for name in stage.pool:
                    held[name] += range(stage.first_block, stage.end_block)
        for slot in slots:
            of_any = {
                block
                for depth in deployment.depths
                for stage in depth.stages
                if (stage.device, stage.share) == (slot.device, slot.share)
                for block in range(stage.first_block, stage.end_block)
            }
            device = (slot.node, slot.device, slot.device_index)
            found[device] += sum(blocks[i].weights_bytes for i in (*held[slot.name], *of_any))
    return dict(found)
