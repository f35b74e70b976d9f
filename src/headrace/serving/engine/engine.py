"""The engine: starts workers, accepts inferences, answers or refuses them, changes its plan."""

import asyncio
import math
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import replace

from headrace.dispatch.changes.migration import How
from headrace.dispatch.protocols import BatchCounts, EventSink, OpenSink
from headrace.domain.events import EventLogHeader
from headrace.domain.plan import Plan
from headrace.serving.engine.drift_watch import LOOK_EVERY_S
from headrace.serving.engine.inference import Inference, Refusal, ServedModel, try_again
from headrace.serving.engine.live_clock import LiveClock
from headrace.serving.engine.live_migration import LiveMigration, MigrationError, MigrationReport
from headrace.serving.engine.model_weights import ModelStanding
from headrace.serving.engine.moderation import Moderation
from headrace.serving.engine.pending import PendingRequests
from headrace.serving.engine.plan_in_service import PlanInService
from headrace.serving.engine.served_plan import AcrossPlans, ServedPlan, ServiceOptions
from headrace.serving.engine.wanted_models import WantedModels
from headrace.serving.workers.host import HostGoneError
from headrace.serving.workers.status import EngineStatus, SlotStatus

__all__ = ["Engine", "EngineStatus", "SlotStatus"]

STOPPED = "the server is shutting down and takes no new requests"
_ENDED = "the server has shut down before it could answer; ask again elsewhere"
_STARTING_RETRY_US = 1_000_000
_STARTING = "the server is starting and has not loaded its models yet"


