"""Squishy bin packing (`sbp`): whole devices, shared in time alone (Nexus, section 6.1).

The algorithm of the Nexus paper, not the weaker one of gpu-lets' artifact:

ScheduleSaturate  a model gets as many devices as its rate fills: the batch of highest rate
                  b / L(b) with 2 L(b) <= budget; what is left is its residue
ScheduleResidue   a residue alone would run batches of b with L(b) + b / rate <= budget, and take
                  L(b) / (b / rate) of a device. By this occupancy, largest first, each residue
                  joins the device that is fullest after it, if one can take it (one duty cycle,
                  batches anew for it), or opens another

Source: Shen et al., "Nexus", SOSP 2019.
"""

from collections.abc import Sequence

from headrace.domain.plan import PlanResult
from headrace.domain.problem import Problem
from headrace.planning.baselines.parts.answer import Case, answer
from headrace.planning.baselines.parts.cycles import Load, Turns
from headrace.planning.baselines.parts.elastic import Stuck, sizes_of
from headrace.planning.baselines.parts.fleet import Fleet, Part


def plan_squishy(problem: Problem) -> PlanResult:
    """A plan of whole devices in turns, or a refusal.

    A device type that may not be used whole is used in its largest share.

    Raises:
        DocumentError: several device types, a model without a rate, or more than one stage.
    """
    return answer(problem, "sbp", _pack)


def _pack(case: Case, rates_rps: Sequence[float]) -> Fleet | Stuck:
    whole = sizes_of(case.fleet(()))[-1]
    fleet = case.fleet([(whole,)] * case.count)
    residues: list[tuple[float, Load, Turns]] = []
    for model, rate_rps in enumerate(rates_rps):
        found = case.cycles.saturated(model, whole)
        if found is None:
            return Stuck(Load(model, rate_rps))
        each_rps, turns = found
        full = int(rate_rps / each_rps + 1e-9)
        for _ in range(full):
            part = _unused(fleet, model)
            if part is None:
                return Stuck(Load(model, rate_rps))
            fleet.give(part, [Load(model, each_rps)], turns)
        residue = Load(model, rate_rps - full * each_rps)
        if residue.rate_rps > 1e-9 * rate_rps:
            alone = case.cycles.alone(residue, whole)
            if alone is None:
                return Stuck(residue)
            residues.append((alone.busy_part, residue, alone))
    residues.sort(key=lambda each: -each[0])
    for _, residue, alone in residues:
        if not _joined(fleet, residue):
            part = _unused(fleet, residue.model)
            if part is None:
                return Stuck(residue)
            fleet.give(part, [residue], alone)
    return fleet


def _unused(fleet: Fleet, model: int) -> Part | None:
    return next((part for part in fleet.free() if fleet.fits(part, model)), None)


def _joined(fleet: Fleet, load: Load) -> bool:
    """Give it to the device that is fullest with it."""
    best: tuple[Part, Turns] | None = None
    for part in fleet.sharing(load):
        turns = fleet.cycles.merged([*part.loads, load], part.share)
        if turns is not None and (best is None or turns.busy_part > best[1].busy_part):
            best = part, turns
    if best is None:
        return False
    part, turns = best
    fleet.give(part, [*part.loads, load], turns)
    return True
