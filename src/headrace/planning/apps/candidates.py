"""Candidates of a module, and the worst-case latency of a machine under each dispatch policy.

A candidate is (batch size, duration, device type, share, price); a machine is one slot that runs
it. A machine, or a turn, runs what it has been given, so that the duration is that of the slowest
batch of at most so many (decision 0099). Machines are ranked by throughput / price, best first
(throughput-cost dispatch, Harpagon III.B), and `remaining_rps`, the paper's w, is the load of a
machine's configuration and of all ranked behind it.

Three readings of a full batch's worst case (Table III; `domain.plan.Reading`):

remaining  d + b / w       Harpagon: each machine is given b consecutive requests
twice      d + b / own     own rate of the machine: 2 d at full load, more on one with less load
pair       d + b / (2 t)   two machines of one configuration share their part in batches; one
                           alone collects at t, a part of one at its own rate

The paper writes Scrooge's as d + b / t. With t the throughput of one machine that would be 2 d, yet
Figures 6 and 7 separate the two. Figure 7a says by how much: on the same machines 2 d takes 1.904
times as long as d + b / w, and d + b / t 1.428 times. The one is 0.750 of the other, so that
b / t = d / 2: t is what two machines take (decision 0064).

A batch of one is never collected: at worst its request finds the machine busy with the one
before, so that all three readings end at d + min(1 / w, d). The paper's examples, whose batches
are larger, are untouched; without this, a module with one request per second would need an SLO of
a second on an idle machine.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from math import ceil

import numpy as np

from headrace.cost import TimedStage, cost_model, shares_gateway_cores
from headrace.domain.app import App, topological_order
from headrace.domain.cluster import Cluster
from headrace.domain.errors import DocumentError
from headrace.domain.plan import Reading
from headrace.domain.problem import PlanOptions, Problem
from headrace.domain.profile import Profile
from headrace.planning.common.candidates import NEVER_US, Floats, Ints, budget_us, usable_kinds

LEAST_RPS = 1e-9
"""Load below this is rounding, not load."""

ROUNDING_US = 1e-3
"""Subtracted before rounding up, so that 40 ms computed as 40.000 000 01 ms stay 40 ms."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """One configuration of a module on one machine."""

    batch: int
    duration_us: int
    """p99 of a batch of at most so many, whichever takes longest."""
    rate_rps: float
    """Throughput of one machine, the paper's t."""
    device: str
    share: Fraction
    price: float
    """Of one machine, per hour."""

    @property
    def per_price(self) -> float:
        """Throughput-cost ratio."""
        return self.rate_rps / self.price


@dataclass(frozen=True, slots=True, kw_only=True)
class ModuleCase:
    """One module with all that may serve it, best throughput / price first."""

    name: str
    rate_rps: float
    candidates: tuple[Candidate, ...]
    batch: Ints
    """Shape (K,), as the following."""
    duration_us: Ints
    rates_rps: Floats
    price: Floats

    @classmethod
    def of(cls, name: str, rate_rps: float, candidates: Sequence[Candidate]) -> "ModuleCase":
        ranked = tuple(sorted(candidates, key=lambda c: (-c.per_price, c.duration_us, c.batch)))
        return cls(
            name=name,
            rate_rps=rate_rps,
            candidates=ranked,
            batch=np.array([c.batch for c in ranked], dtype=np.int64),
            duration_us=np.array([c.duration_us for c in ranked], dtype=np.int64),
            rates_rps=np.array([c.rate_rps for c in ranked], dtype=np.float64),
            price=np.array([c.price for c in ranked], dtype=np.float64),
        )

    def keep(self, wanted: Sequence[int]) -> "ModuleCase":
        return ModuleCase.of(self.name, self.rate_rps, [self.candidates[i] for i in wanted])


@dataclass(frozen=True, slots=True, kw_only=True)
class AppCase:
    """An app as planners see it: M modules, and who waits for whom."""

    name: str
    budget_us: int
    modules: tuple[ModuleCase, ...]
    before: tuple[tuple[int, ...], ...]
    """Per module, the modules that it waits for; modules stand in topological order."""


def collect_us(batch: int, duration_us: int, rate_rps: float) -> int:
    """Longest wait until `batch` requests that come at `rate_rps` are together.

    >>> collect_us(6, 2_000_000, 8.0), collect_us(1, 50_000, 2.0)
    (750000, 50000)
    """
    if rate_rps < LEAST_RPS:
        return NEVER_US
    wait_us = ceil(1e6 * batch / rate_rps - ROUNDING_US)
    return min(wait_us, duration_us) if batch == 1 else wait_us


