"""What models that come and go are short of: in words, of rates that a plan carries, and of those
that none does."""

from collections.abc import Sequence

from headrace.domain.apart import apart
from headrace.domain.problem import Problem
from headrace.planning.common.rounded import round_down
from headrace.planning.provisioning.carrying import Carried, weight_of
from headrace.planning.provisioning.placing import HURRIED


def binding(carried: Sequence[Carried], idle: str) -> str:
    """
    Args:
        idle: devices of other types on which no model is; empty: there are none.
    """
    kinds = ", ".join(on.device for on in carried)
    if filling := [model for on in carried for model in on.filling]:
        short = f"memory of the slots on {kinds}, of which {_quoted(filling)} would take more"
    else:
        short = f"time of the slots on {kinds}, or of their links"
    hurried = sum(each.hurried for on in carried for each in on.placed)
    time_up = (
        f"; models whose starts are by {HURRIED}, as time was up: {hurried}" if hurried else ""
    )
    return (
        f"{short}: {_cold_share(carried):.1%} of requests are expected to be starts, were the model"
        f" that is unused for longest to leave{f'; idle: {idle}' if idle else ''}{time_up}"
    )


def refuse_rates(problem: Problem, scarce: Carried, enough: int, idle: str) -> str:
    """Rates of which the scarcest devices, or their links, carry only a part.

    Args:
        enough: devices.
        idle: devices of other types on which no model is; empty: there are none.
    """
    unused = f"; idle: {idle}" if idle else ""
    needs = apart(scarce.need, 1.0, digits=3)[0]
    these = f"the {problem.cluster.count(scarce.device)} devices of type {scarce.device!r}"
    if scarce.filling:
        why = (
            f"these are {needs} times what {these} carry: on as many more slots as they take,"
            f" {_quoted(scarce.filling)} would leave others no memory"
        )
    else:
        why = (
            f"these models need {needs} times the time of {these},"
            f" {_cold_share([scarce]):.1%} of requests being starts"
        )
    return (
        f"rates: {why}{unused}\n"
        f"  try    {enough} of them, more memory, or rates of"
        f" {round_down(1 / scarce.need, 3)} times these"
    )


def _quoted(models: Sequence[str], most: int = 3) -> str:
    """Some of them by name."""
    more = f" and {len(models) - most} more" if len(models) > most else ""
    return ", ".join(repr(model) for model in models[:most]) + more


def _cold_share(carried: Sequence[Carried]) -> float:
    """Of all requests, those that find their model absent."""
    parts = [
        (weight_of(each.demand), part)
        for on in carried
        for each, part in zip(on.placed, on.absent, strict=True)
    ]
    return sum(weight * part for weight, part in parts) / sum(weight for weight, _ in parts)
