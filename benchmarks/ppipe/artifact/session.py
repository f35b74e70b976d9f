"""One session of artifact mode: arrivals in, what became of every request out."""

from dataclasses import dataclass
from typing import Literal

import numpy as np
from benchmarks.ppipe.artifact import reactive, reservation
from benchmarks.ppipe.artifact.hardware import Hardware, Ints
from benchmarks.ppipe.artifact.reactive_state import open_session

Mode = Literal["reservation", "reactive"]

WARM_UP_US = 1_000
"""Requests that arrive earlier do not count."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What became of the requests of a session, in order of arrival."""

    arrivals_us: Ints
    """Shape (N,)."""
    started_us: Ints
    """Shape (N,): in the first stage; -1: never."""
    done_us: Ints
    """Shape (N,); -1: dropped."""
    busy_us: Ints
    """Shape (G,): how long every slot inferred, in all."""
    slo_us: int

    @property
    def on_time(self) -> int:
        return int(np.count_nonzero((self.done_us >= 0) & (self._taken_us <= self.slo_us)))

    @property
    def late(self) -> int:
        return int(np.count_nonzero((self.done_us >= 0) & (self._taken_us > self.slo_us)))

    @property
    def dropped(self) -> int:
        return int(np.count_nonzero(self.done_us < 0))

    @property
    def _taken_us(self) -> Ints:
        taken: Ints = self.done_us - self.arrivals_us
        return taken

    def attainment(self, *, lateness_counted: bool) -> float:
        """Share of the requests after the warm-up that are done, and in time if that counts.

        The artifact multiplies the shares of not dropped and not late, but never sees a request
        of more than one stage as late, and none of one stage is.
        """
        counts = self.arrivals_us >= WARM_UP_US
        good = self.done_us >= 0
        if lateness_counted:
            good &= self._taken_us <= self.slo_us
        total = np.count_nonzero(counts)
        return float(np.count_nonzero(good & counts) / total) if total else 1.0


def run_session(
    hardware: Hardware,
    arrivals_us: Ints,
    mode: Mode = "reservation",
    *,
    slot_order: Ints | None = None,
) -> Outcome:
    """Simulate one model alone.

    Args:
        arrivals_us: shape (N,), non-decreasing.
        slot_order: the order in which the reactive scheduler lists slots; None: the artifact's.
    """
    arrivals_us = np.ascontiguousarray(arrivals_us, dtype=np.int64)
    if mode == "reservation":
        batches = reservation.dispatch(hardware, arrivals_us)
        started_us, done_us = reservation.execute(hardware, batches, len(arrivals_us))
        busy_us = reservation.busy_us(hardware, batches)
    else:
        order = np.arange(len(hardware.link)) if slot_order is None else slot_order
        session = open_session(hardware, arrivals_us, order)
        reactive.simulate(hardware, session)
        started_us, done_us, busy_us = session.started_us, session.done_us, session.busy_us
    return Outcome(
        arrivals_us=arrivals_us,
        started_us=started_us,
        done_us=done_us,
        busy_us=busy_us,
        slo_us=hardware.slo_us,
    )


def shuffled_slots(hardware: Hardware, rng: np.random.Generator) -> Ints:
    """Slots in random order, so that neighbours in the list rarely share a link."""
    return rng.permutation(len(hardware.link))


def fair_slots(hardware: Hardware) -> Ints:
    """Slots in rounds over the links: consecutive batches leave by as many links as there are.

    The artifact lists the slots of a link one after the other, so that the reactive scheduler
    sends neighbours through one link while others idle.
    """
    _, first = np.unique(hardware.link, return_index=True)
    within = np.arange(len(hardware.link)) - first[hardware.link]
    return np.lexsort((hardware.link, within))


def poisson_us(rate_rps: float, duration_us: int, rng: np.random.Generator) -> Ints:
    """The artifact's arrivals: the first at 0, gaps exponential and cut to whole microseconds.

    The cut makes the real rate higher by about rate / 2 per million.

    Returns:
        Shape (N,), in [0, duration_us).
    """
    mean = int(rate_rps * duration_us / 1e6)
    chunk = mean + 6 * int(mean**0.5) + 16
    at_us = np.zeros(1, np.int64)
    while at_us[-1] < duration_us:
        gaps = (1e6 / rate_rps * rng.standard_exponential(chunk)).astype(np.int64)
        at_us = np.concatenate([at_us, at_us[-1] + np.cumsum(gaps)])
    return at_us[at_us < duration_us]
