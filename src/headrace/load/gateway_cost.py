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
without reads many in a turn: 200 us against 60 for the same small request. So it is measured where
a processor has no rest,

    rate x gateway time = 1                             with the gateway alone   `alone_us`
    rate x (gateway time + what a slot takes) = 1       shared with a slot       `shared_us`

*Alone, or with a worker that runs:* requests leave as soon as one of N connections is free, so the
core is never idle and nothing has to be said of how idle it may be. That matters: a core that is
98.8 % busy at 17,000 small requests/s is 99.6 % busy at 20,000 and answers 24,000, as what was idle
had gone into waking; to look for the rate of a given busyness finds any of these. N is what may be
under way when the last one is just in time, `under_way`: fewer make smaller turns, and of large
inputs all that are under way then stay in a cache that they would not stay in.

*Beside a slot that only waits here:* at the rate that gateway and slot together would fill the
core, found by the secant method from low rates on. The slot would run in the gateway's rests, so it
has them.

For the second a server is kept on one core with its worker, off the client's: where each has its
own, the worker reports while the gateway sleeps, which is then woken for every batch, and a tenth
more is measured than a shared core needs. Each is measured TIMES times, and the median counts.
"""

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from math import ceil
from pathlib import Path
from statistics import median
from typing import NamedTuple

from headrace.catalog.scratch import scratch_folder
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
from headrace.load.generator import MAX_CONNECTIONS, LoadError, LoadOptions, run_load
from headrace.simulation.offered.arrivals import Arrival, arrivals_for

FIRST_RPS = 100.0
MOST_RPS = 25_000.0
"""Below what the worker can do."""
BUSY = 0.98
"""Of a core that is shared with a slot that waits here: nearly all."""
OBJECTIVE_US = 25_000
"""In which a request is just in time where a core has no rest."""
NEAR = 0.01
"""Of what was looked for: near enough."""
LEAST_REQUESTS = 20
"""In one measurement. Where a step is too short for so many, slots take so long that a few
hundredths of the gateway's time are nothing beside them."""
CONNECTIONS = 32
"""At rates that leave rests: all that is under way at once."""
STEPS = 8
"""At most, to find a rate."""
TIMES = 5
SEARCH_PART = 0.5
"""How long a step of a search is, of one that counts."""
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

    Takes some ten seconds, starts of its servers included.

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
    with scratch_folder("headrace-") as folder:
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
                    shared_us = gateway.beside_us(slot_us)
            alone_us = gateway.without_rest_us()
    return GatewayCost(alone_us=max(1, round(alone_us)), shared_us=max(1, round(shared_us)))


def beyond_profile_us(
    server: ChildServer, model: str, slot_us: float, step_s: float
) -> float | None:
    """What gateway and worker take of their core for a request, less `slot_us`; None: the model
    refuses most of the inputs that are made up."""
    both = _Counted(server=server, model=model, step_s=step_s, workers=True)
    try:
        with _apart(server):
            return both.without_rest_us() - slot_us
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

    def without_rest_us(self) -> float:
        """Of a request, where as many as `under_way` are there all the time."""
        cost_us = self._at_rate_us(FIRST_RPS, self.step_s)  # To warm up, and too much.
        cost_us = self._at_once_us(cost_us, SEARCH_PART * self.step_s)
        found_us: list[float] = []
        for _ in range(TIMES):
            found_us.append(self._at_once_us(cost_us, self.step_s))
            cost_us = median(found_us)
        return cost_us

    def beside_us(self, slot_us: float) -> float:
        """Of a request, at the rate at which that and `slot_us` fill a core."""
        self._at_rate_us(FIRST_RPS, self.step_s)  # To warm up.
        first_rps = min(FIRST_RPS, BUSY * 1e6 / max(1.0, slot_us))
        rate_rps, cost_us = cost_at_full_load(
            lambda rate_rps: self._at_rate_us(rate_rps, SEARCH_PART * self.step_s),
            first_rps,
            slot_us,
        )
        if rate_rps * self.step_s < LEAST_REQUESTS:
            return cost_us
        return median(self._at_rate_us(rate_rps, self.step_s) for _ in range(TIMES))

    def _at_rate_us(self, rate_rps: float, duration_s: float) -> float:
        duration_s = max(duration_s, LEAST_REQUESTS / rate_rps)
        arrivals = arrivals_for("poisson", {self.model: rate_rps}, duration_s, SEED)
        return self._taken_us(arrivals, CONNECTIONS)

    def _at_once_us(self, cost_us: float, duration_s: float) -> float:
        """Of as many requests as take about so long."""
        connections = under_way(cost_us)
        count = max(2 * connections, ceil(duration_s * 1e6 / cost_us))
        return self._taken_us([Arrival(at_us=0, model=self.model)] * count, connections)

    def _taken_us(self, arrivals: Sequence[Arrival], connections: int) -> float:
        before_us = self.server.processor_us(workers=self.workers)
        options = LoadOptions(slo_us=SLO_US, connections=connections)
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


def under_way(cost_us: float) -> int:
    """Requests, of `cost_us` each, that a core without rest answers within OBJECTIVE_US, or as many
    as a client has connections for.

    >>> under_way(40), under_way(180), under_way(100_000)
    (256, 139, 1)
    """
    return max(1, min(MAX_CONNECTIONS, ceil(OBJECTIVE_US / cost_us)))


def cost_at_full_load(
    taken_us: Callable[[float], float], rate_rps: float, beside_us: float
) -> tuple[float, float]:
    """(rate, what a request takes there) where rate x (that + `beside_us`) is BUSY of a second, or
    as near as STEPS measurements come.

    Args:
        taken_us: measures it at a rate; it falls as the rate grows.
        rate_rps: where to begin, at most what is looked for.

    >>> rate_rps, cost_us = cost_at_full_load(lambda rate_rps: 50 + 2e3 / rate_rps, 100, 5e3)
    >>> round(rate_rps), round(cost_us)
    (193, 60)
    """
    before: tuple[float, float] | None = None
    cost_us = 0.0
    for _ in range(STEPS):
        cost_us = taken_us(rate_rps)
        busy = rate_rps * (cost_us + beside_us) / 1e6
        if abs(busy - BUSY) <= NEAR * BUSY or (rate_rps >= MOST_RPS and busy < BUSY):
            break
        # At the present cost, which is too careful below what is looked for.
        next_rps = rate_rps * BUSY / busy
        if before is not None and (busy - before[1]) * (rate_rps - before[0]) > 0:
            slope = (busy - before[1]) / (rate_rps - before[0])
            secant_rps = rate_rps + (BUSY - busy) / slope
            if busy < BUSY:
                next_rps = min(3 * rate_rps, max(next_rps, secant_rps))
            else:
                next_rps = max(next_rps / 2, min(next_rps, secant_rps))
        before = rate_rps, busy
        rate_rps = min(MOST_RPS, next_rps)
    return rate_rps, cost_us
