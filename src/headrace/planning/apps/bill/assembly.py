"""The plan document of whole devices: a pipeline per kind of machine, and per shared batch."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from math import floor

from msgspec.structs import replace

from headrace.domain.app import App
from headrace.domain.cluster import WHOLE
from headrace.domain.plan import (
    Deployment,
    MachineLoad,
    Pipeline,
    Plan,
    Slot,
    Stopped,
    Tenant,
)
from headrace.domain.problem import Problem
from headrace.planning.apps.assembly import (
    claim_of,
    entry_pipeline,
    module_deployment,
    module_tenant,
    pipeline_name,
    pool_of,
    weights_bytes,
    whole_model,
    written_apps,
)
from headrace.planning.apps.bill.case import ModuleBill, Turn
from headrace.planning.apps.candidates import AppCase, collect_us
from headrace.planning.apps.order import path_us
from headrace.planning.common.assembly import cost_per_hour
from headrace.planning.common.placement import Pool, place


@dataclass(frozen=True, slots=True, kw_only=True)
class Billed:
    """One app with its devices."""

    app: App
    case: AppCase
    modules: tuple[ModuleBill, ...]


@dataclass(slots=True, kw_only=True)
class _Shared:
    """One shared slot while the plan is written."""

    device: str
    cycle_us: int
    weights_bytes: dict[str, int] = field(default_factory=dict)
    """By model: it holds them once, whatever modules are of it."""
    tenants: list[Tenant] = field(default_factory=list)


def assemble_bill(
    problem: Problem,
    billed: Sequence[Billed],
    *,
    bound: float,
    stopped: Stopped,
    binding: str,
    runtime_s: float,
) -> Plan:
    """Place every machine and every shared slot, and write everything down."""
    pools, shared = _pools(problem, billed)
    slots, names = place(problem.cluster, pools)
    slots = _with_tenants(slots, names[len(names) - len(shared) :], list(shared.values()))
    machines = iter(names)
    turns = dict(zip(shared, names[len(names) - len(shared) :], strict=True))
    deployments: list[Deployment] = []
    claims = []
    for one in billed:
        modules = [
            _deployment(problem, one, index, [next(machines) for _ in bill.entries], turns)
            for index, bill in enumerate(one.modules)
        ]
        deployments += modules
        claims.append(claim_of(one.app, one.case, "remaining", _path_us(one), modules))
    bill = cost_per_hour(problem, slots)
    assert bill is not None, "every device has a price"
    return written_apps(
        problem,
        slots,
        deployments,
        claims,
        objective=bill,
        bound=bound,
        stopped=stopped,
        binding=binding,
        runtime_s=runtime_s,
    )


def _path_us(one: Billed) -> int:
    return path_us(one.case.before, [module.worst_case_us for module in one.modules])


def _pools(problem: Problem, billed: Sequence[Billed]) -> tuple[list[Pool], dict[int, _Shared]]:
    """One pool per entry, then one per shared slot."""
    pools: list[Pool] = []
    shared: dict[int, _Shared] = {}
    for one, index, bill in _modules(billed):
        name = one.case.modules[index].name
        model = one.app.module(name).model
        weights = weights_bytes(problem, model)
        for i, entry in enumerate(bill.entries):
            tenant = module_tenant(one.app, name, i)
            device, count = entry.candidate.device, round(entry.machines)
            pools.append(pool_of(problem, tenant, device, WHOLE, weights, count))
        if bill.turn is not None:
            slot = shared.setdefault(
                bill.turn.slot,
                _Shared(device=bill.turn.batches[0].device, cycle_us=bill.turn.cycle_us),
            )
            slot.weights_bytes[model] = weights
            first = len(bill.entries)
            slot.tenants += [
                module_tenant(one.app, name, first + i) for i in range(len(bill.turn.batches))
            ]
    shared = dict(sorted(shared.items()))
    for slot in shared.values():
        held = sum(slot.weights_bytes.values())
        pools.append(pool_of(problem, slot.tenants[0], slot.device, WHOLE, held, 1))
    return pools, shared


def _modules(billed: Sequence[Billed]) -> Iterator[tuple[Billed, int, ModuleBill]]:
    return ((one, index, bill) for one in billed for index, bill in enumerate(one.modules))


def _with_tenants(
    slots: Sequence[Slot], names: Sequence[Sequence[str]], shared: Sequence[_Shared]
) -> tuple[Slot, ...]:
    of_slot = {name: slot for (name,), slot in zip(names, shared, strict=True)}
    return tuple(
        replace(
            slot,
            tenants=tuple(of_slot[slot.name].tenants),
            duty_us=of_slot[slot.name].cycle_us,
        )
        if slot.name in of_slot
        else slot
        for slot in slots
    )


def _deployment(
    problem: Problem,
    one: Billed,
    index: int,
    pools: Sequence[Sequence[str]],
    turns: dict[int, list[str]],
) -> Deployment:
    case, bill = one.case.modules[index], one.modules[index]
    module = one.app.module(case.name)
    rate_rps = one.app.module_rate_rps(case.name)
    blocks = len(problem.profiles[module.model].blocks)
    behind = bill.turn.rate_rps if bill.turn else 0.0
    pipelines: list[Pipeline] = []
    for i in reversed(range(len(bill.entries))):
        behind += bill.entries[i].rate_rps
        name = pipeline_name(one.app.name, case.name, i)
        found = bill.entries[i].candidate
        worst_us = found.duration_us + collect_us(found.batch, found.duration_us, behind)
        pipelines.insert(
            0, entry_pipeline(bill.entries[i], name, pools[i], blocks, behind, worst_us)
        )
    if bill.turn is not None:
        first = len(bill.entries)
        names = [
            pipeline_name(one.app.name, case.name, first + i) for i in range(len(bill.turn.batches))
        ]
        pipelines += _turns(bill.turn, names, turns[bill.turn.slot], blocks)
    carried = sum(pipeline.load.rate_rps for pipeline in pipelines if pipeline.load is not None)
    more_rps = carried - rate_rps
    return module_deployment(
        one.app,
        case.name,
        pipelines,
        # What the app does not need goes to its modules in proportion: room for real arrivals.
        budget_us=floor(bill.worst_case_us * one.case.budget_us / _path_us(one)),
        dummy_rps=more_rps if more_rps > 1e-9 * max(1.0, rate_rps) else 0.0,
    )


def _turns(turn: Turn, names: Sequence[str], pool: Sequence[str], blocks: int) -> list[Pipeline]:
    """One pipeline per batch of the turn, in their order."""
    pipelines, behind = [], turn.rate_rps
    for name, candidate, wait_us in zip(names, turn.batches, turn.waits_us, strict=True):
        rate = 1e6 * candidate.batch / turn.cycle_us
        part = candidate.duration_us / turn.cycle_us
        load = MachineLoad(
            machines=part,
            rate_rps=rate,
            machine_rps=rate,
            remaining_rps=behind,
            collect_us=wait_us,
            worst_case_us=wait_us + candidate.duration_us,
            cost_per_hour=part * candidate.price,
            follows=turn.follows,
        )
        pipelines.append(whole_model(candidate, name, pool, blocks, rate, load))
        behind -= rate
    return pipelines
