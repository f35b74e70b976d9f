"""A plan as the dispatcher sees it: integers, and tables indexed by stage and batch size."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Literal

from headrace.cost import (
    CostModel,
    Latency,
    TimedStage,
    cost_model,
    link_bytes_per_us,
    transfer_us,
)
from headrace.dispatch.rounds_of_plan import Rounds
from headrace.dispatch.starts_of_plan import SlotsOfStarts, start_of
from headrace.domain.cluster import Cluster
from headrace.domain.errors import PlanError
from headrace.domain.events import EventLogHeader
from headrace.domain.layers import Residency
from headrace.domain.plan import (
    Deployment,
    Depth,
    DepthStage,
    MachineLoad,
    Pipeline,
    Plan,
    Stage,
)
from headrace.domain.profile import Profile
from headrace.interference import slowed_us
from headrace.start_times import Start, with_host_layers


@dataclass(frozen=True, slots=True)
class StageTable:
    """One stage: who may run it and how long it takes."""

    first_block: int
    end_block: int
    slots: tuple[int, ...]
    """The pool, as indices into `Topology.slots`."""
    p50_us: tuple[int, ...]
    """Shape (planned batch size,): entry b-1 is batch size b."""
    p99_us: tuple[int, ...]
    input_bytes: int
    """Per item, that enter over the network; 0 for the first stage."""


@dataclass(frozen=True, slots=True)
class Route:
    """One pipeline."""

    name: str
    batch_size: int
    stages: tuple[StageTable, ...]
    slack_us: tuple[int, ...]
    """Entry b-1: how much later than by medians a batch of size b may end; the sum over stages
    of p99 - p50."""
    load: MachineLoad | None = None
    """Of a module of an app: what its machines are planned to be given."""
    turn: int = 0
    """Of a slot that has several tenants: which of them this is."""

    @property
    def collect_us(self) -> int:
        """How long before a machine is free its next batch is collected (`batch_aware`)."""
        return self.load.collect_us if self.load else self.stages[0].p50_us[-1]

    @property
    def longest_us(self) -> int:
        """What a batch takes at most, spread included. Measured, one of two can take longer than
        one of four."""
        alone = (sum(s.p50_us[size] for s in self.stages) for size in range(self.batch_size))
        return max(map(sum, zip(alone, self.slack_us, strict=False)))

    @property
    def is_part(self) -> bool:
        """Whether its one machine has less load than it could take."""
        return self.load is not None and self.load.machines < 1

    @property
    def rate_rps(self) -> float:
        """Of the load: what is planned, or what the slowest stage can take."""
        if self.load:
            return self.load.rate_rps
        return min(1e6 * self.batch_size * len(s.slots) / max(1, s.p50_us[-1]) for s in self.stages)


@dataclass(frozen=True, slots=True)
class ModelRoutes:
    name: str
    """Of the deployment: the model's, or APP.MODULE."""
    slo_us: int
    routes: tuple[Route, ...]
    gateway_us: int = 0
    """Of every request, whatever pipeline it takes."""
    priority: int = 0
    """Of requests that state none."""
    follows: tuple[int, ...] = ()
    """The models, by index, whose answers it waits for and whose turns are before its own on the
    same slot: what they answer is served in the same round."""
    lead_us: int = 0
    """From those answers until its calls have come."""
    start: Start | None = None
    """How it is brought to a slot that does not hold it; None: all its slots always do."""
    max_items: int = 0
    """Of one request, whose routes are the depths at which it can be served; 0: its requests are
    single ones, and routes are pipelines."""

    @property
    def fastest_us(self) -> int:
        """The least time in which a single request can be answered, transfers not counted."""
        alone = min(sum(s.p50_us[0] for s in r.stages) + r.slack_us[0] for r in self.routes)
        return self.gateway_us + alone

    def items_within(self, allowed_us: int) -> int:
        """No more requests that arrive together can all be answered in this time, in an idle
        system; perhaps fewer. Per route, as many as its narrowest stage can take. Of requests of
        many items: of one request, at its best depth."""
        if self.max_items:
            left_us = allowed_us - self.gateway_us
            return max(_items_at_depth(route, left_us) for route in self.routes)
        return sum(_items_of(route, allowed_us - self.gateway_us) for route in self.routes)

    def least_us(self, items: int) -> int:
        """The least time in which that many can be answered, as far as `items_within` knows."""
        enough_us = max(1, self.fastest_us)
        while self.items_within(enough_us) < items:
            enough_us *= 2
        too_short_us = 0
        while enough_us - too_short_us > 1:
            middle_us = (enough_us + too_short_us) // 2
            if self.items_within(middle_us) < items:
                too_short_us = middle_us
            else:
                enough_us = middle_us
        return enough_us


