"""From one plan to the next while requests keep coming (PPipe, section 5.1), none of them lost.

Each plan has a dispatcher of its own. A device belongs to one of them at a time: its slots are
lost to the old dispatcher when nothing of the old plan is left for them, and gained by the new
one then. Two ways:

flush   the paper's: arrivals wait, everything accepted is answered, all devices change at once.
        Not before all that is open is due within the longest SLO: whoever has more time waits for
        the new plan, and for those that the old one has already it serves on. So nobody waits
        longer than an SLO for others.
drain   devices change hands step by step (`handover_steps`), and both plans serve meanwhile. Not
        for every plan (`only_flushed`).

The same object runs in the simulator and in the server; it acts through the
`DrainingDriver`s of the two plans only.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Literal

from msgspec.structs import replace

from headrace.dispatch.changes.epoch import Epoch
from headrace.dispatch.changes.handover import (
    Device,
    handover_steps,
    slots_by_drain,
)
from headrace.dispatch.protocols import Clock
from headrace.domain.plan import Plan
from headrace.domain.request import Request

HELD_MAX = 10_000
"""Requests that are held back at once for slots that are about to come."""

How = Literal["drain", "flush"]

Prepare = Callable[[Sequence[int], Callable[[Sequence[int]], None]], None]
"""Given slots of the new plan whose devices are free: make them ready, and call back with those
that are; also with those that cannot be yet, once it is known that they are lost."""


def only_flushed(*plans: Plan) -> str | None:
    """What plans are called whose devices change hands all at once, if one of these is such a plan:
    their slots are no pipeline's. With depths each serves whoever needs it; where models come and
    go, it holds what was asked for."""
    if any(plan.is_malleable for plan in plans):
        return "plans with depths (`--planner malleable`)"
    if any(plan.is_provisioned for plan in plans):
        return "plans of models that come and go (--provision)"
    return None


class HandoverStep:
    """Some devices on their way from the old plan to the new one."""

    def __init__(self, old: Epoch, devices: Sequence[Device], *, emptied: bool = False) -> None:
        """`emptied`: the old plan has no request left, and needs no slot any more."""
        self.devices = frozenset(devices)
        self.leaving = set(old.placed.slots_on(self.devices))
        """Old slots that must be closed: those on the devices, and the first stages of pipelines
        that cannot serve without them."""
        self.asked: set[int] = set()
        """New slots that are open, or being made ready."""
        self._old = old
        self._entries: dict[tuple[int, int], set[int]] = {}
        self._before: dict[tuple[int, int], set[int]] = {}
        """Batches of a pipeline that lives on which were under way when its entry shrank."""
        self._closing: set[int] = set()
        """Of `leaving`, those whose turn has come."""
        self._emptied = emptied
        self._later = [] if emptied else slots_by_drain(old.placed, self.leaving)
        self._close_next()

    def _close_next(self) -> None:
        """Begin with the next group of slots."""
        self._closing.update(self._later.pop(0) if self._later else ())
        old, topology = self._old, self._old.placed.topology
        in_use = {slot for slot in range(len(topology.slots)) if old.draining.serves(slot)}
        hit = {
            (t.model, t.pipeline) for slot in self._closing for t in old.placed.served_stages[slot]
        }
        for model, pipeline in hit:
            stages = topology.models[model].routes[pipeline].stages
            entry = set(stages[0].slots)
            if any(not (set(stage.slots) & in_use) - self._closing for stage in stages):
                old.ended.add((model, pipeline))
            else:
                entry &= self._closing
            self._entries[model, pipeline] = entry
        for lane in hit & old.ended:
            self._closing |= self._entries[lane]
        self.leaving |= self._closing

    def close_what_may(self) -> None:
        """Close every leaving slot that the old plan can do without by now."""
        if self._emptied:
            for slot in sorted(self.leaving):
                self._old.draining.close(slot)
            return
        while True:
            for slot in sorted(self._closing):
                if all(self._is_past(*self._place(slot, i)) for i in range(self._tenants(slot))):
                    self._old.draining.close(slot)
            if not self._later or any(map(self._old.draining.in_use, self._closing)):
                return
            self._close_next()

    @property
    def is_clear(self) -> bool:
        return not any(self._old.draining.in_use(slot) for slot in self.leaving)

    def _tenants(self, slot: int) -> int:
        return len(self._old.placed.served_stages[slot])

    def _place(self, slot: int, number: int) -> tuple[int, int, int]:
        served = self._old.placed.served_stages[slot][number]
        return served.model, served.pipeline, served.stage

    def _is_past(self, model: int, pipeline: int, stage: int) -> bool:
        """Whether a stage's slots are not needed any more, or others can take over at once."""
        lane = (model, pipeline)
        if stage == 0:
            # Where another pipeline is left, it takes what waits; else all of it begins here.
            return not self._is_last_of(model) or self._old.draining.waiting(model) == 0
        if not self._no_more_enter(lane):
            return False
        under_way = self._old.draining.batches(model, pipeline, stage)
        if lane in self._old.ended:
            return not under_way
        # What came before the flow shrank needs all slots; what comes after needs fewer.
        before = self._before.setdefault(lane, set(under_way))
        return not before & under_way

    def _no_more_enter(self, lane: tuple[int, int]) -> bool:
        entry = self._entries.get(lane, set())
        if not any(self._old.draining.serves(slot) for slot in entry):
            return True
        return self._is_last_of(lane[0]) and self._old.draining.waiting(lane[0]) == 0

    def _is_last_of(self, model: int) -> bool:
        routes = self._old.placed.topology.models[model].routes
        return all((model, pipeline) in self._old.ended for pipeline in range(len(routes)))


