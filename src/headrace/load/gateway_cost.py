"""What the gateway takes of a processor for one request of a model, on the path that serves.

A server of its own runs the model's inputs and outputs through HTTP, protocol, dispatcher, shared
memory and back; its worker only waits for as long as a batch would take. Counted is the processor
time of the gateway's process, so that other programs on the machine disturb little.

Beside a slot on its core a quick model is really run, and what its worker takes is counted too:
inputs come cold from a gateway that has just written them, and each of the two takes the caches
from the other, so that ten pictures of 600 kB take a worker twice what they were profiled at. All
that both take, less what the profile says of the slot, is `shared_us`: the two together are what a
core was seen to need. Of a slower model that would be a small difference of two large figures, and
its worker only waits here too.

That depends on the load. A gateway with rests is woken for every request and every report, and one
without reads many in a turn: 200 us against 60 for the same small request. So it is measured at the
rates that plans are about, where a processor is busy for nearly all of its time,

    rate x gateway time = busy                          with the gateway alone   `alone_us`
    rate x (gateway time + what a slot takes) = busy    shared with a slot       `shared_us`

found by the secant method, from low rates on. Far beyond them less would be measured than can be
relied on. For the second a server is kept on one core with its worker: where each has its own,
the worker reports while the gateway sleeps, which is then woken for every batch, and a tenth more
is measured than a shared core needs.

Near its limit a small request's cost falls about as quickly as the rate grows, since what was idle
is spent on waking: a core 96 % busy at 16,000 requests/s is 99 % busy at 18,000, and 21,000 are
answered. So it is measured where a core is as busy as it may be with 99 % of its requests just in
time. With requests of s us and an objective of t us, as M/D/1 has it, too many wait longer than t
from about

    exp(-2 (1 - busy) t / s) = 1 %

on. `full_load` takes OBJECTIVE_US for t, and BUSY as the least: with a shorter objective a core
carries a few hundredths less.

For the same reason one measurement there says little: a hundredth of a core more or less is a rate
that is 8 % off. So the client keeps off the server's core where there is another, and the search
only finds where to look. About that rate, at AROUND times it, the time taken is measured again, and
the line through those points says where a core is that busy (Theil's line, of the median slope: one
disturbed measurement of five does not move it far).
"""

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import combinations
from math import log
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import NamedTuple

from headrace.domain.profile import Profile
from headrace.load.child_server import ChildServer, child_server
from headrace.load.gateway_plan import (
    SLO_US,
    as_it_is,
    least_slot_us,
    runs_on_a_core,
    that_waits,
    write_plan,
)
from headrace.load.generator import LoadError, LoadOptions, run_load
from headrace.simulation.offered.arrivals import arrivals_for

FIRST_RPS = 100.0
MOST_RPS = 25_000.0
"""Below what the worker can do."""
BUSY, OBJECTIVE_US = 0.98, 25_000
NEAR = 0.01
"""Of what was looked for: near enough."""
LEAST_REQUESTS = 20
"""In one measurement. Where a step is too short for so many, slots take so long that a few
hundredths of the gateway's time are nothing beside them."""
CONNECTIONS = 32
"""All that is under way at once, so that tensor memory is never full."""
STEPS = 8
"""At most, for each of the two, to find the rate."""
AROUND = (0.92, 1.04, 0.96, 1.08, 1.0)
"""Times that rate, in an order in which a machine that grows slower does not tilt the line much."""
SEARCH_PART = 0.5
"""How long a step of the search is, of one that counts."""
SEED = 1


class GatewayCost(NamedTuple):
    """Of a request of one item, microseconds, at least 1. Where gateway and slots have cores of
    their own, `alone_us` may be the larger: each batch wakes a gateway that sleeps."""

    alone_us: int
    shared_us: int


class UnansweredError(LoadError):
    """Most of the made-up requests were refused: what they took says nothing of others."""


