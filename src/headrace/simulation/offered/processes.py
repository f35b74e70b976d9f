"""Arrival processes: instants of one stream, from a rate and a generator.

poisson     independent exponential gaps
uniform     equal gaps
gamma       independent gamma gaps: bursty where their coefficient of variation exceeds 1
mmpp        Poisson whose rate switches between calm and burst (Markov-modulated)
"""

import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from headrace.domain.errors import DocumentError

MAX_ARRIVALS = 10_000_000
"""More than this in one run is a slip of the unit, not a workload."""

BURST_SHARE = 0.2
"""Of the time that a modulated process spends in bursts; so a burst has at most 5 x the rate."""

Instants = npt.NDArray[np.int64]
"""Shape (N,), microseconds in [0, duration), non-decreasing."""

Process = Callable[[float, float, np.random.Generator], Instants]
"""(rate_rps, duration_s, rng) -> instants."""


class Parameter(NamedTuple):
    """What may follow a process's name after a colon."""

    meaning: str
    default: float
    above: float
    most: float


PARAMETERS = {
    "gamma": (Parameter("coefficient of variation of the gaps", 2.0, 0.0, 100.0),),
    "mmpp": (
        Parameter("rate in bursts / mean rate", 2.0, 1.0, 1 / BURST_SHARE),
        Parameter("mean length of a burst, seconds", 1.0, 0.0, 1e6),
    ),
}
"""Name -> its parameters; poisson and uniform have none."""

GENERATED = ("poisson", "uniform", *PARAMETERS)


def is_generated(source: str) -> bool:
    """Whether `source` names a process, which needs a rate, rather than a file."""
    return source.partition(":")[0] in GENERATED


def process_named(source: str) -> Process:
    """The process that the command line names: NAME or NAME:NUMBER[:NUMBER].

    >>> process_named("gamma:0.5")(100.0, 1.0, np.random.default_rng(1))[:2].tolist()
    [10923, 21764]

    Raises:
        DocumentError: no such process, or a parameter out of its range.
    """
    name, *texts = source.split(":")
    if name not in GENERATED or len(texts) > len(PARAMETERS.get(name, ())):
        raise DocumentError(
            f"arrivals {source!r}: expected poisson, uniform, gamma[:CV] or mmpp[:BURST[:SECONDS]]"
        )
    numbers = [parameter.default for parameter in PARAMETERS.get(name, ())]
    for at, text in enumerate(texts):
        numbers[at] = _parameter(source, text, PARAMETERS[name][at])
    if name == "gamma":
        return lambda rate, duration, rng: gamma_us(rate, duration, rng, cv=numbers[0])
    if name == "mmpp":
        return lambda rate, duration, rng: mmpp_us(
            rate, duration, rng, burst=numbers[0], burst_s=numbers[1]
        )
    return poisson_us if name == "poisson" else lambda rate, duration, _: uniform_us(rate, duration)


def poisson_us(rate_rps: float, duration_s: float, rng: np.random.Generator) -> Instants:
    """Instants of a Poisson process: gaps are independent and exponential with mean 1 / rate.

    The unit gaps do not depend on rate or duration: for one seed a longer run extends a shorter
    one, and twice the rate is the same pattern in half the time.

    Returns:
        Shape (N,), microseconds in [0, duration), non-decreasing.
    """
    expected = expected_count(rate_rps, duration_s)
    at = _unit_instants(expected, 1.0, rng.standard_exponential)
    return whole_us(at / rate_rps, duration_s)


def uniform_us(rate_rps: float, duration_s: float) -> Instants:
    """Instants at equal gaps, the first at 0.

    >>> uniform_us(4.0, 1.0).tolist()
    [0, 250000, 500000, 750000]
    """
    expected_count(rate_rps, duration_s)
    # The tiny allowance keeps 0.1 * 30 = 3.0000000000000004 from becoming a fourth arrival.
    count = math.ceil(rate_rps * duration_s - 1e-9)
    return whole_us(np.arange(count) / rate_rps, duration_s)


