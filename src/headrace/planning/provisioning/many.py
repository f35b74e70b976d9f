"""Plans of more models than memory: every model may run on every device of one type, and is brought
there when it is asked for.

Which devices: all of the cluster, or as few of one type as carry the rates. On which type each
model is, `types_of_models` looks for; what all devices carry then, `carrying` says. Every start
must be over within the latency budget.
"""

from collections.abc import Iterator, Sequence
from fractions import Fraction

from headrace.domain.errors import DocumentError
from headrace.domain.plan import Deployment, Pipeline, PlanResult, Slot, Stage
from headrace.domain.problem import Problem
from headrace.planning.common.assembly import Claim, written
from headrace.planning.common.candidates import budget_us
from headrace.planning.common.deadline import Deadline
from headrace.planning.provisioning.carrying import devices_enough, weight_of
from headrace.planning.provisioning.placing import Placed
from headrace.planning.provisioning.planners import NEED_HELPER
from headrace.planning.provisioning.short import binding, refuse_rates
from headrace.planning.provisioning.types_of_models import OnTypes, on_types

DEFAULT = "exact"


def fits(problem: Problem) -> bool:
    """Whether all models may be in memory: one copy of each, on a slot of its own.

    A look at the whole: where it says no there is no plan that keeps all in memory, and where it
    says yes there may be none either.
    """
    profiled = {
        name for demand in problem.demands for name in problem.profiles[demand.model].devices
    }
    kinds = [
        kind
        for kind in problem.cluster.device_types
        if kind.name in profiled and problem.cluster.count(kind.name)
    ]
    slots = sum(problem.cluster.count(kind.name) * int(1 / min(kind.shares)) for kind in kinds)
    if len(problem.demands) > slots:
        return False
    memory = [
        kind.memory_bytes * problem.cluster.count(kind.name)
        for kind in kinds
        if kind.memory_bytes is not None
    ]
    if not memory:
        return True
    needed = sum(
        sum(block.weights_bytes for block in problem.profiles[demand.model].blocks)
        for demand in problem.demands
    )
    return needed <= sum(memory)


def plan_provisioned(problem: Problem) -> PlanResult:
    """Every model on every device of its kind, and what they carry.

    Raises:
        DocumentError: apps, an objective or options that these plans do not have, a profile without
            layer times, or a device type without its memory.
    """
    deadline = Deadline(problem.options.time_limit_s)
    _check(problem)
    planner = problem.options.provision or DEFAULT
    found = on_types(problem, planner, deadline)
    if isinstance(found, str):
        return _refused(found, deadline)
    return _planned(problem, planner, found, deadline)


def _check(problem: Problem) -> None:
    if problem.apps:
        raise DocumentError(
            "planner provisioned: brings models to devices, and the problem is one of apps\n"
            "  try    plan the models alone"
        )
    if problem.options.objective == "least-cost":
        raise DocumentError(
            "planner provisioned: knows the objectives max-min, throughput and least-devices, not"
            " least-cost"
        )
    if problem.options.objective == "least-devices" and any(
        demand.rate_rps is None for demand in problem.demands
    ):
        raise DocumentError(
            "planner provisioned: least-devices needs a rate of every model; state rate_rps"
        )
    if problem.options.provision in NEED_HELPER:
        _check_helpers(problem)
    for demand in problem.demands:
        if dimensions := problem.profiles[demand.model].dimensions:
            raise DocumentError(
                f"planner provisioned: model {demand.model!r} has several sizes"
                f" ({', '.join(dimensions)}), and starts are planned for one; profile it at one"
            )
    for kind in problem.cluster.device_types:
        if kind.memory_bytes is None and problem.cluster.count(kind.name):
            raise DocumentError(
                f"planner provisioned: device type {kind.name!r} does not state its memory_bytes,"
                " which models are to share\n  try    state it in the problem file"
            )


def _check_helpers(problem: Problem) -> None:
    for kind in problem.cluster.device_types:
        alone = [
            node.name
            for node in problem.cluster.nodes
            if 0 < node.devices.get(kind.name, 0) <= kind.devices_per_link
        ]
        if alone or (problem.cluster.count(kind.name) and not kind.copy_stream):
            has = f"one link on node {alone[0]!r}" if alone else "no copy_stream"
            raise DocumentError(
                f"--provision {problem.options.provision}: copies over a second device, behind"
                f" another link, while the first executes, and {kind.name!r} has {has}\n"
                "  try    a planner without +pt"
            )


