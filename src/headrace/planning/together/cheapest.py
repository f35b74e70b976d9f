"""The least price of given rates: apps, models and stages of models on shared devices.

Models are cut where they must be.

What is proven is the least price among plans in which every app's module and every model that
runs whole is a step of its own, and a model that no part runs whole is cut one way. The bound is
the least of what is not settled: boxes of budgets, and combinations of cuts that were not looked
at, of which each costs at least what its steps take of fractions of devices.
"""

import heapq
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from math import inf, prod

import numpy as np
from msgspec.structs import replace

from headrace.domain.base import LEAST_RATE_RPS
from headrace.domain.errors import DocumentError
from headrace.domain.plan import PlanResult
from headrace.domain.problem import MINIMISED, Demand, Problem
from headrace.planning.common.assembly import Claim
from headrace.planning.common.candidates import NEVER_US
from headrace.planning.common.deadline import Deadline, OutOfTime
from headrace.planning.common.weights import Blocks, Weights, devices_to_hold
from headrace.planning.pooled.planner import check_options
from headrace.planning.shares.refusal import refuse_weights
from headrace.planning.together.assembly import assembled
from headrace.planning.together.budgets import NOTHING, SAME, BudgetSearch, BudgetsFound
from headrace.planning.together.cuts import PIPELINES_MAX, Way, cheapest_first, ways_to_cut
from headrace.planning.together.refusal import (
    carried_part,
    gave_up,
    multiples_of_rates,
    refuse_chains,
    refuse_steps,
)
from headrace.planning.together.steps import Costs, StepChain, app_chain, model_chain

LEAST_S = 0.05
"""Of a search; one that is given less ends before it has begun."""

ADVICE_S, ADVICE_PART = 1.0, 0.25
"""For the rates that a refusal names: a part of the time left, and so many seconds at least."""

QUESTION_S = 1.0
"""For each of the rates that are tried for it: what is close to the largest may take minutes."""

