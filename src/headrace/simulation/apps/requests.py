"""Requests of apps in virtual time: opened at their instants, led through their calls, ended."""

from collections.abc import Callable, Sequence
from functools import partial

from headrace.dispatch.apps.admission import Admission, admission
from headrace.dispatch.apps.app_dispatcher import (
    AppRun,
    AppTable,
    AppTracker,
    Call,
    Step,
    app_tables,
)
from headrace.dispatch.kernel.layout import Ints
from headrace.dispatch.protocols import Batch
from headrace.dispatch.topology import Topology
from headrace.domain.errors import PlanError
from headrace.domain.plan import Plan
from headrace.domain.request import DropReason, Outcome, Request
from headrace.simulation.apps.fan_out import app_calls
from headrace.simulation.clock import SimClock
from headrace.simulation.driver import Durations, SimDriver
from headrace.simulation.offered.arrivals import Arrival


class AppRequests:
    """Owns the tracker and carries its steps out. Set `send` and `cancel`, and call `serve`, before
    the clock runs.

    A step is carried out at the same instant but after the dispatcher has said all it had to say,
    as the server does.
    """

    send: Callable[[Call, str], None]
    """Given a call and its module's full name: let a dispatcher have it."""
    cancel: Callable[[int], None]
    """Given a call's id: nobody waits for it any more."""

    def __init__(self, clock: SimClock, arrivals: Sequence[Arrival], seed: int) -> None:
        """`seed`: of the fan-outs. An arrival's model is an app."""
        self.on_progress: Callable[[int], None] | None = None
        self._clock = clock
        self._arrivals = arrivals
        self._seed = seed
        self._tracker = AppTracker(())
        self._tables: dict[str, AppTable] = {}
        self._admissions: dict[str, Admission] = {}
        self._calls: dict[str, dict[str, Ints]] = {}
        """App -> module -> calls by each request; drawn once, whatever plans follow."""
        self._place, self._counts = _places([arrival.model for arrival in arrivals])
        self._deadline_at_us: dict[int, int] = {}
        self._ended: dict[int, tuple[int | None, str]] = {}

    def serve(self, plan: Plan, topology: Topology) -> None:
        """Requests that arrive from now on go by this plan; those under way keep their budgets."""
        tables = app_tables(plan)
        self._tracker.serve(tables)
        self._tables = {table.name: table for table in tables}
        self._admissions = {
            table.name: admission(
                plan, table, [topology.models[m.model].fastest_us for m in table.modules]
            )
            for table in tables
        }
        for claim in plan.apps:
            name = claim.app.name
            drawn = app_calls(claim.app, self._counts.get(name, 0), self._seed)
            self._calls[name] = drawn | self._calls.get(name, {})

    def schedule(self, number: int = 0) -> None:
        """Let request `number` arrive at its instant, and then the next."""
        if number < len(self._arrivals):
            self._clock.call_at(self._arrivals[number].at_us, partial(self._arrive, number))

    def outcomes(self) -> dict[str, list[Outcome]]:
        """App -> what became of its requests, in order of arrival, once all have ended."""
        found: dict[str, list[Outcome]] = {app: [] for app in self._calls}
        for number, arrival in enumerate(self._arrivals):
            ended_at_us, reason = self._ended[number]
            found[arrival.model].append(
                Outcome(
                    arrived_at_us=arrival.at_us,
                    deadline_at_us=self._deadline_at_us[number],
                    ended_at_us=ended_at_us,
                    reason=reason,
                )
            )
        return found

    # -- what drivers say -------------------------------------------------------------------------

    def answered(self, call_ids: Sequence[int]) -> None:
        """A batch has its answers."""
        self._clock.call_at(self._clock.now_us(), partial(self._pass_on, call_ids))

    def refused(self, call_id: int, reason: DropReason, retry_after_us: int) -> None:
        """A call was dropped."""
        self._clock.call_at(
            self._clock.now_us(),
            lambda: self._carry_out(self._tracker.on_refused(call_id, reason, retry_after_us)),
        )

    # -- arrivals and steps -----------------------------------------------------------------------

    def _arrive(self, number: int) -> None:
        self.schedule(number + 1)
        arrival = self._arrivals[number]
        table = self._tables.get(arrival.model)
        if table is None:
            raise PlanError(
                f"arrival {number} at {arrival.at_us / 1e6:g} s: the plan has no app"
                f" {arrival.model!r}; it has: {', '.join(self._tables)}"
            )
        allowed_us = table.slo_us if arrival.timeout_us is None else arrival.timeout_us
        self._deadline_at_us[number] = arrival.at_us + allowed_us
        ahead = self._tracker.runs(arrival.model)
        if self._admissions[arrival.model].excess_us(ahead, allowed_us):
            self._ended[number] = None, "deadline"
            return
        run = self._tracker.open(
            number,
            arrival.model,
            arrival.at_us + allowed_us,
            self._fan_out,
            priority=arrival.priority or None,
        )
        self._carry_out(self._tracker.start(run, self._clock.now_us()))
        if self.on_progress is not None and number % 1000 == 0:
            self.on_progress(number + 1)

    def _fan_out(self, run: AppRun, module: int) -> int:
        counts = self._calls[run.table.name][run.table.modules[module].name]
        return int(counts[self._place[run.id]])

    def _carry_out(self, step: Step) -> None:
        for call_id in step.cancels:
            self.cancel(call_id)
        for call in step.calls:
            run = self._tracker.owner(call.id)
            assert run is not None, "the step has just made the call"
            self.send(call, f"{run.table.name}.{run.table.modules[call.module].name}")
        ended = step.ended
        if ended is not None:
            ended_at_us = self._clock.now_us() if ended.state == "answered" else None
            self._ended[ended.run] = (ended_at_us, ended.reason or "")

    def _pass_on(self, call_ids: Sequence[int]) -> None:
        for call_id in call_ids:
            self._carry_out(self._tracker.on_answered(call_id, self._clock.now_us()))


class ModuleDriver(SimDriver):
    """Simulated slots and links that tell the apps what became of their calls."""

    def __init__(
        self, topology: Topology, clock: SimClock, durations: Durations, requests: AppRequests
    ) -> None:
        super().__init__(topology, clock, durations)
        self._requests = requests

    def answer(self, batch: Batch) -> None:
        self._requests.answered([request.id for request in batch.requests])

    def refuse(self, request: Request, reason: DropReason, retry_after_us: int) -> None:
        self._requests.refused(request.id, reason, retry_after_us)


def _places(apps: Sequence[str]) -> tuple[list[int], dict[str, int]]:
    """Request -> its place among those of its app, so that apps draw independently; and app -> its
    requests.

    >>> _places(["a", "b", "a"])
    ([0, 0, 1], {'a': 2, 'b': 1})
    """
    counts: dict[str, int] = {}
    places = []
    for app in apps:
        places.append(counts.get(app, 0))
        counts[app] = places[-1] + 1
    return places, counts
