"""Problem -> PlanResult. One module per technique, baselines beside them."""

from collections.abc import Callable
from importlib import import_module

from msgspec.structs import replace

from headrace.domain.errors import DocumentError
from headrace.domain.plan import PlanResult
from headrace.domain.problem import Items, PlanOptions, Problem
from headrace.planning.apps.names import APP_PLANNERS
from headrace.planning.common.gateway import refuse_for_gateway, within_gateway
from headrace.planning.common.headroom import with_headroom, without_headroom

Planner = Callable[[Problem], PlanResult]

PROVISIONED = "provisioned"
"""The planner of more models than memory."""


def _planner(module: str, function: str, *arguments: str) -> Planner:
    """Imported when first asked: what compiles loops takes a fifth of a second (decision 0009)."""

    def plan(problem: Problem) -> PlanResult:
        found = getattr(import_module(f"headrace.planning.{module}"), function)
        result: PlanResult = found(problem, *arguments)
        return result

    return plan


PLANNERS: dict[str, Planner] = {
    "pooled": _planner("pooled.planner", "plan_pooled"),
    "no-partitioning": _planner("baselines.no_partitioning", "plan_without_partitioning"),
    "dart-r": _planner("baselines.replicated_pairs", "plan_replicated_pairs"),
    "shares": _planner("together.planner", "plan_together"),
    "gpulet": _planner("baselines.gpulet", "plan_gpulets", "gpulet"),
    "gpulet+int": _planner("baselines.gpulet", "plan_gpulets", "gpulet+int"),
    "sbp": _planner("baselines.squishy", "plan_squishy"),
    "self-tuning": _planner("baselines.guided", "plan_self_tuning"),
    "ideal": _planner("baselines.every_split", "plan_every_split"),
    PROVISIONED: _planner("provisioning.many", "plan_provisioned"),
    "malleable": _planner("depths.planner", "plan_malleable"),
    **{name: _planner("apps.planner", "plan_apps", name) for name in APP_PLANNERS},
}
"""Name -> planner: a new one is one new file, and one line here. Nothing else lists planners."""

TOGETHER = "shares"
"""The planner of apps and models that share devices."""

COUNT_DEVICES = frozenset(
    {PROVISIONED, "shares", "gpulet", "gpulet+int", "sbp", "self-tuning", "ideal"}
)
"""Planners that share devices, and may be asked for the fewest."""


OF_PIPELINES = {
    "min_stages": "leave it out",
    "max_stages": "max_depth",
    "max_batch": "item_batch",
    "max_tenants": "leave it out: every model may run on every slot",
}
OF_DEPTHS = dict.fromkeys(
    ("partition", "max_depth", "max_items", "item_batch", "move_ms"),
    "`--planner malleable`, or leave it out",
)
"""Options that only the others' plans know: name -> what to do."""


def solve(problem: Problem, *, advise: bool = True) -> PlanResult:
    """Plan with the planner that `problem.options` names.

    Args:
        advise: whether a refusal has to say what would do; finding that out can take longer than
            planning.

    Raises:
        DocumentError: no such planner, or the problem lacks what the objective needs.
    """
    planner = PLANNERS.get(problem.options.planner)
    if planner is None:
        raise DocumentError(
            f"options: no planner is named {problem.options.planner!r};"
            f" there are {', '.join(PLANNERS)}"
        )
    if problem.apps and problem.options.planner not in (*APP_PLANNERS, TOGETHER):
        raise DocumentError(
            f"planner {problem.options.planner!r} plans models, and the problem has apps;"
            f" for apps there are {', '.join((TOGETHER, *APP_PLANNERS))}"
        )
    if problem.apps and problem.demands and problem.options.planner != TOGETHER:
        raise DocumentError(
            f"planner {problem.options.planner!r} plans apps, and the problem has models besides"
            f" ({', '.join(demand.model for demand in problem.demands)})\n"
            f"  try       --planner {TOGETHER}, with which they share devices; or each model as an"
            " app of one module"
        )
    if problem.options.bill == "devices" and not problem.apps:
        raise DocumentError(
            f"planner {problem.options.planner!r}: bill is of apps, and the problem has none\n"
            f"  try       leave it out; `--planner {TOGETHER} --objective least-cost` plans models"
            " for the price of the whole devices used"
        )
    _refuse_items(problem)
    counts = problem.options.planner in COUNT_DEVICES
    if problem.options.objective == "least-devices" and not counts:
        raise DocumentError(
            f"planner {problem.options.planner!r}: does not count devices, as objective"
            f" least-devices asks; {', '.join(sorted(COUNT_DEVICES & PLANNERS.keys()))} do"
        )
    split = [kind.name for kind in problem.cluster.device_types if kind.splits]
    if split and not counts:
        raise DocumentError(
            f"planner {problem.options.planner!r}: cuts devices into any shares that fit, and"
            f" device type {split[0]!r} has splits; leave them out, or use"
            f" {', '.join(sorted(COUNT_DEVICES & PLANNERS.keys()))}"
        )
    raised = with_headroom(problem)
    if refusal := refuse_for_gateway(raised):
        return refusal
    result = without_headroom(problem, within_gateway(raised, planner(raised)))
    if advise and result.refuse is not None:
        return replace(result, refusal=result.refuse(), refuse=None)
    return result


def _refuse_items(problem: Problem) -> None:
    """
    Raises:
        DocumentError: requests have many items, or depths are asked for, which only malleable plans
            are for; or pipelines are asked for, which they do not have.
    """
    options, usual = problem.options, PlanOptions()
    malleable = options.planner == "malleable"
    foreign = OF_PIPELINES if malleable else OF_DEPTHS
    given = [name for name in foreign if getattr(options, name) != getattr(usual, name)]
    if given:
        instead = foreign[given[0]]
        raise DocumentError(
            f"planner {options.planner!r}: {given[0]} is of"
            f" {'pipelines, and malleable plans have depths' if malleable else 'malleable plans'}"
            f"\n  try    {instead}"
        )
    for demand in () if malleable else problem.demands:
        if demand.items != Items():
            raise DocumentError(
                f"planner {options.planner!r}: answers items one by one, and requests of"
                f" model {demand.model!r} have {demand.items.mean:g} on average\n"
                "  try    `--planner malleable`, or leave `items` out and count items as requests"
            )
