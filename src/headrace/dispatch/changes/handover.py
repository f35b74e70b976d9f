"""In which order devices go from one plan to the next, so that capacity never falls far.

Both plans use the same devices. A device leaves the old plan and joins the new one with all of its
slots; a pipeline can serve while each of its stages has a slot. The order is greedy: the next
devices are those that complete one more slice of a new pipeline (one slot per stage that lacks
one) at the least loss of what both plans together can carry meanwhile.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

from headrace.dispatch.topology import Topology
from headrace.domain.plan import Plan
from headrace.domain.profile import Profile

Device = tuple[str, str, int]
"""(node, device type, index among the node's devices of that type)."""

UNLIKE = 1.5
"""Devices whose old pipelines take times so far apart are freed one after the other."""
LEAST_KEPT = 7 / 8
"""Devices go together as long as this much of the capacity stays: a hundred steps of one device
each would take long, and gain nothing over ten steps of ten."""


@dataclass(frozen=True, slots=True)
class ServedStage:
    """A stage that a slot serves."""

    model: int
    pipeline: int
    stage: int


@dataclass(frozen=True, slots=True)
class PlacedTopology:
    """A topology, and the device behind each of its slots."""

    topology: Topology
    devices: tuple[Device, ...]
    served_stages: tuple[tuple[ServedStage, ...], ...] = field(init=False)
    """By slot."""

    def __post_init__(self) -> None:
        found: list[list[ServedStage]] = [[] for _ in self.topology.slots]
        for m, model in enumerate(self.topology.models):
            for p, route in enumerate(model.routes):
                for s, stage in enumerate(route.stages):
                    for slot in stage.slots:
                        found[slot].append(ServedStage(m, p, s))
        object.__setattr__(self, "served_stages", tuple(map(tuple, found)))

    @classmethod
    def from_plan(cls, plan: Plan, profiles: Mapping[str, Profile]) -> "PlacedTopology":
        """Raises PlanError: a profile or a slot that the plan names is missing."""
        devices = tuple((slot.node, slot.device, slot.device_index) for slot in plan.slots)
        return cls(Topology.from_plan(plan, profiles), devices)

    @property
    def shares_slots(self) -> bool:
        """Whether any slot serves several stages."""
        return any(len(served_stages) > 1 for served_stages in self.served_stages)

    @property
    def in_one_stage(self) -> bool:
        """Whether every pipeline is one stage."""
        return all(
            len(route.stages) == 1 for model in self.topology.models for route in model.routes
        )

    def drain_us(self, slot: int) -> int:
        """How long the slowest of a slot's pipelines takes for what has begun."""
        return max(
            sum(stage.p99_us[-1] for stage in route.stages)
            for served in self.served_stages[slot]
            for route in (self.topology.models[served.model].routes[served.pipeline],)
        )

    def number(self, model: str) -> int | None:
        """The model's index; None: it is not in this plan."""
        names = [known.name for known in self.topology.models]
        return names.index(model) if model in names else None

    def slots_on(self, devices: Collection[Device]) -> list[int]:
        return [slot for slot, device in enumerate(self.devices) if device in devices]

    def pipeline_rps(self, model: int, pipeline: int, slots: Collection[int]) -> float:
        """What a pipeline carries with these slots: its slowest stage, by medians."""
        route = self.topology.models[model].routes[pipeline]
        return min(
            sum(slot in slots for slot in stage.slots)
            * route.batch_size
            / max(1, stage.p50_us[-1])
            * 1e6
            for stage in route.stages
        )

    def model_rps(self, model: int, slots: Collection[int]) -> float:
        """What a model's pipelines carry together with these slots."""
        routes = self.topology.models[model].routes
        return sum(self.pipeline_rps(model, number, slots) for number in range(len(routes)))


def handover_steps(old: PlacedTopology, new: PlacedTopology) -> tuple[tuple[Device, ...], ...]:
    """The devices that both plans use, in the order in which they change hands, step by step.

    Devices that only the old plan uses come last: they serve as long as they may.
    """
    shared = [device for device in dict.fromkeys(old.devices) if device in set(new.devices)]
    leaving = tuple(device for device in dict.fromkeys(old.devices) if device not in set(shared))
    shared_slots = old.shares_slots or new.shares_slots
    if shared_slots and not (old.in_one_stage and new.in_one_stage):
        # Pipelines of several stages that share slots cannot be stopped one by one.
        return (tuple(shared) + leaving,)
    steps = _bundled(old, new, _slices(old, new, shared))
    parts = [part for step in steps for part in _slowest_first(old, step)]
    return (*parts, leaving) if leaving else tuple(parts)


@dataclass(frozen=True, slots=True)
class _Division:
    """Who has what in the middle of a migration."""

    old: PlacedTopology
    new: PlacedTopology
    moved: frozenset[Device]

    def kept(self, moving: Collection[Device]) -> float:
        """The least fraction of a model's capacity that is left while `moving` change hands."""
        still = set(self.old.slots_on(set(self.old.devices) - self.moved - set(moving)))
        # What only the new plan uses serves from the start.
        ready = self.moved | (set(self.new.devices) - set(self.old.devices))
        gained = set(self.new.slots_on(ready))
        kept = []
        for number, model in enumerate(self.old.topology.models):
            other = self.new.number(model.name)
            if other is None:
                continue
            full = min(
                self.old.model_rps(number, range(len(self.old.devices))),
                self.new.model_rps(other, range(len(self.new.devices))),
            )
            now = self.old.model_rps(number, still) + self.new.model_rps(other, gained)
            kept.append(now / full if full else 1.0)
        return min(kept, default=1.0)

    def idles(self, device: Device, moving: Collection[Device]) -> bool:
        """Whether no old pipeline of the device can serve without `moving`."""
        still = set(self.old.slots_on(set(self.old.devices) - self.moved - set(moving)))
        return all(
            self.old.pipeline_rps(tenancy.model, tenancy.pipeline, still) == 0
            for slot in self.old.slots_on((device,))
            for tenancy in self.old.served_stages[slot]
        )

    def after(self, moving: Collection[Device]) -> "_Division":
        return _Division(self.old, self.new, self.moved | frozenset(moving))


def _slices(
    old: PlacedTopology, new: PlacedTopology, shared: Sequence[Device]
) -> list[tuple[Device, ...]]:
    state = _Division(old, new, frozenset())
    left = list(shared)
    steps = []
    while left:
        choices = [
            devices
            for model, routes in enumerate(new.topology.models)
            for pipeline in range(len(routes.routes))
            if (devices := _next_slice(state, left, model, pipeline))
        ]
        chosen = max(
            choices or [(left[0],)],
            key=lambda devices: (state.kept(devices), state.after(devices).kept(()), -len(devices)),
        )
        chosen += tuple(d for d in left if d not in chosen and state.idles(d, chosen))
        steps.append(chosen)
        left = [device for device in left if device not in chosen]
        state = state.after(chosen)
    return steps


def _next_slice(
    state: _Division, left: Sequence[Device], model: int, pipeline: int
) -> tuple[Device, ...]:
    """Devices that give the pipeline one more slot in each stage that limits it; () if it is full.

    Of the devices that could serve a stage, the one whose loss costs the old plan least; devices
    with equal old work are tried once.
    """
    new = state.new
    route = new.topology.models[model].routes[pipeline]
    open_slots = set(new.slots_on(set(new.devices) - set(left)))
    rates = [
        (sum(slot in open_slots for slot in stage.slots) / max(1, stage.p50_us[-1]), stage)
        for stage in route.stages
    ]
    least = min(rate for rate, _ in rates)
    picked: list[Device] = []
    for rate, stage in rates:
        if rate > least:
            continue
        choices: dict[object, Device] = {}
        for slot in stage.slots:
            device = new.devices[slot]
            if device in picked:
                break
            if device in left:
                work = frozenset(
                    tenancy
                    for own in state.old.slots_on((device,))
                    for tenancy in state.old.served_stages[own]
                )
                choices.setdefault(work, device)
        else:
            if choices:
                picked.append(max(choices.values(), key=lambda d: state.kept([*picked, d])))
    return tuple(picked)


def _slowest_first(old: PlacedTopology, step: Sequence[Device]) -> list[tuple[Device, ...]]:
    """Split a step: a device whose work ends soon need not stand idle until others are free."""

    def drain_us(device: Device) -> int:
        return max(map(old.drain_us, old.slots_on((device,))))

    parts: list[list[Device]] = []
    for device in sorted(step, key=drain_us, reverse=True):
        if parts and drain_us(parts[-1][0]) <= UNLIKE * drain_us(device):
            parts[-1].append(device)
        else:
            parts.append([device])
    return list(map(tuple, parts))


def slots_by_drain(placed: PlacedTopology, slots: Collection[int]) -> list[list[int]]:
    """Slots in groups of about equal drain times, the slowest first.

    A device is handed over when all of its slots are empty. Where they are closed in this order,
    those of quick models serve on while a slow model's batch runs out beside them.
    """
    if not placed.in_one_stage:
        return [sorted(slots)]
    groups: list[list[int]] = []
    for slot in sorted(slots, key=lambda slot: (-placed.drain_us(slot), slot)):
        if groups and placed.drain_us(groups[-1][0]) <= UNLIKE * placed.drain_us(slot):
            groups[-1].append(slot)
        else:
            groups.append([slot])
    return groups


def _bundled(
    old: PlacedTopology, new: PlacedTopology, steps: Sequence[tuple[Device, ...]]
) -> tuple[tuple[Device, ...], ...]:
    bundles: list[tuple[Device, ...]] = []
    state = _Division(old, new, frozenset())
    for step in steps:
        if bundles and state.kept((*bundles[-1], *step)) >= LEAST_KEPT:
            bundles[-1] = (*bundles[-1], *step)
        else:
            if bundles:
                state = state.after(bundles[-1])
            bundles.append(step)
    return tuple(bundles)
