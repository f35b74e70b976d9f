"""Why devices cannot be shared as asked, and the nearest rates or SLO that would do."""

from collections.abc import Sequence
from fractions import Fraction
from math import floor

import numpy as np

from headrace.domain.apart import apart, ms_apart, ms_enough
from headrace.domain.cluster import Cluster
from headrace.domain.problem import Demand, Problem
from headrace.planning.common.deadline import Deadline
from headrace.planning.common.rounded import part_of, rates_part
from headrace.planning.common.shared_times import SharedTimes
from headrace.planning.common.weights import Blocks, Weights, devices_to_hold, may_hold
from headrace.planning.pooled.refusal import nearest_slo_us
from headrace.planning.shares.devices import devices_of
from headrace.planning.shares.pricing import Pricing
from headrace.planning.shares.search import most
from headrace.planning.shares.workload import Workload

PRECISION = 1e-3


def refuse_models(problem: Problem, times: Sequence[SharedTimes]) -> str | None:
    """Of models that no part can run in time, even alone and one request at a time."""
    said = [_refuse_model(problem, times, m) for m in range(len(problem.demands))]
    return "\n".join(text for text in said if text) or None


def _refuse_model(problem: Problem, times: Sequence[SharedTimes], m: int) -> str | None:
    demand = problem.demands[m]
    shortest = min(
        (
            (latency[0] + each.least_cycle_us(each.models[m].busy_us(latency[0], 1)), share, each)
            for each in times
            for share, latency in each.models[m].latency_us.items()
        ),
        key=lambda found: found[0],
        default=None,
    )
    names = " or ".join(repr(each.device.name) for each in times)
    tenant = times[0].models[m]
    if shortest is None:
        memory = ", ".join(
            f"{each.device.memory_bytes:,} bytes per {each.device.name}"
            for each in times
            if each.device.memory_bytes is not None
        )
        return (
            f"model {demand.model!r} cannot run on any part of a {names}\n"
            f"  needs  a profile there, and {tenant.weights_bytes:,} bytes for its weights\n"
            f"  has    {memory or 'no profile there'}\n"
            "  try    `headrace profile` with the cluster's shares, or devices with more memory"
        )
    least_us, share, where = shortest
    if least_us <= tenant.budget_us:
        return None
    gateway_us = _gateway_us(problem, tenant.budget_us, demand)
    margin = problem.options.margin_of(demand.model)
    slo_us = nearest_slo_us(least_us + gateway_us, margin)
    needs, has, slo = ms_apart(least_us, tenant.budget_us, demand.slo_us)
    return (
        f"model {demand.model!r} cannot meet its SLO on any part of a {names}\n"
        f"  needs  {needs}: a wait for its turn, then a batch of 1, on {share} of"
        f" a {where.device.name!r}\n"
        f"  has    {has} of its SLO of {slo}\n"
        f"  try    an SLO of at least {ms_enough(slo_us)} ms, faster devices or a smaller margin"
    )


def _gateway_us(problem: Problem, budget_us: int, demand: Demand) -> int:
    margin = Fraction(str(problem.options.margin_of(demand.model)))
    return floor(demand.slo_us * (1 - margin)) - budget_us


def refuse_weights(cluster: Cluster, needed: Sequence[Blocks]) -> str | None:
    """Of weights that the devices cannot hold together, whatever the rates; None: they may.

    Args:
        needed: of what runs whole, all blocks; of a model that may be cut, each by itself.
    """
    kinds = [kind for kind in cluster.device_types if cluster.count(kind.name)]
    weights = Weights.of(needed)
    apart = weights.apart(range(len(needed)))
    memories = list[int]()
    for kind in kinds:
        if kind.memory_bytes is None:
            return None
        memories += [kind.memory_bytes] * min(cluster.count(kind.name), len(apart))
    if may_hold(memories, apart):
        return None
    of_model: dict[str, list[int]] = {}
    for tenant, blocks in enumerate(needed):
        of_model.setdefault(blocks.model, []).append(tenant)
    each = ", ".join(f"{weights.together(own):,} of {m!r}" for m, own in of_model.items())
    has = ", ".join(
        f"{cluster.count(k.name)} {k.name!r} of {k.memory_bytes:,} bytes" for k in kinds
    )
    least = devices_to_hold(apart, max(memories))
    return (
        "the devices have too little memory for the weights of what is asked, at any rates\n"
        f"  needs  {weights.everything():,} bytes, on {least} devices at least: {each}\n"
        f"  has    {has}\n"
        "  try    more devices, devices with more memory, or fewer models"
    )


def refuse_rates(
    problem: Problem,
    load: Workload,
    times: list[SharedTimes],
    deadline: Deadline,
    *,
    proven: bool,
) -> str:
    """Of rates that all devices together cannot carry, or for which no plan was found."""
    rates = np.array([demand.rate_rps or 0.0 for demand in problem.demands])
    asked = [(d.model, d.rate_rps) for d in problem.demands if d.rate_rps]
    target = np.where(rates > 0, rates, 1e-3)
    plain = Workload(
        target_rps=target,
        floor=np.zeros(len(rates)),
        have=np.zeros(len(rates)),
        budget_us=load.budget_us,
        weights=load.weights,
        tenants_max=load.tenants_max,
    )
    devices = devices_of(problem, times, [1.0 for _ in times], divided=load.tenants_max)
    pricing = Pricing(
        plain, devices.offers, devices.candidates, devices.layouts, devices.levels, deadline
    )
    found = most(pricing, precision=PRECISION)
    has = ", ".join(f"{offer.count} {offer.name!r}" for offer in devices.offers)
    needs = ", ".join(f"{apart(rate)[0]} rps of {name!r}" for name, rate in asked)
    if limit := problem.options.max_tenants:
        has += f", at most {limit} models on a part (max_tenants)"
    most_tenants = min(limit or load.models, load.models)
    more = ""
    if load.tenants_max < most_tenants and not proven:
        has += f", up to {load.tenants_max} models on a part"
        more = f", or --max-tenants {load.tenants_max + 1}, which takes longer"
    if found.value is None or not found.value:
        said = (
            "the devices are too few to serve every model"
            if proven
            else "no plan was found that serves every model, and none is excluded"
        )
        return (
            f"{said}\n"
            f"  needs  {needs or f'parts for {len(rates)} models'}\n"
            f"  has    {has}\n"
            "  try    more devices, fewer models"
            f"{', a larger max_tenants' if limit else ''} or longer SLOs{more}"
        )
    part = rates_part(found.value)
    together = ", ".join(f"{part_of(rate, part)} rps of {name!r}" for name, rate in asked)
    said = (
        "the devices cannot carry the rates asked, however they are shared"
        if proven
        else "no plan was found that carries the rates asked, and none is excluded"
    )
    return (
        f"{said}\n"
        f"  needs  {needs}\n"
        f"  has    {together} at once, {part} times as much, with {has}\n"
        f"  try    rates of {part} times these, or more devices{more}"
    )
