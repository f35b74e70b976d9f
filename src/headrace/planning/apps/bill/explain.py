"""What a bill of whole devices is made of, and what sharing them saves."""

from msgspec.structs import replace

from headrace.domain.base import Record
from headrace.domain.plan import Plan
from headrace.domain.problem import Problem
from headrace.planning.apps.bill.planner import apart_bill
from headrace.planning.apps.candidates import app_case
from headrace.planning.apps.planner import plan_apps
from headrace.planning.common.deadline import Deadline

APART_S = 10.0
"""At most, for the bill without sharing."""


class SharedSlot(Record, frozen=True, kw_only=True):
    """One device that several modules share."""

    slot: str
    duty_us: int
    turns: tuple[tuple[str, int, int, bool], ...]
    """In their order: pipeline, batch size, latency (us), whether it follows others."""


class BillReason(Record, frozen=True, kw_only=True):
    """Why a plan's devices cost what they cost, per hour."""

    bill: float
    devices: int
    apart: float
    """The least if every device had one module, of enough devices; a plan's, or a bound of it."""
    fraction: float | None
    """The least price in proportion to load; None: the cluster lacks devices for it."""
    fraction_bill: float | None
    """The price of the devices that this takes."""
    slots: tuple[SharedSlot, ...]


def explain_bill(plan: Plan, problem: Problem) -> BillReason:
    """Search again for what the plan is compared with."""
    options = replace(problem.options, bill="fraction", planner="least-cost")
    by_fraction = plan_apps(replace(problem, options=options), "least-cost").plan
    cases = [app_case(problem, app) for app in problem.apps]
    apart_s = min(APART_S, problem.options.time_limit_s)
    pipelines = {p.name: p for d in plan.deployments for p in d.pipelines}
    shared = [slot for slot in plan.slots if slot.duty_us is not None]
    return BillReason(
        bill=plan.objective,
        devices=len({(slot.node, slot.device, slot.device_index) for slot in plan.slots}),
        apart=float(apart_bill(problem, cases, Deadline(apart_s))),
        fraction=None if by_fraction is None else by_fraction.objective,
        fraction_bill=None if by_fraction is None else by_fraction.cost_per_hour,
        slots=tuple(
            SharedSlot(
                slot=slot.name,
                duty_us=slot.duty_us or 0,
                turns=tuple(
                    (tenant.pipeline, pipeline.batch_size, pipeline.latency_us, load.follows)
                    for tenant in slot.tenants
                    for pipeline in [pipelines[tenant.pipeline]]
                    for load in [pipeline.load]
                    if load is not None
                ),
            )
            for slot in shared
        ),
    )