def measure_gateway(
    profile: Profile,
    device: str,
    model_folder: Path | None = None,
    step_s: float = 0.35,
    arguments: Sequence[str] = (),
    environment: Mapping[str, str] | None = None,
) -> GatewayCost:
    """Processor time of the gateway per request of one item.

    Takes some 11 seconds, and two more where the model is run.

    Args:
        device: that the profile has times of; a worker that waits takes as long as a whole one.
        model_folder: what the profile's path of its model is relative to, where that may be run on
            a core of this machine; None: its worker only waits.
        step_s: how long requests are sent at one rate.
        arguments: of a server whose worker waits besides, such as where an agent for its only node,
            `local`, is.
        environment: variables of the server besides this process's.

    Raises:
        ModelError: inputs whose shape is free cannot be made up.
        ServerFailedError: no server could be started.
        LoadError: a server is gone, or refuses most requests although its worker only waits.
    """
    slot_us = least_slot_us(profile, device)
    with TemporaryDirectory(prefix="headrace-") as name:
        folder = Path(name)
        shared_us: float | None = None
        if model_folder is not None and runs_on_a_core(profile, device):
            plan = write_plan(as_it_is(profile, model_folder), folder)
            with child_server(plan, "--no-auth", environment=environment) as server:
                shared_us = beyond_profile_us(server, profile.model, slot_us, step_s)
        plan = write_plan(that_waits(profile, device), folder)
        given = ("--executor", "emulated", "--no-auth", *arguments)
        with child_server(plan, *given, environment=environment) as server:
            gateway = _Counted(server=server, model=profile.model, step_s=step_s)
            if shared_us is None:
                with _apart(server):
                    shared_us = gateway.at_full_load_us(beside_us=slot_us)
            alone_us = gateway.at_full_load_us(beside_us=0.0)
    return GatewayCost(alone_us=max(1, round(alone_us)), shared_us=max(1, round(shared_us)))


def beyond_profile_us(
    server: ChildServer, model: str, slot_us: float, step_s: float
) -> float | None:
    """What gateway and worker take of their core for a request, less `slot_us`; None: the model
    refuses most of the inputs that are made up."""
    both = _Counted(server=server, model=model, step_s=step_s, workers=True)
    try:
        with _apart(server):
            return both.at_full_load_us(beside_us=0.0) - slot_us
    except UnansweredError:
        return None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Counted:
    """What a request takes of a server's processor time, at rates of one's choice."""

    server: ChildServer
    model: str
    step_s: float
    """How long requests are sent at one rate, where that counts."""
    workers: bool = False
    """Their time counts too."""

    def at_full_load_us(self, beside_us: float) -> float:
        """Of a request, where that and `beside_us` fill a core."""
        self.taken_us(FIRST_RPS)  # To warm up.
        first_rps = min(FIRST_RPS, BUSY * 1e6 / max(1.0, beside_us))
        rate_rps, cost_us = cost_at_full_load(self.briefly_us, first_rps, beside_us)
        if rate_rps * self.step_s < LEAST_REQUESTS:
            return cost_us
        return cost_around(self.taken_us, rate_rps, beside_us)

    def briefly_us(self, rate_rps: float) -> float:
        return self._over_us(rate_rps, SEARCH_PART * self.step_s)

    def taken_us(self, rate_rps: float) -> float:
        return self._over_us(rate_rps, self.step_s)

    def _over_us(self, rate_rps: float, duration_s: float) -> float:
        duration_s = max(duration_s, LEAST_REQUESTS / rate_rps)
        arrivals = arrivals_for("poisson", {self.model: rate_rps}, duration_s, SEED)
        before_us = self.server.processor_us(workers=self.workers)
        options = LoadOptions(slo_us=SLO_US, connections=CONNECTIONS)
        result = run_load(self.server.url, self.model, arrivals, options)
        took_us = self.server.processor_us(workers=self.workers) - before_us
        reasons = [request.reason for request in result.requests if request.reason]
        answered = len(result.requests) - len(reasons)
        if answered < len(reasons):
            raise UnansweredError(
                f"of {len(result.requests)} made-up requests of {self.model!r} only {answered} were"
                f" answered: {reasons[0]}"
            )
        return max(1.0, took_us / max(1, answered))


