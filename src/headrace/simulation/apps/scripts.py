"""What the requests of an app did in a server's log: their calls, and the time between them.

The graph of a problem says which module waits for which. What an app's own code takes, with its
process, the gateway and the threads that all share the cores with the workers, only a server knows.
Of a request that reached the machine at a and was answered at e, with calls c made at m(c) and
answered at d(c):

    after(c)   the calls whose answers c waited for, of the modules before its own; where one of
               these was called as often as c's, only its call of the same rank, unless no call of
               c's module was made before all of them had their answers; and of its own module
               the call answered last, where all made before c had their answers by then, this one
               later than those: one that was made in a row
    lead(c)    m(c) - the latest d of after(c); or - a, where it waited for none
    rest       e - the latest d of all calls; or - a

A simulated request is one of these, the next from the like moment on (`simulation.moments`): it
makes the same calls, as long after the simulated answers. Where clients have told what they saw,
a and e are theirs. Cost: linear in the log, but for the ranks.
"""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from headrace.dispatch.apps.app_dispatcher import AppTable
from headrace.domain.events import Answered, AnyEvent, Arrived, Called, EventLogHeader, Seen
from headrace.simulation.served_gateway import ways_in_us

LEAST_SCRIPTS = 5
"""Fewer answered requests of an app say little of it; the problem's graph says more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ScriptedCall:
    """One call of a request."""

    module: int
    """Index into `AppTable.modules`."""
    after: tuple[int, ...]
    """Which calls of the script must have their answers."""
    lead_us: int
    """From then, or from the request's arrival, until it is made."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Script:
    """One request."""

    calls: tuple[ScriptedCall, ...]
    rest_us: int
    """From the last answer, or from the arrival where nothing is called, to the request's own."""
    at_us: int = 0
    """When it arrived."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Made:
    """A call as the log has it."""

    module: int
    made_at_us: int
    answered_at_us: int


def scripts_of(
    tables: Sequence[AppTable], header: EventLogHeader, events: Sequence[AnyEvent]
) -> dict[str, tuple[Script, ...]]:
    """App -> its answered requests, in the order of their arrivals.

    Apps with fewer than LEAST_SCRIPTS are left out; so are all in a log without calls, such as that
    of a simulation.
    """
    arrived: dict[int, Arrived] = {}
    answered_at_us: dict[int, int] = {}
    calls: defaultdict[int, list[Called]] = defaultdict(list)
    seen: dict[int, Seen] = {}
    for event in events:
        if isinstance(event, Arrived):
            arrived[event.request] = event
        elif isinstance(event, Answered):
            answered_at_us[event.request] = event.at_us
        elif isinstance(event, Called):
            calls[event.request].append(event)
        elif isinstance(event, Seen):
            seen[event.request] = event
    apps = {header.models.index(t.name): t for t in tables if t.name in header.models}
    ways_in = {
        table.name: _ways_in(table, [e for e in arrived.values() if e.model == index])
        for index, table in apps.items()
    }
    found: defaultdict[str, list[Script]] = defaultdict(list)
    for request, ended_at_us in answered_at_us.items():
        table = apps.get(arrived[request].model) if request in arrived else None
        if table is None:
            continue
        modules = {f"{table.name}.{module.name}": i for i, module in enumerate(table.modules)}
        # A call without an answer was given up: nobody waited for it.
        made = [
            _Made(
                module=modules[header.models[arrived[call.call].model]],
                made_at_us=call.at_us,
                answered_at_us=answered_at_us[call.call],
            )
            for call in calls[request]
            if call.call in answered_at_us and call.call in arrived
        ]
        reached_at_us = arrived[request].at_us - ways_in[table.name].get(request, 0)
        if request in seen:
            reached_at_us, ended_at_us = seen[request].scheduled_at_us, seen[request].at_us
        found[table.name].append(_script(table, made, reached_at_us, ended_at_us))
    return {
        name: tuple(sorted(own, key=lambda script: script.at_us))
        for name, own in found.items()
        if len(own) >= LEAST_SCRIPTS
    }


def arrived_at_us(
    tables: Sequence[AppTable], header: EventLogHeader, events: Sequence[AnyEvent]
) -> list[int]:
    """When requests of these apps reached them."""
    apps = {header.models.index(t.name) for t in tables if t.name in header.models}
    return [event.at_us for event in events if isinstance(event, Arrived) and event.model in apps]


def _ways_in(table: AppTable, arrived: Sequence[Arrived]) -> dict[int, int]:
    """Request -> from when it reached the machine until the app had it; empty: nobody knows."""
    waits_us = ways_in_us(arrived, table.slo_us) or ()
    return {event.request: wait_us for event, wait_us in zip(arrived, waits_us, strict=False)}


def _script(table: AppTable, made: Sequence[_Made], arrived_at_us: int, ended_at_us: int) -> Script:
    # By module, so that a call's number is known before those of the calls that wait for it.
    order = sorted(made, key=lambda call: (call.module, call.made_at_us))
    numbers: defaultdict[int, list[int]] = defaultdict(list)
    for number, call in enumerate(order):
        numbers[call.module].append(number)
    calls = []
    for number, call in enumerate(order):
        rank = number - numbers[call.module][0]
        waited: list[int] = []
        for before in table.modules[call.module].before:
            waited += _waited_for(order, numbers[before], numbers[call.module], rank)
        after = [n for n in waited if order[n].answered_at_us <= call.made_at_us]
        after += _in_a_row(order, after, numbers[call.module][:rank], call.made_at_us)
        since_us = max((order[n].answered_at_us for n in after), default=arrived_at_us)
        calls.append(
            ScriptedCall(
                module=call.module, after=tuple(after), lead_us=max(0, call.made_at_us - since_us)
            )
        )
    last_us = max((call.answered_at_us for call in made), default=arrived_at_us)
    rest_us = max(0, ended_at_us - last_us)
    return Script(calls=tuple(calls), rest_us=rest_us, at_us=arrived_at_us)


def _in_a_row(
    order: Sequence[_Made], after: Sequence[int], earlier: Sequence[int], made_at_us: int
) -> list[int]:
    """Of the `earlier` calls of its own module, the one that a call waited for."""
    if not earlier:
        return []
    last = max(earlier, key=lambda n: order[n].answered_at_us)
    since_us = max((order[n].answered_at_us for n in after), default=0)
    return [last] if since_us < order[last].answered_at_us <= made_at_us else []


def _waited_for(
    order: Sequence[_Made], before: Sequence[int], own: Sequence[int], rank: int
) -> Sequence[int]:
    """Of the calls `before`, those that the `rank`-th of the calls `own` waited for."""
    if not before or len(before) != len(own):
        return before
    by_answer = sorted(before, key=lambda n: order[n].answered_at_us)
    if order[own[0]].made_at_us >= order[by_answer[-1]].answered_at_us:
        return before
    return (by_answer[rank],)
