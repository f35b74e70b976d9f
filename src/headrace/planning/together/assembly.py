"""Devices with their parts, whose tenants are steps -> the plan document."""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import floor

from msgspec.structs import replace as changed

from headrace.domain.app import App
from headrace.domain.plan import (
    AppClaim,
    Deployment,
    MachineLoad,
    Pipeline,
    Plan,
    Slot,
    Stage,
    Tenant,
)
from headrace.domain.problem import Demand
from headrace.planning.apps.assembly import module_deployment, pipeline_name
from headrace.planning.apps.order import path_us
from headrace.planning.common.assembly import Claim, deployment_of, written
from headrace.planning.common.shared_assembly import (
    ChosenDevice,
    TenantClass,
    class_latency_us,
    class_names,
    class_pipeline,
    placed_slots,
)
from headrace.planning.together.cuts import Way
from headrace.planning.together.steps import Costs, Step, StepChain

US_PER_S = 1e6


@dataclass(frozen=True, slots=True)
class _Turn:
    """One step on one slot."""

    slot: Slot
    tenant: TenantClass


class Assembly:
    """One plan while it is written."""

    def __init__(self, costs: Costs, steps: Sequence[Step], devices: Sequence[ChosenDevice]):
        self._problem, self._costs = costs.problem, costs
        documents = {each.device: each for each in self._problem.interference}
        self._slots, self._classes = placed_slots(costs.problem_of(steps), devices, documents)
        self._turns: dict[str, list[_Turn]] = defaultdict(list)
        for slot, classes in zip(self._slots, self._classes, strict=True):
            for one in classes:
                self._turns[one.model].append(_Turn(slot, one))
        self._tenants: dict[tuple[str, str], Tenant] = {}
        """(slot, key of the step) -> who runs there."""

    def plan(self, ways: Sequence[Way], chains: Sequence[StepChain], claim: Claim) -> Plan:
        """
        Args:
            ways: of the problem's demands, in their order.
            chains: of its apps.
        """
        problem = self._problem
        deployments = [
            deployment_of(problem, demand, self._pipelines(demand, way))
            for demand, way in zip(problem.demands, ways, strict=True)
        ]
        claims = []
        for app, chain in zip(problem.apps, chains, strict=True):
            modules = self._modules(app, chain)
            deployments += modules
            claims.append(_claim(chain, app, modules))
        slots = tuple(
            changed(slot, tenants=tenants)
            for slot, classes in zip(self._slots, self._classes, strict=True)
            if (tenants := self._tenants_of(slot, classes))
        )
        # Of what was chosen, turns that a stage does not need are left out.
        claim = replace(claim, binding=f"{claim.binding}; {_used_text(slots)}")
        plan = written(problem, slots, tuple(deployments), claim, problem.interference)
        return changed(plan, apps=tuple(claims))

    # -- models -----------------------------------------------------------------------------------

    def _pipelines(self, demand: Demand, way: Way) -> tuple[Pipeline, ...]:
        if way.transfers_us:
            return tuple(
                self._in_stages(f"p{number}", chain, way) for number, chain in enumerate(way.chains)
            )
        pools: dict[TenantClass, list[str]] = defaultdict(list)
        for turn in self._turns[demand.model]:
            pools[turn.tenant].append(turn.slot.name)
        names = class_names(self._problem, pools)
        for turn in self._turns[demand.model]:
            self._note(turn, demand.model, names[turn.tenant], 0)
        return tuple(
            class_pipeline(self._problem, one, name, pools[one]) for one, name in names.items()
        )

    def _in_stages(self, name: str, chain: StepChain, way: Way) -> Pipeline:
        stages = []
        for number, step in enumerate(chain.steps):
            # Every turn carries the rate; of several, which cost nothing, one will do.
            turn = min(self._turns[step.key], key=lambda turn: turn.tenant.duty_us)
            one = turn.tenant
            [times] = [
                each.models[0]
                for each in self._costs.times([step], [0])
                if each.device.name == one.device
            ]
            first, end = step.blocks or (0, 0)
            rate_rps = one.batch_size * US_PER_S / one.duty_us
            link_rps = self._costs.link_rps(step.model, one.device, one.share, (first, end))
            self._note(turn, step.model, name, number)
            stages.append(
                Stage(
                    first_block=first,
                    end_block=end,
                    device=one.device,
                    share=one.share,
                    pool=(turn.slot.name,),
                    latency_us=times.slowed_us(one.share, one.batch_size, one.slowdown),
                    transfer_us=(*way.transfers_us, 0)[number],
                    throughput_rps=min(rate_rps, link_rps),
                )
            )
        return Pipeline(
            name=name,
            batch_size=chain.steps[0].batch_size or 0,
            stages=tuple(stages),
            latency_us=sum(stage.latency_us + stage.transfer_us for stage in stages),
            throughput_rps=min(stage.throughput_rps for stage in stages),
        )

    # -- apps -------------------------------------------------------------------------------------

    def _modules(self, app: App, chain: StepChain) -> list[Deployment]:
        entries = [self._entries(app, step) for step in chain.steps]
        worst_us = [
            max(pipeline.load.worst_case_us for pipeline in own if pipeline.load) for own in entries
        ]
        longest_us = path_us(chain.before, worst_us)
        found = []
        for step, own, worst in zip(chain.steps, entries, worst_us, strict=True):
            module = step.key.removeprefix(f"{app.name}.")
            extra = sum(each.throughput_rps for each in own) - app.module_rate_rps(module)
            found.append(
                module_deployment(
                    app,
                    module,
                    own,
                    # What the app does not need goes to its modules in proportion.
                    budget_us=floor(worst * chain.budget_us / longest_us),
                    dummy_rps=extra
                    if extra > 1e-9 * max(1.0, app.module_rate_rps(module))
                    else 0.0,
                )
            )
        return found

    def _entries(self, app: App, step: Step) -> tuple[Pipeline, ...]:
        """One pipeline per slot, what carries most first."""
        turns = self._turns[step.key]
        turns.sort(key=lambda turn: -turn.tenant.batch_size / turn.tenant.duty_us)
        module = step.key.removeprefix(f"{app.name}.")
        pipelines: list[Pipeline] = []
        behind = 0.0
        for number in reversed(range(len(turns))):
            turn = turns[number]
            behind += turn.tenant.batch_size * US_PER_S / turn.tenant.duty_us
            name = pipeline_name(app.name, module, number)
            self._note(turn, step.model, name, 0)
            pipelines.insert(0, self._turn(turn, step.model, name, behind))
        return tuple(pipelines)

    def _turn(self, turn: _Turn, model: str, name: str, behind_rps: float) -> Pipeline:
        one = replace(turn.tenant, model=model)
        kind = self._problem.cluster.device_type(one.device)
        latency_us = class_latency_us(self._problem, one)
        rate_rps = one.batch_size * US_PER_S / one.duty_us
        part = latency_us / one.duty_us
        load = MachineLoad(
            machines=part,
            rate_rps=rate_rps,
            machine_rps=rate_rps,
            remaining_rps=behind_rps,
            collect_us=one.duty_us,
            worst_case_us=one.duty_us + latency_us,
            cost_per_hour=part * float(kind.price_per_hour or 0.0) * float(one.share),
        )
        return changed(class_pipeline(self._problem, one, name, [turn.slot.name]), load=load)

    def _tenants_of(self, slot: Slot, classes: Sequence[TenantClass]) -> tuple[Tenant, ...]:
        keys = [(slot.name, one.model) for one in classes]
        return tuple(self._tenants[key] for key in keys if key in self._tenants)

    def _note(self, turn: _Turn, model: str, pipeline: str, stage: int) -> None:
        self._tenants[turn.slot.name, turn.tenant.model] = Tenant(
            model=model, pipeline=pipeline, stage=stage, slowdown=turn.tenant.slowdown
        )


def _used_text(slots: Sequence[Slot]) -> str:
    """How the devices are shared."""
    devices = {(slot.node, slot.device, slot.device_index) for slot in slots}
    shared = sum(len(slot.tenants) > 1 for slot in slots)
    return f"{len(devices)} devices in {len(slots)} parts, {shared} of them used in turns"


def _claim(chain: StepChain, app: App, modules: Sequence[Deployment]) -> AppClaim:
    return AppClaim(
        app=app,
        reading="turns",
        worst_case_us=path_us(chain.before, [module.worst_case_us or 0 for module in modules]),
        budget_us=chain.budget_us,
        cost_per_hour=sum(module.cost_per_hour or 0.0 for module in modules),
    )


def assembled(
    costs: Costs,
    ways: Sequence[Way],
    chains: Sequence[StepChain],
    devices: Sequence[ChosenDevice],
    claim: Claim,
) -> Plan:
    """Place the devices, and write everything down; `ways` and `chains` as in `Assembly.plan`."""
    steps = [step for way in ways for chain in way.chains for step in chain.steps]
    steps += [step for chain in chains for step in chain.steps]
    return Assembly(costs, steps, devices).plan(ways, chains, claim)
