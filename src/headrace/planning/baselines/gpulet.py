"""gpu-let scheduling (gpu-lets, section 4.3): `gpulet`, and `gpulet+int` with interference.

Algorithm 1 as the paper prints it; `parts/elastic.py` has it line by line. The paper takes the time
that a neighbour costs from the neighbours that are there when a part is chosen, and so breaks what
it promised the first of two; here a part of a cut device counts with the worst neighbour that may
come (`parts/beside.py`), so that every promise holds. Without interference the plan embeds no
interference document: whoever simulates it with one sees what ignoring neighbours costs.
"""

from collections.abc import Sequence

from headrace.domain.plan import PlanResult
from headrace.domain.problem import Problem
from headrace.planning.baselines.parts.answer import Case, answer
from headrace.planning.baselines.parts.elastic import WHOLE, Rules, Stuck, allocate, sizes_of
from headrace.planning.baselines.parts.fleet import Fleet


def plan_gpulets(problem: Problem, planner: str) -> PlanResult:
    """A plan by elastic partitioning, or a refusal. `planner`: `gpulet` or `gpulet+int`.

    Raises:
        DocumentError: several device types, a model without a rate, or more than one stage.
    """
    return answer(problem, planner, _partition, interference=planner == "gpulet+int")


def _partition(case: Case, rates_rps: Sequence[float]) -> Fleet | Stuck:
    fleet = case.fleet([(WHOLE,)] * case.count)
    return allocate(fleet, rates_rps, Rules(), sizes_of(fleet)) or fleet
