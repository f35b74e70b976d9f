"""Turns that others follow carry all calls of their modules: `verify` holds plans to it."""

from dataclasses import dataclass

from msgspec.structs import replace

from headrace.domain.plan import Deployment, Plan
from headrace.domain.problem import Problem
from headrace.planning import solve
from headrace.verify import verify
from headrace.verify.case import Violation
from helpers.apps import make_app_problem

MACHINE_PRICE = 0.35
"""Of a T4."""


@dataclass(frozen=True, slots=True)
class Small:
    """`detect`, and two modules that follow it, in turns on one T4."""

    problem: Problem
    plan: Plan


def small() -> Small:
    problem = make_app_problem(rate_rps=20)
    problem = replace(problem, options=replace(problem.options, bill="devices"))
    plan = solve(problem).plan
    assert plan is not None
    return Small(problem, plan)


def with_a_machine(plan: Plan, number: int) -> Plan:
    """One module with a second T4 of its own before its turn; every figure is as it has to be."""
    deployment, (slot,), (claim,) = plan.deployments[number], plan.slots, plan.apps
    [turn] = deployment.pipelines
    assert turn.load is not None
    rate_rps = 1e6 * turn.batch_size / turn.latency_us
    remaining_rps = rate_rps + turn.load.remaining_rps
    collect_us = int(1e6 * turn.batch_size / remaining_rps) + 1
    [stage] = turn.stages
    machine = replace(
        turn,
        name="machine",
        stages=(replace(stage, pool=("n/T4-1",), throughput_rps=rate_rps),),
        throughput_rps=rate_rps,
        load=replace(
            turn.load,
            machines=1.0,
            rate_rps=rate_rps,
            machine_rps=rate_rps,
            remaining_rps=remaining_rps,
            collect_us=collect_us,
            worst_case_us=turn.latency_us + collect_us,
            cost_per_hour=MACHINE_PRICE,
            follows=False,
        ),
    )
    assert deployment.rate_rps is not None
    assert deployment.cost_per_hour is not None
    more: Deployment = replace(
        deployment,
        pipelines=(machine, turn),
        throughput_rps=rate_rps + turn.throughput_rps,
        dummy_rps=remaining_rps - deployment.rate_rps,
        cost_per_hour=MACHINE_PRICE + deployment.cost_per_hour,
    )
    [tenant] = [tenant for tenant in slot.tenants if tenant.pipeline == turn.name]
    alone = replace(tenant, pipeline=machine.name)
    second = replace(slot, name="n/T4-1", device_index=1, tenants=(alone,), duty_us=None)
    deployments = (*plan.deployments[:number], more, *plan.deployments[number + 1 :])
    return replace(
        plan,
        slots=(slot, second),
        deployments=deployments,
        apps=(replace(claim, cost_per_hour=claim.cost_per_hour + MACHINE_PRICE),),
        objective=2 * MACHINE_PRICE,
        cost_per_hour=2 * MACHINE_PRICE,
        bound=MACHINE_PRICE,
        gap=0.5,
        stopped="heuristic",
    )


def beside_turns(small: Small, number: int) -> set[tuple[str, str]]:
    """What is wrong with a machine of a module, beside its turn."""
    found: list[Violation] = verify(with_a_machine(small.plan, number), small.problem.profiles)
    return {(violation.check, violation.where) for violation in found}


def test_a_machine_of_a_module_that_others_follow_is_reported() -> None:
    """Its turn could carry all, and its machine takes calls first: what waits for those is made
    at any time of the round."""
    assert verify(small().plan, small().problem.profiles) == []
    assert beside_turns(small(), 0) == {("duty", "traffic.detect")}


def test_a_machine_of_a_module_that_follows_is_reported() -> None:
    assert ("duty", "traffic.vehicle") in beside_turns(small(), 1)
