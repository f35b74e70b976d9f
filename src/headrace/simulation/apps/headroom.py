"""Head-room of apps for arrivals that are not uniform, chosen by simulation (decision 0017).

Least cost plans for uniform arrivals, where a machine can be full all the time. Real ones come in
clusters, and a module that is full cannot catch up. Two kinds of room help: a larger rate to plan
for (machines that are not full) and a larger margin (time to wait). Which of them is cheaper
depends on the app, so every pair of HEADROOMS x MARGINS is planned, which takes milliseconds each,
and the plans are simulated from the cheapest on until one attains: no cheaper plan of these does.
Where time is limited, planning and simulating take turns: pairs with little room are planned first,
for at most PLANNING_PART of the time that is left, then what there is is simulated, and so on.

A plan attains where the worst of SESSIONS sessions does (`simulation.worst_session`). Cost: at most
55 plans, each with up to 1 + SESSIONS sessions of about REQUESTS requests.

Models that are no apps have a search of their own (`simulation.room`): their plans may take seconds
each, so it makes only those that are reached from a plan that does not attain.

Modules that take turns on shared slots depend on each other. Such plans are simulated as whole
apps, call by call, some fifty times slower; so their sessions have REQUESTS_TOGETHER requests.
Their price is that of whole devices: many plans cost the same, of which only those are looked at
that no other one surpasses in room.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from math import inf, isclose
from typing import NamedTuple

import numpy as np

from headrace.dispatch.apps.app_dispatcher import app_tables
from headrace.dispatch.policies import policy_for
from headrace.dispatch.topology import Topology
from headrace.domain.plan import AppClaim, Plan
from headrace.domain.profile import Profile
from headrace.metrics import summarise
from headrace.planning.common.deadline import Deadline
from headrace.simulation.apps.flow import flow
from headrace.simulation.apps.session import simulate_apps
from headrace.simulation.apps.worst_cases import bounded_by
from headrace.simulation.offered.arrivals import Arrival, stream_rng
from headrace.simulation.offered.processes import process_named
from headrace.simulation.worst_session import with_reserve, worst_of

HEADROOMS = (0.0, 0.03, 0.06, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0)
MARGINS = (0.0, 0.1, 0.2, 0.3, 0.4)
"""On top of the margin that the problem asks for, of what that leaves."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rooms:
    """What is tried, each with each."""

    rates: tuple[float, ...]
    """More rate to plan for, as parts of it."""
    margins: tuple[float, ...]
    """Parts of what the asked margin leaves."""
    past_refusals: bool = False
    """Whether larger margins are tried where one has no plan: planners that do not look at stock
    may take machines that there are for a larger one."""


ROOMS = Rooms(rates=HEADROOMS, margins=MARGINS)
EVEN_ROOMS = Rooms(
    rates=(0.0, 0.1, 0.25, 0.5, 1.0),
    margins=(0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8),
    past_refusals=True,
)
"""For requests at equal gaps whose calls come together: these wait for each other, however few
there are, so that time helps more than rate does."""