def _items_of(route: Route, allowed_us: int) -> int:
    """Each stage has what the least times of the others leave it, and takes per item what it takes
    at its best batch size."""
    least_us = [max(1, min(stage.p50_us)) for stage in route.stages]
    spare_us = allowed_us - min(route.slack_us) - sum(least_us)
    if spare_us < 0:
        return 0
    return min(
        len(stage.slots)
        * max((spare_us + own_us) * size // max(1, us) for size, us in enumerate(stage.p50_us, 1))
        for stage, own_us in zip(route.stages, least_us, strict=True)
    )


def _items_at_depth(route: Route, allowed_us: int) -> int:
    """Of one request, one batch behind the other: the first takes all stages' time, each later one
    the slowest stage's."""
    most = 0
    for size in range(1, route.batch_size + 1):
        times_us = [stage.p50_us[size - 1] for stage in route.stages]
        spare_us = allowed_us - route.slack_us[size - 1] - sum(times_us)
        if spare_us >= 0:
            most = max(most, size * (1 + spare_us // max(1, *times_us)))
    return most


@dataclass(frozen=True, slots=True)
class Topology:
    """Everything static that dispatching needs."""

    models: tuple[ModelRoutes, ...]
    slots: tuple[str, ...]
    slot_node: tuple[int, ...]
    """Slot index -> node index."""
    nodes: tuple[str, ...]
    node_bytes_per_us: tuple[float | None, ...]
    """Link speed of each node, each direction; None: never the limit."""
    slot_duty_us: tuple[int | None, ...] = ()
    """Duty cycle of each slot; none stated, or None: it runs what it is given when it is free."""
    memory_bytes: tuple[int, ...] = ()
    """With starts, of each slot: the models on it, those on their way included, have no more bytes
    of it in use (`Start.held_bytes`)."""
    copy_streams: tuple[bool, ...] = ()
    """With starts, of each slot: whether models are loaded while others execute."""
    helpers: tuple[int, ...] = ()
    """With starts, of each slot: the slot over whose link part of a start comes; -1: none."""
    links: tuple[int, ...] = ()
    """With starts, of each slot: the first slot that shares its link to host memory."""
    move_us: int = 0
    """With depths: how long a change of depth holds a request up."""

    def duty_us(self, slot: int) -> int | None:
        """The slot's duty cycle, if it has one."""
        return self.slot_duty_us[slot] if self.slot_duty_us else None

    @property
    def is_malleable(self) -> bool:
        """Whether requests have many items, and routes are depths."""
        return any(model.max_items for model in self.models)

    @property
    def is_provisioned(self) -> bool:
        """Whether models come to slots and leave them while they serve."""
        return bool(self.memory_bytes)

    @property
    def stage_names(self) -> tuple[str, ...]:
        """MODEL/PIPELINE/NUMBER, stages of all routes one after the other."""
        return tuple(
            f"{model.name}/{route.name}/{number}"
            for model in self.models
            for route in model.routes
            for number in range(len(route.stages))
        )

    def transfer_us(self, from_slot: int, to_slot: int, size_bytes: int) -> int:
        """Time on an idle link; 0 within a node or where no link is the limit."""
        a, b = self.slot_node[from_slot], self.slot_node[to_slot]
        if a == b:
            return 0
        return transfer_us(size_bytes, self.node_bytes_per_us[a], self.node_bytes_per_us[b])

    def event_log_header(self, clock: Literal["virtual", "live"], policy: str) -> EventLogHeader:
        """Describe what the indices in the events mean."""
        return EventLogHeader(
            clock=clock,
            policy=policy,
            models=tuple(model.name for model in self.models),
            pipelines=tuple(tuple(route.name for route in model.routes) for model in self.models),
            slots=self.slots,
            nodes=tuple(self.nodes[node] for node in self.slot_node),
            resident_bytes=tuple(
                model.start.resident_bytes for model in self.models if model.start
            ),
        )

    @classmethod
    def from_plan(
        cls, plan: Plan, profiles: Mapping[str, Profile], costs: CostModel | None = None
    ) -> "Topology":
        """Ask the cost model for the times of the plan's stages.

        Args:
            costs: None: what the profiles call for.

        Raises:
            PlanError: a profile or a slot that the plan names is missing, or something is left
                without which nothing runs. Whether the numbers are right is the verifier's matter.
        """
        slot_index = {slot.name: i for i, slot in enumerate(plan.slots)}
        slowed = slowdowns(plan)
        node_index = {node.name: i for i, node in enumerate(plan.cluster.nodes)}
        asked = cost_model(profiles) if costs is None else costs
        priorities = {demand.model: demand.priority for demand in plan.demands}
        rounds = Rounds(plan, asked)
        kinds = _kinds(plan)
        try:
            placed = SlotsOfStarts.of(plan, profiles)
            return cls(
                models=tuple(
                    _model_routes(
                        deployment,
                        profiles[deployment.model],
                        asked,
                        slot_index,
                        slowed,
                        priorities,
                        rounds,
                    )
                    if not deployment.depths
                    else _depth_routes(
                        deployment, profiles[deployment.model], asked, kinds, priorities
                    )
                    for deployment in plan.deployments
                ),
                slots=tuple(slot_index),
                slot_node=tuple(node_index[slot.node] for slot in plan.slots),
                nodes=tuple(node_index),
                node_bytes_per_us=_link_speeds(plan.cluster),
                slot_duty_us=tuple(slot.duty_us for slot in plan.slots),
                memory_bytes=placed.memory_bytes,
                copy_streams=placed.copy_streams,
                helpers=placed.helpers,
                links=placed.links,
                move_us=round(1_000 * plan.options.move_ms),
            )
        except KeyError as error:
            raise PlanError(
                f"plan: nothing is named {error.args[0]!r} among its slots, nodes and profiles;"
                " check it with `headrace verify`"
            ) from error


def _link_speeds(cluster: Cluster) -> tuple[float | None, ...]:
    return tuple(
        link_bytes_per_us(node.bandwidth_gbps) if node.bandwidth_gbps else None
        for node in cluster.nodes
    )


Slowdowns = Mapping[tuple[str, str, int], float]
"""(model, pipeline, stage) -> how many times longer than profiled a batch takes at most."""


def slowdowns(plan: Plan) -> Slowdowns:
    """What the plan's slots say of the tenants that are slowed; the largest over a stage's pool."""
    found: dict[tuple[str, str, int], float] = {}
    for slot in plan.slots:
        for tenant in slot.tenants:
            key = (tenant.model, tenant.pipeline, tenant.stage)
            if tenant.slowdown > found.get(key, 1.0):
                found[key] = tenant.slowdown
    return found


def _model_routes(
    deployment: Deployment,
    profile: Profile,
    costs: CostModel,
    slot_index: Mapping[str, int],
    slowed: Slowdowns,
    priorities: Mapping[str, int],
    rounds: Rounds,
) -> ModelRoutes:
    if not deployment.pipelines:
        raise _not_runnable(deployment.name, "a pipeline", "none")
    return ModelRoutes(
        name=deployment.name,
        slo_us=deployment.slo_us,
        routes=tuple(
            replace(
                _route(p, profile, costs, slot_index, slowed, deployment.start),
                turn=rounds.turns.get((deployment.model, p.name), 0),
            )
            for p in deployment.pipelines
        ),
        start=start_of(deployment, profile),
        # A call of a module brings its tensors through the gateway as a client's request does.
        gateway_us=costs.gateway_us(deployment.model),
        priority=priorities.get(profile.model, 0),
        follows=rounds.follows(deployment),
        lead_us=rounds.lead_us(deployment),
    )


Kinds = Mapping[tuple[str, Fraction], tuple[int, ...]]
"""(device, share) -> its slots."""


def _kinds(plan: Plan) -> Kinds:
    kinds: dict[tuple[str, Fraction], tuple[int, ...]] = {}
    for number, slot in enumerate(plan.slots):
        kinds[slot.device, slot.share] = (*kinds.get((slot.device, slot.share), ()), number)
    return kinds


def _depth_routes(
    deployment: Deployment,
    profile: Profile,
    costs: CostModel,
    kinds: Kinds,
    priorities: Mapping[str, int],
) -> ModelRoutes:
    """A route per depth, each stage on any slot of its kind."""
    return ModelRoutes(
        name=deployment.name,
        slo_us=deployment.slo_us,
        routes=tuple(_depth_route(depth, profile, costs, kinds) for depth in deployment.depths),
        gateway_us=costs.gateway_us(deployment.model),
        priority=priorities.get(profile.model, 0),
        max_items=deployment.max_items or 1,
    )


def _depth_route(depth: Depth, profile: Profile, costs: CostModel, kinds: Kinds) -> Route:
    where = f"{profile.model}/{depth.name}"
    if not depth.stages:
        raise _not_runnable(where, "a stage", "none")
    if depth.batch_size < 1:
        raise _not_runnable(where, "a batch size from 1 on", depth.batch_size)
    tables = []
    for number, stage in enumerate(depth.stages):
        at = f"{where}/stage {number}"
        _check_blocks(at, stage.first_block, stage.end_block, profile)
        slots = kinds.get((stage.device, stage.share), ())
        if not slots:
            raise _not_runnable(at, f"a slot of {stage.device} x {stage.share}", "none")
        timed = TimedStage.of(profile.model, stage)
        latencies = [costs.latency(timed, size) for size in range(1, depth.batch_size + 1)]
        tables.append(_stage_table(stage, slots, latencies, profile))
    needed = Counter((stage.device, stage.share) for stage in depth.stages)
    for kind, count in needed.items():
        if count > len(kinds[kind]):
            raise _not_runnable(where, f"{count} slots of {kind[0]} x {kind[1]}", len(kinds[kind]))
    return Route(
        name=depth.name,
        batch_size=depth.batch_size,
        stages=tuple(tables),
        slack_us=_slack(tables),
    )


def _route(
    pipeline: Pipeline,
    profile: Profile,
    costs: CostModel,
    slot_index: Mapping[str, int],
    slowed: Slowdowns,
    start: Residency | None,
) -> Route:
    _check_runnable(pipeline, profile)
    tables = []
    for number, stage in enumerate(pipeline.stages):
        timed = TimedStage.of(profile.model, stage)
        slowdown = slowed.get((profile.model, pipeline.name, number), 1.0)
        latencies = [
            _slowed(costs, timed, size, slowdown) for size in range(1, pipeline.batch_size + 1)
        ]
        if start is not None:
            latencies = with_host_layers(latencies, profile, start)
        slots = tuple(slot_index[name] for name in stage.pool)
        tables.append(_stage_table(stage, slots, latencies, profile))
    return Route(
        name=pipeline.name,
        batch_size=pipeline.batch_size,
        stages=tuple(tables),
        slack_us=_slack(tables),
        load=pipeline.load,
    )


def _stage_table(
    stage: Stage | DepthStage,
    slots: tuple[int, ...],
    latencies: Sequence[Latency],
    profile: Profile,
) -> StageTable:
    """`latencies`: entry b-1 is batch size b."""
    return StageTable(
        first_block=stage.first_block,
        end_block=stage.end_block,
        slots=slots,
        p50_us=tuple(latency.p50_us for latency in latencies),
        p99_us=tuple(latency.p99_us for latency in latencies),
        input_bytes=profile.input_cut_bytes(stage.first_block),
    )


def _slack(tables: Sequence[StageTable]) -> tuple[int, ...]:
    """See `Route.slack_us`."""
    return tuple(
        sum(table.p99_us[b] - table.p50_us[b] for table in tables)
        for b in range(len(tables[0].p50_us))
    )


def _slowed(costs: CostModel, stage: TimedStage, size: int, slowdown: float) -> Latency:
    """What a batch takes its slot; neighbours on the device slow what the device does of it."""
    latency = costs.latency(stage, size)
    if slowdown == 1.0:
        return latency
    alone = costs.execution(stage, size)
    return Latency(
        latency.p50_us + slowed_us(alone.p50_us, slowdown) - alone.p50_us,
        latency.p99_us + slowed_us(alone.p99_us, slowdown) - alone.p99_us,
    )


def _check_runnable(pipeline: Pipeline, profile: Profile) -> None:
    where = f"{profile.model}/{pipeline.name}"
    if not pipeline.stages:
        raise _not_runnable(where, "a stage", "none")
    if pipeline.batch_size < 1:
        raise _not_runnable(where, "a batch size from 1 on", pipeline.batch_size)
    if pipeline.load is not None and not pipeline.load.rate_rps > 0:
        raise _not_runnable(where, "a load above 0 requests/s", pipeline.load.rate_rps)
    for index, stage in enumerate(pipeline.stages):
        at = f"{where}/stage {index}"
        if not stage.pool:
            raise _not_runnable(at, "a slot", "none")
        _check_blocks(at, stage.first_block, stage.end_block, profile)


def _check_blocks(at: str, first: int, end: int, profile: Profile) -> None:
    if not 0 <= first < end <= len(profile.blocks):
        blocks = f"some of the model's {len(profile.blocks)} blocks"
        raise _not_runnable(at, blocks, f"[{first}, {end})")


def _not_runnable(where: str, needed: str, available: object) -> PlanError:
    return PlanError(
        f"plan: {where} cannot run\n"
        f"  needs     {needed}\n"
        f"  has       {available}\n"
        "  try       `headrace verify`, which names all that is wrong with the plan"
    )
