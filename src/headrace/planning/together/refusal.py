"""Why apps and models cannot share the devices as asked, and what rates or SLO would do."""

from collections.abc import Sequence
from math import floor

import numpy as np

from headrace.domain.apart import ms_apart, ms_enough
from headrace.domain.problem import Problem
from headrace.planning.apps.order import path_us
from headrace.planning.common.candidates import NEVER_US
from headrace.planning.common.deadline import Deadline
from headrace.planning.pooled.refusal import nearest_slo_us
from headrace.planning.shares.devices import devices_of
from headrace.planning.shares.planner import pricing_of
from headrace.planning.shares.search import most
from headrace.planning.shares.workload import Workload
from headrace.planning.together.budgets import BudgetSearch
from headrace.planning.together.cuts import Way
from headrace.planning.together.steps import Chain, Costs, model_chain

PRECISION = 1e-3


def refuse_steps(
    costs: Costs, problem: Problem, options: Sequence[Sequence[Way]], apps: Sequence[Chain]
) -> str | None:
    """Of models and apps that would be late, or fit no device, even with all devices to themselves.

    Args:
        options: per demand the ways to run it.
    """
    said = []
    for demand, ways in zip(problem.demands, options, strict=True):
        if not ways:
            stages = problem.options.max_stages
            cut = f", nor cut into up to {stages} stages" if stages > 1 else ""
            chain = model_chain(problem, demand)
            said.append(
                _refuse(costs, problem, chain, f"model {demand.model!r}", cut, demand.slo_us)
            )
    for app, chain in zip(problem.apps, apps, strict=True):
        least = [costs.least_us(step) for step in chain.steps]
        if path_us(chain.before, least) > chain.budget_us:
            said.append(_refuse(costs, problem, chain, f"app {app.name!r}", "", app.slo_us))
    return "\n".join(said) or None


def _refuse(costs: Costs, problem: Problem, chain: Chain, what: str, cut: str, slo_us: int) -> str:
    least = [costs.least_us(step) for step in chain.steps]
    names = " or ".join(map(repr, costs.devices))
    for step, us in zip(chain.steps, least, strict=True):
        if us >= NEVER_US:
            blocks = len(problem.profiles[step.model].blocks)
            weights = problem.profiles[step.model].weights_bytes(0, blocks)
            return (
                f"{what}: {step.model!r} cannot run on any part of a {names}{cut}\n"
                f"  needs  a profile there, and {weights:,} bytes for its weights\n"
                "  has    no such part, or too little memory\n"
                "  try    `headrace profile` with the cluster's shares, or devices with more memory"
            )
    needed_us = path_us(chain.before, least)
    whole_us = nearest_slo_us(
        needed_us + floor(slo_us * (1 - problem.options.margin)) - chain.budget_us,
        problem.options.margin,
    )
    needs, allowed = ms_apart(needed_us, chain.budget_us)
    return (
        f"{what} cannot meet its SLO on any part of a {names}{cut}\n"
        f"  needs  {needs}: a wait for each turn, then a batch of 1\n"
        f"  has    {allowed} of its SLO of {slo_us / 1000:.1f} ms\n"
        f"  try    an SLO of at least {ms_enough(whole_us)} ms, faster devices or a"
        " smaller margin"
    )


def refuse_chains(costs: Costs, chains: Sequence[Chain], advice: Deadline, *, proven: bool) -> str:
    """Of rates that all devices together cannot carry, or for which no plan was found.

    Args:
        advice: for the rates that are named.
    """
    asked = ", ".join(f"{chain.steps[0].rate_rps:g} rps of {chain.name!r}" for chain in chains)
    has = ", ".join(f"{costs.problem.cluster.count(name)} {name!r}" for name in costs.devices)
    at_most = _most(costs, chains, advice)
    if not proven:
        said = "no plan was found that carries the rates asked, and none is excluded"
    else:
        said = "the devices cannot carry the rates asked, however they and the budgets are shared"
    if not at_most:
        return (
            f"{said}\n  needs  {asked}\n  has    {has}, too few to serve everything\n"
            "  try    more devices, longer SLOs or a larger max_tenants"
        )
    part = floor(min(at_most, 1 - PRECISION) * 1000) / 1000
    return (
        f"{said}\n"
        f"  needs  {asked}\n"
        f"  has    {has}, which carry at most {part:g} times as much at once\n"
        f"  try    rates of {part:g} times these or below, or more devices"
    )


def _most(costs: Costs, chains: Sequence[Chain], advice: Deadline) -> float:
    """The multiple of all rates that fits with every step at its widest budget: a bound."""
    search = BudgetSearch(costs, chains, advice)
    widest = search.widest
    if widest is None:
        return 0.0
    times = costs.times(search.steps, widest.tolist())
    load = Workload(
        target_rps=np.array([step.rate_rps for step in search.steps]),
        floor=np.zeros(len(search.steps)),
        have=np.zeros(len(search.steps)),
        budget_us=widest,
        weights_bytes=np.array([t.weights_bytes for t in times[0].models], np.int64),
    )
    devices = devices_of(search.problem, times, [1.0 for _ in times])
    found = most(pricing_of(load, devices, advice), precision=PRECISION)
    return found.bound or 0.0
