"""The plan under examination: look-ups that survive broken plans, and the list of findings."""

import math
from collections.abc import Mapping
from dataclasses import dataclass

from headrace.domain.base import Record
from headrace.domain.cluster import DeviceType, Node
from headrace.domain.plan import Deployment, Pipeline, Plan, Slot, Stage, Tenant
from headrace.domain.problem import LEAST_WEIGHT, MOST_WEIGHT, Demand
from headrace.domain.profile import Profile

SLOWDOWN_MAX = 1e6
"""Times; what a plan may say that neighbours slow a batch."""

CHECKS: Mapping[str, str] = {
    "demands": "every demand is deployed once, with its SLO",
    "profiles": "every model has its profile, named with its hash, of devices of as many cores",
    "names": "slots, the pipelines of a model, and all that is served, are named apart",
    "served": "every model has pipelines, or every one depths",
    "depth": "stage counts lie within min_stages and max_stages; depths are 1, 2, ..., max_depth",
    "blocks": "the stages of a pipeline cover all blocks once, in order",
    "batch": "batch sizes are profiled and allowed",
    "share": "stages use device types and shares that the cluster offers",
    "pool": "every stage has slots, each once, and they exist",
    "slot-match": "a stage's slots are of its device type and share",
    "tenants": "slots and stages name each other",
    "place": "slots lie on devices that exist",
    "duty": "in a duty cycle each tenant of a slot has time for one batch",
    "slowdown": "slowdowns are those of the interference documents, or more",
    "latency": "latencies of stages, and their sums, are those of the profiles",
    "transfer": "transfer times follow from sizes and links",
    "budget": "the budget is the SLO less the margin",
    "slo": "every pipeline keeps its budget; so does a typical request alone, of depths",
    "items": "only depths are for requests of many items, at most as many as allowed",
    "throughput": "throughputs follow from the profiles and the slots",
    "gateway": "the gateway has time for all requests",
    "devices": "the shares on a device sum to at most 1, and are parts of one of its splits",
    "memory": "the weights on a device fit its memory",
    "links": "planned traffic fits every node's link, each direction",
    "time": "tenants of a slot together need at most all of its time",
    "rates": "every needed rate is carried",
    "dummy": "dummy load lies within the throughput",
    "objective": "the objective is what was recomputed",
    "bound": "the bound lies beyond the objective, and the gap is theirs",
    "stopped": "the stated reason to stop fits the gap",
    "cost": "the cost per hour is that of the devices used",
    "apps": "modules are deployed once, at the app's rate times fan-out; apps are read alike",
    "load": "machines are ranked by throughput per price, and carry a module's rate and dummy load",
    "worst-case": "collecting and running a batch fit every module's and every app's budget",
    "start": "starts follow from the layers' times, and place each layer's weights once",
    "claims": "planner, binding constraint and runtime are stated",
}
"""Every check that `verify` makes: name -> what it promises."""

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
class PlannedPipeline:
    """A pipeline, and whose it is."""

    deployment: Deployment
    pipeline: Pipeline

    @property
    def model(self) -> str:
        return self.deployment.model

    @property
    def stages(self) -> tuple[Stage, ...]:
        return self.pipeline.stages

    @property
    def where(self) -> str:
        return f"{self.model}/{self.pipeline.name}"

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
        self.pipelines: list[PlannedPipeline] = [
            PlannedPipeline(deployment, pipeline)
            for deployment in plan.deployments
            for pipeline in deployment.pipelines
        ]
        self.alone: list[Deployment] = [
            deployment for deployment in plan.deployments if not (plan.apps and deployment.app)
        ]
        """Of models on their own; in a plan without apps, all."""
        self._slowdowns = _slowdowns(plan)
        self._by_name = {(each.model, each.pipeline.name): each for each in self.pipelines}

    def report(self, check: str, where: str, what: str, needed: object, available: object) -> None:
        assert check in CHECKS, check
        self.violations.append(
            Violation(
                check=check, where=where, what=what, needed=str(needed), available=str(available)
            )
        )

    def expect(self, check: str, where: str, what: str, computed: float, claimed: float) -> None:
        """Report a claimed number that is not the computed one."""
        if not same(computed, claimed):
            self.report(check, where, what, computed, claimed)

    def limit(self, check: str, where: str, what: str, needed: float, available: float) -> None:
        """Report a computed number that exceeds what there is."""
        if not at_most(needed, available):
            self.report(check, where, what, needed, available)

    def demand_of(self, planned: PlannedPipeline) -> Demand | None:
        """Of a model on its own; None: there is none, or it is a module of an app."""
        if self.plan.apps and planned.deployment.app:
            return None
        return self.demands.get(planned.model)

    def proportion_of(self, demand: Demand) -> float:
        """What requests come in proportion to: rates where they are stated, else weights over the
        parts of what they are promised that models are expected to carry."""
        if demand.rate_rps is not None:
            return demand.rate_rps
        part = self.plan.options.carried_parts.get(demand.model, 1.0)
        return min(MOST_WEIGHT, max(LEAST_WEIGHT, demand.weight / part))

    def label(self, deployment: Deployment) -> str:
        """Unlike every other deployment's, in plans that hang together."""
        return deployment.name if self.plan.apps else deployment.model

    def slowdown(self, planned: PlannedPipeline, index: int) -> float:
        """What the plan says that neighbours slow this stage: the most of its tenants' entries.
        Beyond SLOWDOWN_MAX latencies would be no numbers; a plan that says so does not keep its."""
        said = self._slowdowns.get((planned.model, planned.pipeline.name, index), 1.0)
        return min(said, SLOWDOWN_MAX)

    def pipeline_of(self, model: str, name: str) -> PlannedPipeline | None:
        """The pipeline of this name, or None."""
        return self._by_name.get((model, name))

    def stage_of(self, tenant: Tenant) -> Stage | None:
        """The stage that a tenant names, or None."""
        named = self.pipeline_of(tenant.model, tenant.pipeline)
        if named is None or not 0 <= tenant.stage < len(named.stages):
            return None
        return named.stages[tenant.stage]


def _slowdowns(plan: Plan) -> dict[tuple[str, str, int], float]:
    """Model, pipeline and stage -> the most that a tenant states of it."""
    most: dict[tuple[str, str, int], float] = {}
    for slot in plan.slots:
        for tenant in slot.tenants:
            key = (tenant.model, tenant.pipeline, tenant.stage)
            # What no slowdown can be is reported, and must not spoil other figures.
            stated = tenant.slowdown if 1 <= tenant.slowdown < math.inf else 1.0
            most[key] = max(most.get(key, stated), stated)
    return most


def same(a: float, b: float) -> bool:
    """Equal up to rounding; integers exactly. NaN equals nothing."""
    if isinstance(a, int) and isinstance(b, int):
        return a == b
    return math.isclose(a, b, rel_tol=RELATIVE, abs_tol=1e-12)


def at_most(a: float, limit: float) -> bool:
    """a <= limit up to rounding; False for NaN."""
    return a <= limit or same(a, limit)