@contextmanager
def _apart(server: ChildServer) -> Iterator[None]:
    """Server and worker on one core, the client on the others, if there are any."""
    cores = os.sched_getaffinity(0)
    theirs = {max(cores)}
    server.keep_on(theirs)
    os.sched_setaffinity(0, cores - theirs or cores)
    try:
        yield
    finally:
        os.sched_setaffinity(0, cores)
        server.keep_on(cores)


def full_load(taken_us: float) -> float:
    """How busy a core may be with 99 % of its requests, of `taken_us` each, answered in
    OBJECTIVE_US; BUSY for those that take longer than a 115th of it.

    >>> full_load(50), full_load(1_000)
    (0.9954, 0.98)
    """
    return max(BUSY, round(1 - taken_us * log(100) / (2 * OBJECTIVE_US), 4))


def cost_at_full_load(
    taken_us: Callable[[float], float], rate_rps: float, beside_us: float
) -> tuple[float, float]:
    """(rate, what a request takes there) where rate x (that + `beside_us`) is `full_load` of a
    second, or as near as STEPS measurements come.

    Args:
        taken_us: measures it at a rate; it falls as the rate grows.
        rate_rps: where to begin, at most what is looked for.

    >>> rate_rps, cost_us = cost_at_full_load(lambda rate_rps: 50 + 0.3e6 / rate_rps, 100, 0)
    >>> round(rate_rps), round(cost_us, 2)
    (13844, 71.67)
    """
    before: tuple[float, float] | None = None
    cost_us = 0.0
    for _ in range(STEPS):
        cost_us = taken_us(rate_rps)
        busy = rate_rps * (cost_us + beside_us) / 1e6
        full = full_load(cost_us + beside_us)
        if abs(busy - full) <= NEAR * full or (rate_rps >= MOST_RPS and busy < full):
            break
        # At the present cost, which is too careful below what is looked for.
        next_rps = rate_rps * full / busy
        if before is not None and (busy - before[1]) * (rate_rps - before[0]) > 0:
            slope = (busy - before[1]) / (rate_rps - before[0])
            secant_rps = rate_rps + (full - busy) / slope
            if busy < full:
                next_rps = min(3 * rate_rps, max(next_rps, secant_rps))
            else:
                next_rps = max(next_rps / 2, min(next_rps, secant_rps))
        before = rate_rps, busy
        rate_rps = min(MOST_RPS, next_rps)
    return rate_rps, cost_us


def cost_around(taken_us: Callable[[float], float], rate_rps: float, beside_us: float) -> float:
    """What a request takes where rate x (that + `beside_us`) is `full_load` of a second, which is
    about `rate_rps`: from a line through measurements AROUND it.

    Args:
        taken_us: measures it at a rate.
        rate_rps: where `cost_at_full_load` has found it.

    Source:
        Theil, "A rank-invariant method of linear and polynomial regression analysis", 1950.

    >>> round(cost_around(lambda rate_rps: 50 + 0.3e6 / rate_rps, 12_800, 0), 1)
    71.7
    """
    rates = [rate_rps * part for part in AROUND]
    costs_us = [taken_us(rate) for rate in rates]
    points = [
        (rate, rate * (us + beside_us) / 1e6) for rate, us in zip(rates, costs_us, strict=True)
    ]
    slope = median((b - d) / (a - c) for (a, b), (c, d) in combinations(points, 2))
    if slope <= 0:
        return median(costs_us)
    at_none = median(busy - slope * rate for rate, busy in points)
    full = full_load(median(costs_us) + beside_us)
    found_rps = max(min(rates), min(max(rates), MOST_RPS, (full - at_none) / slope))
    return (at_none + slope * found_rps) * 1e6 / found_rps - beside_us
