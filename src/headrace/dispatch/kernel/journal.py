"""What the kernel tells its driver: one row per fact or order, in the order they came about.

Columns after the kind and the instant:

    ARRIVED         request, model, deadline_at
    DROPPED         request, reason, retry_after_us                       and to be refused
    DISPATCHED      row, batch, model, pipeline, first stage, size, hops  followed by that many
      MEMBER          request
      HOP             slot, transfer_at, transfer_us, start_at, latency_us
    TRANSFERRED     batch, stage, from slot, to slot, started_at
    RAN             batch, stage, slot, started_at
    ANSWERED        request, batch
    ENDED           batch, answered                                       to be answered, if 1
    START_TRANSFER  row, batch, stage, attempt, slot, transfer_us         to be started
    START_STAGE     row, batch, stage, attempt, slot, size, stage table   to be started
    WAKE            what, which                                           to be woken then
    SLOT_LOST, SLOT_GAINED  slot
"""

from headrace.dispatch.kernel.compile import hot
from headrace.dispatch.kernel.layout import JOURNAL_WIDTH, State
from headrace.domain.request import DropReason

ARRIVED, DROPPED, DISPATCHED, MEMBER, HOP_AT, TRANSFERRED, RAN, ANSWERED = range(8)
ENDED, START_TRANSFER, START_STAGE, WAKE, SLOT_LOST, SLOT_GAINED = range(8, 14)

FACTS = frozenset(
    (ARRIVED, DROPPED, DISPATCHED, TRANSFERRED, RAN, ANSWERED, SLOT_LOST, SLOT_GAINED)
)
"""For the log; the other kinds are orders, or belong to a fact."""

WAKE_QUEUE, WAKE_SLOT, WAKE_LINKS = range(3)

REASONS: tuple[DropReason, ...] = (
    "deadline",
    "no-slot",
    "draining",
    "queue-full",
    "failed",
    "cancelled",
)
"""`DropReason`s; the journal has their indices."""
DEADLINE, NO_SLOT, DRAINING, QUEUE_FULL, FAILED, CANCELLED = range(6)


@hot
def note(s: State, kind: int, at_us: int, a: int, b: int, c: int) -> None:
    """Add a row.

    There is room for all that one event can bring about (`grow`). Were there not, rows would be
    counted but not written, which whoever reads them refuses.
    """
    world = s.world[0]
    i = world.journal * JOURNAL_WIDTH
    world.journal += 1
    if i + JOURNAL_WIDTH > len(s.journal):
        return
    s.journal[i] = kind
    s.journal[i + 1] = at_us
    s.journal[i + 2] = a
    s.journal[i + 3] = b
    s.journal[i + 4] = c


@hot
def note_more(s: State, d: int, e: int, f: int, g: int) -> None:
    """The rest of the last row, where its kind has more columns."""
    i = (s.world[0].journal - 1) * JOURNAL_WIDTH
    if i + JOURNAL_WIDTH > len(s.journal):
        return
    s.journal[i + 5] = d
    s.journal[i + 6] = e
    s.journal[i + 7] = f
    s.journal[i + 8] = g
