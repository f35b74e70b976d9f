"""Calls that one request makes at once: the least time in which a module's machines answer them.

A request that calls a module k times (its fan-out, rounded up: some request makes so many) makes
these calls together. However few requests there are, the last of them is answered when the machines
have run all of them. On one machine j calls take at least

    g(j) = min over sizes b <= the pipeline's of  latency(b) + g(j - b)

and k calls on all machines at least the least T with: the sum over machines of the most j that
have g(j) <= T is k or more. Turns and neighbours only make it longer. Of k only the first `MOST`
are looked at. Cost: k x batch size, per kind of machine.
"""

from bisect import bisect_right
from collections.abc import Sequence
from math import ceil

from headrace.domain.app import App
from headrace.domain.plan import Deployment
from headrace.verify.case import Case
from headrace.verify.figures import latency_us

MOST = 256
"""Calls of one request, with which a limit is found; of more, it is that of so many."""


def check_at_once(case: Case, app: App, allowed_us: int) -> None:
    """Whether idle machines could answer a request's calls in time, module after module.

    Args:
        allowed_us: the SLO less the app's own code and the gateway; a margin is there to be used.
    """
    least = {module.name: 0 for module in app.modules}
    for deployment in case.plan.deployments:
        if deployment.app == app.name and deployment.module in least:
            calls = ceil(app.module(deployment.module).fan_out.mean)
            least[deployment.module] = _least_us(case, deployment, min(calls, MOST))
    what = "calls (us) that one request makes at once, on idle machines, exceed the SLO"
    case.limit("worst-case", app.name, what, app.longest_path_us(least), allowed_us)


def _least_us(case: Case, deployment: Deployment, calls: int) -> int:
    """0: too broken to tell, which is reported elsewhere."""
    profile = case.profiles.get(deployment.model)
    machines: list[tuple[int, Sequence[int]]] = []
    if profile is None:
        return 0
    for pipeline in deployment.pipelines:
        if len(pipeline.stages) != 1:
            return 0
        stage = pipeline.stages[0]
        sizes = range(1, min(pipeline.batch_size, calls) + 1)
        took = [latency_us(profile, stage, size) for size in sizes]
        if None in took or not took:
            return 0
        machines.append((len(stage.pool), _by_calls([us[1] for us in took if us], calls)))
    return _together_us(machines, calls) if machines else 0


def _by_calls(latency_by_size: Sequence[int], calls: int) -> list[int]:
    """g(1), g(2), ..., g(calls).

    >>> _by_calls([10, 12], 4)
    [10, 12, 22, 24]
    """
    least = [0]
    for count in range(1, calls + 1):
        least.append(
            min(us + least[max(0, count - size)] for size, us in enumerate(latency_by_size, 1))
        )
    return least[1:]


def _together_us(machines: Sequence[tuple[int, Sequence[int]]], calls: int) -> int:
    """The least T; machines: how many are alike, and their g."""
    for at_us in sorted({us for _, times in machines for us in times}):
        if sum(count * bisect_right(times, at_us) for count, times in machines) >= calls:
            return at_us
    return 0
