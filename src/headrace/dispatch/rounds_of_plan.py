"""What a plan says of the rounds on its slots, and which modules follow each other in them."""

from math import ceil

from headrace.cost import CostModel
from headrace.domain.plan import Deployment, Plan


class Rounds:
    """What a plan says of its slots' rounds (decision 0044)."""

    def __init__(self, plan: Plan, costs: CostModel) -> None:
        self._apps = {claim.app.name: claim.app for claim in plan.apps}
        self._index = {(d.app, d.module): i for i, d in enumerate(plan.deployments)}
        self._costs = costs
        self.turns = {
            (tenant.model, tenant.pipeline): place
            for slot in plan.slots
            if slot.duty_us is not None
            for place, tenant in enumerate(slot.tenants)
        }
        """(model, pipeline) -> its place in the round of its slot."""

    def follows(self, deployment: Deployment) -> tuple[int, ...]:
        """See `topology.ModelRoutes.follows`."""
        app = self._apps.get(deployment.app or "")
        if app is None or not any(p.load and p.load.follows for p in deployment.pipelines):
            return ()
        before = [first for first, after in app.edges if after == deployment.module]
        return tuple(self._index[app.name, module] for module in before)

    def lead_us(self, deployment: Deployment) -> int:
        """See `topology.ModelRoutes.lead_us`."""
        app = self._apps.get(deployment.app or "")
        if app is None:
            return 0
        module = app.module(str(deployment.module))
        gateway_us = self._costs.gateway_us(deployment.model)
        return module.code_us + ceil(module.fan_out.mean * gateway_us)
