"""The load that one model's pipelines carry at 99 %, under a dispatcher or under any.

No load factor caps it, lateness counts, and the arrivals of a seed are one pattern at every rate,
so that systems compare. What every dispatcher is measured against:

`most_rps`   Whoever decides, and even if he knew all arrivals before: on every pipeline p, the
             requests of a window [s, t] that are answered in time are worked off by p's slowest
             stage between s + (its least way there) and t + SLO - (its least way on). So of any
             such window at most C_p (t - s) + C_p (SLO - L_p) requests can be, with C_p the rate of
             that stage at its best batch size up to the planned one, and L_p the least time in the
             other stages and between them. Of all ways to keep this, admitting whoever still fits
             (a token bucket) admits most. And batches take their slots whole: `windows`, kept at
             the same time.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from benchmarks.ppipe.artifact import Hardware, run_session
from benchmarks.ppipe.artifact.hardware import Ints
from benchmarks.ppipe.dispatch import POLICY, topology_of
from benchmarks.ppipe.fluid import stage_rps
from benchmarks.ppipe.windows import NO_WINDOWS, Windows, admitted, windows_of

from headrace.simulation.compiled import offer, run
from headrace.simulation.offered.processes import poisson_us

ATTAINMENT = 0.99
TOLERANCE = 0.004
"""Of a rate, relative."""
FACTORS_UP = (1.0, 1.02, 1.05, 1.12, 1.3, 1.6, 2.0, 3.0)
FACTORS_DOWN = (0.98, 0.95, 0.9, 0.8, 0.65, 0.45, 0.25, 0.1)
"""Of a guess, tried until one side of the answer is known and the other not."""

THEIRS, OURS, ANY = "theirs", "ours", "any"
"""Dispatchers: of PPipe's artifact, ours, and a bound on all."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Session:
    """Poisson arrivals of one model."""

    seed: int
    seconds: float


def carried_rps(
    hardware: Hardware, model: str, dispatcher: str, session: Session, guess_rps: float
) -> float:
    """The highest rate, within `TOLERANCE`, at which ATTAINMENT of the requests are in time."""
    return _highest_rps(attaining(hardware, model, dispatcher), model, session, guess_rps)


def admitted_rps(capacity_rps: float, slo_us: int, model: str, session: Session) -> float:
    """The same of pipelines of this capacity in all, whatever they are and whoever decides: none
    is in other stages for less than no time."""
    rate_per_us = capacity_rps / 1e6

    def attains(at_us: Ints) -> float:
        return _part_admitted(at_us, rate_per_us, rate_per_us * slo_us, NO_WINDOWS)

    return _highest_rps(attains, model, session, capacity_rps)


def _highest_rps(
    attains: Callable[[Ints], float], model: str, session: Session, guess_rps: float
) -> float:
    """Found by halving, as if attainment only fell with load, between a tenth and three times the
    guess; 0 where a tenth is too much.
    """

    def enough(rate_rps: float) -> bool:
        return attains(_arrivals(model, rate_rps, session)) >= ATTAINMENT

    low, high = 0.0, np.inf
    for factor in FACTORS_UP:
        if not enough(factor * guess_rps):
            high = factor * guess_rps
            break
        low = factor * guess_rps
    for factor in FACTORS_DOWN if low == 0.0 else ():
        if enough(factor * guess_rps):
            low = factor * guess_rps
            break
        high = factor * guess_rps
    while low and np.isfinite(high) and high - low > TOLERANCE * guess_rps:
        middle = (low + high) / 2
        low, high = (middle, high) if enough(middle) else (low, middle)
    return low


def _arrivals(model: str, rate_rps: float, session: Session) -> Ints:
    rng = np.random.default_rng([session.seed, *model.encode()])
    return poisson_us(rate_rps, session.seconds, rng)


def attaining(hardware: Hardware, model: str, dispatcher: str) -> Callable[[Ints], float]:
    """Arrivals -> part of the requests that is answered in time."""
    if dispatcher == THEIRS:
        return lambda at_us: run_session(hardware, at_us).attainment(lateness_counted=True)
    if dispatcher == ANY:
        rate_per_us, room = bucket(hardware)
        windows = windows_of(hardware)
        return lambda at_us: _part_admitted(at_us, rate_per_us, room, windows)
    topology = topology_of(model, hardware)

    def ours(at_us: Ints) -> float:
        offered = offer(topology, at_us)
        ended_at_us = run(topology, POLICY, offered).ended_at_us
        in_time = (ended_at_us >= 0) & (ended_at_us <= offered.deadline_at_us)
        return float(np.count_nonzero(in_time)) / max(1, len(at_us))

    return ours


def bucket(hardware: Hardware) -> tuple[float, float]:
    """Tokens per microsecond and the bucket's depth, of all pipelines together."""
    rate, room = 0.0, 0.0
    for pipeline in range(len(hardware.batch)):
        first, end = hardware.stage_at[pipeline : pipeline + 2].tolist()
        sizes = range(1, int(hardware.batch[pipeline]) + 1)
        rates = [max(stage_rps(hardware, k, b) for b in sizes) for k in range(first, end)]
        slowest = first + int(np.argmin(rates))
        elsewhere_us = sum(
            min(int(hardware.latency_us[k, b]) for b in sizes)
            for k in range(first, end)
            if k != slowest
        ) + int(hardware.item_transfer_us[first : end - 1].sum())
        per_us = min(rates) / 1e6
        rate += per_us
        room += per_us * max(0, hardware.slo_us - elsewhere_us)
    return rate, room


def _part_admitted(at_us: Ints, rate_per_us: float, room: float, windows: Windows) -> float:
    return float(admitted(at_us, rate_per_us, room, *windows)) / max(1, len(at_us))


class Carrying:
    """`carried_rps` that is asked for once per pipelines, model, dispatcher and session."""

    def __init__(self) -> None:
        self._known: dict[tuple[object, ...], float] = {}

    def __call__(
        self, hardware: Hardware, model: str, dispatcher: str, session: Session, guess_rps: float
    ) -> float:
        content = tuple(
            each.tobytes() if isinstance(each, np.ndarray) else each for each in hardware
        )
        key = (content, model, dispatcher, session)
        if key not in self._known:
            self._known[key] = carried_rps(hardware, model, dispatcher, session, guess_rps)
        return self._known[key]
