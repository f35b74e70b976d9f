"""Why apps and models cannot share the devices as asked, and what rates or SLO would do."""

from collections.abc import Callable, Sequence

import numpy as np

from headrace.domain.apart import apart, ms_apart, ms_enough
from headrace.domain.app import App
from headrace.domain.problem import Demand, Problem
from headrace.planning.apps.order import path_us
from headrace.planning.common.candidates import NEVER_US, budget_us
from headrace.planning.common.deadline import Deadline
from headrace.planning.common.rounded import part_of, rates_part
from headrace.planning.common.weights import Weights
from headrace.planning.pooled.refusal import nearest_slo_us
from headrace.planning.shares.devices import devices_of
from headrace.planning.shares.planner import pricing_of
from headrace.planning.shares.search import most
from headrace.planning.shares.workload import Workload
from headrace.planning.together.budgets import BudgetSearch
from headrace.planning.together.cuts import Way
from headrace.planning.together.least_cut import least_cut_us
from headrace.planning.together.steps import Costs, StepChain, model_chain

PRECISION = 1e-3

TRIES = 20
"""Multiples of the rates for which a plan is looked for."""
CLOSE = 0.01
"""Relative; between a multiple with a plan and one without."""


def refuse_steps(
    costs: Costs,
    problem: Problem,
    options: Sequence[Sequence[Way]],
    apps: Sequence[StepChain],
    deadline: Deadline,
) -> str | None:
    """Of models and apps that would be late, or fit no device, even with all devices to themselves
    and few requests.

    Args:
        options: per demand the ways to run it.

    Raises:
        OutOfTime: the deadline passed before it was known what the models need.
    """
    said = []
    for demand, ways in zip(problem.demands, options, strict=True):
        if not ways:
            said.append(_refuse_model(costs, problem, demand, deadline))
    for app, chain in zip(problem.apps, apps, strict=True):
        least = [costs.least_us(step) for step in chain.steps]
        needed_us = path_us(chain.before, least)
        if max(least) >= NEVER_US:
            step = chain.steps[least.index(max(least))]
            said.append(_refuse_memory(costs, f"app {app.name!r}: model", step.model, ""))
        elif needed_us > chain.budget_us:
            asked = app.slo_us, problem.options.margin_of(app.name)
            said.append(_refuse_slo(costs, f"app {app.name!r}", needed_us, chain, *asked))
    return "\n".join(text for text in said if text) or None


def _refuse_model(costs: Costs, problem: Problem, demand: Demand, deadline: Deadline) -> str | None:
    """Of a model that runs neither whole nor cut; None: with fewer requests it would."""
    chain, stages = model_chain(problem, demand), problem.options.max_stages
    [step] = chain.steps
    needed_us = costs.least_us(step)
    what = f"model {demand.model!r}"
    if stages > 1:
        cut_us = least_cut_us(costs, demand, deadline, max_stages=stages)
        needed_us = min(needed_us, cut_us)
    cut = f", nor cut into up to {stages} stages" if stages > 1 else ""
    if needed_us >= NEVER_US:
        return _refuse_memory(costs, "model", demand.model, cut)
    if needed_us <= chain.budget_us:
        return None
    asked = demand.slo_us, problem.options.margin_of(demand.model)
    return _refuse_slo(costs, what, needed_us, chain, *asked, cut)


def _refuse_memory(costs: Costs, what: str, model: str, cut: str) -> str:
    profile = costs.problem.profiles[model]
    weights = profile.weights_bytes(0, len(profile.blocks))
    kinds = [costs.problem.cluster.device_type(name) for name in costs.devices]
    memory = ", ".join(
        f"{kind.memory_bytes:,} bytes per {kind.name}"
        for kind in kinds
        if kind.memory_bytes is not None
    )
    return (
        f"{what} {model!r} cannot run on any part of a {_names(costs)}{cut}\n"
        f"  needs  a profile there, and {weights:,} bytes for its weights\n"
        f"  has    {memory or 'no profile there'}\n"
        "  try    `headrace profile` with the cluster's shares, or devices with more memory"
    )


def _refuse_slo(
    costs: Costs,
    what: str,
    needed_us: int,
    chain: StepChain,
    slo_us: int,
    margin: float,
    cut: str = "",
) -> str:
    besides_us = budget_us(slo_us, margin) - chain.budget_us
    whole_us = nearest_slo_us(needed_us + besides_us, margin)
    needs, allowed = ms_apart(needed_us, chain.budget_us)
    return (
        f"{what} cannot meet its SLO on any part of a {_names(costs)}{cut}\n"
        f"  needs  {needs}: a wait for each turn, then a batch of 1\n"
        f"  has    {allowed} of its SLO of {slo_us / 1000:.1f} ms\n"
        f"  try    an SLO of at least {ms_enough(whole_us)} ms, faster devices or a"
        " smaller margin"
    )


