"""An app request on its way through its modules: who is called when, with which deadline.

Decisions only: events in (a request is accepted, a call is answered or refused), calls and cancels
out. The simulator draws how many calls a module gets; the server learns it from the tensors or from
the app's own function. Neither knows a rule that is not here:

deadline  of a call: the request's, less the longest path of budgets, and of the app's own code,
          behind its module; where less time is left than that, that time divided in proportion, but
          a whole round for a module that waits for its turn on a slot, as far as there is one
priority  the request's, at every call
hopeless  a call that nobody can answer in time, or that was refused, ends the request: its other
          calls are cancelled, and no further one is made

A call is a request of the dispatcher: `Call.id` is the id that the dispatcher knows it by.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from headrace.domain.app import App, topological_order
from headrace.domain.errors import PlanError
from headrace.domain.plan import Deployment, Plan
from headrace.domain.request import DropReason, Request

NOT_CALLED = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class ModuleTable:
    """One module of an app, as calls need it. Modules are indices into `AppTable.modules`."""

    name: str
    model: int
    """Index of its deployment, which is its index among the topology's models."""
    before: tuple[int, ...]
    after: tuple[int, ...]
    budget_us: int
    behind_us: int
    """The longest path of budgets and app code behind it: what a call must leave for the rest."""
    least_behind_us: int = 0
    """The same of what batches take on idle machines."""
    round_us: int = 0
    """The longest duty cycle of the slots on which it takes turns; 0: it takes none."""
    code_us: int = 0
    """Of the app's own code, before its calls are made."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AppTable:
    """An app's graph with its budgets; modules in topological order."""

    name: str
    slo_us: int
    priority: int
    modules: tuple[ModuleTable, ...]
    code_us: int = 0
    """Of the app's own code, after the last answer."""

    def index(self, module: str) -> int:
        """
        Raises:
            PlanError: the app has no module of this name.
        """
        for i, table in enumerate(self.modules):
            if table.name == module:
                return i
        names = ", ".join(table.name for table in self.modules)
        raise PlanError(f"app {self.name!r}: no module is named {module!r}; there are {names}")

    def deadline_at_us(self, module: int, deadline_at_us: int, now_us: int) -> int:
        """Of a call to that module that is made now, for a request with this deadline.

        The budgets behind it stay free. A request that has fallen behind has less time left than
        its budgets: it divides what is left in their proportion, since budgets are for the worst
        case, and the calls to come will most likely need less. Turns are another matter: the
        budget of a module that follows others in their round is short, and once it has missed that
        round it waits for batches that may take longer than its whole part.
        """
        table = self.modules[module]
        left_us = max(0, deadline_at_us - now_us)
        path_us = table.budget_us + table.behind_us
        own_part_us = left_us * table.budget_us // path_us if path_us else 0
        own_part_us = max(own_part_us, min(table.round_us, left_us - table.least_behind_us))
        return max(deadline_at_us - table.behind_us, now_us + own_part_us)


def app_tables(plan: Plan) -> tuple[AppTable, ...]:
    """The apps of a plan; none where it serves models on their own.

    Raises:
        PlanError: a module of an app is not deployed.
    """
    return tuple(_table(plan, claim.app) for claim in plan.apps)


def alone_tables(plan: Plan) -> tuple[AppTable, ...]:
    """The models that a plan serves beside its apps, each as an app that is one call of it."""
    priorities = {demand.model: demand.priority for demand in plan.demands}
    return tuple(
        AppTable(
            name=deployment.model,
            slo_us=deployment.slo_us,
            priority=priorities.get(deployment.model, 0),
            modules=(
                ModuleTable(
                    name=deployment.model,
                    model=index,
                    before=(),
                    after=(),
                    budget_us=deployment.slo_us,
                    behind_us=0,
                ),
            ),
        )
        for index, deployment in enumerate(plan.deployments)
        if deployment.app is None
    )


