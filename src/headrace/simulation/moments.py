"""Which moment of a server's log a simulated one is like.

A machine is slow and quick by turns, and slower the more is asked of it: worker, gateway and client
share cores. Times that are drawn one by one from a whole log know neither. So simulated time is cut
into windows, and each of them is laid onto a stretch of the log in which about as many requests
arrived at about the same instants, since what is slow comes with bursts. Of CANDIDATES drawn at
random, one with no more requests and one with no fewer are the most alike: the sum of differences
is least, of how many have arrived after each of PARTS of the window, and from each of as many of
the WINDOW_US before it on: a lull behind a burst is as slow as the burst. Either is taken by
chance, so that the mean of their numbers is the window's: a load between two that the log has is
made of both. What happens in the window takes as long as it did at that instant of the stretch, so
that a stall stays a stall and a slow second a slow second (a bootstrap of blocks, given the load).
Stretches that say nothing of the load (`simulation.left_out`) are no candidates.
"""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from headrace.dispatch.kernel.layout import Ints

WINDOW_US = 250_000
"""Long enough for the slices of a scheduler and a queue that it fills to begin and end."""
WINDOW_REQUESTS = 30
"""Of models. Fewer say little of the load: the window is as long as it takes, in the mean."""
LEAST_WINDOWS = 4
"""Of the log, however few requests it has."""
CANDIDATES = 256
PARTS = 8
WINDOWS_AT_ONCE = 512
"""Bounds the memory that choosing takes."""
MOST_WINDOWS = 100_000
"""Of a simulation, however long it is and however short the log."""