class Migration:
    """Leads arrivals and devices from `old` to `new`. All slots of `new` must be closed before
    `start`; requests come through `submit` from then on, until `done`."""

    def __init__(
        self,
        old: Epoch,
        new: Epoch,
        clock: Clock,
        *,
        how: How = "drain",
        on_done: Callable[[], None] = lambda: None,
        prepare: Prepare = lambda slots, ready: ready(slots),
    ) -> None:
        """`on_done`: the old plan has nothing left."""
        self.old = old
        self.new = new
        self.how = how
        self.done = False
        self.steps: tuple[tuple[Device, ...], ...] = ()
        self._clock = clock
        self._on_done = on_done
        self._prepare = prepare
        self._step: HandoverStep | None = None
        self._todo: list[tuple[Device, ...]] = []
        self._not_before_us = 0
        self._held: list[list[tuple[Request, ...]]] = [[] for _ in new.placed.topology.models]
        """By model; in each entry what the new plan is handed at once."""
        self._held_ids: set[int] = set()
        self._to_come: set[int] = set()
        """Slots of the new plan that are being made ready."""
        self._unwanted: set[int] = set()
        self._share: dict[str, float] = {}
        slos_us = [model.slo_us for epoch in (old, new) for model in epoch.placed.topology.models]
        self._patience_us, self._longest_us = min(slos_us), max(slos_us)
        self._serves_on = how == "flush"
        """The old plan takes what has not more time than an SLO."""
        self._patient: list[Request] = []
        """Of a flush: open requests of the old plan that had more when it began; the one with most
        time first."""

    @property
    def held(self) -> int:
        """Requests that wait for the new plan's first slots."""
        return len(self._held_ids)

    def start(self) -> None:
        """Begin. Devices that only the new plan uses serve at once."""
        ours = set(self.old.placed.devices)
        if self.how == "drain":
            self._todo = list(handover_steps(self.old.placed, self.new.placed))
            fresh = [s for s, device in enumerate(self.new.placed.devices) if device not in ours]
            self._make_ready(fresh)
        else:
            self._todo = [
                tuple(dict.fromkeys((*self.old.placed.devices, *self.new.placed.devices)))
            ]
            accepted = self.old.draining.dispatcher.accepted.values()
            self._patient = sorted(accepted, key=lambda each: -each.deadline_at_us)
        self.steps = tuple(self._todo)
        self.old.draining.on_change = self.new.draining.on_change = self._advance
        self._clock.call_at(self._clock.now_us(), self._advance)

    # -- arrivals --------------------------------------------------------------------------------

    def epoch_for(self, model: str) -> Epoch:
        """Which plan the next request of a model of the new plan is for."""
        number, other = self.old.placed.number(model), self.new.placed.number(model)
        assert other is not None, f"model {model!r} is not in the new plan"
        if number is None or (self._is_flushing and not self._serves_on):
            return self.new
        if self._is_flushing:
            return self.old
        before_rps, after_rps = self.old.rps(number), self.new.rps(other)
        if before_rps == 0:
            return self.new
        if self._held[other]:
            return self.new  # behind those that wait already
        if after_rps == 0:
            return self.old if self.old.has_room(number) else self.new
        # In proportion, evenly spread.
        share = self._share.get(model, 0.0) + after_rps / (before_rps + after_rps)
        chosen = self.new if share >= 1 else self.old
        self._share[model] = share - (chosen is self.new)
        if chosen is self.old and not self.old.has_room(number):
            return self.new
        return chosen

    def submit(self, epoch: Epoch, items: Sequence[Request]) -> None:
        """Take what one client asked at once, with `epoch`'s index of its model and one deadline;
        each item is answered or refused once."""
        if epoch is self.old and self._can_wait(items[0]):
            epoch, items = self.new, _renumbered(items, self.old, self.new)
        for group in epoch.groups(items):
            model, deadline_at_us = group[0].model, group[0].deadline_at_us
            if epoch is self.old or not self._must_hold(model):
                epoch.submit(group)
            else:
                # Not to the dispatcher yet: it would refuse what the slots to come can answer.
                self._held[model].append(group)
                self._held_ids.update(request.id for request in group)
                self._clock.call_at(deadline_at_us, partial(self._release, model))

    def cancel(self, request_id: int) -> None:
        """The client of a request of either plan went away."""
        self.old.draining.dispatcher.cancel(request_id)
        self.new.draining.dispatcher.cancel(request_id)
        if request_id in self._held_ids:
            self._unwanted.add(request_id)

    @property
    def _is_flushing(self) -> bool:
        return self.how == "flush" and not self.done

    def _can_wait(self, request: Request) -> bool:
        """Whether a request for the old plan, which is to be flushed, has time for the new one."""
        if not self._is_flushing or self.held >= HELD_MAX:
            return False
        name = self.old.placed.topology.models[request.model].name
        number = self.new.placed.number(name)
        return number is not None and self._has_time(request) and not self._is_hopeless(number)

    def _has_time(self, request: Request) -> bool:
        return request.deadline_at_us > self._clock.now_us() + self._longest_us

    def _must_hold(self, model: int) -> bool:
        if self.done or self.held >= HELD_MAX or self._is_hopeless(model):
            return False
        return self._is_flushing or bool(self._held[model]) or not self._has_room(model)

    def _has_room(self, model: int) -> bool:
        return self.new.rps(model) > 0 and self.new.has_room(model)

    def _release(self, model: int, *, everything: bool = False) -> None:
        """Give held requests to a plan that has room, most urgent first; overdue ones always."""
        held = self._held[model]
        held.sort(key=lambda items: (items[0].priority, items[0].deadline_at_us, items[0].id))
        now_us = self._clock.now_us()
        for items in [items for items in held if items[0].deadline_at_us <= now_us]:
            held.remove(items)
            self._let_go(self.new, items)
        while held:
            epoch = self._epoch_with_room(model)
            if epoch is None and (everything or self._is_hopeless(model)):
                epoch = self.new
            if epoch is None:
                return
            self._let_go(epoch, held.pop(0))

    def _epoch_with_room(self, model: int) -> Epoch | None:
        """A plan that can begin a request of the new plan's model soon."""
        if self._is_flushing:
            return None
        if self._has_room(model):
            return self.new
        number = self.old.placed.number(self.new.placed.topology.models[model].name)
        if number is None or not self.old.has_room(number) or self.old.rps(number) == 0:
            return None
        return self.old

    def _is_hopeless(self, model: int) -> bool:
        """Whether to hold a request of the new plan's model leads nowhere: its dispatcher refuses
        it with the reason, and says when to come back."""
        return not self.new.has_a_way(model) and not self._old_rps(model)

    def _old_rps(self, model: int) -> float:
        """What the old plan carries of the new one's model."""
        number = self.old.placed.number(self.new.placed.topology.models[model].name)
        return 0.0 if number is None else self.old.rps(number)

    def _let_go(self, epoch: Epoch, group: Sequence[Request]) -> None:
        self._held_ids.difference_update(request.id for request in group)
        if epoch is self.old:
            group = _renumbered(group, self.new, self.old)
        for each in epoch.groups(group):
            epoch.enter(each)
        for request_id in self._unwanted.intersection(request.id for request in group):
            self._unwanted.discard(request_id)
            epoch.draining.dispatcher.cancel(request_id)

    # -- devices ---------------------------------------------------------------------------------

    def _advance(self) -> None:
        """Do whatever has become possible. Called whenever a slot or a batch changed."""
        while not self.done and self._move_on():
            pass
        for model in range(len(self._held)):
            self._release(model)

    def _move_on(self) -> bool:
        """Do one thing; False: wait for a change."""
        if self._step is None:
            return self._begin_step()
        self._step.close_what_may()
        self._hand_over(self._step)
        if self._is_over(self._step):
            self._step = None
            self._not_before_us = self._clock.now_us() + self._patience_us
            self._clock.call_at(self._not_before_us, self._advance)
            return True
        return False

    def _begin_step(self) -> bool:
        if self._to_come:
            return False  # devices that only the new plan uses; the old one loses nothing yet
        if not self._todo:
            if self.old.draining.open_requests:
                return False
            self._finish()
            return True
        if self._not_before_us > self._clock.now_us() and not self._is_calm():
            return False  # what the last step has held up goes first
        if self._is_risky():
            return False
        if self._is_flushing and not self._is_empty():
            return False
        self._step = HandoverStep(self.old, self._todo.pop(0), emptied=self._is_flushing)
        return True

    def _is_empty(self) -> bool:
        """Of a flush: whether the old plan has no request left; it takes none any more as soon as
        all that it has are due within an SLO."""
        accepted = self.old.draining.dispatcher.accepted
        while self._patient and self._serves_on:
            last = self._patient[0]
            if last.id in accepted and self._has_time(last):
                self._clock.call_at(last.deadline_at_us - self._longest_us, self._advance)
                return False
            del self._patient[0]
        self._serves_on = False
        return not self.old.draining.open_requests

    def _is_risky(self) -> bool:
        """Whether the old plan still carries a model that the new one may be unable to: a stage
        of it has loaded nowhere so far. Then it keeps its devices until one has, unless another
        model has nothing meanwhile."""
        models = range(len(self.new.placed.topology.models))
        carried = [bool(self._old_rps(model) or self.new.rps(model)) for model in models]
        return all(carried) and any(
            self.new.has_failed_stage(model) and self._old_rps(model) for model in models
        )

    def _is_calm(self) -> bool:
        """Whether nothing is left of the last step's backlog."""
        return not self.held and all(
            epoch.has_room(model)
            for epoch in (self.old, self.new)
            for model in range(len(epoch.placed.topology.models))
            if epoch.rps(model) > 0
        )

    def _hand_over(self, step: HandoverStep) -> None:
        """Open the new slots of every device that the old plan has left."""
        if self.how == "flush":
            free = set(step.devices) if step.is_clear else set()
        else:
            draining, placed = self.old.draining, self.old.placed
            free = {
                device
                for device in step.devices
                if not any(draining.in_use(slot) for slot in placed.slots_on((device,)))
            }
        slots = [slot for slot in self.new.placed.slots_on(free) if slot not in step.asked]
        step.asked.update(slots)
        if slots:
            self._make_ready(slots)

    def _is_over(self, step: HandoverStep) -> bool:
        """Whether the old plan has left the step's devices and the new one has them all."""
        arrived = self.new.placed.slots_on(step.devices)
        return step.is_clear and all(self.new.draining.in_use(slot) for slot in arrived)

    def _make_ready(self, slots: Sequence[int]) -> None:
        self._to_come.update(slots)
        self._prepare(slots, self._open)

    def _open(self, slots: Sequence[int]) -> None:
        self._to_come.difference_update(slots)
        for slot in slots:
            self.new.draining.open(slot)
        self._clock.call_at(self._clock.now_us(), self._advance)

    def _finish(self) -> None:
        self.done = True
        self.old.draining.on_change = self.new.draining.on_change = None
        for model in range(len(self._held)):
            self._release(model, everything=True)
        self._on_done()


def _renumbered(items: Sequence[Request], of: Epoch, to: Epoch) -> list[Request]:
    """Requests with a model's index in another plan, which has it."""
    number = to.placed.number(of.placed.topology.models[items[0].model].name)
    assert number is not None, "a plan is chosen among those with the model"
    return [replace(request, model=number) for request in items]
