"""The one way in from Python: an event, what the kernel makes of it is in the journal."""

from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

from headrace.compilation import loops
from headrace.compilation.loops import entry, kernel, ready, source_key
from headrace.compilation.tables import TableKind, Where, table_at
from headrace.dispatch.kernel import drift, flow, reports
from headrace.dispatch.kernel.contract import PolicyModule, tables_of
from headrace.dispatch.kernel.journal import WAKE_QUEUE, WAKE_SLOT
from headrace.dispatch.kernel.layout import State

ARRIVE, TRANSFERRED, RAN, FAILED, LOST, GAINED, CANCEL, DRAIN, AWAKE, LEVEL, OPEN = range(11)
LOADED, LOAD_FAILED, ADMIT = range(11, 14)


@kernel
def handle(
    s: State, event: int, now_us: int, a: int, b: int, c: int, d: int, e: int, f: int
) -> None:
    """
    ARRIVE       request id, model, arrived_at, deadline_at, priority, apart
    TRANSFERRED  row, batch id, stage, attempt, started_at
    RAN          row, batch id, stage, attempt, started_at, ended_at
    FAILED       row, batch id, stage, attempt, cause
    LOST, GAINED slot
    CANCEL       request id
    DRAIN
    AWAKE        what, which (of WAKE in the journal)
    LEVEL        stage, level (see `drift`)
    OPEN         first request id, model, arrived_at, deadline_at, priority, items
    LOADED       load, slot, started_at
    LOAD_FAILED  load, slot
    ADMIT        model, 1: take its requests; 0: refuse them
    """
    s.world[0].event += 1
    s.world[0].now_us = now_us
    if event == ARRIVE:
        flow.arrive(s, now_us, a, b, c, d, e, f)
    elif event == RAN:
        reports.on_ran(s, now_us, a, b, c, d, e, f)
    elif event == TRANSFERRED:
        reports.on_transferred(s, now_us, a, b, c, d, e)
    elif event == AWAKE:
        _wake(s, now_us, a, b)
    elif event == FAILED:
        reports.on_failed(s, now_us, a, b, c, d, e)
    elif event == LOST:
        reports.on_slot_lost(s, now_us, a)
    elif event == GAINED:
        reports.on_slot_gained(s, now_us, a)
    elif event == CANCEL:
        flow.cancel(s, now_us, a)
    elif event == DRAIN:
        s.world[0].draining = 1
    elif event == LEVEL:
        drift.assume(s, now_us, a, b)
    elif event == OPEN:
        s.policy.open_request(s, now_us, a, b, c, d, e, f)
    elif event == LOADED:
        s.policy.on_loaded(s, a, b, c, now_us)
        flow.decide_all(s, now_us)
    elif event == LOAD_FAILED:
        s.policy.on_load_failed(s, a, b, now_us)
        flow.decide_all(s, now_us)
    elif event == ADMIT:
        s.policy.on_admitted(s, a, b, now_us)
        flow.decide_all(s, now_us)
    s.policy.serve(s, now_us)


@kernel
def _wake(s: State, now_us: int, what: int, which: int) -> None:
    # One that was overtaken by an earlier one still comes. Deciding afresh is harmless, but it must
    # not forget another that is set: that would be asked for again, and both would go on for ever.
    if what == WAKE_QUEUE:
        if s.models[which].wake_at <= now_us:
            s.models[which].wake_at = -1
        flow.decide(s, which, now_us)
    elif what == WAKE_SLOT:
        if s.slots[which].wake_at <= now_us:
            s.slots[which].wake_at = -1
        flow.advance_slot(s, which, now_us)
    else:
        if s.world[0].links_wake_at <= now_us:
            s.world[0].links_wake_at = -1
        flow.advance_links(s, now_us)


class PolicyKernel:
    """The compiled kernel of one policy, for states of its kind."""

    def __init__(self, policy: PolicyModule) -> None:
        self.key = source_key(_sources(policy), policy.__name__)
        dtypes = {name: table.item for name, table in tables_of(policy).items()}
        self.kind = TableKind(self.key, dtypes, {"policy": policy})
        self.tell = ready(_entry(self.key), arguments=9)
        """(where, event, now_us, and six numbers; see `handle`) -> numbers in the journal. Compiled
        or loaded by now."""


@cache
def kernel_of(policy: PolicyModule) -> PolicyKernel:
    """Once per process; compiled once per version and machine, for some ten seconds."""
    return PolicyKernel(policy)


def _sources(policy: PolicyModule) -> Iterator[Path]:
    """All that is compiled into the kernel. Whatever a policy's module calls lies in its folder."""
    files = (__file__, loops.__file__, str(policy.__file__))
    folders = {Path(file).parent for file in files}
    for folder in sorted(folders):
        yield from sorted(folder.glob("*.py"))


def _entry(key: int) -> Any:
    @entry
    def tell(
        where: Where, event: int, now_us: int, a: int, b: int, c: int, d: int, e: int, f: int
    ) -> int:
        s = table_at(where, key)
        s.world[0].journal = 0
        handle(s, event, now_us, a, b, c, d, e, f)
        return s.world[0].journal

    return tell