def _table(plan: Plan, app: App) -> AppTable:
    deployed = {d.module: i for i, d in enumerate(plan.deployments) if d.app == app.name}
    order = topological_order([m.name for m in app.modules], app.edges, app.name)
    for name in order:
        if name not in deployed:
            raise PlanError(f"app {app.name!r}: the plan does not deploy its module {name!r}")
    budgets = {name: plan.deployments[deployed[name]].budget_us for name in order}
    code_us = {module.name: module.code_us for module in app.modules}
    least = {name: _least_us(plan.deployments[deployed[name]]) for name in order}
    slots = {name: _slots(plan.deployments[deployed[name]]) for name in order}
    rounds = {slot.name: slot.duty_us or 0 for slot in plan.slots}

    def behind(taken_us: Mapping[str, int]) -> dict[str, int]:
        found: dict[str, int] = {}
        for name in reversed(order):
            found[name] = max(
                (code_us[b] + taken_us[b] + found[b] for a, b in app.edges if a == name),
                default=app.code_us,
            )
        return found

    behind_us, least_behind_us = behind(budgets), behind(least)
    return AppTable(
        name=app.name,
        slo_us=app.slo_us,
        priority=app.priority,
        modules=tuple(
            ModuleTable(
                name=name,
                model=deployed[name],
                before=tuple(order.index(a) for a, b in app.edges if b == name),
                after=tuple(order.index(b) for a, b in app.edges if a == name),
                budget_us=budgets[name],
                behind_us=behind_us[name],
                least_behind_us=least_behind_us[name],
                round_us=max(map(rounds.__getitem__, slots[name]), default=0),
                code_us=code_us[name],
            )
            for name in order
        ),
        code_us=app.code_us,
    )


def _least_us(deployment: Deployment) -> int:
    return min((pipeline.latency_us for pipeline in deployment.pipelines), default=0)


