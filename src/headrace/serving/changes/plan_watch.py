"""Whether the load is still the one that the plan in service was made for."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from headrace.domain.plan import Plan
from headrace.serving.changes.load_watch import PERIODS, LoadWatch, shares_of
from headrace.serving.changes.rate_estimate import EstimateWatch, RateEstimate
from headrace.serving.changes.rate_watch import RateWatch
from headrace.serving.core.counters import ModelCounters

FLOOR = 0.1
"""No app is planned for less than this part of its rate in the last plan that a person chose, and
no model for less than this part of its rate or share. So the first tenth of a load that comes back
is carried while the server plans for the rest; cost being in proportion to rate, that is a tenth of
what the person agreed to; and because it is a part of that plan's rate, not of the plan in service,
plan after plan does not wear it down."""

Counts = Mapping[str, int]
Loads = Mapping[str, float]
Watch = Callable[[Counts, float], Loads | None]
"""Takes the arrivals of a period, by counter, and its length in seconds; returns the loads to plan
for, or None while all is well."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplanRule:
    """When to plan anew, as a person asks for it."""

    fraction: float = 0.25
    """By how much of what is planned a load must be off."""
    after_s: float = 300.0
    """For how long; of plans for stated rates, `period_s` instead."""
    period_s: float = 20.0
    """Of plans for stated rates of models: how often rates are estimated and the plan judged."""
    headroom: float = 0.25
    """The same: part of an estimated rate that is planned for on top of it."""

    def looks_every_s(self, plan: Plan) -> float:
        """How long a period of this plan's watch is."""
        return self.period_s if plan.is_for_rates else self.after_s / PERIODS

    def lasts_s(self, plan: Plan) -> float:
        """How often a load that lasts asks for another plan, at most."""
        return self.period_s if plan.is_for_rates else self.after_s


def watch_of(
    plan: Plan,
    chosen: Loads,
    counters: Mapping[str, ModelCounters],
    rule: ReplanRule,
    estimate: RateEstimate,
) -> Watch:
    """Shares of the load are watched for models, request rates for apps and for models whose plan
    is the least for stated rates.

    Args:
        chosen: `planned_loads` of the last plan that a person chose.
        counters: since the server began.
        estimate: of plans for stated rates; it outlives them.
    """
    planned = planned_loads(plan)
    chosen = {name: chosen.get(name, load) for name, load in planned.items()}
    floors = {name: FLOOR * load for name, load in chosen.items()}
    if plan.is_for_rates:
        return EstimateWatch(planned, rule.fraction, rule.headroom, floors, estimate).add
    if not plan.apps:
        least = {name: FLOOR * share for name, share in shares_of(chosen).items()}
        shares = LoadWatch(planned, rule.fraction, least)
        return lambda counts, elapsed_s: shares.add(counts)
    rates = RateWatch(planned, rule.fraction, floors)

    def add(counts: Counts, elapsed_s: float) -> Loads | None:
        # A server may be started long before its clients: until an app is asked for the first
        # time, that nobody asks says nothing.
        ever = app_arrivals(plan, arrivals(counters))
        asked = {name: n for name, n in app_arrivals(plan, counts).items() if ever[name]}
        return rates.add(asked, elapsed_s)

    return add


def planned_loads(plan: Plan) -> dict[str, float]:
    """What the plan was made for. Of apps and of plans that are `is_for_rates`, requests per
    second; of other models, relative loads: rates where all are stated, or weights."""
    if plan.apps:
        return {claim.app.name: claim.app.rate_rps for claim in plan.apps}
    if plan.states_all_rates:
        return {demand.model: demand.rate_rps or 0.0 for demand in plan.demands}
    return {demand.model: demand.weight for demand in plan.demands}


def arrivals(counters: Mapping[str, ModelCounters]) -> dict[str, int]:
    """Model, module or app -> requests that came to their end so far, answered or not.

    Counted as items, which is what plans are for; a request that was refused counts as one. Those
    that are malformed would need no machine, so they call for none.
    """
    return {
        name: model.items
        + sum(count for reason, count in model.refused.items() if reason != "bad-request")
        for name, model in counters.items()
    }


def app_arrivals(plan: Plan, counts: Counts) -> dict[str, float]:
    """App -> requests for it among these.

    An app without a function has its modules served on their own: it is asked as often as the
    module that is asked most for its fan-out, since that one needs the machines.
    """
    return {
        claim.app.name: counts[claim.app.name]
        if claim.app.name in counts
        else max(
            counts.get(f"{claim.app.name}.{module.name}", 0) / module.fan_out.mean
            for module in claim.app.modules
        )
        for claim in plan.apps
    }
