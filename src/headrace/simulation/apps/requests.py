"""Requests of apps in virtual time: opened at their instants, led through their calls, ended.

Of an app that a server's log knows, every request follows one of the log's (`scripts`): it is an
app's function to the tracker, as in the server, and has no answer after its deadline. Otherwise it
goes through the problem's graph; there a call is made `code_us` of its module after all before it
have their answers, and passes the gateway, which takes one call at a time, before the dispatcher
has it. In a script all that is part of the time before a call.
"""

import dataclasses
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

import numpy as np

from headrace.dispatch.apps.admission import Admission, admission
from headrace.dispatch.apps.app_dispatcher import (
    AppRun,
    AppTable,
    AppTracker,
    Call,
    Ended,
    Step,
    alone_tables,
    app_tables,
)
from headrace.dispatch.kernel.layout import Ints
from headrace.dispatch.protocols import Batch
from headrace.dispatch.topology import Topology
from headrace.domain.errors import PlanError
from headrace.domain.plan import Plan
from headrace.domain.request import DropReason, Outcome, Request
from headrace.simulation.apps.fan_out import app_calls
from headrace.simulation.apps.scripts import Script
from headrace.simulation.clock import SimClock
from headrace.simulation.driver import Durations, SimDriver, Slower, Spans
from headrace.simulation.moments import Moments
from headrace.simulation.offered.arrivals import Arrival, stream_rng


