"""The plan document of apps: machines as one-stage pipelines with their load, on named slots."""

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from math import ceil, floor

from headrace.domain.app import App
from headrace.domain.plan import (
    AppClaim,
    Deployment,
    MachineLoad,
    Pipeline,
    Plan,
    Reading,
    Slot,
    Stage,
    Stopped,
    Tenant,
)
from headrace.domain.problem import Problem
from headrace.planning.apps.candidates import AppCase, Candidate, worst_case_us
from headrace.planning.apps.machines import Entry, Schedule, remaining_rps
from headrace.planning.apps.order import path_us
from headrace.planning.apps.solve import AppSolution
from headrace.planning.common.assembly import cost_per_hour
from headrace.planning.common.packing import SlotSize
from headrace.planning.common.placement import Pool, place


@dataclass(frozen=True, slots=True, kw_only=True)
class Planned:
    """One app with its machines."""

    app: App
    case: AppCase
    solution: AppSolution

    @property
    def path_us(self) -> int:
        return path_us(self.case.before, [m.worst_case_us for m in self.solution.modules])


@dataclass(frozen=True, slots=True, kw_only=True)
class Proof:
    """What is proven of all apps together."""

    bound: float | None
    stopped: Stopped

    @classmethod
    def of(cls, planned: Sequence[Planned]) -> "Proof":
        """Apps that share nothing: their bounds add up, and the weakest reason is that of all."""
        bounds = [one.solution.bound for one in planned]
        known = [bound for bound in bounds if bound is not None]
        order: tuple[Stopped, ...] = ("heuristic", "time-limit", "optimal")
        reasons = [one.solution.stopped for one in planned]
        return cls(
            bound=sum(known) if len(known) == len(bounds) else None,
            stopped=next(reason for reason in order if reason in reasons),
        )


def pipeline_name(app: str, module: str, entry: int) -> str:
    """Unlike every other pipeline of the plan, also where two modules run one model."""
    return f"{app}.{module}.{entry}"


def slot_count(entry: Entry) -> int:
    """Slots of an entry: one per machine, one for a part of a machine."""
    return max(1, ceil(entry.machines - 1e-9))


def machine_pools(problem: Problem, planned: Sequence[Planned]) -> list[Pool]:
    """What has to be placed: one pool per entry of every module, in the order of the plan."""
    pools = []
    for one in planned:
        for module, schedule in zip(one.case.modules, one.solution.modules, strict=True):
            for i, entry in enumerate(schedule.entries):
                tenant = module_tenant(one.app, module.name, i)
                weights, found = weights_bytes(problem, tenant.model), entry.candidate
                pools.append(
                    pool_of(problem, tenant, found.device, found.share, weights, slot_count(entry))
                )
    return pools


def module_tenant(app: App, module: str, entry: int) -> Tenant:
    name = pipeline_name(app.name, module, entry)
    return Tenant(model=app.module(module).model, pipeline=name, stage=0)


def weights_bytes(problem: Problem, model: str) -> int:
    profile = problem.profiles[model]
    return profile.weights_bytes(0, len(profile.blocks))


def pool_of(
    problem: Problem, tenant: Tenant, device: str, share: Fraction, weights: int, count: int
) -> Pool:
    """So many slots for these bytes of weights, which count where a device's memory is known."""
    known = problem.cluster.device_type(device).memory_bytes is not None
    size = SlotSize(share, weights if known else 0)
    return Pool(tenant=tenant, device=device, size=size, count=count)


def assemble_apps(
    problem: Problem,
    planned: Sequence[Planned],
    *,
    binding: str,
    runtime_s: float,
    proof: Proof | None = None,
) -> Plan:
    """Place every machine and write everything down.

    Args:
        proof: None: what the apps' own solutions prove.
    """
    proof = proof or Proof.of(planned)
    slots, names = place(problem.cluster, machine_pools(problem, planned))
    pools = iter(names)
    deployments: list[Deployment] = []
    claims = []
    for one in planned:
        modules = [
            _deployment(problem, one, index, schedule, [next(pools) for _ in schedule.entries])
            for index, schedule in enumerate(one.solution.modules)
        ]
        deployments += modules
        claims.append(claim_of(one.app, one.case, one.solution.reading, one.path_us, modules))
    return written_apps(
        problem,
        slots,
        deployments,
        claims,
        objective=sum(claim.cost_per_hour for claim in claims),
        bound=proof.bound,
        stopped=proof.stopped,
        binding=binding,
        runtime_s=runtime_s,
    )


