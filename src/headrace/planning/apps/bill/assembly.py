"""The plan document of whole devices: machines as ever, turns as pipelines on shared slots."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from math import floor

from msgspec.structs import replace

from headrace.domain.app import App
from headrace.domain.cluster import WHOLE
from headrace.domain.plan import (
    AppClaim,
    Deployment,
    MachineLoad,
    Pipeline,
    Plan,
    Slot,
    Stage,
    Stopped,
    Tenant,
)
from headrace.domain.problem import Problem
from headrace.planning.apps.assembly import pipeline_name, written_apps
from headrace.planning.apps.bill.case import ModuleBill, Turn
from headrace.planning.apps.candidates import AppCase, Candidate, collect_us
from headrace.planning.apps.machines import Entry
from headrace.planning.apps.order import path_us
from headrace.planning.common.assembly import cost_per_hour
from headrace.planning.common.packing import SlotSize
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
    weights_bytes: int = 0
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
        claims.append(
            AppClaim(
                app=one.app,
                reading="remaining",
                worst_case_us=_path_us(one),
                budget_us=one.case.budget_us,
                cost_per_hour=sum(module.cost_per_hour or 0.0 for module in modules),
            )
        )
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
        weights = _weights_bytes(problem, model)
        for i, entry in enumerate(bill.entries):
            tenant = _tenant(one, name, model, i)
            device, count = entry.candidate.device, round(entry.machines)
            pools.append(_pool(problem, tenant, device, weights, count))
        if bill.turn is not None:
            slot = shared.setdefault(
                bill.turn.slot,
                _Shared(device=bill.turn.batches[0].device, cycle_us=bill.turn.cycle_us),
            )
            slot.weights_bytes += weights
            first = len(bill.entries)
            slot.tenants += [
                _tenant(one, name, model, first + i) for i in range(len(bill.turn.batches))
            ]
    shared = dict(sorted(shared.items()))
    for slot in shared.values():
        pools.append(_pool(problem, slot.tenants[0], slot.device, slot.weights_bytes, 1))
    return pools, shared


def _modules(billed: Sequence[Billed]) -> Iterator[tuple[Billed, int, ModuleBill]]:
    return ((one, index, bill) for one in billed for index, bill in enumerate(one.modules))


def _tenant(one: Billed, module: str, model: str, entry: int) -> Tenant:
    return Tenant(model=model, pipeline=pipeline_name(one.app.name, module, entry), stage=0)


def _weights_bytes(problem: Problem, model: str) -> int:
    profile = problem.profiles[model]
    return profile.weights_bytes(0, len(profile.blocks))


def _pool(problem: Problem, tenant: Tenant, device: str, weights: int, count: int) -> Pool:
    known = problem.cluster.device_type(device).memory_bytes is not None
    return Pool(
        tenant=tenant,
        device=device,
        size=SlotSize(WHOLE, weights if known else 0),
        count=count,
    )


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
        pipelines.insert(0, _machines(bill.entries[i], name, pools[i], blocks, behind))
    if bill.turn is not None:
        first = len(bill.entries)
        names = [
            pipeline_name(one.app.name, case.name, first + i) for i in range(len(bill.turn.batches))
        ]
        pipelines += _turns(bill.turn, names, turns[bill.turn.slot], blocks)
    loads = [pipeline.load for pipeline in pipelines if pipeline.load is not None]
    carried = sum(load.rate_rps for load in loads)
    return Deployment(
        model=module.model,
        slo_us=one.app.slo_us,
        # What the app does not need goes to its modules in proportion: room for real arrivals.
        budget_us=floor(bill.worst_case_us * one.case.budget_us / _path_us(one)),
        pipelines=tuple(pipelines),
        throughput_rps=sum(pipeline.throughput_rps for pipeline in pipelines),
        dummy_rps=carried - rate_rps if carried - rate_rps > 1e-9 * max(1.0, rate_rps) else 0.0,
        app=one.app.name,
        module=case.name,
        rate_rps=rate_rps,
        worst_case_us=max(load.worst_case_us for load in loads),
        cost_per_hour=sum(load.cost_per_hour for load in loads),
    )


def _machines(
    entry: Entry, name: str, pool: Sequence[str], blocks: int, behind_rps: float
) -> Pipeline:
    """Whole machines; `behind_rps`: their load and that of all behind them."""
    candidate = entry.candidate
    collect = collect_us(candidate.batch, candidate.duration_us, behind_rps)
    load = MachineLoad(
        machines=entry.machines,
        rate_rps=entry.rate_rps,
        machine_rps=entry.rate_rps / len(pool),
        remaining_rps=behind_rps,
        collect_us=collect,
        worst_case_us=candidate.duration_us + collect,
        cost_per_hour=entry.cost,
    )
    return _pipeline(candidate, name, pool, blocks, len(pool) * candidate.rate_rps, load)


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
        pipelines.append(_pipeline(candidate, name, pool, blocks, rate, load))
        behind -= rate
    return pipelines


def _pipeline(
    candidate: Candidate,
    name: str,
    pool: Sequence[str],
    blocks: int,
    throughput_rps: float,
    load: MachineLoad,
) -> Pipeline:
    stage = Stage(
        first_block=0,
        end_block=blocks,
        device=candidate.device,
        share=candidate.share,
        pool=tuple(pool),
        latency_us=candidate.duration_us,
        transfer_us=0,
        throughput_rps=throughput_rps,
    )
    return Pipeline(
        name=name,
        batch_size=candidate.batch,
        stages=(stage,),
        latency_us=candidate.duration_us,
        throughput_rps=throughput_rps,
        load=load,
    )
