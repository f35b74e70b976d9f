"""The six query streams of Accordion's study (section 4.3), from a seed.

A query asks for one of three networks, for so many items, at a high or a low priority. Over ten
minutes the rate swings between a trough and 2 or 5 peaks; within it arrivals are Poisson. Items are
log-normal. What the paper leaves open is chosen here:

load      one-place time of all queries / (places x duration). Streams 3, 5 and 6 ask for all that
          64 places can do, and for nearly twice as much at their peaks
peaks     the rate is a raised cosine, PEAK_TO_TROUGH times as high at a peak as in a trough
items     sigma of their logarithm; rounded to whole items, at least one
networks, priorities  each as likely as the others, independently

SLOs are a part of the longest one-place time of the stream: strict 10 %, moderate 25 %,
relaxed 50 %.

    python -m benchmarks.accordion.streams [--seed 0]
"""

import argparse
import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from benchmarks.accordion.networks import MODELS, ONE_PLACE_US, PLACES

Ints = npt.NDArray[np.int64]

DURATION_S = 600.0
SIGMA = 0.6
PEAK_TO_TROUGH = 9.0
HIGH, LOW = 0, 1
"""Priorities; smaller is served first."""

SLOS = {"strict": 0.10, "moderate": 0.25, "relaxed": 0.50}
"""Parts of the longest one-place time in the stream."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """What one of the six is made of."""

    peaks: int
    mean_items: float
    load: float
    """Mean over the stream; 1: the one-place time of its queries fills all places."""

    @property
    def saturates(self) -> bool:
        return self.load >= 0.9


STREAMS = {
    1: Shape(peaks=2, mean_items=1, load=0.25),
    2: Shape(peaks=2, mean_items=20, load=0.55),
    3: Shape(peaks=2, mean_items=100, load=1.0),
    4: Shape(peaks=5, mean_items=20, load=0.35),
    5: Shape(peaks=5, mean_items=50, load=1.0),
    6: Shape(peaks=5, mean_items=70, load=1.0),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class QueryStream:
    """Queries in the order of their arrival; all arrays have shape (queries,)."""

    arrived_at_us: Ints
    model: Ints
    """Index into `networks.MODELS`."""
    items: Ints
    priority: Ints
    """HIGH or LOW."""

    def __len__(self) -> int:
        return len(self.arrived_at_us)

    @property
    def one_place_us(self) -> Ints:
        """Of each query, alone on one place."""
        each: Ints = np.array([ONE_PLACE_US[name] for name in MODELS], np.int64)[self.model]
        return each * self.items

    def slo_us(self, level: str) -> int:
        """Of every query of the stream. `level`: one of SLOS."""
        return math.floor(SLOS[level] * int(self.one_place_us.max(initial=0)))


def query_stream(
    number: int, seed: int, *, places: int = PLACES, duration_s: float = DURATION_S
) -> QueryStream:
    """One of the six; equal arguments, equal stream.

    Args:
        number: key of STREAMS.
        places: what the load is of.
    """
    shape = STREAMS[number]
    rng = np.random.default_rng([number, seed])
    arrived_at_us = _arrivals(rng, shape, places, duration_s)
    count = len(arrived_at_us)
    centre = math.log(shape.mean_items) - SIGMA**2 / 2
    items = np.maximum(1, np.rint(rng.lognormal(centre, SIGMA, count))).astype(np.int64)
    return QueryStream(
        arrived_at_us=arrived_at_us,
        model=rng.integers(len(MODELS), size=count),
        items=items,
        priority=rng.integers(HIGH, LOW + 1, size=count),
    )


def _arrivals(rng: np.random.Generator, shape: Shape, places: int, duration_s: float) -> Ints:
    """Poisson at the highest rate, thinned to the rate of each instant."""
    mean_s = shape.mean_items * sum(ONE_PLACE_US.values()) / len(ONE_PLACE_US) / 1e6
    mean_rps = shape.load * places / mean_s
    trough_rps = mean_rps / (1 + (PEAK_TO_TROUGH - 1) / 2)
    highest_rps = trough_rps * PEAK_TO_TROUGH
    count = rng.poisson(highest_rps * duration_s)
    at_s = np.sort(rng.uniform(0, duration_s, count))
    height = (1 - np.cos(2 * math.pi * shape.peaks * at_s / duration_s)) / 2
    rate_rps = trough_rps + (highest_rps - trough_rps) * height
    kept = rng.uniform(0, highest_rps, count) < rate_rps
    at_us: Ints = np.floor(at_s[kept] * 1e6).astype(np.int64)
    return at_us


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--seed", type=int, default=0)
    seed = parser.parse_args().seed
    print("stream  peaks  queries  mean items  most  load  highest load  SLOs s")
    for number, shape in STREAMS.items():
        stream = query_stream(number, seed)
        work_s = stream.one_place_us / 1e6
        minutes = np.bincount((stream.arrived_at_us // 60_000_000), work_s, minlength=10)
        slos = " ".join(f"{stream.slo_us(level) / 1e6:.1f}" for level in SLOS)
        print(
            f"{number:6}  {shape.peaks:5}  {len(stream):7}  {stream.items.mean():10.1f}"
            f"  {stream.items.max():4}  {work_s.sum() / (PLACES * DURATION_S):4.2f}"
            f"  {minutes.max() / (PLACES * 60):12.2f}  {slos}"
        )


if __name__ == "__main__":
    main()
