"""What would be enough: the least SLO, or number of devices, with which something can be done.

Found by growing it until it is, then by halving between what is and what is not; so it is the
least only of what more never harms.
"""

from collections.abc import Callable, Collection
from math import ceil
from typing import NamedTuple

from msgspec.structs import replace

from headrace.domain.problem import Problem
from headrace.planning.common.deadline import Deadline

Does = Callable[[Problem], bool | None]
"""Whether it can be done in a problem; None: that was not decided."""


class Enough(NamedTuple):
    """Found to be enough."""

    value: int
    certain: bool
    """Whether a step less was decided not to be."""


def least_enough(
    does: Callable[[int], bool | None],
    too_little: int,
    *,
    most: int,
    limit: Deadline,
    step: int = 1,
    growth: float = 2.0,
) -> Enough | None:
    """The least value that is enough, to within `step`; None: none was found in time.

    Args:
        does: asked for values above `too_little`, up to `most`.
        growth: from one value to the next, until one is enough.
    """
    value, certain = too_little, True
    while True:
        if limit.passed or value >= most:
            return None
        value = min(most, max(value + step, ceil(growth * value)))
        done = does(value)
        if done:
            break
        too_little, certain = value, done is not None
    while value - too_little > step:
        if limit.passed:
            return Enough(value, certain=False)
        middle = (too_little + value) // 2
        done = does(middle)
        if done:
            value = middle
        else:
            too_little, certain = middle, done is not None
    return Enough(value, certain)


def least_slos(
    problem: Problem,
    apps: Collection[str],
    does: Does,
    *,
    growth: float,
    most: float,
    step_us: int,
    limit: Deadline,
) -> tuple[Problem, bool] | None:
    """The problem with the SLOs of these apps longer, all in proportion, and whether it is certain
    that they have to be; None: none was found in time.

    Args:
        most: times the SLOs of the problem.
        step_us: SLOs are multiples of it.
    """
    longest_us = max(app.slo_us for app in problem.apps if app.name in apps)

    def longer(steps: int) -> Problem:
        times = steps * step_us / longest_us
        return replace(
            problem,
            apps=tuple(
                replace(app, slo_us=step_us * ceil(round(app.slo_us * times / step_us, 6)))
                if app.name in apps
                else app
                for app in problem.apps
            ),
        )

    found = least_enough(
        lambda steps: does(longer(steps)),
        longest_us // step_us,
        most=ceil(most * longest_us / step_us),
        limit=limit,
        growth=growth,
    )
    return found and (longer(found.value), found.certain)


def least_devices(
    problem: Problem,
    device: str,
    does: Does,
    *,
    most: int,
    limit: Deadline,
    growth: float = 2.0,
) -> Enough | None:
    """How many devices of this type there would have to be, with all others as they are."""
    return least_enough(
        lambda count: does(with_devices(problem, {device: count})),
        problem.cluster.count(device),
        most=most,
        limit=limit,
        growth=growth,
    )


def with_devices(problem: Problem, counts: dict[str, int]) -> Problem:
    """As many devices of these types, which is no fewer than there are; what lacks is on the first
    node that has some, or on the first of all."""
    nodes = list(problem.cluster.nodes)
    for device, count in counts.items():
        more = count - problem.cluster.count(device)
        at = next((i for i, node in enumerate(nodes) if node.devices.get(device)), 0)
        if more:
            own = {**nodes[at].devices, device: nodes[at].devices.get(device, 0) + more}
            nodes[at] = replace(nodes[at], devices=own)
    return replace(problem, cluster=replace(problem.cluster, nodes=tuple(nodes)))


def slos_text(problem: Problem, apps: Collection[str]) -> str:
    """ "an SLO of a: 20 ms, b: 30 ms"."""
    return "an SLO of " + ", ".join(
        f"{app.name}: {app.slo_us / 1000:g} ms" for app in problem.apps if app.name in apps
    )