def _planned(problem: Problem, planner: str, found: OnTypes, deadline: Deadline) -> PlanResult:
    rated = sum(demand.rate_rps is not None for demand in problem.demands)
    if 0 < rated < len(problem.demands):
        return _refused(
            "planner provisioned: some models have a rate_rps and some have none; state all, or"
            " weights alone",
            deadline,
        )
    on_type = {each.demand.model: on for on in found.carried for each in on.placed}
    absent = {
        each.demand.model: part
        for on in found.carried
        for each, part in zip(on.placed, on.absent, strict=True)
    }
    scarce = max(found.carried, key=lambda on: on.need)
    idle = "" if found.devices else _idle(problem, found)
    if rated and scarce.need > 1:
        enough = devices_enough(problem, scarce.placed)
        return _refused(refuse_rates(problem, scarce, enough, idle), deadline)
    slots = tuple(_slots(problem, planner, found))
    placed = {each.demand.model: each for on in found.carried for each in on.placed}
    deployments = tuple(
        _deployment(
            problem,
            placed[demand.model],
            absent[demand.model],
            weight_of(demand) / on_type[demand.model].need,
            slots,
        )
        for demand in problem.demands
    )
    claim = Claim(
        bound=None,
        stopped="heuristic",
        binding=binding(found.carried, idle),
        runtime_s=deadline.spent_s,
    )
    plan = written(problem, slots, deployments, claim)
    return PlanResult(plan=plan, stopped="heuristic", bound=None, runtime_s=plan.runtime_s)


def _idle(problem: Problem, found: OnTypes) -> str:
    """Devices of types on which no model is."""
    used = {on.device for on in found.carried}
    counts = {kind.name: problem.cluster.count(kind.name) for kind in problem.cluster.device_types}
    left = sorted(name for name, count in counts.items() if count and name not in used)
    return ", ".join(f"{counts[name]} {name}" for name in left)


def _slots(problem: Problem, planner: str, found: OnTypes) -> Iterator[Slot]:
    """Of every device that some model may run on; each helped by one behind the link that is half
    of the node's links away."""
    for on in found.carried:
        device, share = on.device, on.share
        left = found.devices or problem.cluster.count(device)
        for node in problem.cluster.nodes:
            count = min(node.devices.get(device, 0), left)
            left -= count
            per = problem.cluster.device_type(device).devices_per_link
            links = -(-count // per)
            helps = planner in NEED_HELPER and links > 1 and share == 1
            for index in range(count):
                link = (index // per + links // 2) % links
                other = min(link * per + index % per, count - 1)
                for position in range(int(1 / share)):
                    yield Slot(
                        name=_slot_name(node.name, device, index, position, share),
                        node=node.name,
                        device=device,
                        device_index=index,
                        share=share,
                        tenants=(),
                        helper=_slot_name(node.name, device, other, 0, share) if helps else None,
                    )


def _slot_name(node: str, device: str, index: int, position: int, share: Fraction) -> str:
    return f"{node}/{device}-{index}" + ("" if share > Fraction(1, 2) else f"/{position}")


def _deployment(
    problem: Problem, each: Placed, absent: float, rate_rps: float, slots: Sequence[Slot]
) -> Deployment:
    pool = tuple(
        slot.name for slot in slots if (slot.device, slot.share) == (each.device, each.share)
    )
    stage = Stage(
        first_block=0,
        end_block=len(problem.profiles[each.demand.model].blocks),
        device=each.device,
        share=each.share,
        pool=pool,
        latency_us=each.batch_us[1],
        transfer_us=0,
        throughput_rps=rate_rps,
    )
    return Deployment(
        model=each.demand.model,
        slo_us=each.demand.slo_us,
        budget_us=budget_us(each.demand.slo_us, problem.options.margin_of(each.demand.model)),
        pipelines=(
            Pipeline(
                name="p0",
                batch_size=1,
                stages=(stage,),
                latency_us=stage.latency_us,
                throughput_rps=rate_rps,
            ),
        ),
        throughput_rps=rate_rps,
        start=each.residency,
        cold_share=absent,
    )


def _refused(refusal: str, deadline: Deadline) -> PlanResult:
    return PlanResult(
        plan=None, stopped="infeasible", bound=None, runtime_s=deadline.spent_s, refusal=refusal
    )
