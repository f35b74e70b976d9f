"""Whether an app request that arrives now still has a chance: one that has none is refused at once.

A module's dispatcher sees its own queue only. Under overload it would accept requests that a later
module then drops, with the work of the first modules wasted. Here the work that all accepted
requests still have ahead is known, module by module, so that hopeless requests stop at the door.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from headrace.dispatch.apps.app_dispatcher import AppRun, AppTable
from headrace.domain.plan import Plan


@dataclass(frozen=True, slots=True, kw_only=True)
class Admission:
    """What one app's modules can do. Entries are in the order of `AppTable.modules`."""

    calls: tuple[float, ...]
    """Mean calls per request."""
    rates_rps: tuple[float, ...]
    """Calls per second that the module's machines answer when they are always busy."""
    fastest_us: int
    """The longest path of the least times: what a request takes in an idle system."""

    def excess_us(self, runs: Iterable[AppRun], allowed_us: int) -> int:
        """How much too long a request would take that arrives now; 0: it has a chance.

        It waits for the module with most work ahead: machines of different modules work at the
        same time, so only the longest queue counts.

        Args:
            runs: accepted requests of this app without an end.
            allowed_us: from arrival to deadline.
        """
        ahead = [0.0] * len(self.calls)
        for run in runs:
            for module, mean in enumerate(self.calls):
                out = run.calls_out(module)
                ahead[module] += mean if out is None else out
        wait_s = max(calls / rate for calls, rate in zip(ahead, self.rates_rps, strict=True))
        return max(0, round(wait_s * 1e6) + self.fastest_us - allowed_us)


def admission(plan: Plan, table: AppTable, fastest_us: Sequence[int]) -> Admission:
    """
    Args:
        fastest_us: per module, the least time of one call.
    """
    app = next(claim.app for claim in plan.apps if claim.app.name == table.name)
    names = [module.name for module in table.modules]
    return Admission(
        calls=tuple(app.module(name).fan_out.mean for name in names),
        rates_rps=tuple(_busy_rps(plan, module.model) for module in table.modules),
        fastest_us=app.longest_path_us(dict(zip(names, fastest_us, strict=True))),
    )


def _busy_rps(plan: Plan, deployment: int) -> float:
    """Throughput without the part that is kept free: `max_utilisation` is no limit to a queue."""
    return sum(
        pipeline.throughput_rps
        / plan.cluster.device_type(pipeline.stages[0].device).max_utilisation
        for pipeline in plan.deployments[deployment].pipelines
    )