def _names(costs: Costs) -> str:
    return " or ".join(map(repr, costs.devices))


def gave_up(problem: Problem) -> str:
    """Of ways to cut models that were not all looked at."""
    return (
        f"no plan found within {problem.options.time_limit_s:g} s, and none is excluded: not all"
        " ways to cut models into stages were looked at\n"
        "  try    a longer --time-limit-s, a smaller max_stages, fewer shares or a smaller"
        " max_batch"
    )


def refuse_chains(
    costs: Costs, problem: Problem, part: str | None, looked_at: str | None, *, proven: bool
) -> str:
    """Of rates that all devices together cannot carry, or for which no plan was found.

    Args:
        part: of all rates with which a plan was found; None: none was.
        looked_at: the ways to run models that a proof is of; None: only whole is possible.
    """
    rates = [(f"model {each.model!r}", each.rate_rps or 0.0) for each in problem.demands]
    rates += [(f"app {app.name!r}", app.rate_rps) for app in problem.apps]
    asked = ", ".join(f"{apart(rate)[0]} rps of {name}" for name, rate in rates)
    has = ", ".join(f"{problem.cluster.count(name)} {name!r}" for name in costs.devices)
    limit = problem.options.max_tenants
    if limit:
        has += f", at most {limit} of them on a part (max_tenants)"
    said, longer = (
        (
            "the devices cannot carry the rates asked, however they and the budgets are shared"
            + (f", with {looked_at}" if looked_at else ""),
            "",
        )
        if proven
        else (
            "no plan was found that carries the rates asked, and none is excluded",
            ", or a longer --time-limit-s",
        )
    )
    if part is None:
        more = ", a larger max_tenants" if limit else ""
        return (
            f"{said}\n  needs  {asked}\n  has    {has}\n"
            f"  try    more devices, lower rates{more} or longer SLOs{longer}"
        )
    together = ", ".join(f"{part_of(rate, part)} rps of {name}" for name, rate in rates)
    even, less = (
        (", calls at equal gaps", ", or less, as calls of one request come at once")
        if any(map(_makes_several_calls, problem.apps))
        else ("", "")
    )
    return (
        f"{said}\n"
        f"  needs  {asked}\n"
        f"  has    {together} at once, {part} times as much, with {has}{even}\n"
        f"  try    rates of {part} times these{less}, or more devices{longer}"
    )


def _makes_several_calls(app: App) -> bool:
    """Whether some request may call a module more than once."""
    fan_outs = [module.fan_out for module in app.modules]
    return any(each.mean > 1 or each.distribution != "fixed" for each in fan_outs)


def carried_part(
    carries: Callable[[float], bool], at_least: float, at_most: float, first: float, time: Deadline
) -> str | None:
    """The largest part of the rates, of those tried, with which there is a plan.

    Args: as of `largest_carried`.

    Returns:
        As text, which is what was tried; None: nothing that was tried has a plan.

    >>> carried_part(lambda part: part <= 0.3, 0.0, 1.0, 0.2, Deadline(60.0))
    '0.3'
    """

    def tried(part: float) -> bool:
        return carries(float(rates_part(part)))

    largest = largest_carried(tried, at_least, at_most, first, time)
    return rates_part(largest) if largest > at_least else None


def largest_carried(
    carries: Callable[[float], bool], low: float, high: float, first: float, deadline: Deadline
) -> float:
    """The largest multiple, of those tried, that is carried; `low`: none was.

    Args:
        carries: whether a plan is found with this multiple.
        low: is carried, or 0.
        high: no more is carried.
        first: tried first, between them.
    """
    wanted = first
    for _ in range(TRIES):
        if wanted <= 0 or deadline.passed:
            break
        if carries(wanted):
            low = wanted
        else:
            high = wanted
        if high - low <= CLOSE * high:
            break
        wanted = (low + high) / 2
    return low


def multiples_of_rates(
    costs: Costs, chains: Sequence[StepChain], advice: Deadline
) -> tuple[float, float]:
    """The multiple of all rates that fits with every step at its widest budget, and its bound."""
    search = BudgetSearch(costs, chains, advice)
    widest = search.widest
    if widest is None:
        return 0.0, 0.0
    times = costs.times(search.steps, widest.tolist())
    load = Workload(
        target_rps=np.array([step.rate_rps for step in search.steps]),
        floor=np.zeros(len(search.steps)),
        have=np.zeros(len(search.steps)),
        budget_us=widest,
        weights=Weights.of([tenant.blocks for tenant in times[0].models]),
    )
    devices = devices_of(search.problem, times, [1.0 for _ in times])
    found = most(pricing_of(load, devices, advice), precision=PRECISION)
    bound = 1.0 if found.bound is None else found.bound
    return found.value or bound, bound
