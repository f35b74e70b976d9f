"""Problem -> PlanResult: models whole where that carries the rates, else the search with cuts.

That search finds the least price of given rates. So for `max-min` multiples of the weights are
tried, with the stated rates besides: one that no way to run the models carries bounds all others.
"""

from collections.abc import Sequence
from math import inf

from msgspec.structs import replace

from headrace.domain.base import MOST_RATE_RPS
from headrace.domain.plan import PlanResult
from headrace.domain.problem import MINIMISED, Problem
from headrace.planning.common.assembly import Claim
from headrace.planning.common.deadline import Deadline
from headrace.planning.common.headroom import rates_text
from headrace.planning.shares.planner import plan_shares
from headrace.planning.together.assembly import assembled
from headrace.planning.together.cheapest import LEAST_S, Best, Cheapest, used_text
from headrace.planning.together.refusal import largest_carried
from headrace.planning.together.steps import Costs

FEW_RPS = 1e-3
"""Of a model whose rate is not stated."""


def plan_together(problem: Problem) -> PlanResult:
    """The best plan in which apps, models and stages of models share devices.

    Models that all run whole are `planning.shares`' alone, as long as it carries them.

    Raises:
        DocumentError: an objective that sharing does not know, or rates or prices that it needs
            are missing.
    """
    if problem.apps:
        return Cheapest(problem, Deadline(problem.options.time_limit_s)).plan()
    whole = plan_shares(problem)
    if not _may_cut(problem):
        return whole
    if whole.plan is not None:
        binding = f"the bound is of plans that run models whole; {whole.plan.binding}"
        return replace(whole, plan=replace(whole.plan, binding=binding))
    if whole.stopped != "infeasible" or _too_many(problem):
        return whole
    deadline = Deadline(max(LEAST_S, problem.options.time_limit_s - whole.runtime_s))
    if problem.options.objective in MINIMISED:
        return Cheapest(problem, deadline).plan()
    return _Most(problem, deadline).plan()


def _may_cut(problem: Problem) -> bool:
    several = any(len(problem.profiles[d.model].blocks) > 1 for d in problem.demands)
    return several and problem.options.max_stages > 1


def _too_many(problem: Problem) -> bool:
    """Whether there is no turn for every model, so that there is none for more stages."""
    cluster, limit = problem.cluster, problem.options.max_tenants
    parts = sum(cluster.count(kind.name) * kind.most_parts for kind in cluster.device_types)
    return limit is not None and len(problem.demands) > parts * limit


class _Most:
    """`max-min` of one problem, with cuts."""

    def __init__(self, problem: Problem, deadline: Deadline) -> None:
        self._problem, self._deadline = problem, deadline
        self._rates = [demand.rate_rps or FEW_RPS for demand in problem.demands]
        self._weights = [demand.weight for demand in problem.demands]

    def plan(self) -> PlanResult:
        carried = self._cheapest(self._rates, self._deadline).carried(first=True)
        if isinstance(carried, PlanResult):
            return carried
        best = carried
        search = self._cheapest(self._weights, self._deadline)
        bound, looked_at = search.priced_out(search.after_planning()), search.looked_at()

        def carries(multiple: float) -> bool:
            nonlocal best, bound
            rates = [
                max(rate, multiple * weight)
                for rate, weight in zip(self._rates, self._weights, strict=True)
            ]
            limit = Deadline(max(LEAST_S, self._deadline.left_s / 4))
            tried = self._cheapest(rates, limit).any()
            if tried.found.devices is not None:
                best = tried
                return True
            if tried.bound == inf:
                bound = multiple
            return False

        low = min(rate / weight for rate, weight in zip(self._rates, self._weights, strict=True))
        largest_carried(carries, low, bound, (low + bound) / 2, self._deadline)
        return self._planned(best, bound, looked_at)

    def _cheapest(self, rates: Sequence[float], deadline: Deadline) -> Cheapest:
        """The search for devices that carry these rates."""
        problem = self._problem
        demands = (
            replace(demand, rate_rps=min(rate, MOST_RATE_RPS))
            for demand, rate in zip(problem.demands, rates, strict=True)
        )
        options = replace(problem.options, objective="least-devices")
        return Cheapest(replace(problem, demands=tuple(demands), options=options), deadline)

    def _planned(self, best: Best, bound: float, looked_at: str | None) -> PlanResult:
        assert best.found.devices is not None
        stated = rates_text(self._problem)
        claim = Claim(
            bound=bound if bound < inf else None,
            stopped="time-limit" if self._deadline.passed else "heuristic",
            binding="; ".join(
                [
                    *([f"the bound is of plans with {looked_at}"] if bound < inf else []),
                    "devices: no larger multiple of the weights was found",
                    *([f"rates: {stated} must be carried"] if stated else []),
                    *used_text(self._problem, best),
                ]
            ),
            runtime_s=self._deadline.spent_s,
        )
        plan = assembled(Costs(self._problem), best.ways, [], best.found.devices, claim)
        return PlanResult(
            plan=plan, stopped=plan.stopped, bound=plan.bound, runtime_s=plan.runtime_s
        )
