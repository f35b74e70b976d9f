"""Problem -> PlanResult. One module per technique, baselines beside them."""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
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

MALLEABLE = "malleable"
"""The planner of requests of many items."""


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
    MALLEABLE: _planner("depths.planner", "plan_malleable"),
    **{name: _planner("apps.planner", "plan_apps", name) for name in APP_PLANNERS},
}
"""Name -> planner: a new one is one new file, and one line here. The sets below say what some can
that others cannot."""

TOGETHER = "shares"
"""The planner of apps and models that share devices."""

COUNT_DEVICES = frozenset(
    {PROVISIONED, "shares", "gpulet", "gpulet+int", "sbp", "self-tuning", "ideal"}
)
"""Planners that share devices, and may be asked for the fewest."""


COUNT_NEIGHBOURS = frozenset({TOGETHER, "gpulet+int"})
"""Planners that count what models on parts of one device cost each other (the problem's
`interference`)."""

IGNORE_NEIGHBOURS = frozenset({"gpulet", "sbp", "self-tuning", "ideal"})
"""Baselines that do not, so that one can see what that costs (decision 0040)."""

LARGEST_SHARE_ONLY = frozenset({"no-partitioning", "dart-r", "sbp", PROVISIONED})
"""Planners that cut no device whose type may be used whole."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Foreign:
    """Options that some planners do not know: refused where they are stated, for a plan by another
    meaning of them would fail its verification, or pass for what was asked."""

    planners: Collection[str]
    because: str
    """Follows the option's name."""
    instead: Mapping[str, str]
    """Option -> what to do."""


FOREIGN = (
    Foreign(
        planners={MALLEABLE},
        because="is of pipelines, and malleable plans have depths",
        instead={
            "min_stages": "leave it out",
            "max_stages": "max_depth",
            "max_batch": "item_batch",
            "max_tenants": "leave it out: every model may run on every slot",
            "link_parts": "leave it out: what links carry is not planned for",
        },
    ),
    Foreign(
        planners=PLANNERS.keys() - {MALLEABLE},
        because="is of malleable plans",
        instead=dict.fromkeys(
            ("partition", "max_depth", "max_items", "item_batch", "move_ms"),
            f"`--planner {MALLEABLE}`, or leave it out",
        ),
    ),
    Foreign(
        planners=(COUNT_DEVICES - {TOGETHER}) | set(APP_PLANNERS),
        because="is of models that are cut, and this planner runs them whole",
        instead={"min_stages": "leave it out"},
    ),
    Foreign(
        planners={TOGETHER},
        because="is of models that are always cut, and here only those are that no part runs whole",
        instead={"min_stages": "leave it out"},
    ),
    Foreign(
        planners={PROVISIONED},
        because="is of models that stay on their slots, and here they come and go",
        instead={"max_tenants": "leave it out: every model may run on every slot of its type"},
    ),
)


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
    _refuse_foreign(problem)
    _refuse_neighbours(problem)
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


def _refuse_foreign(problem: Problem) -> None:
    """
    Raises:
        DocumentError: an option is stated that the planner does not know; or requests have many
            items, which only malleable plans are for.
    """
    options, usual = problem.options, PlanOptions()
    for foreign in FOREIGN:
        for name, instead in foreign.instead.items():
            stated = getattr(options, name) != getattr(usual, name)
            if stated and options.planner in foreign.planners:
                raise DocumentError(
                    f"planner {options.planner!r}: {name} {foreign.because}\n  try    {instead}"
                )
    for demand in () if options.planner == MALLEABLE else problem.demands:
        if demand.items != Items():
            raise DocumentError(
                f"planner {options.planner!r}: answers items one by one, and requests of"
                f" model {demand.model!r} have {demand.items.mean:g} on average\n"
                "  try    `--planner malleable`, or leave `items` out and count items as requests"
            )


def uncounted_neighbours(problem: Problem) -> str | None:
    """A device type on parts of which models may run side by side, that the problem says slow each
    other there, and the planner does not count that; None: there is none."""
    planner, cluster = problem.options.planner, problem.cluster
    for document in () if planner in COUNT_NEIGHBOURS else problem.interference:
        kind = cluster.device_type(document.device)
        largest_only = planner in LARGEST_SHARE_ONLY
        parts = int(1 / max(kind.shares)) if largest_only else kind.most_parts
        if parts > 1 and cluster.count(kind.name):
            return kind.name
    return None


def _refuse_neighbours(problem: Problem) -> None:
    """
    Raises:
        DocumentError: a plan would promise what it does not keep where models are neighbours.
    """
    planner = problem.options.planner
    device = None if planner in IGNORE_NEIGHBOURS else uncounted_neighbours(problem)
    if device is None:
        return
    alone = planner in (MALLEABLE, PROVISIONED)
    raise DocumentError(
        f"planner {planner!r}: does not count what models on parts of one device cost each other,"
        f" as the problem's interference says of a {device!r}\n"
        f"  try    {'' if alone else f'--planner {TOGETHER}, which does; '}whole devices alone"
        " (`shares: [1]`); or leave its document out"
    )
