"""A problem's apps as the searches of whole devices read them."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import count
from math import ceil

from headrace.cost import cost_model, shares_gateway_cores
from headrace.domain.problem import Problem
from headrace.planning.apps.bill.case import BillCase
from headrace.planning.apps.candidates import AppCase, Candidate, ModuleCase

Charges = Mapping[str, float]
"""Device type -> what is added to its price per hour."""

Barred = frozenset[tuple[int, str]]
"""Modules, counted over all apps, each with a device type of which it may have none."""


def bill_case(
    problem: Problem,
    cases: Sequence[AppCase],
    charges: Charges | None = None,
    barred: Barred = frozenset(),
) -> BillCase:
    """A problem's apps as the search reads them.

    Args:
        charges: device type -> what is added to its price per hour.
        barred: what modules may not have.
    """
    modules = [
        (app.module(module.name), app)
        for app, case in zip(problem.apps, cases, strict=True)
        for module in case.modules
    ]
    profiles = [problem.profiles[module.model] for module, _ in modules]
    costs = cost_model(problem.profiles)
    utilisation = {k.name: k.max_utilisation for k in problem.cluster.device_types}

    def turn_us(module: int, candidate: Candidate) -> int:
        shares = shares_gateway_cores(problem.cluster, candidate.device)
        each_us = costs.gateway_on_slot_us(modules[module][0].model) if shares else 0
        busy_us = candidate.duration_us + each_us * candidate.batch
        return ceil(busy_us / utilisation[candidate.device] - 1e-9)

    return BillCase.of(
        _charged(cases, charges or {}, barred),
        weights_bytes=[profile.weights_bytes(0, len(profile.blocks)) for profile in profiles],
        models=[module.model for module, _ in modules],
        memory_bytes={
            kind.name: kind.memory_bytes
            for kind in problem.cluster.device_types
            if kind.memory_bytes is not None
        },
        turn_us=turn_us,
        gap_us=[
            module.code_us + ceil(module.fan_out.mean * costs.gateway_us(module.model))
            if any(after == module.name for _, after in app.edges)
            else 0
            for module, app in modules
        ],
        tenants_max=problem.options.max_tenants,
    )


def _charged(cases: Sequence[AppCase], charges: Charges, barred: Barred) -> list[AppCase]:
    numbers = count()

    def charged(module: ModuleCase) -> ModuleCase:
        number = next(numbers)
        allowed = [c for c in module.candidates if (number, c.device) not in barred]
        return ModuleCase.of(
            module.name,
            module.rate_rps,
            [replace(c, price=c.price + charges.get(c.device, 0.0)) for c in allowed],
        )

    return [replace(case, modules=tuple(map(charged, case.modules))) for case in cases]
