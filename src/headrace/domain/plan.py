"""The plan: deployments placed on slots, and what the planner claims and proves of them.

Every number here can be recomputed from the profiles; `headrace.verify` does so. What a plan can
say, the dispatcher executes (decision 0023).
"""

from collections.abc import Callable
from fractions import Fraction
from typing import Literal

from headrace.domain.app import App
from headrace.domain.base import Record
from headrace.domain.cluster import Cluster, DeviceType
from headrace.domain.interference import Interference
from headrace.domain.layers import Residency
from headrace.domain.problem import MINIMISED, Demand, PlanOptions, ProfileRef

Stopped = Literal["optimal", "infeasible", "time-limit", "heuristic"]

OPTIMAL_GAP = 1e-6
"""Relative distance from the bound up to which a plan is called optimal, by every planner
(`headrace.verify` has its own)."""


class Tenant(Record, frozen=True, kw_only=True):
    """One stage that a slot runs."""

    model: str
    pipeline: str
    stage: int
    slowdown: float = 1.0
    """How many times longer than profiled a batch takes at most, beside the tenants of the other
    slots on the device."""


class Slot(Record, frozen=True, kw_only=True):
    """One schedulable place: a share of one device on one node."""

    name: str
    node: str
    device: str
    device_index: int
    """Which device of that type on the node, from 0."""
    share: Fraction
    tenants: tuple[Tenant, ...]
    helper: str | None = None
    """With starts: the slot over whose device's link part of a start is copied, and forwarded."""
    duty_us: int | None = None
    """Duty cycle D: every tenant runs at most one batch, of its pipeline's size, in each D
    (gpu-lets, section 2.2). None: the slot runs what it is given whenever it is free."""

    def link(self, kind: DeviceType) -> tuple[str, str, int]:
        """What its link to host memory is known by: equal for slots that share one.

        Args:
            kind: its device's. Without a copy stream a core brings the weights, and nothing is
                shared.
        """
        if not kind.copy_stream:
            return (self.node, self.name, -1)
        return (self.node, self.device, self.device_index // kind.devices_per_link)


class Stage(Record, frozen=True, kw_only=True):
    """A contiguous range of blocks run by one pool."""

    first_block: int
    end_block: int
    """Exclusive."""
    device: str
    share: Fraction
    pool: tuple[str, ...]
    """Names of the identical slots that serve this stage."""
    latency_us: int
    """p99 of one batch at the pipeline's batch size, its tenants' slowdown included. On slots with
    a duty cycle, and of apps: of a batch of at most that size, whichever takes longest."""
    transfer_us: int
    """Of one batch to the next stage over an idle link; 0 for the last stage."""
    throughput_rps: float
    """Of the whole pool: slots x min(batch / p50 x max_utilisation, link share); of slots with a
    duty cycle, batch / D each."""


class Pipeline(Record, frozen=True, kw_only=True):
    """Ordered stages with one batch size."""

    name: str
    batch_size: int
    stages: tuple[Stage, ...]
    latency_us: int
    """Sum of the stages' latencies and transfers: a batch that waits for nothing."""
    throughput_rps: float
    """The slowest stage's."""
    load: "MachineLoad | None" = None
    """Of a module of an app: what its machines are given. None: as much as they can take."""


class DepthStage(Record, frozen=True, kw_only=True):
    """A contiguous range of blocks that one slot runs, while a request has as many as it needs."""

    first_block: int
    end_block: int
    """Exclusive."""
    device: str
    share: Fraction
    latency_us: int
    """p99 of one batch of items."""
    transfer_us: int
    """Of one batch to the next stage over an idle link; 0 for the last stage."""


class Depth(Record, frozen=True, kw_only=True):
    """A way to serve a request of many items: its model cut over so many slots (Accordion, 3.1).

    Items enter the first stage batch by batch and go through the others in order; any slot of the
    stage's device and share may run it. B items in batches of b take
    fill_us + (ceil(B / b) - 1) x pace_us.
    """

    batch_size: int
    """Items that go through together."""
    stages: tuple[DepthStage, ...]
    fill_us: int
    """Of the first batch: the sum of its stages' latencies and transfers."""
    pace_us: int
    """From one batch to the next: the slowest stage or transfer."""

    @property
    def name(self) -> str:
        """As a pipeline's: in event logs, metrics and findings.

        >>> Depth(batch_size=1, stages=(), fill_us=0, pace_us=0).name
        'depth0'
        """
        return f"depth{len(self.stages)}"


class MachineLoad(Record, frozen=True, kw_only=True):
    """Machines of one configuration, and the part of a module's load that they take.

    A machine is a slot of the pipeline's only stage. Machines of one entry are given batches in
    turn; entries are served in the order of the deployment's pipelines, which is that of
    throughput per price (Harpagon, section III.B).
    """

    machines: float
    """n: how many machines the load would fill. Whole, but for the last entry, whose machines (n,
    rounded up) share it evenly. Of a turn on a slot with a duty cycle: the part of the cycle that
    it takes."""
    rate_rps: float
    """Of all machines of the entry, dummy load included; n x the throughput of one."""
    machine_rps: float
    """What one machine is given: its full throughput, or an even share of `rate_rps`."""
    remaining_rps: float
    """w: its own load and that of all entries behind it (Theorem 1)."""
    collect_us: int
    """Longest wait until a batch is complete, by the plan's reading of the dispatch policy; of a
    turn, until it begins."""
    worst_case_us: int
    """`latency_us` + `collect_us`: no request waits longer, under uniform arrivals."""
    cost_per_hour: float
    """machines x price x share."""
    follows: bool = False
    """Of a turn on a slot with a duty cycle: the modules that this one waits for have all their
    turns before it in the same cycle, in the order of the slot's tenants, so that it waits for the
    turns between them and not for the next cycle (decision 0044)."""


class Deployment(Record, frozen=True, kw_only=True):
    """All pipelines of one model, with its latency budget."""

    model: str
    slo_us: int
    budget_us: int
    """What `latency_us` of a pipeline may use: SLO x (1 - margin), rounded down."""
    pipelines: tuple[Pipeline, ...]
    throughput_rps: float
    dummy_rps: float = 0.0
    """Load that is planned for but never sent (Harpagon, Theorem 2)."""
    app: str | None = None
    """The app that this deployment is a module of; None: a model on its own."""
    module: str | None = None
    rate_rps: float | None = None
    """Of a module: calls per second that it must answer, without dummy load."""
    worst_case_us: int | None = None
    """Of a module: the largest `worst_case_us` of its entries; at most `budget_us`."""
    cost_per_hour: float | None = None
    """Of a module: the sum over its entries."""
    depths: tuple[Depth, ...] = ()
    """Of a malleable model, which has no pipelines: how its requests are served by one slot, by two
    and so on. Which slots serve which request is decided while serving; the plan's slots name no
    tenants."""
    max_items: int | None = None
    """Of a malleable model: the most items of one request."""
    start: Residency | None = None
    """How it is started on a slot that does not hold it. None: its weights are in memory."""
    cold_share: float | None = None
    """Of a plan of more models than memory: the part of its requests that find it absent, where
    they come at random and the model that is unused for longest leaves."""

    @property
    def ways(self) -> "tuple[Pipeline | Depth, ...]":
        """What batches of it run by: its pipelines or its depths."""
        return self.pipelines or self.depths

    @property
    def name(self) -> str:
        """Unlike every other deployment's: two modules may run one model."""
        return self.model if self.app is None else f"{self.app}.{self.module}"


Reading = Literal["remaining", "twice", "pair", "turns"]
"""How long a full batch takes to collect, after the dispatch policy (Harpagon, Table III):

remaining  d + b / w: batch-aware; w is the load of this and all later machines (Theorem 1)
twice      2 d: request by request in turn; a machine collects at its own throughput
pair       d + b / t: t is the throughput of two machines of the same configuration
turns      d + D: every entry is a turn on one slot with a duty cycle D, among models or modules
"""


class AppClaim(Record, frozen=True, kw_only=True):
    """What a plan says of one app as a whole."""

    app: App
    reading: Reading
    worst_case_us: int
    """The longest path over the modules' `worst_case_us`; at most the budget."""
    budget_us: int
    """SLO x (1 - margin), less what the app's code and the gateway take along a path."""
    cost_per_hour: float
    """Prices in proportion to load (frame-rate proportionality, Harpagon III.A)."""


class Plan(Record, frozen=True, kw_only=True):
    """`headrace.plan/1`. Self-contained but for the profiles, which it names with their hash."""

    schema: Literal["headrace.plan/1"] = "headrace.plan/1"
    planner: str
    options: PlanOptions
    cluster: Cluster
    demands: tuple[Demand, ...]
    profiles: tuple[ProfileRef, ...]
    slots: tuple[Slot, ...]
    deployments: tuple[Deployment, ...]
    objective: float
    """Value of options.objective: requests per second (throughput, max-min over weight), cost per
    hour (least-cost) or devices (least-devices)."""
    bound: float | None
    """Proven limit of the objective; None: the planner proves nothing."""
    gap: float | None
    """|bound - objective| / objective."""
    stopped: Stopped
    binding: str
    """The constraint that keeps the objective from being better, in words."""
    cost_per_hour: float | None
    """Of the devices used; None where a price is unknown."""
    runtime_s: float
    apps: tuple[AppClaim, ...] = ()
    """Where there are any, `demands` is empty, every deployment is a module, `objective` is the
    cost in proportion to load (with `options.bill` "devices": that of the whole devices used) and
    `cost_per_hour` that of the whole devices used. Read as `turns`, apps stand beside models, and
    `objective` is that of the options."""
    interference: tuple[Interference, ...] = ()
    """What the tenants' slowdowns are functions of; at most one for a device type."""

    @property
    def is_together(self) -> bool:
        """Whether its apps' modules take turns among models, or as models do."""
        return any(claim.reading == "turns" for claim in self.apps)

    @property
    def is_malleable(self) -> bool:
        """Whether its models are cut over one slot, two and so on, for requests of many items."""
        return any(deployment.depths for deployment in self.deployments)

    @property
    def has_starts(self) -> bool:
        """Whether it says how models start whose weights are not on their device."""
        return any(deployment.start is not None for deployment in self.deployments)

    @property
    def is_provisioned(self) -> bool:
        """Whether its models are brought to their slots and evicted while they serve: each has a
        start and a `cold_share`, and one pipeline of one stage whose pool is every slot that may
        run it."""
        return bool(self.deployments) and all(
            each.start is not None
            and each.cold_share is not None
            and [len(pipeline.stages) for pipeline in each.pipelines] == [1]
            for each in self.deployments
        )

    @property
    def is_for_rates(self) -> bool:
        """Whether it is the least for stated rates of models: of as few devices as carry them, or
        the cheapest. Where their load as a whole rises, such a plan does not carry it."""
        return self.states_all_rates and self.options.objective in MINIMISED

    @property
    def states_all_rates(self) -> bool:
        """Whether it has models and each has a rate: together, the load that they are planned
        for."""
        stated = all(demand.rate_rps is not None for demand in self.demands)
        return bool(self.demands) and stated


class PlanResult(Record, frozen=True, kw_only=True):
    """A planner's answer."""

    plan: Plan | None
    """None exactly when no feasible plan was found."""
    stopped: Stopped
    bound: float | None
    runtime_s: float
    refusal: str | None = None
    """Why there is no plan: the binding constraint and the nearest feasible SLO or rate."""
    refuse: Callable[[], str] | None = None
    """Says that where it takes a search of its own, which `planning.solve` has made."""
