"""Whether the load is still the one that the plan in service was made for."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType

import msgspec.structs

from headrace.dispatch.changes.migration import only_flushed
from headrace.domain.plan import Deployment, Plan
from headrace.serving.changes.load_watch import PERIODS, LoadWatch, enough_of, shares_of
from headrace.serving.changes.rate_estimate import EstimateWatch, RateEstimate
from headrace.serving.changes.rate_watch import RateWatch
from headrace.serving.changes.size_loads import Sizes, by_size, counted_by_size, whole_loads
from headrace.serving.core.counters import ModelCounters

FLOOR = 0.1
"""No app is planned for less than this part of its rate in the last plan that a person chose, and
no model, or size of one, for less than this part of its rate or share. So the first tenth of a load
that comes back is carried while the server plans for the rest; cost being in proportion to rate,
that is a tenth of what the person agreed to; and because it is a part of that plan's rate, not of
the plan in service, plan after plan does not wear it down."""

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
    """For how long; of plans that are `follows_closely`, `period_s` instead."""
    period_s: float = 20.0
    """Of these: how often rates are estimated and the plan judged."""
    headroom: float = 0.25
    """The same: part of an estimated rate that is planned for on top of it."""

    def looks_every_s(self, plan: Plan) -> float:
        """How long a period of this plan's watch is."""
        return self.period_s if follows_closely(plan) else self.after_s / PERIODS

    def lasts_s(self, plan: Plan) -> float:
        """How often a load that lasts asks for another plan, at most."""
        return self.period_s if follows_closely(plan) else self.after_s


def follows_closely(plan: Plan) -> bool:
    """Whether it is made anew as often as rates change: it is the least for stated rates of models,
    and changes hands device by device. A flush holds requests back, and where models come and go
    all begin on no device: that is worth it for a load that stays. Beside apps, models are looked
    at as these are."""
    return plan.is_for_rates and not plan.apps and only_flushed(plan) is None


def unfollowed(plan: Plan) -> str | None:
    """Why no plan is made anew for another load than this one's, and what to do; None: one is."""
    if plan.is_malleable:
        return (
            "a plan with depths (`--planner malleable`) is the same for every load: its slots go to"
            " whoever needs them\n  try    without --replan"
        )
    return None


def watch_of(
    plan: Plan,
    chosen: Loads,
    counters: Mapping[str, ModelCounters],
    rule: ReplanRule,
    estimate: RateEstimate,
    sizes: Sizes = MappingProxyType({}),
) -> Watch:
    """Shares of the load are watched for models, request rates for apps and for models whose plan
    is the least for stated rates; these are estimated where it `follows_closely`. The loads that it
    returns are by size where models have several.

    Args:
        chosen: `planned_loads` of the last plan that a person chose.
        counters: since the server began.
        estimate: of plans for stated rates; it outlives them.
        sizes: of the plan's models of several.
    """
    planned = planned_loads(plan, sizes)
    chosen = {name: chosen.get(name, load) for name, load in planned.items()}
    if follows_closely(plan):
        return _RatesAndSizes(plan, chosen, rule, estimate, sizes).add
    if not plan.apps and not plan.is_for_rates:
        shares = LoadWatch(planned, rule.fraction, _floors(shares_of(chosen), sizes))
        return lambda counts, elapsed_s: shares.add(counted_by_size(counts, sizes))
    # Of many models some are asked rarely, and would be off by chance.
    enough = enough_of(rule.fraction) if plan.demands else 0.0
    rates = RateWatch(planned, rule.fraction, _floors(chosen), enough)

    def add(counts: Counts, elapsed_s: float) -> Loads | None:
        # A server may be started long before its clients: until an app is asked for the first
        # time, that nobody asks says nothing.
        ever = _asked(plan, arrivals(counters))
        asked = {name: n for name, n in _asked(plan, counts).items() if ever[name]}
        return rates.add(asked, elapsed_s)

    return add


