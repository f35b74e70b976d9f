"""`headrace plan`: choose stages, batch sizes and slots, with a proof."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from headrace.commands.output import console, next_step, notices, print_json, quoted, working, wrote
from headrace.commands.plan_checks import AUTO, UNIFORM, check_simulations, note_left_out
from headrace.commands.studies import AddressOption, ClusterOption, JobsOption

if TYPE_CHECKING:
    from rich.console import Group

    from headrace.domain.plan import Plan
    from headrace.domain.problem import Problem, ProfileRef


ProblemArgument = Annotated[
    Path, typer.Argument(help="Problem, YAML or JSON: models with SLOs, and the cluster.")
]
OutOption = Annotated[Path, typer.Option("--out", "-o", help="Plan to write.")]
PlannerOption = Annotated[
    str | None,
    typer.Option(
        metavar="NAME",
        help="pooled: stages served by pools of slots (PPipe), optimal. Baselines:"
        " no-partitioning, whole models on whole devices; dart-r, pairs of one device of each of"
        " two types."
        " Shared devices: shares, parts of devices and turns on them, exact; gpulet, the paper's"
        " heuristic; gpulet+int, with what neighbours cost; baselines sbp, self-tuning, ideal."
        " More models than memory: provisioned (DeepPlan); chosen by itself with --provision where"
        " not all models fit."
        " Requests of many items: malleable, each model cut over one slot, two and so on"
        " (Accordion). Apps: least-cost, exact; least-cost-dummy, often cheaper still, with any"
        " amount of dummy load; harpagon, the paper's heuristics; harpagon-optimal, the optimum of"
        " their form; exhaustive, small apps; baselines nexus, scrooge, inferline, clipper;"
        " ablations harp-2d, harp-1c, …",
    ),
]
ObjectiveOption = Annotated[
    str | None,
    typer.Option(
        metavar="throughput|max-min|least-cost|least-devices",
        help="throughput: the sum over all models. max-min: the smallest throughput / weight."
        " least-cost: the devices' price, carrying every rate_rps. least-devices: how many, for"
        " planners that share devices.",
    ),
]
BillOption = Annotated[
    str | None,
    typer.Option(
        metavar="fraction|devices",
        help="Apps: what is to cost least. devices, the default of least-cost: the whole devices"
        " used, which modules then share in time. fraction, all that other planners know: devices"
        " in proportion to load, as where others use the rest.",
    ),
]
ArrivalsOption = Annotated[
    str,
    typer.Option(
        metavar="uniform|poisson|gamma[:CV]|mmpp[:BURST]",
        help="Apps: how requests arrive. uniform: at equal gaps, the cheapest plan there is."
        " Else plans with more and more head-room are simulated until one keeps --attainment;"
        " what that costs is printed.",
    ),
]
MarginOption = Annotated[
    str | None,
    typer.Option(
        metavar="FRACTION|auto",
        help="Part of each SLO that is kept for batching, queueing and contention. auto: plan"
        " with several, simulate each plan under Poisson load, and keep the one that carries"
        " most; of several models with objective max-min, margins and weights per model are chosen,"
        " so that each carries as much of its weight's share; with objectives"
        " least-cost and least-devices the cheapest that keeps --attainment at the rates asked"
        " for.",
    ),
]
AttainmentOption = Annotated[
    float,
    typer.Option(
        help="--margin auto, --arrivals poisson: part of the requests that every model or app"
        " must answer within its SLO."
    ),
]
MinStagesOption = Annotated[int | None, typer.Option(help="Fewest stages of a pipeline.")]
MaxStagesOption = Annotated[int | None, typer.Option(help="Most stages of a pipeline.")]
MaxBatchOption = Annotated[int | None, typer.Option(help="Largest batch size to plan with.")]
MaxTenantsOption = Annotated[
    int | None,
    typer.Option(help="Shared devices: most models, or modules, that take turns on one part."),
]
PartitionOption = Annotated[
    str | None,
    typer.Option(
        metavar="exact|shisha",
        help="Malleable plans: how blocks are put on so many slots. exact: the cut with which a"
        " typical request is answered soonest, proven. shisha: the heuristic that the paper takes"
        " its cuts from, as a baseline.",
    ),
]
MaxDepthOption = Annotated[
    int | None,
    typer.Option(help="Malleable plans: most slots that one request is cut over [8]."),
]
MaxItemsOption = Annotated[
    int | None,
    typer.Option(
        help="Malleable plans: most items of one request; larger ones are refused. Without it, what"
        " all but one request in a thousand have, by the problem's `items`."
    ),
]
ItemBatchOption = Annotated[
    int | None,
    typer.Option(help="Malleable plans: items of a request that go through a stage together [1]."),
]
ProvisionOption = Annotated[
    str | None,
    typer.Option(
        metavar="NAME",
        help="Also plan how each model is started when its weights are not on the device, from its"
        " profile's layers. exact: the soonest start there is, proven; exact-by-layer, without"
        " grouped copies; exact+pt, over a second device too. Baselines: on-demand, pipeswitch,"
        " pipeswitch-grouped, initial, deepplan (Algorithm 1), deepplan-guarded, pt, deepplan+pt."
        " Plans that copy over a second device (+pt) can be verified and simulated, not served.",
    ),
]
MoveMsOption = Annotated[
    float | None,
    typer.Option(
        help="Malleable plans: how long a request is held up by moving blocks between slots when it"
        " changes depth, which serving and simulating reckon with [0]."
    ),
]
TimeLimitSOption = Annotated[
    float | None,
    typer.Option(
        help="Stop after so many seconds with the best plan so far, and its gap. Simulating plans"
        " of apps may take as long again; on whole devices, where turns are late, thrice as long."
    ),
]
ExplainOption = Annotated[
    bool,
    typer.Option(
        "--explain",
        help="Apps: say why each module has its machines, which one eats the budget, and what"
        " one more millisecond, machine, or device of a type that is short would buy."
        " Shared devices: part by part, whose turn it is, how slow and how full;"
        " planner shares, without apps: what sharing saves (in up to 10 s more), and what binds."
        " Malleable plans: the least SLO that requests of few and of many items can meet."
        " With --provision: the layers left in host memory, and what each of them saves.",
    ),
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print the plan as JSON.")]


def plan(
    context: typer.Context,
    problem: ProblemArgument,
    out: OutOption = Path("plan.json"),
    planner: PlannerOption = None,
    objective: ObjectiveOption = None,
    bill: BillOption = None,
    arrivals: ArrivalsOption = UNIFORM,
    margin: MarginOption = None,
    attainment: AttainmentOption = 0.99,
    min_stages: MinStagesOption = None,
    max_stages: MaxStagesOption = None,
    max_batch: MaxBatchOption = None,
    max_tenants: MaxTenantsOption = None,
    partition: PartitionOption = None,
    max_depth: MaxDepthOption = None,
    max_items: MaxItemsOption = None,
    item_batch: ItemBatchOption = None,
    provision: ProvisionOption = None,
    move_ms: MoveMsOption = None,
    time_limit_s: TimeLimitSOption = None,
    explain: ExplainOption = False,
    jobs: JobsOption = 1,
    cluster: ClusterOption = None,
    address: AddressOption = None,
    json: JsonOption = False,
) -> None:
    """Choose stages, batch sizes and slots that serve the most within every SLO.

    Options given here override those of the problem file. Exits with 3, and says what would be
    feasible, when no plan exists.

    [dim]headrace plan problem.yaml -o plan.json[/dim]

    [dim]headrace plan problem.yaml --margin auto --attainment 0.99[/dim]

    [dim]headrace plan apps.yaml --arrivals poisson[/dim]
    """
    from headrace.catalog.documents import files_behind, read_problem, write_document
    from headrace.catalog.whole_file import check_writable
    from headrace.reporting.plan_table import plan_report

    check_writable(out, problem)
    check_simulations(context)
    read = read_problem(problem, planner)
    check_writable(out, *files_behind(read.profile_refs, problem.parent, read.profiles))
    asked = _overridden(
        read,
        objective=objective,
        bill=bill,
        margin=_number(margin),
        min_stages=min_stages,
        max_stages=max_stages,
        max_batch=max_batch,
        max_tenants=max_tenants,
        partition=partition,
        max_depth=max_depth,
        max_items=max_items,
        item_batch=item_batch,
        provision=provision,
        move_ms=move_ms,
        time_limit_s=time_limit_s,
    )
    note_left_out(asked)
    if asked.options.provision is not None:
        asked = _for_memory(asked)
    if explain:
        _check_explained(asked)
    if arrivals != UNIFORM:
        from headrace.commands.plan_apps import planned_with_headroom

        best = planned_with_headroom(asked, arrivals, attainment)
    else:
        where = jobs, cluster, address
        best = _carrying_most(asked, attainment, json, where) if margin == AUTO else _planned(asked)
    if asked.options.provision is not None and not best.is_provisioned:
        from headrace.planning.provisioning.of_plan import with_starts

        best = with_starts(best, asked)
    refs = _relocated(best.profiles, problem.parent, out.parent)
    found = _proven(best, asked, refs)
    explanation = _explained(found, asked) if explain else None
    write_document(found, out)
    if json:
        print_json(found)
    else:
        console.print(plan_report(found, _whole_devices(found, asked)))
    if explanation is not None:
        # With --json standard output holds the plan alone.
        (notices if json else console).print(explanation)
    if not json:
        wrote(out)
    next_step(f"headrace verify {quoted(out)}")


def _for_memory(problem: "Problem") -> "Problem":
    """With the planner of more models than memory, where not all fit and none is named."""
    from headrace.planning.provisioning.many import fits

    if not _may_come_and_go(problem) or fits(problem):
        return problem
    return _coming_and_going(problem)


def _may_come_and_go(problem: "Problem") -> bool:
    """Whether that is asked for where it is needed, and no planner is named."""
    from headrace.domain.problem import PlanOptions

    options = problem.options
    unnamed = not problem.apps and options.planner == PlanOptions().planner
    return unnamed and options.provision is not None


def _coming_and_going(problem: "Problem") -> "Problem":
    from msgspec.structs import replace

    from headrace.planning import PROVISIONED

    notices.print(f"no plan keeps every model on a slot of its own: planning with {PROVISIONED}")
    return replace(problem, options=replace(problem.options, planner=PROVISIONED))


def _planned(problem: "Problem") -> "Plan":
    """
    Raises:
        InfeasibleError: no plan exists; the message says what would be feasible.
    """
    from headrace.domain.errors import InfeasibleError
    from headrace.planning import solve

    if problem.apps:
        from headrace.commands.plan_apps import planned_in_time

        return planned_in_time(problem)
    with working(f"planning with {problem.options.planner}"):
        result = solve(problem)
    plan = result.plan
    if plan is None and _may_come_and_go(problem):
        another = _coming_and_going(problem)
        with working(f"planning with {another.options.planner}"):
            plan = solve(another).plan
    if plan is None:
        raise InfeasibleError(result.refusal or "no plan")
    return plan


def _carrying_most(
    problem: "Problem", attainment: float, json: bool, where: tuple[int, str | None, str | None]
) -> "Plan":
    """The plan by the margins that simulation prefers; what it was compared with is printed.

    Args:
        where: it is simulated: processes, cluster, its address.

    Raises:
        DocumentError: the plan is to be malleable.
    """
    from headrace.commands.kernel import load_kernel
    from headrace.commands.studies import chosen_jobs
    from headrace.domain.errors import DocumentError
    from headrace.reporting.margins import even_table, margins_table
    from headrace.simulation.even import choose_margins, has_margins_per_model
    from headrace.simulation.margin import choose_margin

    if problem.options.planner == "malleable":
        raise DocumentError(
            "--margin auto: simulates pipelines, and malleable plans have depths\n"
            "  try       --margin 0.2, the part of each SLO that is kept for waiting"
        )
    load_kernel("reservation", simulator=True)
    # With --json standard output holds the plan alone.
    output = notices if json else console
    with chosen_jobs(*where) as jobs, notices.status("planning and simulating") as status:
        if has_margins_per_model(problem):
            even = choose_margins(
                problem, attainment=attainment, on_progress=status.update, jobs=jobs
            )
            output.print(even_table(even, attainment))
            return even.plan
        choice = choose_margin(problem, attainment=attainment, on_progress=status.update, jobs=jobs)
    output.print(margins_table(choice, attainment))
    return choice.plan


def _number(margin: str | None) -> float | None:
    """
    Raises:
        DocumentError: it is neither a number nor `auto`.
    """
    from headrace.domain.errors import DocumentError

    if margin is None or margin == AUTO:
        return None
    try:
        return float(margin)
    except ValueError:
        raise DocumentError(
            f"--margin: expected a fraction such as 0.4, or {AUTO}; got {margin!r}"
        ) from None


def _check_explained(problem: "Problem") -> None:
    """Before it is planned, which may take long.

    Raises:
        DocumentError: nothing explains the plans of its planner.
    """
    from headrace.domain.errors import DocumentError
    from headrace.planning import COUNT_DEVICES, PLANNERS

    options = problem.options
    unexplained = PLANNERS.keys() - COUNT_DEVICES - {"malleable"}
    if problem.apps or options.provision is not None or options.planner not in unexplained:
        return
    raise DocumentError(
        "--explain: only plans of apps, of shared devices, of more models than memory, and"
        f" malleable ones can be explained so far; planner {options.planner!r} makes none of them\n"
        "  try       leave it out; `headrace simulate` shows how busy each pool is"
    )


def _whole_devices(plan: "Plan", problem: "Problem") -> float | None:
    """A price that no plan of the apps on whole devices stays below; None: the plan claims nothing
    that it belongs to."""
    if plan.stopped != "optimal" or plan.options.bill != "devices":
        return None
    from headrace.planning.apps.bill.planner import whole_devices_bound

    return whole_devices_bound(problem)


def _explained(plan: "Plan", problem: "Problem") -> "Group":
    from rich.console import Group

    from headrace.reporting.depths_table import items_table
    from headrace.reporting.shared_table import devices_table

    if plan.has_starts:
        from headrace.planning.provisioning.of_plan import explain_starts
        from headrace.reporting.starts_table import host_table

        return Group(host_table(explain_starts(plan, problem)))
    if plan.is_malleable:
        return Group(items_table(plan))
    if plan.is_together:
        return Group(devices_table(plan))
    if not plan.apps:
        if plan.planner != "shares":
            return Group(devices_table(plan))
        from headrace.planning.shares.explain import explain_sharing
        from headrace.reporting.sharing_table import sharing_explanation

        return Group(devices_table(plan), sharing_explanation(explain_sharing(plan, problem)))
    from headrace.planning.apps.explain import explain, explain_stock
    from headrace.reporting.app_table import bill_explanation, explanation

    if plan.options.bill == "devices":
        from headrace.planning.apps.bill.explain import explain_bill

        bill = bill_explanation(explain_bill(plan, problem))
        if any(slot.duty_us is not None for slot in plan.slots):
            return bill
        return Group(bill, explanation(explain(plan, problem), explain_stock(plan, problem)))

    return explanation(explain(plan, problem), explain_stock(plan, problem))


def _overridden(problem: "Problem", **options: object) -> "Problem":
    """The problem with the options that were given on the command line.

    Raises:
        DocumentError: a value is out of its range.
    """
    from typing import get_args

    from msgspec.structs import replace

    from headrace.domain.errors import DocumentError
    from headrace.domain.problem import Bill, Objective, Partition

    given = {name: value for name, value in options.items() if value is not None}
    if given.get("objective", "max-min") not in get_args(Objective):
        raise DocumentError(
            f"--objective: {given['objective']!r} is none of {', '.join(get_args(Objective))}"
        )
    if given.get("bill", "fraction") not in get_args(Bill):
        raise DocumentError(f"--bill: {given['bill']!r} is none of {', '.join(get_args(Bill))}")
    if given.get("partition", "exact") not in get_args(Partition):
        raise DocumentError(
            f"--partition: {given['partition']!r} is none of {', '.join(get_args(Partition))}"
        )
    return replace(problem, options=replace(problem.options, **given))


def _proven(plan: "Plan", problem: "Problem", refs: "tuple[ProfileRef, ...]") -> "Plan":
    """The plan as it is to be written, verified: one that fails is a bug of the planner.

    Raises:
        PlanError: it does not keep what it says.
    """
    from msgspec.structs import replace

    from headrace.domain.errors import PlanError
    from headrace.verify import verify

    written = replace(plan, profiles=refs)
    violations = verify(written, problem.profiles)
    if violations:
        first = violations[0]
        raise PlanError(
            f"the planner {plan.planner!r} made a plan that fails verification"
            f" ({len(violations)} violations); nothing was written\n"
            f"  first     {first.where}: {first.what}\n"
            f"  needs     {first.needed}\n"
            f"  has       {first.available}\n"
            "  try       report this with the problem file"
        )
    return written


def _relocated(
    refs: "tuple[ProfileRef, ...]", from_folder: Path, to_folder: Path
) -> "tuple[ProfileRef, ...]":
    """Paths in a document are relative to its folder, and the plan's may be another one."""
    from msgspec.structs import replace

    return tuple(
        ref
        if Path(ref.path).is_absolute()
        else replace(ref, path=_seen_from(to_folder, from_folder / ref.path))
        for ref in refs
    )


def _seen_from(folder: Path, file: Path) -> str:
    """A file's path from a folder: by the links that it was named by, since a model lies beside
    them, unless `..` leads elsewhere out of one."""
    import os.path

    named = Path(os.path.relpath(file.absolute(), folder.absolute()))
    if (folder / named).resolve() != file.resolve():
        named = Path(os.path.relpath(file.resolve(), folder.resolve()))
    return named.as_posix()