@dataclass(slots=True)
class _Play:
    """A request that follows a script."""

    run: AppRun
    script: Script
    waits: list[int]
    """Per call of the script, how many answers it still waits for."""
    unanswered: int
    """Calls of the script."""
    numbers: dict[int, int] = field(default_factory=dict)
    """Call under way -> its number in the script."""


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

    def __init__(
        self,
        clock: SimClock,
        arrivals: Sequence[Arrival],
        seed: int,
        scripts: Mapping[str, Sequence[Script]] | None = None,
        moments: Moments | None = None,
    ) -> None:
        """
        Args:
            arrivals: their models are apps.
            seed: of the fan-outs, and of who follows which script.
            scripts: app -> what its requests do; of apps without any, the problem's graph says it.
            moments: of the log that the scripts are of; None: any moment is like any other.
        """
        self.on_progress: Callable[[int], None] | None = None
        self._clock = clock
        self._arrivals = arrivals
        self._seed = seed
        self._tracker = AppTracker(())
        self._tables: dict[str, AppTable] = {}
        self._fastest_us: dict[str, Sequence[int]] = {}
        self._admissions: dict[str, Admission] = {}
        self._calls: dict[str, dict[str, Ints]] = {}
        """App -> module -> calls by each request; drawn once, whatever plans follow."""
        self._place, self._counts = _places([arrival.model for arrival in arrivals])
        self._scripts = scripts or {}
        self._moments = moments
        self._script_rngs = {name: stream_rng(seed, f"{name}.scripts") for name in self._scripts}
        self._runs: dict[int, AppRun] = {}
        """Those without an end."""
        self._plays: dict[int, _Play] = {}
        """Of them, those that follow a script."""
        self._alone: set[str] = set()
        """Models that are asked for themselves: apps of one call, which nothing refuses early."""
        self._gateway_us: dict[str, int] = {}
        """Module -> what one call takes of the gateway."""
        self._gateway_free_at_us = 0
        self._deadline_at_us: dict[int, int] = {}
        self._ended: dict[int, tuple[int | None, str]] = {}
        self._unserved: set[int] = set()

    def serve(self, plan: Plan, topology: Topology) -> None:
        """Requests that arrive from now on go by this plan; those under way keep their budgets."""
        # Those of an earlier plan stay: requests under way may still call them.
        self._gateway_us |= {model.name: model.gateway_us for model in topology.models}
        alone = alone_tables(plan)
        self._alone |= {table.name for table in alone}
        tables = (*alone, *app_tables(plan))
        self._tracker.serve(tables)
        self._tables = {table.name: table for table in tables}
        self._fastest_us = {
            table.name: [topology.models[m.model].fastest_us for m in table.modules]
            for table in tables
        }
        self._admissions = {
            table.name: admission(plan, table, self._fastest_us[table.name])
            for table in tables
            if table.name not in self._alone
        }
        for table in alone:
            ones = np.ones(self._counts.get(table.name, 0), np.int64)
            self._calls.setdefault(table.name, {table.name: ones})
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
            if number in self._unserved:
                continue
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

    @property
    def unserved(self) -> Counter[str]:
        """App -> its requests that came when it was served no longer; they have no outcome."""
        return Counter(self._arrivals[number].model for number in self._unserved)

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
        if table is None and arrival.model in self._calls:
            # An earlier plan had it.
            self._unserved.add(number)
            return
        if table is None:
            raise PlanError(
                f"arrival {number} at {arrival.at_us / 1e6:g} s: the plan has no app"
                f" {arrival.model!r}; it has: {', '.join(self._tables)}"
            )
        allowed_us = table.slo_us if arrival.timeout_us is None else arrival.timeout_us
        self._deadline_at_us[number] = arrival.at_us + allowed_us
        ahead = self._tracker.runs(arrival.model)
        door = self._admissions.get(arrival.model)
        if door is not None and door.excess_us(ahead, allowed_us):
            self._ended[number] = None, "deadline"
            return
        scripts = self._scripts.get(arrival.model)
        run = self._tracker.open(
            number,
            arrival.model,
            arrival.at_us + allowed_us,
            None if scripts else self._fan_out,
            priority=arrival.priority or None,
            fastest_us=self._fastest_us[arrival.model] if scripts else (),
        )
        self._runs[number] = run
        if scripts:
            self._play(run, self._script(arrival.model, scripts))
        else:
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
            if run.id in self._plays:
                self._send(run, call)
            else:
                code_us = run.table.modules[call.module].code_us
                self._after(code_us, partial(self._pass_gateway, run, call))
        if step.ended is not None:
            self._end(step.ended)

    def _end(self, ended: Ended) -> None:
        run = self._runs.pop(ended.run)
        played = self._plays.pop(ended.run, None)
        ended_at_us = None
        if ended.state == "answered":
            ended_at_us = self._clock.now_us() + (0 if played else run.table.code_us)
        self._ended[ended.run] = (ended_at_us, ended.reason or "")

    def _after(self, wait_us: int, then: Callable[[], None]) -> None:
        if wait_us:
            self._clock.call_at(self._clock.now_us() + wait_us, then)
        else:
            then()

    def _pass_gateway(self, run: AppRun, call: Call) -> None:
        """One call at a time, in the order in which they are made."""
        now_us = self._clock.now_us()
        taken_us = self._gateway_us[self._name(run, call)]
        self._gateway_free_at_us = max(now_us, self._gateway_free_at_us) + taken_us
        self._after(taken_us and self._gateway_free_at_us - now_us, partial(self._send, run, call))

    def _send(self, run: AppRun, call: Call) -> None:
        """Let the dispatcher have the call, unless its request has ended meanwhile."""
        if self._tracker.owner(call.id) is None:
            return
        deadline_at_us = run.table.deadline_at_us(
            call.module, run.deadline_at_us, self._clock.now_us()
        )
        self.send(dataclasses.replace(call, deadline_at_us=deadline_at_us), self._name(run, call))

    def _name(self, run: AppRun, call: Call) -> str:
        """Of the deployment that is called."""
        app, module = run.table.name, run.table.modules[call.module].name
        return module if app in self._alone else f"{app}.{module}"

    def _pass_on(self, call_ids: Sequence[int]) -> None:
        for call_id in call_ids:
            run = self._tracker.owner(call_id)
            self._carry_out(self._tracker.on_answered(call_id, self._clock.now_us()))
            play = None if run is None else self._plays.get(run.id)
            if play is not None:
                self._follow(play, play.numbers.pop(call_id))

    # -- scripts ----------------------------------------------------------------------------------

    def _script(self, app: str, scripts: Sequence[Script]) -> Script:
        """The next one from the like moment of the log on."""
        if self._moments is None:
            return scripts[int(self._script_rngs[app].integers(len(scripts)))]
        like_us = self._moments.at(self._clock.now_us())
        place = bisect_left(scripts, like_us, key=lambda script: script.at_us)
        return scripts[min(place, len(scripts) - 1)]

    def _play(self, run: AppRun, script: Script) -> None:
        waits = [len(call.after) for call in script.calls]
        play = self._plays[run.id] = _Play(run, script, waits, len(waits))
        self._clock.call_at(run.deadline_at_us + 1, partial(self._expire, run))
        for number, call in enumerate(script.calls):
            if not call.after:
                self._after(call.lead_us, partial(self._call, play, number))
        if not script.calls:
            self._after(script.rest_us, partial(self._finish, run))

    def _call(self, play: _Play, number: int) -> None:
        """The function makes a call, unless its request has ended meanwhile."""
        run = play.run
        if run.ended is None:
            step = self._tracker.call(run, play.script.calls[number].module, self._clock.now_us())
            play.numbers |= {call.id: number for call in step.calls}
            self._carry_out(step)

    def _follow(self, play: _Play, answered: int) -> None:
        """What a script does when one of its calls is answered."""
        script = play.script
        for number, call in enumerate(script.calls):
            if answered in call.after:
                play.waits[number] -= 1
                if not play.waits[number]:
                    self._after(call.lead_us, partial(self._call, play, number))
        play.unanswered -= 1
        if not play.unanswered:
            self._after(script.rest_us, partial(self._finish, play.run))

    def _finish(self, run: AppRun) -> None:
        if run.ended is None:
            self._carry_out(self._tracker.finish(run))

    def _expire(self, run: AppRun) -> None:
        if run.ended is None:
            step = self._tracker.cancel(run)
            assert step.ended is not None, "it had not ended"
            step.ended = dataclasses.replace(step.ended, reason="deadline")
            self._carry_out(step)


class ModuleDriver(SimDriver):
    """Simulated slots and links that tell the apps what became of their calls."""

    def __init__(
        self,
        topology: Topology,
        clock: SimClock,
        durations: Durations | Spans,
        requests: AppRequests,
        slower: Slower | None = None,
    ) -> None:
        super().__init__(topology, clock, durations, slower)
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