class _RatesAndSizes:
    """Rates of models are estimated. How a model's requests are divided among its sizes is watched
    as shares are: the rate of a size that is asked rarely is noise."""

    def __init__(
        self, plan: Plan, chosen: Loads, rule: ReplanRule, estimate: RateEstimate, sizes: Sizes
    ) -> None:
        """`chosen`: requests per second, by size."""
        whole, _ = whole_loads(chosen, sizes)
        self._rates = EstimateWatch(
            planned_loads(plan), rule.fraction, rule.headroom, _floors(whole), estimate
        )
        self._sizes = dict(sizes)
        least = _floors(chosen, sizes)
        self._shares = {
            model: LoadWatch(
                {each.name: each.part for each in parts},
                rule.fraction,
                {each.name: least[each.name] / whole[model] for each in parts},
            )
            for model, parts in sizes.items()
        }

    def add(self, counts: Counts, elapsed_s: float) -> Loads | None:
        rates_rps = self._rates.add(counts, elapsed_s)
        counted = counted_by_size(counts, self._sizes)
        added = {model: watch.add(counted) for model, watch in self._shares.items()}
        shifted = {model: parts for model, parts in added.items() if parts is not None}
        for model, parts in shifted.items():
            self._sizes[model] = tuple(
                replace(each, part=parts[each.name]) for each in self._sizes[model]
            )
        if rates_rps is None and not shifted:
            return None
        return by_size(self._rates.wanted(), self._sizes)


def _floors(loads: Loads, sizes: Sizes = MappingProxyType({})) -> dict[str, float]:
    """Of a size that has less than an even part, or none: of an even part."""
    floors = {name: FLOOR * load for name, load in loads.items()}
    for parts in sizes.values():
        even = sum(loads[each.name] for each in parts) / len(parts)
        floors |= {each.name: FLOOR * max(loads[each.name], even) for each in parts}
    return floors


def planned_loads(plan: Plan, sizes: Sizes = MappingProxyType({})) -> dict[str, float]:
    """What the plan was made for. Of apps, of models beside them and of plans that are
    `is_for_rates`, requests per second; of other models, relative loads: rates where all are
    stated, or weights. Of models of several sizes, of each size."""
    apps = {claim.app.name: claim.app.rate_rps for claim in plan.apps}
    if plan.apps or plan.states_all_rates:
        return apps | by_size({each.model: each.rate_rps or 0.0 for each in plan.demands}, sizes)
    return by_size({demand.model: demand.weight for demand in plan.demands}, sizes)


def arrivals(counters: Mapping[str, ModelCounters]) -> dict[str, int]:
    """Model, module or app -> requests that came to their end so far, answered or not; and of
    models of several sizes, of each size.

    Counted as items, which is what plans are for; a request that was refused counts as one. Those
    that are malformed would need no machine, so they call for none.
    """
    found = dict[str, int]()
    for name, model in counters.items():
        found |= model.by_size
        found[name] = model.items + sum(
            count for reason, count in model.refused.items() if reason != "bad-request"
        )
    return found


def _asked(plan: Plan, counts: Counts) -> dict[str, float]:
    """Model or app -> requests for it among these."""
    models = {demand.model: float(counts.get(demand.model, 0)) for demand in plan.demands}
    return models | app_arrivals(plan, counts)


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


def serves_alike(one: Plan, other: Plan) -> bool:
    """Whether requests fare alike under both: all that differs is what they say of loads."""
    return _what_serves(one) == _what_serves(other)


def _what_serves(plan: Plan) -> tuple[object, ...]:
    hashes = {ref.model: ref.sha256 for ref in plan.profiles}
    return plan.slots, tuple(map(_without_rates, plan.deployments)), hashes


def _without_rates(deployment: Deployment) -> Deployment:
    bare = msgspec.structs.replace
    return bare(
        deployment,
        throughput_rps=0.0,
        cold_share=None,
        pipelines=tuple(
            bare(
                pipeline,
                throughput_rps=0.0,
                stages=tuple(bare(stage, throughput_rps=0.0) for stage in pipeline.stages),
            )
            for pipeline in deployment.pipelines
        ),
    )
