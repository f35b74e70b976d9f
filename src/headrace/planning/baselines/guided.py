"""Guided self-tuning (`self-tuning`): GSLICE with profiles (gpu-lets, section 6.1).

GSLICE searches batch sizes and shares while it serves; gpu-lets' guided version is given what the
search would find: the smallest part that carries a model's rate, or whole devices and then such a
part. No two models take turns on a part, and neighbours are not counted with.

Source: Dhakal et al., "GSLICE", SoCC 2020.
"""

from collections.abc import Sequence

from headrace.domain.plan import PlanResult
from headrace.domain.problem import Problem
from headrace.planning.baselines.parts.answer import Case, answer
from headrace.planning.baselines.parts.elastic import WHOLE, Rules, Stuck, allocate, sizes_of
from headrace.planning.baselines.parts.fleet import Fleet


def plan_self_tuning(problem: Problem) -> PlanResult:
    """A plan in which each model has parts of its own, or a refusal.

    Raises:
        DocumentError: several device types, a model without a rate, or more than one stage.
    """
    return answer(problem, "self-tuning", _tune)


def _tune(case: Case, rates_rps: Sequence[float]) -> Fleet | Stuck:
    fleet = case.fleet([(WHOLE,)] * case.count)
    rules = Rules(knee=False, turns=False)
    return allocate(fleet, rates_rps, rules, sizes_of(fleet)) or fleet
