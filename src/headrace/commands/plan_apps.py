"""`headrace plan` of apps: plans are simulated before they are written."""

from typing import TYPE_CHECKING

from headrace.commands.output import notices

if TYPE_CHECKING:
    from headrace.domain.plan import Plan
    from headrace.domain.problem import Problem


def planned_in_time(problem: "Problem") -> "Plan":
    """A plan whose requests are in time when they come at equal gaps.

    Raises:
        InfeasibleError: there is none; the message says what would be feasible.
    """
    from headrace.planning import solve
    from headrace.reporting.plan_table import room_text
    from headrace.simulation.apps.in_time import plan_in_time
    from headrace.simulation.apps.worst_cases import plan_keeping_worst_cases

    planner = problem.options.planner
    _load_kernels(problem)
    planning = plan_keeping_worst_cases if planner.startswith("least-cost") else solve
    with notices.status(f"planning with {planner}") as status:
        plan = plan_in_time(problem, planning, on_progress=status.update)
    if plan.options.headroom_for is not None:
        notices.print(
            f"calls of one request come at once: planned with {room_text(plan)};"
            f" {plan.options.margin_reason}",
            soft_wrap=True,
        )
    return plan


def planned_with_headroom(problem: "Problem", arrivals: str, attainment: float) -> "Plan":
    """The cheapest plan of apps that attains under such arrivals; what it costs is printed.

    Raises:
        DocumentError: models share the devices.
    """
    from headrace.domain.errors import DocumentError
    from headrace.reporting.plan_table import room_text
    from headrace.simulation.apps.for_arrivals import plan_for_arrivals

    if problem.options.planner == "shares":
        raise DocumentError(
            f"--arrivals {arrivals}: head-room is chosen by simulating modules one by one, which"
            " those that share devices cannot be\n  try       uniform arrivals with a --margin"
        )
    _load_kernels(problem)
    with notices.status("planning and simulating") as status:
        room = plan_for_arrivals(
            problem, arrivals, attainment=attainment, on_progress=status.update
        )
    notices.print(
        f"{arrivals} arrivals: {room.attainment:.2%} in time with {room_text(room.plan)}, for"
        f" {room.premium:.1%} more than under uniform arrivals"
    )
    return room.plan


def _load_kernels(problem: "Problem") -> None:
    from headrace.commands.kernel import load_kernel

    load_kernel("batch-aware", simulator=True)
    if problem.options.bill == "devices":
        load_kernel("rounds", simulator=False)
    if problem.options.planner == "shares":
        load_kernel("reservation", simulator=False)
