"""The plan under examination: look-ups that survive broken plans, and the list of findings."""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from headrace.domain.base import Record
from headrace.domain.cluster import DeviceType, Node
from headrace.domain.plan import Deployment, Pipeline, Plan, Slot, Stage, Tenant
from headrace.domain.problem import Demand
from headrace.domain.profile import Profile

CHECKS: Mapping[str, str] = {
    "demands": "every demand is deployed once, with its SLO",
    "profiles": "every model has its profile, named with its hash",
    "names": "slots, and the pipelines of a model, are named apart",
    "served": "every model has a pipeline",
    "depth": "stage counts lie within min_stages and max_stages",
    "blocks": "the stages of a pipeline cover all blocks once, in order",
    "batch": "batch sizes are profiled and allowed",
    "share": "stages use device types and shares that the cluster offers",
    "pool": "every stage has slots, each once, and they exist",
    "slot-match": "a stage's slots are of its device type and share",
    "tenants": "slots and stages name each other",
    "place": "slots lie on devices that exist",
    "latency": "latencies of stages, and their sums, are those of the profiles",
    "transfer": "transfer times follow from sizes and links",
    "budget": "the budget is the SLO less the margin",
    "slo": "every pipeline keeps its budget",
    "throughput": "throughputs follow from the profiles and the slots",
    "alternatives": "other depths use the same slots, and are of other depth",
    "residency": "layers whose weights are placed exist, once",
    "devices": "the shares on a device sum to at most 1",
    "memory": "the weights on a device fit its memory",
    "links": "planned traffic fits every node's link, each direction",
    "time": "tenants of a slot together need at most all of its time",
    "duty": "turns on a slot fit the period, do not overlap, and hold a batch",
    "rates": "every needed rate is carried",
    "dummy": "dummy load lies within the throughput",
    "objective": "the objective is what was recomputed",
    "bound": "the bound lies beyond the objective, and the gap is theirs",
    "stopped": "the stated reason to stop fits the gap",
    "cost": "the cost per hour is that of the devices used",
    "apps": "every module of every app is deployed once, at the app's rate times its fan-out",
    "load": "machines are ranked by throughput per price, and carry a module's rate and dummy load",
    "worst-case": "collecting and running a batch fit every module's and every app's budget",
    "claims": "planner, binding constraint and runtime are stated",
}
"""Every check that `verify` makes: name -> what it promises."""

APP_CHECKS = frozenset({"apps", "load", "worst-case"})
"""Those that only a plan of apps can fail."""

RELATIVE = 1e-9


class Violation(Record, frozen=True, kw_only=True):
    """One promise that a plan breaks."""

    check: str
    """One of CHECKS."""
    where: str
    what: str
    needed: str
    available: str


@dataclass(frozen=True, slots=True)
class Chain:
    """The stages of a pipeline, or of one of its alternatives."""

    deployment: Deployment
    pipeline: Pipeline
    stages: tuple[Stage, ...]
    alternative: int | None
    """None: the pipeline's own stages."""

    @property
    def where(self) -> str:
        path = f"{self.deployment.model}/{self.pipeline.name}"
        return path if self.alternative is None else f"{path}/alternative {self.alternative}"

    def stage_where(self, index: int) -> str:
        return f"{self.where}/stage {index}"


class Case:
    """One plan, its profiles, and what was found so far."""

    def __init__(self, plan: Plan, profiles: Mapping[str, Profile]) -> None:
        self.plan = plan
        self.profiles = profiles
        self.violations: list[Violation] = []
        self.slots: dict[str, Slot] = {slot.name: slot for slot in plan.slots}
        self.nodes: dict[str, Node] = {node.name: node for node in plan.cluster.nodes}
        self.types: dict[str, DeviceType] = {kind.name: kind for kind in plan.cluster.device_types}
        self.demands: dict[str, Demand] = {demand.model: demand for demand in plan.demands}
        self._chains = {
            (deployment.model, pipeline.name): Chain(deployment, pipeline, pipeline.stages, None)
            for deployment, pipeline in self.pipelines()
        }

    def report(
        self, check: str, where: str, what: str, *, needed: object, available: object
    ) -> None:
        assert check in CHECKS, check
        self.violations.append(
            Violation(
                check=check, where=where, what=what, needed=str(needed), available=str(available)
            )
        )

    def expect(self, check: str, where: str, what: str, computed: float, claimed: float) -> None:
        """Report a claimed number that is not the computed one."""
        if not same(computed, claimed):
            self.report(check, where, what, needed=computed, available=claimed)

    def chains(self) -> Iterator[Chain]:
        """Every sequence of stages in the plan, alternatives included."""
        for deployment, pipeline in self.pipelines():
            yield Chain(deployment, pipeline, pipeline.stages, None)
            for index, alternative in enumerate(pipeline.alternatives):
                yield Chain(deployment, pipeline, alternative.stages, index)

    def pipelines(self) -> Iterator[tuple[Deployment, Pipeline]]:
        for deployment in self.plan.deployments:
            for pipeline in deployment.pipelines:
                yield deployment, pipeline

    def stage_of(self, tenant: Tenant) -> Stage | None:
        """The stage that a tenant names, or None."""
        chain = self.chain_of(tenant)
        inside = chain is not None and 0 <= tenant.stage < len(chain.stages)
        return chain.stages[tenant.stage] if chain is not None and inside else None

    def chain_of(self, tenant: Tenant) -> Chain | None:
        """The pipeline that a tenant names, or None."""
        return self._chains.get((tenant.model, tenant.pipeline))


def same(a: float, b: float) -> bool:
    """Equal up to rounding; integers exactly. NaN equals nothing."""
    if isinstance(a, int) and isinstance(b, int):
        return a == b
    return math.isclose(a, b, rel_tol=RELATIVE, abs_tol=1e-12)


def at_most(a: float, limit: float) -> bool:
    """a <= limit up to rounding; False for NaN."""
    return a <= limit or same(a, limit)
