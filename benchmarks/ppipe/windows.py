"""How many requests that arrive within a window can be in time, whoever decides.

Of a pipeline, take anything that its batches pass one at a time: a slot of some stage, or a link
that a stage leaves by. Batches of b take L(b) of it, at least `before` earlier, and `after(b)` on
the rest of their way. Let a window be d long. Batches with requests of it begin there `before`
after its start or later, and the last of them, of b, ends there after(b) before its end + SLO or
sooner. So if n of the window are in time by this slot,

    d >= d(n) = min over b of  T(n - b) + L(b) + before + after(b) - SLO,   T(0 or less) = 0
    T(n)      = min over b of  T(n - b) + L(b)                              the least time for n

A stage's slots do no more than all of them together, a pipeline no more than its least stage or
link, a model no more than its pipelines: of a window of d at most F(d). `Windows` holds where F
rises. Requests that keep F for all windows are most if whoever keeps it on arrival is admitted: by
induction the j-th admitted is no later than the j-th of any other choice.

For one pool and batches of one it is what first come, first served does. It is no more than a
token bucket of the same rate, since it knows that a slot which is idle gives nothing to later.
"""

from typing import NamedTuple

import numpy as np
from benchmarks.ppipe.artifact import Hardware
from benchmarks.ppipe.artifact.hardware import Ints

from headrace.compilation.loops import compiled

LONGEST_US = 2_000_000
"""Of windows that are looked at. Leaving longer ones out only raises the bound, and little beside a
token bucket, which knows windows of any length."""


class Windows(NamedTuple):
    """Of any window shorter than `spans_us[i]` at most `counts[i]` requests are in time."""

    spans_us: Ints
    """Shape (W,), increasing, above 0."""
    counts: Ints
    """Shape (W,), increasing."""


NO_WINDOWS = Windows(spans_us=np.zeros(0, np.int64), counts=np.zeros(0, np.int64))
"""Where nothing is known of pipelines."""


def windows_of(hardware: Hardware) -> Windows:
    """All windows of one model's pipelines in which F rises."""
    pipelines = [_pipeline(hardware, pipeline) for pipeline in range(len(hardware.batch))]
    spans_us = np.unique(np.concatenate([span for steps in pipelines for span, _ in steps]))
    # Beyond, steps that were not written down would be missing.
    spans_us = spans_us[spans_us <= LONGEST_US]
    allowed = np.zeros(len(spans_us), np.int64)
    for steps in pipelines:
        allowed += np.minimum.reduce([width * _reached(span, spans_us) for span, width in steps])
    rises = np.flatnonzero(np.diff(allowed))
    return Windows(spans_us=spans_us[rises + 1], counts=allowed[rises])


@compiled
def admitted(at_us: Ints, rate_per_us: float, room: float, spans_us: Ints, counts: Ints) -> int:
    """The most of the arrivals that keep a token bucket and all windows.

    Args:
        at_us: shape (N,), non-decreasing.
        rate_per_us, room: tokens, and the bucket's depth.
        spans_us, counts: of `Windows`.
    """
    admitted_at = np.empty(len(at_us), np.int64)
    tokens, last_us, count = room, 0, 0
    for i in range(len(at_us)):
        tokens = min(room, tokens + (at_us[i] - last_us) * rate_per_us)
        last_us = at_us[i]
        fits = tokens >= 1
        for w in range(len(spans_us)):
            # None is as many, or the one so many before it is far enough.
            if not fits or counts[w] > count:
                break
            fits = at_us[i] - admitted_at[count - counts[w]] >= spans_us[w]
        if fits:
            admitted_at[count] = at_us[i]
            tokens -= 1
            count += 1
    return count


Steps = tuple[Ints, int]
"""d(1), d(2), ... of one slot or link, 0 at least; and how many there are of it."""


def _pipeline(hardware: Hardware, pipeline: int) -> list[Steps]:
    """Of every stage, and of the links behind it."""
    first, end = hardware.stage_at[pipeline : pipeline + 2].tolist()
    sizes = np.arange(1, int(hardware.batch[pipeline]) + 1)
    hops: list[tuple[Ints, int]] = []
    for stage in range(first, end):
        slots = slice(*hardware.slot_at[stage : stage + 2].tolist())
        links = len(np.unique(hardware.link[slots]))
        hops.append((hardware.latency_us[stage, sizes], slots.stop - slots.start))
        item_us = int(hardware.item_transfer_us[stage])
        if stage + 1 < end and item_us:
            hops.append((item_us * sizes, links))
    taken_us = np.array([each_us for each_us, _ in hops])
    found = []
    for at, (each_us, width) in enumerate(hops):
        before_us = int(taken_us[:at].sum(axis=0).min())
        after_us = taken_us[at + 1 :].sum(axis=0) - hardware.slo_us
        found.append((_steps(each_us, before_us, after_us), width))
    return found


def _steps(takes_us: Ints, before_us: int, after_us: Ints) -> Ints:
    """d(n) up to LONGEST_US.

    Args:
        takes_us: shape (B,), L of 1..B.
        after_us: shape (B,): on the rest of the way, less the SLO.
    """
    least_us, found = [0], list[int]()
    while not found or found[-1] <= LONGEST_US:
        sizes = range(1, len(takes_us) + 1)
        n = len(least_us)
        rest_us = np.array([least_us[max(0, n - size)] for size in sizes])
        found.append(max(0, int((rest_us + takes_us + after_us).min()) + before_us))
        least_us.append(int((rest_us + takes_us).min()))
    return np.array(found, np.int64)


def _reached(steps_us: Ints, spans_us: Ints) -> Ints:
    """How many steps are no longer than each span."""
    return np.searchsorted(steps_us, spans_us, side="right").astype(np.int64)
