"""The one way in from Python: an event, what the kernel makes of it is in the journal."""

from collections.abc import Callable

from headrace.dispatch.kernel import flow, reports
from headrace.dispatch.kernel.compile import entry, kernel, source_stamp
from headrace.dispatch.kernel.journal import WAKE_QUEUE, WAKE_SLOT
from headrace.dispatch.kernel.layout import Ints, State, state_at

ARRIVE, TRANSFERRED, RAN, FAILED, LOST, GAINED, CANCEL, DRAIN, AWAKE, NOTHING = range(10)

Handle = Callable[[Ints, int, int, int, int, int, int, int, int], int]
"""(addresses, event, now_us, and six numbers; see `handle`) -> rows in the journal"""


@kernel
def handle(
    s: State, event: int, now_us: int, a: int, b: int, c: int, d: int, e: int, f: int
) -> None:
    """
    ARRIVE       request id, model, arrived_at, deadline_at, priority
    TRANSFERRED  row, batch id, stage, attempt, started_at
    RAN          row, batch id, stage, attempt, started_at, ended_at
    FAILED       row, batch id, stage, attempt
    LOST, GAINED slot
    CANCEL       request id
    DRAIN
    AWAKE        what, which (of WAKE in the journal)
    NOTHING      to have the kernel loaded
    """
    if event == ARRIVE:
        flow.arrive(s, now_us, a, b, c, d, e)
    elif event == RAN:
        reports.on_ran(s, now_us, a, b, c, d, e, f)
    elif event == TRANSFERRED:
        reports.on_transferred(s, now_us, a, b, c, d, e)
    elif event == AWAKE:
        _wake(s, now_us, a, b)
    elif event == FAILED:
        reports.on_failed(s, now_us, a, b, c, d)
    elif event == LOST:
        reports.on_slot_lost(s, now_us, a)
    elif event == GAINED:
        reports.on_slot_gained(s, now_us, a)
    elif event == CANCEL:
        flow.cancel(s, now_us, a)
    elif event == DRAIN:
        s.world[0].draining = 1


@kernel
def _wake(s: State, now_us: int, what: int, which: int) -> None:
    # A wake-up that was overtaken by an earlier one still comes; deciding afresh is harmless.
    if what == WAKE_QUEUE:
        s.models[which].wake_at = -1
        flow.decide(s, which, now_us)
    elif what == WAKE_SLOT:
        s.slots[which].wake_at = -1
        flow.advance_slot(s, which, now_us)
    else:
        s.world[0].links_wake_at = -1
        flow.advance_links(s, now_us)


def _compiled(stamp: str) -> Handle:
    """Compiled when first called (once per version and machine, for half a minute), then loaded."""

    @entry
    def tell(
        addresses: Ints, event: int, now_us: int, a: int, b: int, c: int, d: int, e: int, f: int
    ) -> int:
        s = state_at(addresses)
        s.world[0].journal = 0
        if stamp:
            handle(s, event, now_us, a, b, c, d, e, f)
        return s.world[0].journal

    return tell


tell = _compiled(source_stamp())
