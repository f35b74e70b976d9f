"""Least cost of a module for every budget, proven: its front of undominated (worst case, cost).

The search itself, its theory and its cost are in `walk`. Where a walk is cut short, its point is a
plan still, and `at_least` says what is proven instead.
"""

from dataclasses import dataclass
from typing import Literal

import numpy as np

from headrace.planning.apps.candidates import ModuleCase
from headrace.planning.apps.exact.combine import CostCurve
from headrace.planning.apps.exact.walk import (
    CANDIDATE,
    ENDLESS,
    EVEN,
    FILLED,
    PART,
    POINT,
    Effort,
    Rows,
    find_front,
)
from headrace.planning.apps.machines import Entry, Schedule, schedule_of
from headrace.planning.common.candidates import Floats, Ints

Form = Literal["even", "part"]
"""How machines share what is left behind the full ones: those of the last configuration evenly
(decision 0065), or one machine alone has it (Harpagon's, decision 0015). Dummy load fills a machine
in both."""

_LEAVES = {"even": (EVEN, FILLED), "part": (PART, FILLED)}

NODES = Effort(5_000_000, 50_000_000)
"""Without limits on slots, some 0.1 s a walk and 1 s a front. Past it a point is good but not
proven. Hundreds of machines of candidates that hardly differ in throughput / price get there."""

NODES_LIMITED = Effort(1_000_000, 1 << 60)
"""With limits, some 20 ms a walk."""

EXACTLY = (0.0,)
SLACKS = (0.0, 1e-3, 1e-2)
"""Where a walk with limits takes longer, its point need only be this close to the least."""

PROVEN = 1e-6
"""A point no farther above what is known of it, relatively, is as good as the least."""

FRONT_MAX = 4096


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotLimits:
    """Slots that a module may take, and what each costs on top of its price. Q kinds of slot."""

    kind: Ints
    """Shape (K,): the kind of slot of each candidate."""
    room: Ints
    """Shape (Q,): slots of each kind."""
    charge: Floats
    """Shape (Q,): per slot and hour; a part of a machine pays it in full."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModuleFront:
    """Undominated (worst case, cost) of one module, fastest and dearest first. P points."""

    latency_us: Ints
    """Shape (P,), increasing."""
    cost: Floats
    """Shape (P,), decreasing; charges included."""
    whole: Ints
    """Shape (P, K): whole machines of each candidate."""
    last: Ints
    """Shape (P,): the candidate that carries what the whole machines leave; -1: nothing is left."""
    part: Floats
    """Shape (P,): how many of its machines that would fill; they share it evenly."""
    at_least: CostCurve | None
    """Per latency, a cost that no machines as fast stay below; None: the front itself, proven."""

    def __len__(self) -> int:
        return len(self.cost)

    @property
    def proven(self) -> bool:
        return self.at_least is None


def module_front(
    module: ModuleCase,
    budget_us: int,
    limits: SlotLimits | None = None,
    *,
    form: Form = "even",
    nodes: Effort | None = None,
    slacks: tuple[float, ...] | None = None,
) -> ModuleFront:
    """Every undominated (worst case, cost) within the budget; empty where nothing fits.

    Args:
        limits: None: as many slots of every kind as it takes, at their price alone.
        nodes, slacks: None: `NODES` and exactly, with limits `NODES_LIMITED` and `SLACKS`.
    """
    count = len(module.candidates)
    points = np.empty(FRONT_MAX + 1, POINT)
    machines = np.empty((FRONT_MAX, count + 1), np.int64)
    found, ends = find_front(
        candidate_rows(module, limits),
        np.array([ENDLESS]) if limits is None else limits.room,
        points,
        machines,
        module.rate_rps,
        budget_us,
        np.array(_LEAVES[form]),
        np.array(slacks or (EXACTLY if limits is None else SLACKS)),
        nodes or (NODES if limits is None else NODES_LIMITED),
    )
    # Fastest first, as everyone else wants them.
    ranked, machines = points[:found][::-1], machines[:found][::-1].copy()
    whole, last = machines[:, :count], machines[:, count]
    left = module.rate_rps - whole @ module.rates_rps
    at_least = None
    if not (ends and (ranked["at_least"] >= ranked["cost"] * (1 - PROVEN / 2)).all()):
        known = points[: found if ends else found + 1][::-1].copy()
        if not ends:
            known["latency_us"][0] = module.duration_us.min()
        at_least = CostCurve(known["latency_us"].copy(), known["at_least"].copy())
    return ModuleFront(
        latency_us=ranked["latency_us"].copy(),
        cost=ranked["cost"].copy(),
        whole=whole,
        last=last,
        part=np.where(last >= 0, left / module.rates_rps[last], 0.0),
        at_least=at_least,
    )


def candidate_rows(module: ModuleCase, limits: SlotLimits | None = None) -> Rows:
    """The module's candidates as `walk` reads them, shape (K,)."""
    rows = np.zeros(len(module.candidates), CANDIDATE)
    rows["batch"], rows["duration_us"] = module.batch, module.duration_us
    rows["rate_rps"], rows["price"] = module.rates_rps, module.price
    if limits is not None:
        rows["kind"], rows["charge"] = limits.kind, limits.charge[limits.kind]
    return rows


def front_schedule(module: ModuleCase, front: ModuleFront, point: int) -> Schedule:
    """The machines of one point of the front."""
    return machines_schedule(
        module, front.whole[point], int(front.last[point]), float(front.part[point])
    )


def machines_schedule(module: ModuleCase, whole: Ints, last: int, part: float) -> Schedule:
    """Whole machines of each candidate, shape (K,), and of `last` as many as are left `part`ly."""
    entries = []
    for k, candidate in enumerate(module.candidates):
        if whole[k]:
            entries.append(Entry(candidate=candidate, machines=float(whole[k])))
        if k == last:
            entries.append(Entry(candidate=candidate, machines=part))
    return schedule_of(entries, module.rate_rps, "remaining")
