"""What a plan of models carries, by simulation: the trials that `--margin auto` compares."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from msgspec.structs import replace

from headrace.dispatch.buckets import by_bucket
from headrace.dispatch.kernel.layout import Ints
from headrace.dispatch.topology import Topology
from headrace.domain.plan import Plan
from headrace.domain.problem import MINIMISED, MarginFor, PlanOptions
from headrace.domain.profile import Profile
from headrace.simulation.beside import Beside, beside_of
from headrace.simulation.compiled import Offered, offer, run
from headrace.simulation.offered.arrivals import stream_rng
from headrace.simulation.offered.processes import poisson_us
from headrace.simulation.offered.sizes import SizeMix, by_size, size_mixes

POLICY = "reservation"
SEED = 1

REQUESTS_PER_MODEL = 10_000
"""At the planned rate. One in a hundred may miss: so many make that a hundred."""
REQUESTS_MAX = 200_000
SLOS_AT_LEAST = 50
"""A session is at least so many times as long as the longest SLO: it begins with idle devices."""
LONG_SLOS = 5
"""Times REQUESTS_MAX, at most, however long the SLO is: it may be a day."""

FACTOR_MAX = 2.0
TOLERANCE = 0.005
"""Of a load, relative to the planned one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """One plan: with how much room, what it promises, and what it carries."""

    margin: float
    headroom: float = 0.0
    """Of the rates that were planned for, on top of those asked for."""
    plan: Plan
    planned_rps: float
    """Of all models, in the mix in which load is offered."""
    carried_rps: float
    """The highest load, in the same mix, at which every model keeps the attainment; nan: not looked
    for, since the plan is the least for stated rates."""
    attainment: float
    """At the planned rate, of the model that attains least."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """The trials in the order in which they were made, and the best of them."""

    trials: tuple[Trial, ...]
    best: Trial
    plan: Plan
    """The best one's, with the reason for its margin in its options."""


