"""Elastic partitioning (gpu-lets, Algorithm 1), with what its relatives leave out as switches.

Line numbers are the paper's. Rates come one model after the other, the largest first (3). While a
model has rate left (8), an ideal size is chosen: the smaller of the knee of "rate that a part can
carry over its size" (9) and the smallest part that carries all that is left (10, 11). Of the free
parts at least that large the smallest that keeps the SLO is taken (20-32); a whole device is first
cut in two (23-26). If another part can take the same load in turns with its own, it gets it and the
cut is undone (33-38). What a part cannot carry is left for the next one (15).

Where the paper is silent: no free part is as large as the ideal, so the largest that can carry
something is taken; none is free at all, so the load is merged or the heuristic gives up. Among
parts for turns the fullest comes first (Nexus). Cost: models x parts x batch sizes, some
milliseconds.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

from headrace.knee import knee
from headrace.planning.baselines.parts.cycles import Cycles, Load, Turns
from headrace.planning.baselines.parts.fleet import Fleet, Part
from headrace.planning.common.shared_times import parts_beside

WHOLE = Fraction(1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """What of the algorithm a planner has."""

    knee: bool = True
    """The most efficient size limits a part; without: only the size that carries all."""
    turns: bool = True
    """Several models may take turns on a part."""
    split: bool = True
    """Whole devices may be cut."""


@dataclass(frozen=True, slots=True)
class Stuck:
    """The heuristic's end: what no part could take."""

    load: Load


def sizes_of(fleet: Fleet) -> list[Fraction]:
    """Shares that a part may have, ascending."""
    return sorted(fleet.times.device.part_shares)


def allocate(
    fleet: Fleet, rates_rps: Sequence[float], rules: Rules, sizes: Sequence[Fraction]
) -> Stuck | None:
    """Promise every model its rate on parts of the fleet; returns what could not be.

    Args:
        rates_rps: one per model.
        sizes: shares that a part may have, ascending; whole devices that are free are cut to them.
    """
    order = sorted(range(len(rates_rps)), key=lambda model: -rates_rps[model])  # 3
    for model in order:
        left_rps = rates_rps[model]
        efficient = _efficient(fleet.cycles, model, sizes) if rules.knee else sizes[-1]  # 9
        while left_rps > 0:  # 8
            load = Load(model, left_rps)
            ideal = min(efficient, _required(fleet.cycles, load, sizes))  # 10, 11
            carried_rps = _best_fit(fleet, load, ideal, rules)  # 12
            if carried_rps is None:
                return Stuck(load)
            left_rps -= carried_rps  # 15
            if left_rps <= 1e-9 * rates_rps[model]:
                break
    return None


def _efficient(cycles: Cycles, model: int, sizes: Sequence[Fraction]) -> Fraction:
    """The knee of the rate that one part can carry (Figure 8)."""
    known = [(share, cycles.saturated(model, share)) for share in sizes]
    able = [(share, found[0]) for share, found in known if found is not None]
    if not able:
        return sizes[-1]
    return able[knee([(float(share), rate_rps) for share, rate_rps in able])][0]


def _required(cycles: Cycles, load: Load, sizes: Sequence[Fraction]) -> Fraction:
    """The smallest part that carries all of it; the largest where none does."""
    return next((share for share in sizes if cycles.alone(load, share)), sizes[-1])


def _best_fit(fleet: Fleet, load: Load, ideal: Fraction, rules: Rules) -> float | None:
    """FINDBESTFIT: take a part, or a turn on one; returns the rate that it carries."""
    part, share, carried_rps, turns = _find(fleet, load, ideal, rules)
    all_of_it = part is None or carried_rps >= load.rate_rps
    if rules.turns and all_of_it and fleet.merge(load):  # 33-38
        return load.rate_rps
    if part is None or turns is None:
        return None
    if part.share != share:  # 23-26
        part = fleet.split(part, [share, *_rest(fleet, share)])
    fleet.give(part, [Load(load.model, carried_rps)], turns)
    return carried_rps


def _find(
    fleet: Fleet, load: Load, ideal: Fraction, rules: Rules
) -> tuple[Part | None, Fraction, float, Turns | None]:
    """The free part to take, the share to cut it to, and what it then carries."""
    free = [part for part in fleet.free() if fleet.fits(part, load.model)]
    large = [part for part in free if part.share >= ideal]
    small = [part for part in reversed(free) if part.share < ideal]
    for part in (*large, *small):  # 20-22
        cut = rules.split and part.share == WHOLE
        share = ideal if cut else part.share
        carried = _carry(fleet.cycles, load, share)
        if carried is not None:  # 27, 28
            return part, share, *carried
    return None, ideal, 0.0, None


def _carry(cycles: Cycles, load: Load, share: Fraction) -> tuple[float, Turns] | None:
    """All of it, or as much as saturates the part."""
    turns = cycles.alone(load, share)
    if turns is not None:
        return load.rate_rps, turns
    found = cycles.saturated(load.model, share)
    return found if found is not None and found[0] <= load.rate_rps else None


def _rest(fleet: Fleet, share: Fraction) -> tuple[Fraction, ...]:
    """Of all cuts with a part of this share the one whose other parts are largest."""
    rests = parts_beside(fleet.times.device, share)
    return max(rests, key=lambda rest: (sum(rest), -len(rest)), default=())