def _slots(deployment: Deployment) -> set[str]:
    return {
        slot
        for pipeline in deployment.pipelines
        for stage in pipeline.stages
        for slot in stage.pool
    }


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """One call of a module for one request of an app: a request to the dispatcher."""

    id: int
    run: int
    """The app request that it belongs to."""
    module: int
    number: int
    """Which of the module's calls for this request, from 0."""
    model: int
    deadline_at_us: int
    priority: int

    def request(self, now_us: int) -> Request:
        """As the dispatcher takes it."""
        return Request(
            id=self.id,
            model=self.model,
            arrived_at_us=now_us,
            deadline_at_us=self.deadline_at_us,
            priority=self.priority,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """What became of an app request."""

    run: int
    state: Literal["answered", "refused"]
    reason: DropReason | None = None
    """Why it was refused."""
    module: str | None = None
    """Where it was refused; None: as a whole."""
    retry_after_us: int = 0


@dataclass(slots=True)
class Step:
    """What follows from one event, to be done in this order: cancel, call, tell the client."""

    cancels: list[int] = field(default_factory=list)
    """Ids of calls whose answers nobody wants any more (`Dispatcher.cancel`)."""
    calls: list[Call] = field(default_factory=list)
    ended: Ended | None = None


@dataclass(slots=True, eq=False)
class AppRun:
    """One request of an app: which of its calls are out, and which modules are over.

    As a graph: `start`, then `answered` until a step says `ended`. As a function that calls modules
    itself: `call` when it asks for one, `answered`, and `finish` when the function returns.
    """

    id: int
    table: AppTable
    deadline_at_us: int
    priority: int
    next_call: Callable[[], int]
    """Numbers calls; unlike every other request of the dispatcher."""
    fan_out: Callable[["AppRun", int], int] | None
    """(this, module) -> how many calls the module gets, asked when all before it are answered.
    None: a function makes the calls."""
    fastest_us: Sequence[int] = ()
    """Per module, the least time a call can take; empty: only past deadlines are hopeless."""
    out: dict[int, Call] = field(default_factory=dict)
    """Calls without an answer, by id."""
    _open: list[int] = field(default_factory=list)
    """Per module, its calls without an answer."""
    over: int = 0
    """Modules that are over."""
    ended: Ended | None = None

    def __post_init__(self) -> None:
        self._open = [NOT_CALLED] * len(self.table.modules)

    # -- as a graph -------------------------------------------------------------------------------

    def start(self, now_us: int) -> Step:
        """Accept the request: call every module that waits for none."""
        step = Step()
        for module, table in enumerate(self.table.modules):
            if not table.before and self.ended is None:
                self._enter(module, now_us, step)
        return step

    def _enter(self, module: int, now_us: int, step: Step) -> None:
        """All before the module are over: make its calls, or pass on where it gets none."""
        assert self.fan_out is not None, "only a graph enters modules by itself"
        count = self.fan_out(self, module)
        self._open[module] = count
        if count == 0:
            self._leave(module, now_us, step)
        elif self._is_hopeless(module, now_us):
            self._end_refused(module, "deadline", 0, step)
        else:
            step.calls += [self._make(module, number, now_us) for number in range(count)]

    def _leave(self, module: int, now_us: int, step: Step) -> None:
        self.over += 1
        if self.over == len(self.table.modules):
            self.ended = step.ended = Ended(run=self.id, state="answered")
            return
        for after in self.table.modules[module].after:
            waits = self.table.modules[after].before
            due = self._open[after] == NOT_CALLED and all(self._open[b] == 0 for b in waits)
            if due and self.ended is None:
                self._enter(after, now_us, step)

    # -- as a function ----------------------------------------------------------------------------

    def call(self, module: int, now_us: int) -> Step:
        """The app's function calls a module, now: one call, or the refusal of the request."""
        step = Step()
        if self.ended is not None:
            step.ended = self.ended
        elif self._is_hopeless(module, now_us):
            self._end_refused(module, "deadline", 0, step)
        else:
            number = max(self._open[module], 0)
            self._open[module] = number + 1
            step.calls.append(self._make(module, number, now_us))
        return step

    def finish(self) -> Step:
        """The app's function has returned, or gave up: calls still out are wanted by nobody."""
        step = Step(cancels=list(self.out))
        self.out.clear()
        if self.ended is None:
            self.ended = Ended(run=self.id, state="answered")
        step.ended = self.ended
        return step

    # -- what the dispatcher says -----------------------------------------------------------------

    def answered(self, call_id: int, now_us: int) -> Step:
        """A call has its answer; of a request that has ended, nobody asks."""
        step = Step()
        call = self.out.pop(call_id, None)
        if call is None or self.ended is not None:
            return step
        self._open[call.module] -= 1
        if self._open[call.module] == 0 and self.fan_out is not None:
            self._leave(call.module, now_us, step)
        return step

    def calls_out(self, module: int) -> int | None:
        """How many calls of the module have no answer; None: it has not been called yet."""
        return None if self._open[module] == NOT_CALLED else self._open[module]

    def refused(self, call_id: int, reason: DropReason, retry_after_us: int) -> Step:
        """A call was dropped: the request cannot be answered, and its other calls are moot."""
        step = Step()
        call = self.out.pop(call_id, None)
        if call is not None and self.ended is None:
            self._end_refused(call.module, reason, retry_after_us, step)
        return step

    def cancelled(self) -> Step:
        """The client went away."""
        step = Step()
        if self.ended is None:
            self._end_refused(None, "cancelled", 0, step)
        return step

    # ---------------------------------------------------------------------------------------------

    def _make(self, module: int, number: int, now_us: int) -> Call:
        call = Call(
            id=self.next_call(),
            run=self.id,
            module=module,
            number=number,
            model=self.table.modules[module].model,
            deadline_at_us=self.table.deadline_at_us(module, self.deadline_at_us, now_us),
            priority=self.priority,
        )
        self.out[call.id] = call
        return call

    def _is_hopeless(self, module: int, now_us: int) -> bool:
        """Whether not even an idle system could answer in time, budgets behind the module aside."""
        fastest = self.fastest_us[module] if self.fastest_us else 0
        return now_us + fastest > self.deadline_at_us

    def _end_refused(
        self, module: int | None, reason: DropReason, retry_after_us: int, step: Step
    ) -> None:
        step.calls.clear()
        step.cancels += list(self.out)
        self.out.clear()
        self.ended = step.ended = Ended(
            run=self.id,
            state="refused",
            reason=reason,
            module=None if module is None else self.table.modules[module].name,
            retry_after_us=retry_after_us,
        )


class AppTracker:
    """All app requests under way: finds the run that a call belongs to.

    The owner carries steps out: `Dispatcher.cancel` for cancels, `Dispatcher.on_arrival` for calls.
    """

    def __init__(self, tables: Sequence[AppTable]) -> None:
        self._tables: Mapping[str, AppTable] = {table.name: table for table in tables}
        self._next_call = 0
        self._runs: dict[int, AppRun] = {}
        self._owner: dict[int, AppRun] = {}

    def serve(self, tables: Sequence[AppTable]) -> None:
        """Open requests by these tables from now on; those under way keep theirs."""
        self._tables = {table.name: table for table in tables}

    @property
    def in_flight(self) -> int:
        """App requests without an end."""
        return len(self._runs)

    def runs(self, app: str) -> list[AppRun]:
        """Accepted requests of an app without an end."""
        return [run for run in self._runs.values() if run.table.name == app]

    def open(
        self,
        run_id: int,
        app: str,
        deadline_at_us: int,
        fan_out: Callable[[AppRun, int], int] | None,
        *,
        priority: int | None = None,
        fastest_us: Sequence[int] = (),
    ) -> AppRun:
        """A request of an app is accepted; nothing is called yet.

        Args:
            priority: None: the app's.

        Raises:
            PlanError: the plan has no such app.
        """
        table = self._tables.get(app)
        if table is None:
            raise PlanError(f"the plan has no app {app!r}; it has: {', '.join(self._tables)}")
        run = AppRun(
            id=run_id,
            table=table,
            deadline_at_us=deadline_at_us,
            priority=table.priority if priority is None else priority,
            next_call=self._number,
            fan_out=fan_out,
            fastest_us=fastest_us,
        )
        self._runs[run_id] = run
        return run

    def _number(self) -> int:
        self._next_call += 1
        return self._next_call - 1

    def start(self, run: AppRun, now_us: int) -> Step:
        return self._noted(run, run.start(now_us))

    def call(self, run: AppRun, module: int, now_us: int) -> Step:
        return self._noted(run, run.call(module, now_us))

    def finish(self, run: AppRun) -> Step:
        return self._noted(run, run.finish())

    def cancel(self, run: AppRun) -> Step:
        """The client went away."""
        return self._noted(run, run.cancelled())

    def owner(self, call_id: int) -> AppRun | None:
        """The run of a call; None: it is not (or no longer) a call of an app."""
        return self._owner.get(call_id)

    def on_answered(self, call_id: int, now_us: int) -> Step:
        """The dispatcher answered; calls that nobody waits for are ignored."""
        run = self._owner.pop(call_id, None)
        return Step() if run is None else self._noted(run, run.answered(call_id, now_us))

    def on_refused(self, call_id: int, reason: DropReason, retry_after_us: int) -> Step:
        """The dispatcher dropped a call."""
        run = self._owner.pop(call_id, None)
        return (
            Step()
            if run is None
            else self._noted(run, run.refused(call_id, reason, retry_after_us))
        )

    def _noted(self, run: AppRun, step: Step) -> Step:
        for call_id in step.cancels:
            self._owner.pop(call_id, None)
        for call in step.calls:
            self._owner[call.id] = run
        if step.ended is not None:
            self._runs.pop(run.id, None)
        return step