class Moments:
    """Simulated instants -> instants of the log."""

    def __init__(
        self,
        log_at_us: Ints,
        at_us: Ints,
        rng: np.random.Generator,
        calls_each: float = 1.0,
        left_out: Sequence[tuple[int, int]] = (),
    ) -> None:
        """
        Args:
            log_at_us: shape (M,), when the log's requests arrived, in order; M > 0.
            at_us: shape (N,), when the simulated ones do, in order, from 0 on; N > 0.
            calls_each, left_out: as of `moments_of`.
        """
        first, last = int(log_at_us[0]), int(log_at_us[-1])
        span_us = last - first
        calls = max(1.0, calls_each) * len(log_at_us)
        window_us = max(WINDOW_US, round(WINDOW_REQUESTS * span_us / calls))
        window_us = min(window_us, span_us // LEAST_WINDOWS)
        self._window_us = max(1, window_us, int(at_us[-1]) // MOST_WINDOWS)
        windows = int(at_us[-1]) // self._window_us + 1
        most = max(first + 1, last - self._window_us + 1)
        free = _between((first, most), left_out, self._window_us)
        self.nothing_left = sum(end - begin for begin, end in free) < self._window_us
        """Nearly all of the log is to be left out; then nothing of it is."""
        starts = _drawn([(first, most)] if self.nothing_left else free, rng, (windows, CANDIDATES))
        chance = rng.random(windows)
        # Before the log begins it is as at its end: or its first requests would be like no others.
        ended_us = log_at_us[(log_at_us > last - WINDOW_US) & (log_at_us < last)]
        around_us = np.concatenate([ended_us - span_us, log_at_us])
        self._starts: Ints = np.empty(windows, dtype=np.int64)
        for begin in range(0, windows, WINDOWS_AT_ONCE):
            some = slice(begin, min(windows, begin + WINDOWS_AT_ONCE))
            of_window = np.arange(some.start, some.stop) * self._window_us
            chosen = _chosen(
                _arrived(around_us, starts[some], self._window_us),
                _arrived(at_us, of_window, self._window_us),
                chance[some],
            )
            self._starts[some] = starts[np.arange(some.start, some.stop), chosen]

    def at(self, now_us: int) -> int:
        """What comes after the last arrival is like the end of its window."""
        window = min(now_us // self._window_us, len(self._starts) - 1)
        into_us = min(now_us - window * self._window_us, self._window_us - 1)
        return int(self._starts[window]) + into_us

    def all_at(self, at_us: Ints) -> Ints:
        """`at` of instants up to the last arrival; shape (N,) both."""
        windows = at_us // self._window_us
        found: Ints = self._starts[windows] + at_us - windows * self._window_us
        return found


def _between(
    span: tuple[int, int], left_out: Sequence[tuple[int, int]], window_us: int
) -> list[tuple[int, int]]:
    """Where windows may start so that they meet none of the stretches; begins and ends.

    >>> _between((0, 100), [(20, 40), (45, 50)], 10), _between((0, 100), [(0, 95)], 10)
    ([(0, 11), (51, 100)], [(96, 100)])
    """
    begin, most = span
    found = []
    for first, last in left_out:
        found.append((begin, min(most, first - window_us + 1)))
        begin = max(begin, last + 1)
    found.append((begin, most))
    return [(begin, end) for begin, end in found if begin < end]


def _drawn(
    free: Sequence[tuple[int, int]], rng: np.random.Generator, shape: tuple[int, int]
) -> Ints:
    """Instants of these stretches, each as probable."""
    begins = np.array([begin for begin, _ in free])
    lengths = np.array([end - begin for begin, end in free])
    ends = np.cumsum(lengths)
    drawn = rng.integers(0, ends[-1], size=shape)
    stretch = np.searchsorted(ends, drawn, side="right")
    found: Ints = drawn - (ends - lengths)[stretch] + begins[stretch]
    return found


def _arrived(at_us: Ints, starts: Ints, window_us: int) -> Ints:
    """How many have arrived from the begin of windows to each of PARTS of WINDOW_US before it (then
    negative) and to each of PARTS of the window; their shape and 2 PARTS.

    Args:
        at_us: in order.
        starts: of the windows; any shape.
    """
    parts = np.arange(1, PARTS + 1)
    before, behind = -parts[::-1] * WINDOW_US // PARTS, parts * window_us // PARTS
    ends = starts[..., None] + np.concatenate([before, behind])
    found: Ints = np.searchsorted(at_us, ends) - np.searchsorted(at_us, starts)[..., None]
    return found


def _chosen(arrived: Ints, wanted: Ints, chance: npt.NDArray[np.float64]) -> Ints:
    """Which candidate each window takes.

    Args:
        arrived: shape (W, C, P), requests of each candidate to each part; to the last, all of its
            window.
        wanted: shape (W, P)
        chance: shape (W,), within [0, 1).

    >>> arrived = np.array([[[5, 10], [1, 2], [10, 20]]] * 2)
    >>> _chosen(arrived, np.array([[6, 12]] * 2), np.array([0.1, 0.9])).tolist()
    [2, 0]
    """
    rows = np.arange(len(arrived))
    off = arrived[:, :, -1] - wanted[:, None, -1]
    unlike = np.abs(arrived - wanted[:, None, :]).sum(axis=2)
    far = np.iinfo(np.int64).max
    below, above = np.where(off <= 0, unlike, far), np.where(off >= 0, unlike, far)
    low, high = below.argmin(axis=1), above.argmin(axis=1)
    has_low, has_high = below[rows, low] < far, above[rows, high] < far
    down, up = np.abs(off[rows, low]), np.abs(off[rows, high])
    # As often the upper one as the lower one is nearer, of both together; else the only one.
    upper = has_high & (~has_low | (chance * (down + up) < down))
    found: Ints = np.where(upper, high, low)
    return found


def moments_of(
    log_at_us: Sequence[int],
    at_us: Sequence[int] | Ints,
    rng: np.random.Generator,
    calls_each: float = 1.0,
    left_out: Sequence[tuple[int, int]] = (),
) -> Moments | None:
    """None where the log or the simulation has no requests: any moment is like any other.

    Args:
        log_at_us: when the log's requests arrived.
        at_us: when the simulated ones do, in order, from 0 on.
        calls_each: requests of models that one of them makes. Those of apps make several, so that
            a few say as much of the load, and a burst of a second is one.
        left_out: first and last instants of stretches of the log that no window is to be laid onto,
            in order.
    """
    if not len(log_at_us) or not len(at_us):
        return None
    logged = np.sort(np.array(log_at_us, dtype=np.int64))
    return Moments(logged, np.array(at_us), rng, calls_each, left_out)
