"""Apps in virtual time: the server's state machine and dispatcher, with drawn fan-outs."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from headrace.dispatch.app_admission import admission
from headrace.dispatch.apps import AppRun, AppTracker, Step, app_tables
from headrace.dispatch.dispatcher import Dispatcher
from headrace.dispatch.kernel.layout import Ints
from headrace.dispatch.policies import policy_for
from headrace.dispatch.protocols import Batch
from headrace.dispatch.topology import Topology
from headrace.domain.errors import PlanError
from headrace.domain.events import AnyEvent, EventLogHeader
from headrace.domain.plan import Plan
from headrace.domain.profile import Profile
from headrace.domain.request import DropReason, Outcome, Request
from headrace.metrics import Report, run_report, summarise
from headrace.simulation.arrivals import Arrival
from headrace.simulation.clock import SimClock
from headrace.simulation.driver import Durations, JitteredDurations, SimDriver, exact_durations
from headrace.simulation.fan_out import app_calls
from headrace.simulation.measured import measured_durations


@dataclass(frozen=True, slots=True, kw_only=True)
class AppSession:
    """What happened, call by call and request by request."""

    header: EventLogHeader
    events: list[AnyEvent]
    """Of calls: a model of the log is a module."""
    outcomes: dict[str, list[Outcome]]
    """App -> its requests, in order of arrival."""

    def report(self, span_us: int | None = None) -> Report:
        """Modules by APP.MODULE, apps by their names; the total is that of the apps."""
        calls = run_report("simulated", self.header, self.events, span_us)
        apps = {app: summarise(found, span_us) for app, found in self.outcomes.items()}
        return Report(
            source="simulated",
            models={**apps, **calls.models},
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
    on_progress: Callable[[int], None] | None = None,
) -> AppSession:
    """Run `arrivals`, whose models are apps, through the plan in virtual time.

    Args:
        policy: None: the one that the plan's worst cases are read by.
        jitter: draw execution times from the profile's spread instead of taking its medians.
        seed: of execution times and fan-outs.
        times: a server's event log of the same plan, to draw execution times from instead.

    Raises:
        PlanError: an arrival names an app that the plan does not have.
    """
    topology = Topology.from_plan(plan, profiles)
    policy = policy or policy_for(plan)
    rng = np.random.default_rng(seed)
    durations: Durations = JitteredDurations(rng) if jitter else exact_durations
    if times is not None:
        durations = measured_durations(topology, *times, rng)
    session = _Session(plan, topology, policy, durations, arrivals, seed)
    session.on_progress = on_progress
    session.schedule(0)
    session.clock.run()
    return AppSession(
        header=topology.event_log_header("virtual", policy),
        events=session.events,
        outcomes=session.outcomes(),
    )


class _Session(SimDriver):
    """Driver and owner of the tracker: carries its steps out.

    A step is carried out at the same instant but after the dispatcher has said all it had to say,
    as the server does.
    """

    on_progress: Callable[[int], None] | None = None

    def __init__(
        self,
        plan: Plan,
        topology: Topology,
        policy: str,
        durations: Durations,
        arrivals: Sequence[Arrival],
        seed: int,
    ) -> None:
        self.clock = SimClock()
        super().__init__(topology, self.clock, durations)
        self.events: list[AnyEvent] = []
        self.dispatcher = Dispatcher(topology, policy, self.clock, self, self.events.append)
        self.reports = self.dispatcher
        tables = app_tables(plan)
        self._tracker = AppTracker(tables)
        self._tables = {table.name: table for table in tables}
        self._doors = {
            table.name: admission(
                plan, table, [topology.models[m.model].fastest_us for m in table.modules]
            )
            for table in tables
        }
        self._apps = [claim.app.name for claim in plan.apps]
        self._arrivals = arrivals
        self._check_arrivals()
        self._place = self._places()
        self._calls = {
            claim.app.name: app_calls(claim.app, self._place.count(claim.app.name), seed)
            for claim in plan.apps
        }
        self._ended: dict[int, tuple[int | None, str]] = {}

    def _check_arrivals(self) -> None:
        for number, arrival in enumerate(self._arrivals):
            if arrival.model not in self._tables:
                raise PlanError(
                    f"arrival {number}: the plan has no app {arrival.model!r};"
                    f" it has: {', '.join(self._apps)}"
                )

    def _places(self) -> "_Places":
        return _Places([arrival.model for arrival in self._arrivals])

    # -- arrivals ---------------------------------------------------------------------------------

    def schedule(self, number: int) -> None:
        """Let request `number` arrive at its instant, and then the next."""
        if number < len(self._arrivals):
            at_us = self._arrivals[number].at_us
            self.clock.call_at(at_us, lambda: self._arrive(number))

    def _arrive(self, number: int) -> None:
        self.schedule(number + 1)
        arrival = self._arrivals[number]
        ahead = self._tracker.runs(arrival.model)
        allowed_us = self._deadline_at_us(number) - arrival.at_us
        if self._doors[arrival.model].excess_us(ahead, allowed_us):
            self._ended[number] = None, "deadline"
            return
        run = self._tracker.open(
            number,
            arrival.model,
            self._deadline_at_us(number),
            self._fan_out,
            priority=arrival.priority or None,
        )
        self._carry_out(self._tracker.start(run, self.clock.now_us()))
        if self.on_progress is not None and number % 1000 == 0:
            self.on_progress(number + 1)

    def _deadline_at_us(self, number: int) -> int:
        arrival = self._arrivals[number]
        slo_us = self._tables[arrival.model].slo_us
        return arrival.at_us + (slo_us if arrival.timeout_us is None else arrival.timeout_us)

    def _fan_out(self, run: AppRun, module: int) -> int:
        counts = self._calls[run.table.name][run.table.modules[module].name]
        return int(counts[self._place.of[run.id]])

    # -- steps ------------------------------------------------------------------------------------

    def _carry_out(self, step: Step) -> None:
        for call_id in step.cancels:
            self.dispatcher.cancel(call_id)
        now_us = self.clock.now_us()
        for call in step.calls:
            self.dispatcher.on_arrival(call.request(now_us))
        ended = step.ended
        if ended is not None:
            answered = ended.state == "answered"
            self._ended[ended.run] = (now_us if answered else None, ended.reason or "")

    def answer(self, batch: Batch) -> None:
        ids = [request.id for request in batch.requests]
        self.clock.call_at(self.clock.now_us(), lambda: self._pass_on(ids))

    def _pass_on(self, ids: Sequence[int]) -> None:
        for call_id in ids:
            self._carry_out(self._tracker.on_answered(call_id, self.clock.now_us()))

    def refuse(self, request: Request, reason: DropReason, retry_after_us: int) -> None:
        self.clock.call_at(
            self.clock.now_us(),
            lambda: self._carry_out(self._tracker.on_refused(request.id, reason, retry_after_us)),
        )

    def outcomes(self) -> dict[str, list[Outcome]]:
        found: dict[str, list[Outcome]] = {app: [] for app in self._apps}
        for number, arrival in enumerate(self._arrivals):
            ended_at_us, reason = self._ended[number]
            found[arrival.model].append(
                Outcome(
                    arrived_at_us=arrival.at_us,
                    deadline_at_us=self._deadline_at_us(number),
                    ended_at_us=ended_at_us,
                    reason=reason,
                )
            )
        return found


class _Places:
    """Request -> its place among those of its app, so that apps draw independently."""

    def __init__(self, apps: Sequence[str]) -> None:
        self._counts: dict[str, int] = {}
        places = []
        for app in apps:
            places.append(self._counts.get(app, 0))
            self._counts[app] = places[-1] + 1
        self.of: Ints = np.array(places, dtype=np.int64)

    def count(self, app: str) -> int:
        return self._counts.get(app, 0)
