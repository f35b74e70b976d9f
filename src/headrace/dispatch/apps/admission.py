"""Whether an app request that arrives now still has a chance: one that has none is refused at once.

A module's dispatcher sees its own queue only. Under overload it would accept requests that a later
module then drops, with the work of the first modules wasted. Here the work that all accepted
requests still have ahead is known, module by module, so that hopeless requests stop at the door.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from headrace.dispatch.apps.app_dispatcher import AppRun, AppTable
from headrace.domain.app import App
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
    running: tuple[int, ...]
    """Calls that may be running, and so end at any time."""
    rest_us: tuple[int, ...]
    """From the module on, the longest path of the least times."""

    def excess_us(self, runs: Iterable[AppRun], allowed_us: int) -> int:
        """How much too long a request would take that arrives now; 0: it has a chance.

        It waits for the module with most work ahead: machines of different modules work at the
        same time, so only the longest queue counts, and before its turn comes there the request may
        pass the modules before it. What may be running already is no queue: where every machine is
        used fully, as much is under way as the SLO allows.

        Args:
            runs: accepted requests of this app without an end.
            allowed_us: from arrival to deadline.
        """
        ahead = [0.0] * len(self.calls)
        for run in runs:
            for module, mean in enumerate(self.calls):
                out = run.calls_out(module)
                ahead[module] += mean if out is None else out
        rows = zip(ahead, self.running, self.rates_rps, self.rest_us, strict=True)
        # In an idle app this is `fastest_us`: the longest of all rests.
        least_us = max(
            round(max(0.0, calls - running) / rate * 1e6) + rest
            for calls, running, rate, rest in rows
        )
        return max(0, least_us - allowed_us)


def admission(plan: Plan, table: AppTable, fastest_us: Sequence[int]) -> Admission:
    """
    Args:
        fastest_us: per module, the least time of one call.
    """
    app = next(claim.app for claim in plan.apps if claim.app.name == table.name)
    names = [module.name for module in table.modules]
    path_us = app.longest_path_us(dict(zip(names, fastest_us, strict=True)))
    rates_rps = tuple(_busy_rps(plan, module.model) for module in table.modules)
    return Admission(
        calls=tuple(app.module(name).fan_out.mean for name in names),
        rates_rps=rates_rps,
        fastest_us=path_us,
        running=tuple(_running(plan, module.model) for module in table.modules),
        rest_us=_rest_us(app, dict(zip(names, fastest_us, strict=True))),
    )


def _rest_us(app: App, fastest_us: Mapping[str, int]) -> tuple[int, ...]:
    """Per module, in the order of `fastest_us`: its longest path to the end."""
    rest: dict[str, int] = {}
    for name in reversed(list(fastest_us)):
        behind = [rest[after] for first, after in app.edges if first == name]
        rest[name] = fastest_us[name] + max(behind, default=0)
    return tuple(rest[name] for name in fastest_us)


def _running(plan: Plan, deployment: int) -> int:
    """Calls that the module's slots run at most at the same time."""
    pipelines = plan.deployments[deployment].pipelines
    return sum(len(pipeline.stages[0].pool) * pipeline.batch_size for pipeline in pipelines)


def _busy_rps(plan: Plan, deployment: int) -> float:
    """Throughput without the part that is kept free: `max_utilisation` is no limit to a queue. Nor
    is a turn's place in its round: those that it shares a slot with may have nothing to do."""
    in_turns = {slot.name for slot in plan.slots if slot.duty_us is not None}
    total = 0.0
    for pipeline in plan.deployments[deployment].pipelines:
        stage = pipeline.stages[0]
        if in_turns.isdisjoint(stage.pool):
            usable = plan.cluster.device_type(stage.device).max_utilisation
            total += pipeline.throughput_rps / usable
        else:
            total += 1e6 * pipeline.batch_size / max(1, stage.latency_us)
    return total
