"""Recompute a plan from its profiles and say everything that does not hold. Imports no planner.

The rules are those of `headrace.cost` and of `planning.common.candidates`, restated
here from the paper (PPipe, sections 3, 5.3 and 5.4, appendix A.2) in code of its own, so that a
mistake must be made twice to go unseen. Integers must match exactly, floats to 1e-9. What a plan
says of itself is never used to check it: throughput is recomputed from slots and profiles before
rates, links and objective are judged. No wait is charged to a latency: the margin pays for waiting.

structure  names, references and ranges      claims     rates, objective, bound, cost
figures    latencies, transfers, throughput  apps       modules, machines, worst cases (Harpagon)
resources  devices, memory, links, time      binding    what is said in words
shared     duty cycles and slowdowns         malleable  depths, items, what all slots carry
room       whether all models of slots they come to have room at once
starts     of models that are not in memory (DeepPlan)
provisioned  more models than memory: what fits, what is found absent, what all slots carry
case       the plan with look-ups, and the findings
"""

from collections.abc import Callable, Mapping

from headrace.domain.plan import Plan
from headrace.domain.profile import Profile
from headrace.verify.apps import check_apps
from headrace.verify.case import CHECKS, Case, Violation
from headrace.verify.claims import check_claims
from headrace.verify.figures import Throughputs, check_figures
from headrace.verify.malleable import check_malleable
from headrace.verify.provisioned import check_provisioned
from headrace.verify.resources import check_resources
from headrace.verify.starts import check_absences, check_starts
from headrace.verify.structure import check_structure

__all__ = ["CHECKS", "Violation", "verify"]


def verify(plan: Plan, profiles: Mapping[str, Profile]) -> list[Violation]:
    """Everything that is wrong with `plan`; an empty list proves that every claim of it holds.

    Args:
        profiles: model -> profile, those that `plan.profiles` names. That the files have the
            stated hashes is for whoever loads them to check.
    """
    case = Case(plan, profiles)
    if not check_absences(case):
        return case.violations
    if plan.apps:
        check_apps(case)
        return case.violations
    check_structure(case)
    throughputs = _figures_of(plan)(case)
    check_resources(case, throughputs)
    check_starts(case)
    check_claims(case, throughputs)
    return case.violations


def _figures_of(plan: Plan) -> Callable[[Case], Throughputs]:
    if plan.is_malleable:
        return check_malleable
    return check_provisioned if plan.is_provisioned else check_figures
