"""Apps whose cheapest machines do not fit the cluster: the cheapest that do, or why there are none.

Which device types lack, and how many they would have to be, is judged as machines will be placed:
slots packed onto devices by share and memory.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from headrace.domain.problem import Problem
from headrace.planning.apps.assembly import Planned, Proof, machine_pools
from headrace.planning.apps.solve import AppSolution
from headrace.planning.apps.stock.devices import DeviceStock, flat
from headrace.planning.apps.stock.search import Within, cheapest_within
from headrace.planning.common.deadline import Deadline
from headrace.planning.common.enough import least_enough
from headrace.planning.common.packing import SlotSize, pack

REFUSAL_S = 10.0
"""At most, for finding out how many devices would do."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Lack:
    """A device type of which there are too few."""

    device: str
    needed: int
    there: int


@dataclass(frozen=True, slots=True, kw_only=True)
class StockRefusal:
    """Why there is no plan, and whether that is certain."""

    text: Callable[[], str]
    """Finds out how many devices would do."""
    certain: bool


def device_needs(problem: Problem, planned: Sequence[Planned]) -> dict[str, int]:
    """How many devices of each type the machines take."""
    sizes: dict[str, Counter[SlotSize]] = {k.name: Counter() for k in problem.cluster.device_types}
    for pool in machine_pools(problem, planned):
        sizes[pool.device][pool.size] += pool.count
    return {
        kind.name: len(pack(sizes[kind.name], device=kind.name, memory_bytes=kind.memory_bytes))
        for kind in problem.cluster.device_types
    }


def lacks(problem: Problem, planned: Sequence[Planned]) -> list[Lack]:
    """The device types that have too few devices for the machines."""
    return [
        Lack(device=device, needed=needed, there=problem.cluster.count(device))
        for device, needed in device_needs(problem, planned).items()
        if needed > problem.cluster.count(device)
    ]


def fit_stock(
    problem: Problem, planned: Sequence[Planned], lacking: Sequence[Lack], limit: Deadline
) -> tuple[list[Planned], Proof] | StockRefusal:
    """The apps with the cheapest machines that fit together, and what is proven of them.

    Args:
        planned: every app at its least cost.
        lacking: what the cluster has too few of for these.
        limit: after which the cheapest found so far is the answer.
    """
    within = search_stock(problem, planned, limit=limit)
    if within.machines is None:
        certain = within.proven
        return StockRefusal(
            text=lambda: _refusal(problem, planned, lacking, certain=certain), certain=certain
        )
    fitting = []
    for one, machines in zip(planned, within.machines, strict=True):
        schedules = machines.schedules(one.case)
        solution = AppSolution(
            modules=schedules, reading="remaining", bound=None, stopped="time-limit"
        )
        fitting.append(replace(one, solution=solution))
    stopped = Proof(bound=within.bound, stopped="optimal" if within.proven else "time-limit")
    return fitting, stopped


def search_stock(
    problem: Problem,
    planned: Sequence[Planned],
    *,
    limit: Deadline,
    more: dict[str, int] | None = None,
    first_will_do: bool = False,
) -> Within:
    """`cheapest_within` for a problem's apps; `more` devices of some types than there are."""
    cases = [one.case for one in planned]
    profiles = [
        problem.profiles[one.app.module(module.name).model]
        for one in planned
        for module in one.case.modules
    ]
    weights = [profile.weights_bytes(0, len(profile.blocks)) for profile in profiles]
    stock = DeviceStock.of(problem.cluster, flat(cases), weights)
    extra = [(more or {}).get(device.name, 0) for device in stock.devices]
    larger = replace(stock, counts=stock.counts + np.array(extra, np.int64))
    return cheapest_within(
        cases,
        larger,
        limit=limit,
        at_least=sum(one.solution.bound or 0.0 for one in planned),
        first_will_do=first_will_do,
    )


def _refusal(
    problem: Problem, planned: Sequence[Planned], lacking: Sequence[Lack], *, certain: bool
) -> str:
    enough = _enough(problem, planned, lacking) if certain else []
    needs = ", ".join(f"{lack.needed} {lack.device}" for lack in lacking)
    has = ", ".join(f"{lack.there} {lack.device}" for lack in lacking)
    limit_s = problem.options.time_limit_s
    what = (
        "no machines that meet every SLO fit the cluster"
        if certain
        else f"no machines that fit the cluster were found in {limit_s:g} s"
    )
    would_do = " or ".join(f"{lack.needed} of {lack.device}" for lack in enough) or " and ".join(
        f"{lack.needed} of {lack.device}" for lack in lacking
    )
    longer = "" if certain else f"--time-limit-s {10 * limit_s:g}, "
    return (
        f"{what}: too few {', '.join(lack.device for lack in lacking)}\n"
        f"  needs     {needs} for the cheapest machines\n"
        f"  has       {has}\n"
        f"  try       {longer}{would_do} under `cluster.nodes`, a lower rate, or a longer SLO"
    )


def _enough(problem: Problem, planned: Sequence[Planned], lacking: Sequence[Lack]) -> list[Lack]:
    """Of each type that lacks, with all others as they are, the fewest that let a plan fit."""
    limit = Deadline(min(REFUSAL_S, problem.options.time_limit_s))

    def fits(lack: Lack, count: int) -> bool:
        more = {lack.device: count - lack.there}
        within = search_stock(problem, planned, limit=limit, more=more, first_will_do=True)
        return within.machines is not None

    found = []
    for lack in lacking:
        enough = least_enough(
            lambda count, lack=lack: fits(lack, count),  # type: ignore[misc]
            lack.there,
            most=lack.needed,
            limit=limit,
            growth=lack.needed,
        )
        if enough is not None:
            found.append(replace(lack, needed=enough.value))
    return found