class Engine:
    """Serves a plan on this machine, and moves on to another when asked to.

    One worker process per slot, one dispatcher and one arena per plan. All methods must be called
    on the loop's thread.
    """

    def __init__(
        self,
        served: ServedPlan,
        options: ServiceOptions,
        *,
        sink: EventSink | None = None,
        leave_sink: Callable[[EventSink], None] = lambda sink: None,
        counts: Mapping[str, BatchCounts] | None = None,
    ) -> None:
        """Check the plan against its profiles; nothing is started yet.

        Args:
            options: of this plan and those after it.
            sink: gets every event, on the loop's thread; must be fast. None: nobody reads them.
            leave_sink: told of each plan's sink, while the engine lives on, when nothing more comes
                for it: the plan has been replaced, or could not be loaded.
            counts: by model, under whatever plan; see `DataPlane`.

        Raises:
            PlanError: the plan names something that does not exist.
        """
        self._options, self._across = options, AcrossPlans(counts=counts)
        self._current = PlanInService(served, options, self._across)
        self.models: Mapping[str, ServedModel] = self._current.models
        """By name, in the plan's order."""
        self._called = {name: model.called for name, model in self.models.items()}
        """Also the models of plans that served before."""
        self._wanted = WantedModels(self._across.unloaded, lambda: self._current.weights)
        self._sink, self._leave_sink = sink, leave_sink
        self._clock: LiveClock | None = None
        self._pending: PendingRequests | None = None
        self._former: PlanInService | None = None
        self._restarts: Counter[str] = Counter()
        """By slot, under plans before these."""
        """The plan whose last requests are being answered."""
        self._migration: LiveMigration | None = None
        """While devices change hands."""
        self._migrating: asyncio.Task[MigrationReport] | None = None
        self._plans_served = 1
        self._started = False
        self._draining = False
        self._idle = asyncio.Event()
        self._moderation: Moderation | None = None

    # -- what it is doing ----------------------------------------------------------------------

    @property
    def plan(self) -> Plan:
        """The plan in service; while devices change hands, the new one."""
        return self._current.served.plan

    @property
    def ready(self) -> bool:
        """Every model can be answered: started, not draining, each stage has a slot up."""
        if not self._started or self._draining:
            return False
        plans = self._plans()
        return all(any(plan.can_answer(name) for plan in plans) for name in self.models)

    @property
    def header(self) -> EventLogHeader:
        """First line of the event log that `sink` receives."""
        return self._current.header

    def now_us(self) -> int:
        """The clock of all events and of `Answer`'s instants; after `start`."""
        assert self._clock is not None, "the engine has no clock before start()"
        return self._clock.now_us()

    def status(self) -> EngineStatus:
        plans = self._plans()
        planes = [plan.plane for plan in plans if plan.plane is not None]
        delays = self._pending.delays if self._pending else None
        now_us = self._clock.now_us() if self._clock else 0
        arenas = [plan.arena for plan in plans if plan.arena is not None]
        return EngineStatus(
            slots=self._slots(),
            open_inferences=self._pending.open_inferences if self._pending else 0,
            open_requests=self._pending.open_requests if self._pending else 0,
            running_batches=sum(plane.driver.running_batches for plane in planes),
            arena_used_bytes=sum(arena.used_bytes for arena in arenas),
            arena_size_bytes=sum(arena.size_bytes for arena in arenas),
            draining=self._draining,
            plans_served=self._plans_served,
            migrating=self._migrating is not None,
            held_requests=self._migration.core.held if self._migration else 0,
            outside_requests=sum(plane.room.waiting for plane in planes),
            answer_tail_us=delays.tail.us(now_us) if delays else 0,
            loop_lag_us=delays.lag.us(now_us) if delays else 0,
            loads=self._current.loads(),
        )

    def _plans(self) -> list[PlanInService]:
        """The present one first."""
        return [plan for plan in (self._current, self._former) if plan is not None]

    def _slots(self) -> tuple[SlotStatus, ...]:
        """Restarts are all that there were under a slot's name, whatever the plan."""
        every = [slot for plan in reversed(self._plans()) for slot in plan.slots()]
        restarts = self._restarts.copy()
        for slot in every:
            restarts[slot.name] += slot.restarts
        present = {slot.name: slot for slot in every}
        return tuple(replace(slot, restarts=restarts[name]) for name, slot in present.items())

    def standings(self) -> Mapping[str, ModelStanding]:
        """Where each model is, of a plan whose models come and go; of another one: nothing."""
        weights = self._current.weights
        if weights is None:
            return {}
        return {name: weights.standing(model) for model, name in enumerate(weights.names)}

    async def load_model(self, name: str) -> None:
        """See `WantedModels.load`."""
        await self._wanted.load(name)

    def unload_model(self, name: str) -> None:
        """See `WantedModels.unload`."""
        self._wanted.unload(name)

    # -- its life ------------------------------------------------------------------------------

    async def start(self) -> None:
        """Extract stage files, start one worker per slot, return when all have loaded.

        Raises:
            HeadraceError: a stage cannot be extracted or loaded; nothing is left running.
        """
        loop = asyncio.get_running_loop()
        self._clock = LiveClock(loop)
        self._pending = PendingRequests(self._clock.now_us, loop.call_soon)
        self._pending.on_idle = self._idle.set
        self._clock.on_late = self._pending.delays.lag.note
        self._pending.on_abandoned = self._forget
        self._pending.retry_in_us = self._retry_in_us
        try:
            await self._current.prepare(self._clock, self._pending, self._sink)
            await self._current.start()
        except BaseException:
            await self.stop()
            raise
        self._started = True
        self._moderation = self._current.moderation(self._clock)
        loop.call_later(LOOK_EVERY_S, self._look_at_times)

    async def until_gone(self) -> None:
        """
        Raises:
            HostGoneError: no slot will ever have a worker again.
        """
        while self._migrating is not None or not (reasons := self._current.gone):
            await asyncio.sleep(LOOK_EVERY_S)
        refusals = "\n".join(f"  {reason}" for reason in reasons)
        raise HostGoneError(
            "serve: the agents of all nodes have refused this gateway; nothing can be answered any"
            f" more\n{refusals}\n"
            "  try       the gateway that they obey now, which starting this one again takes them"
            " from; where there is none, this one again"
        )

    def _look_at_times(self) -> None:
        if self._started:
            self._current.look_at_times()
            if self._pending is not None:
                self._pending.refuse_overdue()
            asyncio.get_running_loop().call_later(LOOK_EVERY_S, self._look_at_times)

    async def drain(self, grace_s: float) -> bool:
        """Refuse new work as "draining", answer what was accepted; True: all of it was."""
        self._draining = True
        if self._pending is None or self._current.plane is None:
            return True
        if self._migration is None:
            self._current.plane.room.open()
            self._current.plane.dispatcher.drain()
        self._idle.clear()
        if self._pending.open_inferences:
            try:
                await asyncio.wait_for(self._idle.wait(), grace_s)
            except TimeoutError:
                return False
        return True

    async def stop(self) -> None:
        """End all workers. Whatever is still open is refused. Idempotent."""
        self._draining = True
        self._started = False
        for serving in self._plans():
            if serving.plane is not None:
                serving.plane.dispatcher.close("draining")
        if self._pending is not None:
            self._pending.refuse_all("draining", _ENDED)
            self._pending.flush()
        if self._clock is not None:
            self._clock.stop()
        self._stop_moderation()
        if self._migrating is not None:
            self._migrating.cancel()
            await asyncio.wait([self._migrating])
        for plan in (self._former, self._current):
            if plan is not None:
                await plan.stop()
        self._former = self._migration = None
        if self._across.service.is_ours:
            # Its clients, our workers, have ended.
            await asyncio.to_thread(self._across.service.close)

    def _stop_moderation(self) -> None:
        if self._moderation is not None:
            self._moderation.stop()
            self._moderation = None

    # -- its work ------------------------------------------------------------------------------

    def submit(self, inference: Inference) -> None:
        """Accept or refuse; the result comes later through `inference.on_done`, exactly once.

        Raises:
            ValueError: the model is unknown or a buffer has the wrong size (the front end's bug).
        """
        plane = self._current.plane
        if not self._started and not self._draining:
            # The fronts listen already. What a slot is given before it has a worker reaches nobody.
            self._refuse_as_starting(inference)
        elif plane is None or (self._draining and self._migration is not None):
            self._refuse(inference, STOPPED)
        elif self._plans_served > 1 and inference.model not in self.models:
            # Its front end read it before the plan changed.
            self._refuse(inference, f"{self._called[inference.model]} is not served any more")
        elif self._migration is None:
            plane.submit(inference)
            if self._moderation is not None:
                self._moderation.stir()
        else:
            self._migration.submit(inference)

    def log_refused(self, model: str, refusal: Refusal) -> None:
        """See `core.protocol.Backend`. Without effect for a model that is not served any more."""
        plane = self._current.plane
        if plane is not None and model in plane.models:
            plane.log_refused(model, refusal)

    def cancel(self, inference: Inference) -> None:
        """The client went away: `on_done` will not be called. Harmless when already done."""
        if self._pending is not None:
            self._pending.cancel(inference)

    def _refuse_as_starting(self, inference: Inference) -> None:
        message = f"{_STARTING}; {try_again(_STARTING_RETRY_US)}"
        refusal = Refusal(reason="no-slot", message=message, retry_after_us=_STARTING_RETRY_US)
        self.log_refused(inference.model, refusal)
        asyncio.get_running_loop().call_soon(inference.on_done, refusal)

    def _refuse(self, inference: Inference, message: str) -> None:
        refusal = Refusal(reason="draining", message=message, retry_after_us=0)
        asyncio.get_running_loop().call_soon(inference.on_done, refusal)

    def _retry_in_us(self, model: str) -> int | None:
        retry_in_s = self._current.retry_in_s(model)
        return round(retry_in_s * 1e6) if math.isfinite(retry_in_s) else None

    def _forget(self, request_id: int) -> None:
        """Nobody waits for a request any more; it may leave its queue."""
        if self._migration is not None:
            self._migration.core.cancel(request_id)
        elif self._current.plane is not None:
            self._current.plane.dispatcher.cancel(request_id)

    # -- another plan --------------------------------------------------------------------------

    async def migrate(
        self,
        served: ServedPlan,
        *,
        how: How = "drain",
        open_sink: OpenSink | None = None,
        on_switch: Callable[[], None] = lambda: None,
    ) -> MigrationReport:
        """Move to another plan; no accepted request is lost. The old plan serves until the new
        one's workers have loaded, and for good if that fails.

        Args:
            how: plans of some kinds are flushed in any case (`only_flushed`); the report says so.
            open_sink: gives the sink of the new plan's event log, if any, for its first line.
            on_switch: called when arrivals begin to go to the new plan, and `models` are its.

        Raises:
            MigrationError: the plan cannot take over from the one in service; that one stays.
            HeadraceError: the plan does not fit its profiles, or a stage cannot be extracted.
        """
        if self._migrating is not None:
            raise MigrationError("a migration is under way; wait until it has ended")
        if not self._started or self._draining:
            raise MigrationError("the server is starting or shutting down; its plan stays")
        fresh = PlanInService(served, self._options, self._across)
        _check_tensors(self._current, fresh)
        sink = open_sink or (lambda header: None)
        task = asyncio.get_running_loop().create_task(self._move(fresh, how, sink, on_switch))
        self._migrating = task
        try:
            # The migration is the server's, not its caller's: it goes on when a client leaves.
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            if task.cancelled():
                raise MigrationError("the server shut down during the migration") from None
            raise

    async def _move(
        self,
        fresh: PlanInService,
        how: How,
        open_sink: OpenSink,
        on_switch: Callable[[], None],
    ) -> MigrationReport:
        former, former_sink, sink = self._current, self._sink, None
        assert self._clock is not None, "the engine has started"
        assert self._pending is not None, "the engine has started"
        try:
            try:
                sink = open_sink(fresh.header)
                self._wanted.begin_change()
                await fresh.prepare(self._clock, self._pending, sink, former.cores())
                migration = LiveMigration(former, fresh, self._clock, how, self._options.executor)
                await migration.load()
                await self._wanted.follow(fresh.weights)
            except BaseException:
                await fresh.stop()
                if sink is not None:
                    self._leave_sink(sink)
                raise
            self._stop_moderation()
            former.note_batches()
            fresh.note_batches(ran_here=False)
            self._former, self._current = former, fresh
            self._sink = sink
            self.models = fresh.models
            self._called |= {name: model.called for name, model in self.models.items()}
            self._migration = migration
            self._plans_served += 1
            on_switch()
            report = await migration.switch()
            self._migration = None
            if self._draining and fresh.plane is not None:
                fresh.plane.room.open()
                fresh.plane.dispatcher.drain()
            self._former = None
            for slot in former.slots():
                self._restarts[slot.name] += slot.restarts
            await former.stop()
            if former_sink is not None:
                self._leave_sink(former_sink)
            self._moderation = fresh.moderation(self._clock)
            return report
        finally:
            self._migrating = None


def _check_tensors(old: PlanInService, new: PlanInService) -> None:
    """A model that stays must look the same to its clients.

    Raises:
        MigrationError: it does not.
    """
    for name, model in new.models.items():
        before = old.models.get(name)
        if before is not None and any(
            getattr(before, part) != getattr(model, part)
            for part in ("inputs", "outputs", "states", "initial_states", "controls")
        ):
            raise MigrationError(
                f"{model.called} has other inputs, outputs or states in the new plan; requests that"
                " are under way would be misread\n  try    another name for the changed model"
            )