CHOICES_MAX = 200_000
"""Numbers of devices of each type that are looked at for what whole devices cost."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Best:
    """The cheapest so far, and a bound on all."""

    found: BudgetsFound
    ways: tuple[Way, ...]
    bound: float


NOT_LOOKED_AT = Best(found=NOTHING, ways=(), bound=0.0)
"""There was no time to list the ways to cut models: nothing is proven."""


class Cheapest:
    """Of one problem, in which every model and app has a rate."""

    def __init__(self, problem: Problem, deadline: Deadline) -> None:
        _check(problem)
        self._problem = problem
        self._deadline = deadline
        self._costs = Costs(problem)
        self._apps = [app_chain(problem, app) for app in problem.apps]

    def plan(self) -> PlanResult:
        best = self.carried()
        return best if isinstance(best, PlanResult) else self._planned(best)

    def carried(self, *, first: bool = False) -> "Best | PlanResult":
        """The cheapest devices, or a refusal.

        Args:
            first: any that carry the rates will do, whatever they cost.
        """
        try:
            options = self._options()
            refusal = refuse_steps(
                self._costs, self._problem, options, self._apps, self.after_planning()
            )
        except OutOfTime:
            return self._refused(gave_up(self._problem), proven=False)
        refusal = refusal or refuse_weights(self._problem.cluster, self._needed())
        if refusal is not None:
            return self._refused(refusal, proven=True)
        best = self._best(options, first=first)
        if best.found.devices is None:
            proven = best.bound == inf
            part = self._carried_part(options)
            refusal = refuse_chains(
                self._costs, self._problem, part, self.looked_at(), proven=proven
            )
            return self._refused(refusal, proven=proven)
        return best

    def any(self) -> "Best":
        """Devices that carry the rates, whatever they cost."""
        try:
            options = self._options()
        except OutOfTime:
            return NOT_LOOKED_AT
        return self._best(options, first=True)

    def after_planning(self) -> Deadline:
        """For what refusals and bounds say: the time left, ADVICE_S at least."""
        return Deadline(max(ADVICE_S, self._deadline.left_s))

    def priced_out(self, deadline: Deadline) -> float:
        """No larger multiple of all rates is carried: whole or in stages, models would take more
        of devices than there are, if these could be had in fractions. Infinite: not all ways to
        cut them were looked at before the deadline."""
        cluster = self._problem.cluster
        there = sum(
            cluster.count(name) * price
            for name, price in zip(self._costs.devices, self._costs.prices, strict=True)
        )
        needed = self._least_of_apps()
        for demand in self._problem.demands:
            # The fewer requests, the longer a stage's turns may be apart, so that more ways do.
            try:
                ways = self._ways(replace(demand, rate_rps=LEAST_RATE_RPS), deadline)
            except OutOfTime:
                return inf
            least = ways[0].least_price if ways else inf
            needed += least / LEAST_RATE_RPS * (demand.rate_rps or 0.0)
        return there / needed if needed else inf

    def _best(self, options: Sequence[Sequence[Way]], *, first: bool = False) -> "Best":
        if not all(options):
            return Best(found=NOTHING, ways=(), bound=inf)
        best = self._search(options, first=first)
        if best.found.devices is None and best.bound == inf:
            try:
                cut = self._with_cuts(options, self._deadline)
            except OutOfTime:
                return NOT_LOOKED_AT
            if cut is not None:
                return self._search(cut, first=first)
        return best

    def _carried_part(self, options: Sequence[Sequence[Way]]) -> str | None:
        """Of all rates, with a plan that was found; None: none was."""
        advice = Deadline(max(ADVICE_S, ADVICE_PART * self._deadline.left_s))
        first = at_most = 1.0
        if all(options):
            chains = [*(chain for own in options for chain in own[0].chains), *self._apps]
            bounds = multiples_of_rates(self._costs, chains, advice.part(1 / 4))
            first, at_most = (min(1.0, each) for each in bounds)
        found = carried_part(partial(self._carries, advice), 0.0, at_most, first, advice)
        listing = self.after_planning()
        try:
            if self._with_cuts(options, listing) is None:
                return found
        except OutOfTime:
            return found
        # Cut, models may carry more; what that takes to find out is not known beforehand.
        low, high = float(found or 0.0), min(1.0, self.priced_out(listing))
        advice = Deadline(ADVICE_S)
        tries = partial(self._carries, advice)
        return carried_part(tries, low, high, (low + high) / 2, advice) or found

    def _carries(self, advice: Deadline, part: float) -> bool:
        """Whether devices are found that carry this part of all rates."""
        less = times_as_much(self._problem, part)
        limit = Deadline(min(QUESTION_S, max(LEAST_S, advice.left_s / 4)))
        return less is not None and Cheapest(less, limit).any().found.devices is not None

    # -- which models are cut ---------------------------------------------------------------------

    def _options(self) -> list[list[Way]]:
        """Per demand the ways to run it: whole, or cut where no part runs it whole."""
        found = []
        for demand in self._problem.demands:
            whole = self._whole(demand)
            found.append([whole] if whole is not None else self._cuts(demand, self._deadline))
        return found

    def _whole(self, demand: Demand) -> Way | None:
        chain = model_chain(self._problem, demand)
        [step] = chain.steps
        if self._costs.least_us(step) > min(chain.budget_us, NEVER_US - 1):
            return None
        price = self._costs.least_price(step, chain.budget_us)
        return Way(chains=(chain,), least_price=price)

    def _cuts(self, demand: Demand, deadline: Deadline) -> list[Way]:
        stages = self._problem.options.max_stages
        if stages == 1:
            return []
        return ways_to_cut(self._costs, demand, deadline, max_stages=stages)

    def _needed(self) -> list[Blocks]:
        """Blocks that some slot holds together: all of a module's model, each of one that may be
        cut."""
        needed = [self._costs.blocks(step) for chain in self._apps for step in chain.steps]
        for demand in self._problem.demands:
            profile = self._problem.profiles[demand.model]
            ends = range(len(profile.blocks) + 1)
            spans = list(pairwise(ends)) if self._problem.options.max_stages > 1 else [None]
            needed += [Blocks.of(demand.model, profile, span) for span in spans]
        return needed

    def _ways(self, demand: Demand, deadline: Deadline) -> list[Way]:
        """Whole, where a part runs it so, and cut; cheapest first."""
        whole = self._whole(demand)
        return cheapest_first([*([] if whole is None else [whole]), *self._cuts(demand, deadline)])

    def _with_cuts(
        self, options: Sequence[Sequence[Way]], deadline: Deadline
    ) -> list[list[Way]] | None:
        """Where all run whole and that is not enough: cut or whole, every model; None: nothing
        else is tried."""
        if any(way.transfers_us for own in options for way in own):
            return None
        more = [self._ways(demand, deadline) for demand in self._problem.demands]
        return more if any(len(own) > 1 for own in more) else None

    def looked_at(self) -> str | None:
        """The ways to run models that what is proven is of; None: only whole is possible."""
        stages = self._problem.options.max_stages
        models = [demand.model for demand in self._problem.demands]
        if stages == 1 or all(self._costs.tables(model).block_count == 1 for model in models):
            return None
        whole = all(self._whole(demand) is not None for demand in self._problem.demands)
        where = "models whole or" if whole else "models whole where a part runs them, else"
        return f"{where} in up to {stages} stages, as {PIPELINES_MAX} equal pipelines at most"

    # -- the search over them ---------------------------------------------------------------------

    def _search(self, options: Sequence[Sequence[Way]], *, first: bool = False) -> Best:
        """`first`: any plan will do."""
        best = Best(
            found=NOTHING,
            ways=tuple(own[0] for own in options),
            bound=inf,
        )
        unsettled = inf
        for least, ways in combinations(options, self._least_of_apps()):
            chains = [*(chain for way in ways for chain in way.chains), *self._apps]
            bound = self._level(least, chains)
            if self._level(least) >= best.found.price * (1 - SAME):
                break
            if self._deadline.passed:
                unsettled = min(unsettled, self._level(least))
                break
            if bound >= best.found.price * (1 - SAME):
                continue
            search = BudgetSearch(self._costs, chains, self._deadline)
            found = search.run(best.found.price, first=first)
            if found.devices is not None:
                best = Best(found=found, ways=ways, bound=found.price)
                if first:
                    break
            unsettled = min(unsettled, max(bound, found.bound))
        return Best(found=best.found, ways=best.ways, bound=min(unsettled, best.found.price))

    def _least_of_apps(self) -> float:
        return sum(
            self._costs.least_price(step, chain.budget_us)
            for chain in self._apps
            for step in chain.steps
        )

    def _level(self, least: float, chains: Sequence[StepChain] = ()) -> float:
        """The least that whole devices can cost which is no less, of those that can hold what
        these chains weigh; infinite: there are too few."""
        cluster = self._problem.cluster
        names = self._costs.devices
        counts = [cluster.count(name) for name in names]
        if prod(count + 1 for count in counts) > CHOICES_MAX:
            return least
        chosen = np.stack(
            np.meshgrid(*(np.arange(count + 1) for count in counts), indexing="ij"), axis=-1
        ).reshape(-1, len(names))
        price = chosen @ np.array(self._costs.prices)
        enough = price >= least * (1 - SAME)
        steps = [step for chain in chains for step in chain.steps]
        weights = Weights.of([self._costs.blocks(step) for step in steps])
        total = weights.everything()
        memory = [cluster.device_type(name).memory_bytes or max(1, total) for name in names]
        for k, name in enumerate(names):
            own = [tenant for tenant, step in enumerate(steps) if step.device == name]
            enough &= chosen[:, k] >= devices_to_hold(weights.apart(own), memory[k])
        enough &= chosen @ np.array(memory, float) >= total
        enough &= chosen.sum(axis=1) >= devices_to_hold(
            weights.apart(range(len(steps))), max(memory)
        )
        return float(price[enough].min(initial=inf))

    # -- what comes out ---------------------------------------------------------------------------

    def _planned(self, best: Best) -> PlanResult:
        assert best.found.devices is not None
        proven = best.bound >= best.found.price * (1 - SAME)
        claim = Claim(
            bound=best.found.price if proven else best.bound,
            stopped="optimal" if proven else "time-limit",
            binding=self._binding(best, proven),
            runtime_s=self._deadline.spent_s,
        )
        plan = assembled(self._costs, best.ways, self._apps, best.found.devices, claim)
        return PlanResult(
            plan=plan, stopped=plan.stopped, bound=plan.bound, runtime_s=plan.runtime_s
        )

    def _binding(self, best: Best, proven: bool) -> str:
        parts = [] if proven else ["the search ended early; a better plan may exist"]
        problem = self._problem
        rates = [f"{d.rate_rps:g} rps of model {d.model!r}" for d in problem.demands]
        rates += [f"{app.rate_rps:g} rps of app {app.name!r}" for app in problem.apps]
        parts.append(f"rates: {', '.join(rates)} must be carried")
        return "; ".join([*parts, *used_text(problem, best)])

    def _refused(self, refusal: str, *, proven: bool) -> PlanResult:
        return PlanResult(
            plan=None,
            stopped="infeasible" if proven else "time-limit",
            bound=None,
            runtime_s=self._deadline.spent_s,
            refusal=refusal,
        )


def used_text(problem: Problem, best: Best) -> list[str]:
    """Which models are cut, and how many may take turns."""
    parts = [
        f"{demand.model!r} runs in {len(way.transfers_us) + 1} stages,"
        f" {len(way.chains)} times, since whole it does not fit"
        for demand, way in zip(problem.demands, best.ways, strict=True)
        if way.transfers_us
    ]
    if limit := problem.options.max_tenants:
        parts.append(f"at most {limit} models take turns on a part (max_tenants)")
    return parts


def times_as_much(problem: Problem, part: float) -> Problem | None:
    """The same with this part of all rates; None: one would be less than a rate may be."""
    rates = [demand.rate_rps or 0.0 for demand in problem.demands]
    for app in problem.apps:
        rates += [app.rate_rps, *(app.rate_rps * each.fan_out.mean for each in app.modules)]
    if part * min(rates) < LEAST_RATE_RPS:
        return None
    demands = (replace(each, rate_rps=part * (each.rate_rps or 0.0)) for each in problem.demands)
    apps = (replace(app, rate_rps=part * app.rate_rps) for app in problem.apps)
    return replace(problem, demands=tuple(demands), apps=tuple(apps))


def combinations(
    options: Sequence[Sequence[Way]], besides: float
) -> Iterator[tuple[float, tuple[Way, ...]]]:
    """One way of each, cheapest sum first.

    Args:
        options: each sorted by `least_price`.
        besides: what everything else takes at least.

    >>> cheap, dear = (Way(chains=(), least_price=price) for price in (1.0, 2.0))
    >>> [price for price, _ in combinations([[cheap, dear], [cheap, dear]], 0.5)]
    [2.5, 3.5, 3.5, 4.5]
    """
    if not all(options):
        return

    def price(at: tuple[int, ...]) -> float:
        return besides + float(
            np.sum([own[i].least_price for own, i in zip(options, at, strict=True)])
        )

    first = (0,) * len(options)
    queue, seen = [(price(first), first)], {first}
    while queue:
        least, at = heapq.heappop(queue)
        yield least, tuple(own[i] for own, i in zip(options, at, strict=True))
        for m, i in enumerate(at):
            after = (*at[:m], i + 1, *at[m + 1 :])
            if i + 1 < len(options[m]) and after not in seen:
                seen.add(after)
                heapq.heappush(queue, (price(after), after))


def _check(problem: Problem) -> None:
    check_options(problem)
    options = problem.options
    if options.objective not in MINIMISED:
        raise DocumentError(
            f"planner shares: apps are planned for least-cost or least-devices, not for"
            f" {options.objective}\n  try       --objective least-devices"
        )
    rateless = [demand.model for demand in problem.demands if demand.rate_rps is None]
    if rateless:
        raise DocumentError(
            f"objective {options.objective}: every demand needs a rate_rps; missing for"
            f" {', '.join(rateless)}"
        )