SEED = 1
SESSIONS = 4
REQUESTS = 10_000
"""Per session."""
REQUESTS_TOGETHER = 4_000
"""The same, of all apps together, where modules share slots."""
REQUESTS_MAX, REQUESTS_TOGETHER_MAX = 1_000_000, 20_000
"""Most of a session, however long the SLO is."""
SLOS_AT_LEAST = 30
"""A session is at least so many times as long as the SLO: it begins with idle machines."""
FIRST_LOOK = 5
"""How many times shorter the session is that tells which plans are not worth whole ones."""
BEGINNING = 10
"""A part of a session as long as this part of it often tells that the whole does not attain."""
SAME_BILL = 1e-9
"""Relative."""
PLANNING_PART = 0.5
"""Of the time left: the longest that plans are made before those that there are are simulated."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Headroom:
    """The cheapest plan that attains, and what that costs."""

    plan: Plan
    """Its bound is that of the plan without head-room, which is what was asked for."""
    attainment: float
    """Simulated, of the app that attains least."""
    uniform_objective: float
    """The cost per hour of the plan without head-room."""
    without: Plan | None
    """The plan without head-room; None: only with some there is one."""
    tried: int
    """Plans that were simulated."""

    @property
    def premium(self) -> float:
        return self.plan.objective / self.uniform_objective - 1


Planning = Callable[[float, float], Plan | None]
"""(rate head-room, margin) -> plan, or None where there is none; may raise OutOfTime."""


def choose_headroom(
    planning: Planning,
    profiles: Mapping[str, Profile],
    *,
    margin: float = 0.0,
    attainment: float = 0.99,
    arrivals: str = "poisson",
    seed: int = SEED,
    on_progress: Callable[[str], None] = lambda text: None,
    rooms: Rooms = ROOMS,
    limit: Deadline | None = None,
) -> Headroom | None:
    """The cheapest of the plans with more or less room that attains; None: none does.

    Args:
        margin: the least margin.
        attainment: in time / arrived, of every app.
        arrivals: a process; see `simulation.offered.processes`.
        limit: of all planning and simulating; no plan is simulated after it.

    Raises:
        OutOfTime: the limit passed before all were tried, and none of the others attains.
    """
    limit = limit or Deadline(inf)
    attempts = _plans(planning, margin, rooms)
    wanted = with_reserve(attainment)
    plans: list[Roomy] = []
    tried = 0
    while more := _planned_within(attempts, limit.part(PLANNING_PART)):
        plans += more
        least = plans[0]
        without = least.plan if (least.rate_headroom, least.margin) == (0.0, margin) else None
        more = [found for found in more if not surpassed(found, plans)]
        more.sort(key=lambda found: (found.plan.objective, found.rate_headroom, found.margin))
        for number, found in enumerate(more, start=1):
            limit.check()
            tried += 1
            on_top = found.plan.objective / least.plan.objective - 1
            on_progress(f"simulating plan {number} of {len(more)}: {on_top:.1%} on top")
            shares = worst_attainments(found.plan, profiles, arrivals, seed, wanted)
            reached = min(shares.values(), default=1.0)
            if reached >= wanted:
                return Headroom(
                    plan=bounded_by(found.plan, without),
                    attainment=reached,
                    uniform_objective=least.plan.objective,
                    without=without,
                    tried=tried,
                )
    return None


class Roomy(NamedTuple):
    """A plan with this much room."""

    plan: Plan
    rate_headroom: float
    margin: float


def _plans(planning: Planning, least_margin: float, rooms: Rooms) -> Iterator[Roomy | None]:
    """All there are, by steps of room, from none on; None for each that there is not."""
    refused = set[float]()
    steps = product(enumerate(rooms.rates), enumerate(rooms.margins))
    for (_, headroom), (_, part) in sorted(steps, key=lambda pair: pair[0][0] + pair[1][0]):
        if headroom in refused:
            continue  # a larger margin leaves even less
        margin = least_margin + part * (1 - least_margin)
        plan = planning(headroom, margin)
        if plan is None and not rooms.past_refusals:
            refused.add(headroom)
        yield None if plan is None else Roomy(plan, headroom, margin)


def _planned_within(attempts: Iterator[Roomy | None], limit: Deadline) -> list[Roomy]:
    """The next of them, at least one; none: there are no more."""
    found = []
    for attempt in attempts:
        if attempt is not None:
            found.append(attempt)
        if found and limit.passed:
            break
    return found


def surpassed(found: Roomy, plans: Sequence[Roomy]) -> bool:
    """Whether the same devices leave more room in another plan, for the same bill."""
    return found.plan.options.bill == "devices" and any(
        other is not found
        and isclose(other.plan.objective, found.plan.objective, rel_tol=SAME_BILL)
        and other.rate_headroom >= found.rate_headroom
        and other.margin >= found.margin
        for other in plans
    )


def worst_attainments(
    plan: Plan, profiles: Mapping[str, Profile], arrivals: str, seed: int, wanted: float
) -> Mapping[str, float]:
    """Per app, in the worst of its sessions."""

    def session(seed: int, shorter: int) -> Mapping[str, float]:
        return attainments(plan, profiles, arrivals, seed, shorter)

    return worst_of(session, seed, wanted, sessions=SESSIONS, first_look=FIRST_LOOK)


def attained(
    plan: Plan,
    profiles: Mapping[str, Profile],
    arrivals: str,
    seed: int,
    shorter: int = 1,
    requests: int = REQUESTS,
) -> float:
    """Simulated attainment at the asked rates, of the app that attains least."""
    shares = attainments(plan, profiles, arrivals, seed, shorter, requests)
    return min(shares.values(), default=1.0)


def attainments(
    plan: Plan,
    profiles: Mapping[str, Profile],
    arrivals: str,
    seed: int,
    shorter: int = 1,
    requests: int = REQUESTS,
) -> dict[str, float]:
    """Simulated attainment at the asked rates, of every app that has requests."""
    if any(slot.duty_us is not None for slot in plan.slots):
        return _attainments_together(plan, profiles, arrivals, seed, shorter)
    topology = Topology.from_plan(plan, profiles)
    policy = policy_for(plan)
    reached = {}
    for claim, table in zip(plan.apps, app_tables(plan), strict=True):
        app = claim.app
        duration_s = _session_s(requests, REQUESTS_MAX, app.rate_rps, app.slo_us) / shorter
        instants = process_named(arrivals)(app.rate_rps, duration_s, stream_rng(seed, app.name))
        if len(instants) == 0:
            continue
        done = flow(
            topology, app, table, instants, policy=policy, seed=seed, rng=_generators(claim, seed)
        )
        reached[app.name] = done.attainment(app.slo_us)
    return reached


def _attainments_together(
    plan: Plan, profiles: Mapping[str, Profile], arrivals: str, seed: int, shorter: int
) -> dict[str, float]:
    """The same of modules that share slots, also those of several apps."""
    offered = _offered_together(plan, arrivals, seed, shorter)
    outcomes = simulate_apps(plan, profiles, offered, seed=seed).outcomes
    apps = {claim.app.name for claim in plan.apps}
    return {
        name: summarise(found, None).slo_attainment or 0.0
        for name, found in outcomes.items()
        if found and name in apps
    }


def attains(
    plan: Plan,
    profiles: Mapping[str, Profile],
    arrivals: str,
    seed: int,
    wanted: float,
    requests: int = REQUESTS,
) -> bool:
    """Whether `attained` is at least `wanted`, often sooner where it is not.

    What is due before the last arrival of a session's beginning ends as in the whole session: if
    so many miss that the rest cannot make up for it, the rest is not simulated.
    """
    if any(slot.duty_us is not None for slot in plan.slots):
        offered = _offered_together(plan, arrivals, seed, 1)
        arrived = Counter(arrival.model for arrival in offered)
        beginning = offered[: len(offered) // BEGINNING]
        outcomes = simulate_apps(plan, profiles, beginning, seed=seed).outcomes
        for app in (claim.app.name for claim in plan.apps):
            due = [o for o in outcomes[app] if o.deadline_at_us < beginning[-1].at_us]
            if sum(not o.in_time for o in due) > (1 - wanted) * arrived[app] + 1e-6:
                return False
    return attained(plan, profiles, arrivals, seed, requests=requests) >= wanted


def _offered_together(plan: Plan, arrivals: str, seed: int, shorter: int) -> list[Arrival]:
    """Requests of all apps, and of models beside them, which take their turns too."""
    rates_rps = {claim.app.name: claim.app.rate_rps for claim in plan.apps}
    rates_rps |= {demand.model: demand.rate_rps or 0.0 for demand in plan.demands}
    longest_us = max(claim.app.slo_us for claim in plan.apps)
    rate_rps = sum(rates_rps.values())
    session_s = _session_s(REQUESTS_TOGETHER, REQUESTS_TOGETHER_MAX, rate_rps, longest_us)
    duration_s = session_s / shorter
    offered = [
        Arrival(model=name, at_us=int(at_us))
        for name, rate_rps in rates_rps.items()
        if rate_rps
        for at_us in process_named(arrivals)(rate_rps, duration_s, stream_rng(seed, name))
    ]
    offered.sort(key=lambda arrival: arrival.at_us)
    return offered


def _session_s(requests: int, most: int, rate_rps: float, slo_us: int) -> float:
    """How long requests are offered: so many, or for SLOS_AT_LEAST SLOs, but never more than
    `most`: an SLO may be a day."""
    wanted_s = max(requests / rate_rps, SLOS_AT_LEAST * slo_us / 1e6)
    return min(wanted_s, most / rate_rps)


def _generators(claim: AppClaim, seed: int) -> Callable[[int], np.random.Generator]:
    return lambda module: stream_rng(seed, f"{claim.app.name}.{module}.times")
