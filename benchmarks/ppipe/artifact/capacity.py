"""The largest load that a plan carries, searched for as the artifact does."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from benchmarks.ppipe.artifact.hardware import Hardware, Ints
from benchmarks.ppipe.artifact.session import Mode, poisson_us, run_session

SESSION_US = 30_000_000
STEPS_PERCENT = tuple(range(100, 0, -5))
"""Load factors tried, from the top."""

TARGET = 0.99


@dataclass(frozen=True, slots=True, kw_only=True)
class Metric:
    """The largest load factor by one way of counting, and the attainment at load factor 1."""

    load_factor: float
    attainment_at_1: float


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadFactor:
    """Of one configuration, both ways of counting."""

    artifact: Metric
    """Late requests of several stages count as served; more than 99 % needed."""
    lateness_counted: Metric
    """At least 99 % needed."""
    sessions: int
    requests: int


class Attaining(Protocol):
    """What became of a session's requests."""

    def attainment(self, *, lateness_counted: bool) -> float: ...


Runner = Callable[[Ints], Attaining]
"""Arrivals, microseconds -> what became of them."""


def max_load_factor(
    hardware: Hardware, load_at_1_rps: int, mode: Mode, rng: np.random.Generator
) -> LoadFactor:
    """By the artifact's rules, on its Poisson arrivals; see `search_load_factor`."""
    return search_load_factor(
        lambda arrivals_us: run_session(hardware, arrivals_us, mode),
        lambda load_rps: poisson_us(load_rps, SESSION_US, rng),
        load_at_1_rps,
    )


def search_load_factor(
    run: Runner,
    draw: Callable[[int], Ints],
    load_at_1_rps: int,
    steps_percent: Sequence[int] = STEPS_PERCENT,
) -> LoadFactor:
    """Lower the load step by step until 99 % attain their SLO by either count.

    Args:
        draw: requests per second -> arrivals of a session.
        load_at_1_rps: what load factor 1 means, requests per second.
        steps_percent: load factors to try, falling; the first one stands for load factor 1.

    Returns:
        The smallest load factor that was tried where none attains.
    """
    found: dict[bool, float] = {}
    at_1: dict[bool, float] = {}
    sessions, requests, percent = 0, 0, 0
    for percent in steps_percent:
        load_rps = percent * load_at_1_rps // 100
        if load_rps < 1:
            break
        arrivals_us = draw(load_rps)
        outcome = run(arrivals_us)
        sessions += 1
        requests += len(arrivals_us)
        for lateness_counted in (False, True):
            attained = outcome.attainment(lateness_counted=lateness_counted)
            at_1.setdefault(lateness_counted, attained)
            enough = attained >= TARGET if lateness_counted else attained > TARGET
            if enough:
                found.setdefault(lateness_counted, percent / 100)
        if len(found) == 2:
            break
    metrics = [
        Metric(load_factor=found.get(counted, percent / 100), attainment_at_1=at_1.get(counted, 0))
        for counted in (False, True)
    ]
    return LoadFactor(
        artifact=metrics[0], lateness_counted=metrics[1], sessions=sessions, requests=requests
    )