def written_apps(
    problem: Problem,
    slots: tuple[Slot, ...],
    deployments: Sequence[Deployment],
    claims: Sequence[AppClaim],
    *,
    objective: float,
    bound: float | None,
    stopped: Stopped,
    binding: str,
    runtime_s: float,
) -> Plan:
    """The plan document of apps that were placed; a bound above the objective says no more."""
    bound = None if bound is None else float(min(bound, objective))
    return Plan(
        planner=problem.options.planner,
        options=problem.options,
        cluster=problem.cluster,
        demands=(),
        profiles=problem.profile_refs,
        slots=slots,
        deployments=tuple(deployments),
        objective=objective,
        bound=bound,
        gap=None if bound is None else abs(bound - objective) / objective,
        stopped=stopped,
        binding=binding,
        cost_per_hour=cost_per_hour(problem, slots),
        runtime_s=runtime_s,
        apps=tuple(claims),
    )


def claim_of(
    app: App, case: AppCase, reading: Reading, path_us: int, modules: Sequence[Deployment]
) -> AppClaim:
    return AppClaim(
        app=app,
        reading=reading,
        worst_case_us=path_us,
        budget_us=case.budget_us,
        cost_per_hour=sum(module.cost_per_hour or 0.0 for module in modules),
    )


def _deployment(
    problem: Problem,
    one: Planned,
    index: int,
    schedule: Schedule,
    pools: Sequence[Sequence[str]],
) -> Deployment:
    module, reading = one.case.modules[index], one.solution.reading
    blocks = len(problem.profiles[one.app.module(module.name).model].blocks)
    behind = remaining_rps(schedule.entries)
    pipelines = []
    for i, (entry, left, pool) in enumerate(zip(schedule.entries, behind, pools, strict=True)):
        name = pipeline_name(one.app.name, module.name, i)
        worst_us = worst_case_us(reading, entry.candidate, left, entry.machines)
        pipelines.append(entry_pipeline(entry, name, pool, blocks, left, worst_us))
    more_rps = module.rate_rps - one.app.module_rate_rps(module.name)
    return module_deployment(
        one.app,
        module.name,
        pipelines,
        # What the app does not need goes to its modules in proportion: room for real arrivals.
        budget_us=floor(schedule.worst_case_us * one.case.budget_us / one.path_us),
        dummy_rps=schedule.dummy_rps + more_rps,
    )


def module_deployment(
    app: App, module: str, pipelines: Sequence[Pipeline], *, budget_us: int, dummy_rps: float
) -> Deployment:
    """A module with its machines; each pipeline states its load."""
    loads = [pipeline.load for pipeline in pipelines if pipeline.load is not None]
    return Deployment(
        model=app.module(module).model,
        slo_us=app.slo_us,
        budget_us=budget_us,
        pipelines=tuple(pipelines),
        throughput_rps=sum(pipeline.throughput_rps for pipeline in pipelines),
        dummy_rps=dummy_rps,
        app=app.name,
        module=module,
        rate_rps=app.module_rate_rps(module),
        worst_case_us=max(load.worst_case_us for load in loads),
        cost_per_hour=sum(load.cost_per_hour for load in loads),
    )


def entry_pipeline(
    entry: Entry, name: str, pool: Sequence[str], blocks: int, behind_rps: float, worst_us: int
) -> Pipeline:
    """Machines of one kind; `behind_rps`: their load and that of all behind them."""
    candidate = entry.candidate
    load = MachineLoad(
        machines=entry.machines,
        rate_rps=entry.rate_rps,
        machine_rps=entry.rate_rps / len(pool),
        remaining_rps=behind_rps,
        collect_us=worst_us - candidate.duration_us,
        worst_case_us=worst_us,
        cost_per_hour=entry.cost,
    )
    return whole_model(candidate, name, pool, blocks, len(pool) * candidate.rate_rps, load)


def whole_model(
    candidate: Candidate,
    name: str,
    pool: Sequence[str],
    blocks: int,
    throughput_rps: float,
    load: MachineLoad,
) -> Pipeline:
    """A pipeline of one stage."""
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
