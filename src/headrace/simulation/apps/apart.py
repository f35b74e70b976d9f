"""Plans whose modules have devices of their own, where none with turns is in time.

Modules that take turns on whole devices (`bill: devices`) wait for each other besides, and their
plans are simulated call by call, which takes seconds. A plan in proportion to load (`bill:
fraction`) is simulated some fifty times faster, and its machines stand on whole devices too, more
of them as a rule. So it is the answer where no plan with turns is found to be in time: no problem
is refused, for want of time or otherwise, that has a plan by the fraction.
"""

from msgspec.structs import replace

from headrace.domain.plan import Plan
from headrace.domain.problem import Problem
from headrace.simulation.apps.worst_cases import bounded_by

WHY = "no plan was found to be in time whose modules take turns on fewer of them"


def may_take_turns(problem: Problem) -> bool:
    """Whether plans of the problem differ from those in proportion to load."""
    return problem.options.planner == "least-cost" and problem.options.bill == "devices"


def in_proportion(problem: Problem) -> Problem:
    """The same problem, planned for least cost in proportion to load."""
    return replace(problem, options=replace(problem.options, bill="fraction"))


def on_own_devices(plan: Plan, without: Plan | None) -> Plan:
    """A plan in proportion to load, judged by the price of the devices that it takes.

    Args:
        without: that on whole devices which is not in time, whose bound holds for all; None: none
            was found.
    """
    assert plan.cost_per_hour is not None, "every device has a price"
    options = replace(plan.options, bill="devices")
    if options.margin_reason:
        reason = f"{options.margin_reason}; costs in proportion to load"
        options = replace(options, margin_reason=reason)
    billed = replace(
        plan,
        options=options,
        objective=plan.cost_per_hour,
        binding=f"whole devices: {WHY}; {plan.binding}",
    )
    return bounded_by(billed, without)