def gamma_us(
    rate_rps: float, duration_s: float, rng: np.random.Generator, *, cv: float
) -> Instants:
    """Independent gamma-distributed gaps with mean 1 / rate.

    For one seed a longer run extends a shorter one, as with `poisson_us`, whose statistics it has
    at cv = 1.

    Args:
        cv: standard deviation of the gaps / their mean; above 1 is burstier than Poisson.

    Source:
        Li et al., "AlpaServe", OSDI 2023, section 6.2, takes the same process for bursty load.
    """
    expected = expected_count(rate_rps, duration_s)
    shape = cv**-2
    at = _unit_instants(expected, cv, lambda count: rng.standard_gamma(shape, count) / shape)
    return whole_us(at / rate_rps, duration_s)


def mmpp_us(
    rate_rps: float,
    duration_s: float,
    rng: np.random.Generator,
    *,
    burst: float,
    burst_s: float,
) -> Instants:
    """A Poisson process whose rate is burst x the mean in bursts and lower between them.

    Bursts and pauses have exponential lengths; bursts fill `BURST_SHARE` of the time on average.
    The mean rate holds in the long run: one short run has the bursts that it has.

    Args:
        burst: rate in a burst / mean rate, in (1, 1 / BURST_SHARE].
        burst_s: mean length of a burst.

    Source:
        Fischer and Meier-Hellstern, "The Markov-modulated Poisson process cookbook", 1993.
    """
    expected_count(rate_rps, duration_s)
    # Two generators: how long the run is must not shift one sequence against the other.
    of_phases, of_arrivals = rng.spawn(2)
    calm = (1 - BURST_SHARE * burst) / (1 - BURST_SHARE)
    pause_s = burst_s * (1 - BURST_SHARE) / BURST_SHARE
    bursting = bool(of_phases.random() < BURST_SHARE)
    at_s, done = [0.0], [0.0]
    while at_s[-1] < duration_s:
        if len(at_s) > MAX_ARRIVALS:
            raise DocumentError(f"arrivals: more than {MAX_ARRIVALS} bursts in {duration_s} s")
        # A phase may outlast the run by far; only what lies inside is drawn.
        length_s = of_phases.exponential(burst_s if bursting else pause_s)
        length_s = min(length_s, duration_s - at_s[-1])
        at_s.append(at_s[-1] + length_s)
        done.append(done[-1] + length_s * rate_rps * (burst if bursting else calm))
        bursting = not bursting
    # Unit-rate instants, bent by the inverse of the expected count so far.
    units = _unit_instants(done[-1], 1.0, of_arrivals.standard_exponential)
    return whole_us(np.interp(units, done, at_s), duration_s)


def expected_count(rate_rps: float, duration_s: float) -> float:
    """
    Raises:
        DocumentError: rate or duration is not positive, or the run too large.
    """
    if not (0 < rate_rps < math.inf and 0 < duration_s < math.inf):
        raise DocumentError(
            f"arrivals: rate ({rate_rps} rps) and duration ({duration_s} s) must be positive and"
            " finite"
        )
    expected = rate_rps * duration_s
    if expected > MAX_ARRIVALS:
        raise DocumentError(
            f"arrivals: {rate_rps} rps for {duration_s} s are {expected:.3g} requests;"
            f" the limit is {MAX_ARRIVALS}"
        )
    return expected


def whole_us(at_s: npt.NDArray[np.float64], duration_s: float) -> Instants:
    """Seconds in [0, duration) as whole microseconds in the same range."""
    # Rounding could carry the last instant to the end itself, which lies outside the run.
    last_us = max(0, math.ceil(duration_s * 1e6) - 1)
    return np.minimum(np.rint(at_s * 1e6), last_us).astype(np.int64)


def _unit_instants(
    end: float, cv: float, draw: Callable[[int], npt.NDArray[np.float64]]
) -> npt.NDArray[np.float64]:
    """Sums of gaps of mean 1, below `end`."""
    # Six standard deviations more than expected: a second draw is a once-in-a-billion event.
    chunk = min(math.ceil(end + 6 * cv * math.sqrt(end)) + 8, 2 * MAX_ARRIVALS)
    at = np.cumsum(draw(chunk))
    while at[-1] < end:
        at = np.concatenate([at, at[-1] + np.cumsum(draw(chunk))])
    return at[at < end]


def _parameter(source: str, text: str, parameter: Parameter) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not parameter.above < value <= parameter.most:
        raise DocumentError(
            f"arrivals {source!r}: {parameter.meaning} must be above {parameter.above:g} and at"
            f" most {parameter.most:g}, got {text[:40]!r}"
        )
    return value
