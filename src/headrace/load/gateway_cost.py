"""What the gateway takes of a processor for one request of a model, on the path that serves.

A server of its own runs the model's inputs and outputs through HTTP, protocol, dispatcher, shared
memory and back; its worker only waits for as long as a batch would take. Counted is the processor
time of the gateway's process, so that other programs on the machine disturb little.

That depends on the load. A gateway with rests is woken for every request and every report, and one
without reads many in a turn: 200 us against 60 for the same small request. So it is measured at the
rates that plans are about, where a processor is busy for nearly all of its time,

    rate x gateway time = busy                          with the gateway alone   `alone_us`
    rate x (gateway time + what a slot takes) = busy    shared with a slot       `shared_us`

found by the secant method, from low rates on. Far beyond them less would be measured than can be
relied on. For the second the server is kept on one core with its worker: where each has its own,
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
from fractions import Fraction
from itertools import combinations
from math import log
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import NamedTuple

from msgspec.structs import replace

from headrace.catalog.documents import sha256_file, write_document
from headrace.cost import TimedStage, cost_model
from headrace.domain.cluster import Cluster, DeviceType, Node
from headrace.domain.problem import Demand, PlanOptions, Problem, ProfileRef
from headrace.domain.profile import BlockTimes, Profile
from headrace.domain.tensors import VARIES
from headrace.load.child_server import ChildServer, child_server
from headrace.load.generator import LoadOptions, run_load
from headrace.planning import solve
from headrace.simulation.offered.arrivals import arrivals_for

MOST_STAGE_US = 1_000
BATCH_SIZE = 32
SLO_US = 60_000_000
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


def measure_gateway(
    profile: Profile,
    device: str,
    step_s: float = 0.35,
    arguments: Sequence[str] = (),
    environment: Mapping[str, str] | None = None,
) -> GatewayCost:
    """Processor time of the gateway per request of one item.

    Takes about eight seconds, a quarter of them for the server to start and to end.

    Args:
        device: that the profile has times of; a worker takes as long as a whole one.
        step_s: how long requests are sent at one rate.
        arguments: of the server besides, such as where an agent for its only node, `local`, is.
        environment: variables of the server besides this process's.

    Raises:
        ModelError: inputs whose shape is free cannot be made up.
        ServerFailedError: no server could be started.
    """
    slot_us = _least_slot_us(profile, device)
    with TemporaryDirectory(prefix="headrace-") as folder:
        plan = _write_plan(profile, device, Path(folder))
        given = ("--executor", "emulated", "--no-auth", *arguments)
        with child_server(plan, *given, environment=environment) as server:

            def taken_us(rate_rps: float) -> float:
                return _per_request_us(server, profile.model, rate_rps, step_s)

            def briefly_us(rate_rps: float) -> float:
                return _per_request_us(server, profile.model, rate_rps, SEARCH_PART * step_s)

            def steady_us(rate_rps: float, cost_us: float, beside_us: float) -> float:
                if rate_rps * step_s < LEAST_REQUESTS:
                    return cost_us
                return cost_around(taken_us, rate_rps, beside_us)

            taken_us(FIRST_RPS)  # To warm up.
            first_rps = min(FIRST_RPS, BUSY * 1e6 / slot_us)
            with _apart(server):
                rate_rps, cost_us = cost_at_full_load(briefly_us, first_rps, slot_us)
                shared_us = steady_us(rate_rps, cost_us, slot_us)
            rate_rps, cost_us = cost_at_full_load(briefly_us, rate_rps, 0.0)
            alone_us = steady_us(rate_rps, cost_us, 0.0)
    return GatewayCost(alone_us=max(1, round(alone_us)), shared_us=max(1, round(shared_us)))


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


def _least_slot_us(profile: Profile, device: str) -> float:
    """What a request takes of a whole device at the batch size that is best for throughput."""
    costs = cost_model({profile.model: profile})
    whole = TimedStage.whole_model(profile, device, Fraction(1))
    largest = profile.max_batch(device, Fraction(1))
    return min(costs.latency(whole, size).p50_us / size for size in range(1, largest + 1))


def _per_request_us(server: ChildServer, model: str, rate_rps: float, duration_s: float) -> float:
    arrivals = arrivals_for(
        "poisson", {model: rate_rps}, max(duration_s, LEAST_REQUESTS / rate_rps), SEED
    )
    before_us = server.processor_us()
    options = LoadOptions(slo_us=SLO_US, connections=CONNECTIONS)
    result = run_load(server.url, model, arrivals, options)
    answered = sum(not request.reason for request in result.requests)
    return max(1.0, (server.processor_us() - before_us) / max(1, answered))


def _write_plan(profile: Profile, device: str, folder: Path) -> Path:
    """Of the model as one block that takes what a batch of one does, whatever the batch size, and
    MOST_STAGE_US at most: a slower worker would leave the gateway idle."""
    whole = Fraction(1)
    stage = TimedStage.whole_model(profile, device, whole)
    alone_us = cost_model({profile.model: profile}).execution(stage, 1).p50_us
    took_us = (min(MOST_STAGE_US, alone_us),) * (BATCH_SIZE if profile.batched else 1)
    last = profile.blocks[-1]
    emulated = replace(
        profile,
        model_path=None,
        model_sha256=None,
        blocks=(last,),
        block_times=(BlockTimes(device="cpu", share=whole, p50_us=(took_us,), p99_us=(took_us,)),),
        stage_times=(),
        gateway_us=0,
        # Of a model of several sizes the largest.
        dimensions=(),
        sizes=(),
        buckets=(),
        utilisation=(),
        layers=(),
        layer_times=(),
        inputs=tuple(replace(spec, dims=()) for spec in profile.inputs),
        # What varies within one request does so at any size.
        outputs=tuple(
            spec if VARIES in spec.dims else replace(spec, dims=()) for spec in profile.outputs
        ),
    )
    write_document(emulated, folder / "profile.json")
    named = ProfileRef(
        model=profile.model, path="profile.json", sha256=sha256_file(folder / "profile.json")
    )
    found = solve(
        Problem(
            cluster=Cluster(
                device_types=(DeviceType(name="cpu"),),
                nodes=(Node(name="local", devices={"cpu": 1}),),
            ),
            demands=(Demand(model=profile.model, slo_us=SLO_US),),
            profiles={profile.model: emulated},
            profile_refs=(named,),
            options=PlanOptions(margin=0.0),
        )
    )
    assert found.plan is not None, "one slot serves one block"
    write_document(found.plan, folder / "plan.json")
    return folder / "plan.json"
