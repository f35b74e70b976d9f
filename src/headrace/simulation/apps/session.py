"""Apps in virtual time: the server's state machine and dispatcher, with drawn fan-outs."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from headrace.dispatch.apps.app_dispatcher import app_tables
from headrace.dispatch.dispatcher import Dispatcher
from headrace.dispatch.limits import QUEUE_LIMIT
from headrace.dispatch.policies import policy_for
from headrace.dispatch.protocols import EventSink
from headrace.dispatch.topology import Topology
from headrace.domain.events import AnyEvent, Called, EventLogHeader
from headrace.domain.plan import Plan
from headrace.domain.profile import Profile
from headrace.domain.request import Outcome
from headrace.metrics import Report, run_report, summarise
from headrace.simulation.apps.requests import AppRequests, ModuleDriver
from headrace.simulation.apps.scripts import Script, arrived_at_us, scripts_of
from headrace.simulation.clock import SimClock
from headrace.simulation.driver import (
    Durations,
    JitteredDurations,
    Slower,
    Spans,
    exact_durations,
)
from headrace.simulation.measured import Like, measured_durations, noting
from headrace.simulation.moments import moments_of
from headrace.simulation.offered.arrivals import Arrival


@dataclass(frozen=True, slots=True, kw_only=True)
class AppSession:
    """What happened, call by call and request by request."""

    header: EventLogHeader
    events: list[AnyEvent]
    """Of calls: a model of the log is a module."""
    outcomes: dict[str, list[Outcome]]
    """App, or model beside them -> its requests, in order of arrival."""

    def report(self, span_us: int | None = None) -> Report:
        """Modules by APP.MODULE, apps by their names; the total is that of the apps."""
        calls = run_report("simulated", self.header, self.events, span_us)
        apps = {app: summarise(found, span_us) for app, found in self.outcomes.items()}
        return Report(
            source="simulated",
            # A model beside the apps is both: its requests, the gateway counted, are what is told.
            models={**apps, **{name: s for name, s in calls.models.items() if name not in apps}},
            total=summarise([o for found in self.outcomes.values() for o in found], span_us),
            slots=calls.slots,
        )


def simulate_apps(
    plan: Plan,
    profiles: Mapping[str, Profile],
    arrivals: Sequence[Arrival],
    *,
    policy: str | None = None,
    jitter: bool = True,
    seed: int = 0,
    times: tuple[EventLogHeader, Sequence[AnyEvent]] | None = None,
    slower: Slower | None = None,
    queue_limit: int = QUEUE_LIMIT,
    on_progress: Callable[[int], None] | None = None,
) -> AppSession:
    """Run `arrivals` of apps, and of models beside them, through the plan in virtual time.

    Args:
        policy: None: the one that the plan's worst cases are read by.
        jitter: draw execution times from the profile's spread instead of taking its medians.
        seed: of execution times and fan-outs.
        times: a server's event log of the same plan, to draw execution times from instead, and
            what requests of the apps do (`scripts`).
        slower: how much longer batches take than the profile, or `times`, say.
        queue_limit: calls of one module that may wait for a decision.

    Raises:
        PlanError: an arrival names an app that the plan does not have.
    """
    topology = Topology.from_plan(plan, profiles)
    policy = policy or policy_for(plan)
    rng = np.random.default_rng(seed)
    durations: Durations | Spans = JitteredDurations(rng) if jitter else exact_durations
    scripts: Mapping[str, Sequence[Script]] = {}
    clock, events = SimClock(), list[AnyEvent]()
    sink: EventSink = events.append
    moments = None
    if times is not None:
        tables = app_tables(plan)
        logged_at_us = arrived_at_us(tables, *times)
        calls_each = sum(isinstance(e, Called) for e in times[1]) / max(1, len(logged_at_us))
        moments = moments_of(logged_at_us, [a.at_us for a in arrivals], rng, calls_each)
        like = None if moments is None else Like(moments, clock.now_us)
        durations = measured = measured_durations(topology, *times, rng, like)
        sink = noting(measured, events.append)
        scripts = scripts_of(tables, *times)
    requests = AppRequests(clock, arrivals, seed, scripts, moments)
    requests.on_progress = on_progress
    driver = ModuleDriver(topology, clock, durations, requests, slower)
    dispatcher = Dispatcher(topology, policy, clock, driver, sink, queue_limit)
    driver.reports = dispatcher
    requests.serve(plan, topology)
    requests.cancel = dispatcher.cancel
    requests.send = lambda call, name: dispatcher.on_arrival(call.request(clock.now_us()))
    requests.schedule()
    clock.run()
    return AppSession(
        header=topology.event_log_header("virtual", policy),
        events=events,
        outcomes=requests.outcomes(),
    )