def worst_case_us(
    reading: Reading, candidate: Candidate, remaining_rps: float, machines: float
) -> int:
    """Of a request on `machines` (whole, or one below 1) of a configuration (Theorem 1).

    >>> a = Candidate(
    ...     batch=6, duration_us=2_000_000, rate_rps=3.0, device="x", share=Fraction(1), price=1.0
    ... )
    >>> worst_case_us("remaining", a, 8.0, 2), worst_case_us("twice", a, 8.0, 2)
    (2750000, 4000000)
    """
    duration = candidate.duration_us
    if reading == "twice" and machines >= 1:
        return 2 * duration
    rate_rps = remaining_rps if reading == "remaining" else min(machines, 2) * candidate.rate_rps
    return duration + collect_us(candidate.batch, duration, rate_rps)


def app_case(problem: Problem, app: App) -> AppCase:
    """An app of a problem, with the candidates that its models' profiles give on its cluster.

    Rates are those to plan for, head-room included.

    Raises:
        DocumentError: a device type has no price.
    """
    names = [module.name for module in app.modules]
    waits = {name: [a for a, b in app.edges if b == name] for name in names}
    order = topological_order(names, app.edges, app.name)
    check_prices(problem.cluster)
    limit = problem.options.max_batch
    return AppCase(
        name=app.name,
        budget_us=max(
            0,
            budget_us(app.slo_us, problem.options.margin_of(app.name))
            - overhead_us(app, problem.profiles),
        ),
        modules=tuple(
            ModuleCase.of(
                name,
                planned_rps(problem.options, app, name),
                profile_candidates(
                    problem.profiles[app.module(name).model], problem.cluster, limit
                ),
            )
            for name in order
        ),
        before=tuple(tuple(order.index(a) for a in waits[name]) for name in order),
    )


OFF_EVERY_PATH = "less margin and, on every path, what the longest takes of gateway and app's code"
"""What budgets are of an SLO, in words."""


def overhead_us(app: App, profiles: Mapping[str, Profile]) -> int:
    """What a request takes besides its modules: the longest path of the app's own code and of the
    gateway, which passes the calls of a module one after the other."""
    costs = cost_model(profiles)
    before_us = {
        module.name: module.code_us + ceil(module.fan_out.mean * costs.gateway_us(module.model))
        for module in app.modules
    }
    return app.longest_path_us(before_us) + app.code_us


def planned_rps(options: PlanOptions, app: App, module: str) -> float:
    """What a module is planned for: its rate and all head-room."""
    own = options.module_headroom.get(f"{app.name}.{module}", 0.0)
    return app.module_rate_rps(module) * (1 + options.rate_headroom) * (1 + own)


def check_prices(cluster: Cluster) -> None:
    """
    Raises:
        DocumentError: a device type has no price.
    """
    unpriced = [
        kind.name
        for kind in cluster.device_types
        if not kind.price_per_hour and cluster.count(kind.name)
    ]
    if unpriced:
        raise DocumentError(
            "apps are planned for least cost: every device type needs a price_per_hour above 0;"
            f" missing for {', '.join(unpriced)}"
        )


def profile_candidates(
    profile: Profile, cluster: Cluster, max_batch: int | None
) -> list[Candidate]:
    """Every (slot kind, batch size) that was profiled, the model run whole.

    Throughput is that of a pipeline stage: batch / p50 x max_utilisation; where the slot has the
    gateway's cores, p50 + batch x gateway_on_slot_us in place of p50.
    """
    blocks = len(profile.blocks)
    costs = cost_model({profile.model: profile})
    found = []
    for kind in usable_kinds(cluster):
        device = cluster.device_type(kind.device)
        memory = device.memory_bytes
        if memory is not None and profile.weights_bytes(0, blocks) > memory:
            continue
        shared = shares_gateway_cores(cluster, kind.device)
        shared_us = costs.gateway_on_slot_us(profile.model) if shared else 0
        largest = profile.max_batch(kind.device, kind.share)
        whole = TimedStage.whole_model(profile, kind.device, kind.share)
        longest_us = 0
        for batch in range(1, min(largest, max_batch or largest) + 1):
            latency = costs.latency(whole, batch)
            longest_us = max(longest_us, latency.p99_us)
            found.append(
                Candidate(
                    batch=batch,
                    duration_us=longest_us,
                    rate_rps=1e6
                    * batch
                    / (latency.p50_us + batch * shared_us)
                    * device.max_utilisation,
                    device=kind.device,
                    share=kind.share,
                    price=float(device.price_per_hour or 0.0) * float(kind.share),
                )
            )
    return found
