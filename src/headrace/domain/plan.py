"""The plan: deployments placed on slots, and what the planner claims and proves of them.

Every number here can be recomputed from the profiles; `headrace.verify` does so.
"""

from fractions import Fraction
from typing import Literal

from headrace.domain.base import Record
from headrace.domain.cluster import Cluster
from headrace.domain.problem import Demand, PlanOptions, ProfileRef

Stopped = Literal["optimal", "infeasible", "time-limit", "heuristic"]


class DutyCycle(Record, frozen=True, kw_only=True):
    """A tenant's turn on a shared slot: `length_us` from `offset_us` in every `period_us`."""

    period_us: int
    offset_us: int
    length_us: int


class Tenant(Record, frozen=True, kw_only=True):
    """One stage that a slot runs."""

    model: str
    pipeline: str
    stage: int
    duty: DutyCycle | None = None
    """None: whenever the dispatcher says so."""


class Slot(Record, frozen=True, kw_only=True):
    """One schedulable place: a share of one device on one node."""

    name: str
    node: str
    device: str
    device_index: int
    """Which device of that type on the node, from 0."""
    share: Fraction
    tenants: tuple[Tenant, ...]


class Residency(Record, frozen=True, kw_only=True):
    """Where a layer's weights are between runs (DeepPlan, section 4)."""

    layer: str
    place: Literal["device", "host", "absent"]


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
    """p99 of one batch at the pipeline's batch size."""
    transfer_us: int
    """Of one batch to the next stage over an idle link; 0 for the last stage."""
    throughput_rps: float
    """Of the whole pool: slots x min(batch / p50 x max_utilisation, link share)."""
    residency: tuple[Residency, ...] = ()
    """Empty: all weights on the device."""


class Alternative(Record, frozen=True, kw_only=True):
    """The same pipeline at another depth (Accordion): fewer or more stages on the same slots."""

    stages: tuple[Stage, ...]
    latency_us: int
    throughput_rps: float


class Pipeline(Record, frozen=True, kw_only=True):
    """Ordered stages with one batch size."""

    name: str
    batch_size: int
    stages: tuple[Stage, ...]
    latency_us: int
    """Sum of the stages' latencies and transfers: a batch that waits for nothing."""
    throughput_rps: float
    """The slowest stage's."""
    alternatives: tuple[Alternative, ...] = ()


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
    """Value of options.objective: requests per second (throughput, max-min over weight) or
    cost per hour (least-cost)."""
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


class PlanResult(Record, frozen=True, kw_only=True):
    """A planner's answer."""

    plan: Plan | None
    """None exactly when no feasible plan was found."""
    stopped: Stopped
    bound: float | None
    runtime_s: float
    refusal: str | None = None
    """Why there is no plan: the binding constraint and the nearest feasible SLO or rate."""
