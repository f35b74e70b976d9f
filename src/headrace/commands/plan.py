"""`headrace plan`: a problem file becomes a plan file."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from headrace.commands.output import console, next_step, notices, print_json

if TYPE_CHECKING:
    from headrace.domain.plan import Plan
    from headrace.domain.problem import Problem


def plan(
    problem: Annotated[
        Path,
        typer.Argument(help="Problem, YAML or JSON; `headrace schema problem` gives its format."),
    ],
    out: Annotated[Path, typer.Option("--out", "-o", help="Plan to write.")] = Path("plan.json"),
    planner: Annotated[
        str | None,
        typer.Option(
            "--planner", help="pooled (optimal), no-partitioning (baseline).", show_default=False
        ),
    ] = None,
    objective: Annotated[
        str | None,
        typer.Option(
            "--objective",
            metavar="max-min|throughput|least-cost",
            help="max-min: the smallest throughput / weight; throughput: the sum over all models;"
            " least-cost: the price of the devices used, for the rates asked for.",
            show_default=False,
        ),
    ] = None,
    margin: Annotated[
        float | None,
        typer.Option(
            "--margin",
            help="Fraction of the SLO kept for batching, queueing and contention.",
            show_default=False,
        ),
    ] = None,
    min_stages: Annotated[
        int | None,
        typer.Option("--min-stages", help="Fewest stages of a pipeline.", show_default=False),
    ] = None,
    max_stages: Annotated[
        int | None,
        typer.Option("--max-stages", help="Most stages of a pipeline.", show_default=False),
    ] = None,
    max_batch: Annotated[
        int | None,
        typer.Option("--max-batch", help="Largest batch size.", show_default=False),
    ] = None,
    time_limit_s: Annotated[
        float | None,
        typer.Option(
            "--time-limit-s",
            help="Stop after S seconds with the best plan so far and its gap.",
            show_default=False,
        ),
    ] = None,
    json: Annotated[
        bool, typer.Option("--json", help="Print the plan as JSON as well as writing it.")
    ] = False,
) -> None:
    """Choose stages, batch sizes and slots, with a proof of how good the choice is.

    Options given here replace those of the problem file. The plan is verified before it is
    written. Without a feasible plan the exit code is 3, and the message names what is in the
    way and the nearest SLO or rate that would do.

    [dim]headrace plan problem.yaml -o plan.json[/dim]
    """
    from headrace import planning
    from headrace.catalog.documents import read_problem, write_document
    from headrace.domain.errors import InfeasibleError, PlanError
    from headrace.verify import verify

    asked = _with_options(
        read_problem(problem),
        planner=planner,
        objective=objective,
        margin=margin,
        min_stages=min_stages,
        max_stages=max_stages,
        max_batch=max_batch,
        time_limit_s=time_limit_s,
    )
    with notices.status("planning …"):
        result = planning.solve(_referring_from(asked, problem.parent, out.parent))
    if result.plan is None:
        raise InfeasibleError(result.refusal or "no feasible plan")
    violations = verify(result.plan, asked.profiles)
    if violations:
        first = violations[0]
        raise PlanError(
            f"the planner's own plan fails verification, which is a bug: {first.where}:"
            f" {first.what}, needs {first.needed}, has {first.available}\n"
            "  try    --planner no-partitioning, and report this problem file"
        )
    write_document(result.plan, out)
    if json:
        print_json(result.plan)
    else:
        _show(result.plan)
        notices.print(f"wrote {out}", soft_wrap=True)
    next_step(f"headrace verify {out}, then headrace simulate {out} --load-factor 0.8")


def _show(plan: "Plan") -> None:
    from rich.markup import escape
    from rich.table import Table

    from headrace.reporting.plan_table import plan_facts, plan_table

    console.print(plan_table(plan))
    facts = Table.grid(padding=(0, 2))
    for what, value in plan_facts(plan):
        facts.add_row(f"[bold]{escape(what)}[/bold]", escape(value))
    console.print()
    console.print(facts)


def _with_options(problem: "Problem", **given: Any) -> "Problem":
    """The problem with the options from the command line in place of its own."""
    from typing import get_args

    import msgspec

    from headrace.domain.errors import DocumentError
    from headrace.domain.problem import Objective

    chosen = {name: value for name, value in given.items() if value is not None}
    if chosen.get("objective", "max-min") not in get_args(Objective):
        raise DocumentError(
            f"--objective: {chosen['objective']!r} is none of {', '.join(get_args(Objective))}"
        )
    options = msgspec.structs.replace(problem.options, **chosen)
    return msgspec.structs.replace(problem, options=options)


def _referring_from(problem: "Problem", read_from: Path, write_to: Path) -> "Problem":
    """Profile paths are relative to the file that names them: to the plan, from now on."""
    import os

    import msgspec

    refs = tuple(
        msgspec.structs.replace(
            ref,
            path=ref.path
            if Path(ref.path).is_absolute()
            else os.path.relpath(read_from / ref.path, write_to),
        )
        for ref in problem.profile_refs
    )
    return msgspec.structs.replace(problem, profile_refs=refs)