def chosen(plan: Plan, asked: PlanOptions, attainment: float, reason: str) -> Plan:
    """The plan, with why its margins were chosen, and for what.

    Args:
        asked: the options before anything was chosen.
    """
    margin_for = MarginFor(
        attainment=attainment,
        margin=asked.margin,
        model_margins=asked.model_margins,
        carried_parts=asked.carried_parts,
        link_parts=asked.link_parts,
    )
    options = replace(plan.options, margin_reason=reason, margin_for=margin_for)
    return replace(plan, options=options)


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """A plan and the load that it is measured with."""

    topology: Topology
    """Each size of a model that has several is a model of its own here."""
    rates_rps: Mapping[str, float]
    """Model -> planned rate, of all its sizes."""
    mixes: Mapping[str, SizeMix]
    """Of models of several sizes."""
    model_of: tuple[str, ...]
    """Per model of the topology: as `rates_rps` names it."""
    duration_s: float
    beside: Beside | None
    """What models on one device cost each other, where the plan counts with it."""

    @classmethod
    def of(cls, plan: Plan, profiles: Mapping[str, Profile]) -> "Workload":
        """Load in the mix that the plan's objective means, long enough to count misses."""
        rates, mixes = offered_mix(plan), size_mixes(plan, profiles)
        plan, profiles = by_bucket(plan, profiles)
        longest_slo_s = max(demand.slo_us for demand in plan.demands) / 1e6
        rarest_rps = min(rate for rate in by_size(rates, mixes).values() if rate > 0)
        enough_s = REQUESTS_PER_MODEL / rarest_rps
        most_s = REQUESTS_MAX / sum(rates.values())
        topology = Topology.from_plan(plan, profiles)
        return cls(
            topology=topology,
            rates_rps=rates,
            mixes=mixes,
            model_of=tuple(profiles[each.name].bucket_of or each.name for each in topology.models),
            duration_s=min(
                max(min(enough_s, most_s), SLOS_AT_LEAST * longest_slo_s), LONG_SLOS * most_s
            ),
            beside=beside_of(plan, profiles, plan.interference) if plan.interference else None,
        )

    def attainment(self, factor: float, seed: int) -> float:
        """At `factor` times the planned rates; of the model that attains least.

        The arrivals of one seed are the same pattern at every factor, so that loads compare.
        """
        factors = dict.fromkeys(self.rates_rps, factor)
        return min(self.attainments(factors, seed).values(), default=1.0)

    def attainments(
        self, factors: Mapping[str, float], seed: int, *, shorter: int = 1
    ) -> dict[str, float]:
        """Of every model at its factor times its rate; 1 of one that nobody asked. Of several sizes
        of one model, that of the size that attains least.

        Args:
            shorter: only the first of so many parts of the session.
        """
        rates = {name: rate * factors[name] for name, rate in self.rates_rps.items()}
        sent = by_size(rates, self.mixes)
        offered = _poisson(self.topology, sent, self.duration_s / shorter, seed)
        rng = np.random.default_rng(seed)
        ended_at_us = run(self.topology, POLICY, offered, rng=rng, beside=self.beside).ended_at_us
        in_time = (ended_at_us >= 0) & (ended_at_us <= offered.deadline_at_us)
        models = len(self.topology.models)
        arrived = np.bincount(offered.model, minlength=models)
        kept = np.bincount(offered.model[in_time], minlength=models)
        attained = np.where(arrived > 0, kept / np.maximum(arrived, 1), 1.0).tolist()
        found: dict[str, float] = {}
        for name, part in zip(self.model_of, attained, strict=True):
            found[name] = min(part, found.get(name, 1.0))
        return found

    def carried_rps(self, wanted: float, seed: int) -> dict[str, float]:
        """Model -> the highest rate at which it attains `wanted`, every other one at its own.

        By halving as in `largest_factor`, of all models at once: a session halves every interval.
        What a model carries hardly depends on the others, which have devices of their own.
        """
        names = list(self.rates_rps)
        low, high = np.zeros(len(names)), np.full(len(names), np.inf)
        tried = np.ones(len(names))
        while True:
            factors = dict(zip(names, tried.tolist(), strict=True))
            attained = self.attainments(factors, seed)
            enough = np.array([attained[name] for name in names]) >= wanted
            low, high = np.where(enough, tried, low), np.where(enough, high, tried)
            ends = (high - low <= TOLERANCE) | (low >= FACTOR_MAX)
            if ends.all():
                return {
                    name: float(factor) * self.rates_rps[name]
                    for name, factor in zip(names, low, strict=True)
                }
            grown = np.minimum(FACTOR_MAX, 1 + 2 * (low - 1) + 4 * TOLERANCE)
            halved = (low + np.where(np.isinf(high), low, high)) / 2
            tried = np.where(ends, low, np.where(np.isinf(high), grown, halved))

    def largest_factor(self, wanted: float, seed: int, at_1: float | None = None) -> float:
        """The largest multiple of the planned rates at which every model attains `wanted`.

        Found by halving to within `TOLERANCE`, as if attainment only fell with load; 0 where none
        that small does.

        Args:
            at_1: the attainment at the planned rates, where it is known.
        """
        if at_1 is None:
            at_1 = self.attainment(1.0, seed)
        low, high = (1.0, 1.0) if at_1 >= wanted else (0.0, 1.0)
        while low == high:
            # Plans rarely carry more than they promise, and never much more.
            high = min(FACTOR_MAX, 1 + 2 * (high - 1) + 4 * TOLERANCE)
            if self.attainment(high, seed) >= wanted:
                low = high
                if high == FACTOR_MAX:
                    return high
        while high - low > TOLERANCE:
            middle = (low + high) / 2
            if self.attainment(middle, seed) >= wanted:
                low = middle
            else:
                high = middle
        return low


def offered_mix(plan: Plan) -> dict[str, float]:
    """Model -> rate at "planned load": what the objective maximises, or is asked for.

    max-min: weight x objective. least-cost, least-devices: the wanted rates. throughput: what the
    plan gives each.
    """
    if plan.options.objective == "max-min":
        return {demand.model: demand.weight * plan.objective for demand in plan.demands}
    if plan.options.objective in MINIMISED:
        return {demand.model: demand.rate_rps or 0.0 for demand in plan.demands}
    return {deployment.model: deployment.throughput_rps for deployment in plan.deployments}


def _poisson(
    topology: Topology,
    rates_rps: Mapping[str, float],
    duration_s: float,
    seed: int,
) -> Offered:
    """Poisson streams of all models, in order of arrival; of one at rate 0 no requests."""
    streams: list[Ints] = [
        poisson_us(rate_rps, duration_s, stream_rng(seed, model.name))
        if (rate_rps := rates_rps[model.name]) > 0
        else np.zeros(0, dtype=np.int64)
        for model in topology.models
    ]
    at_us = np.concatenate(streams)
    models = np.repeat(np.arange(len(streams)), [len(stream) for stream in streams])
    order = np.argsort(at_us, kind="stable")
    return offer(topology, at_us[order], models[order])
