"""`headrace import ppipe`: a published plan, with its profiles and problem, as ours."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from headrace.commands.output import console, next_step, print_json, quoted

if TYPE_CHECKING:
    from headrace.catalog.ppipe.artifact import ReferencePlan
    from headrace.domain.plan import Plan
    from headrace.domain.problem import Problem


def import_ppipe(
    artifact: Annotated[Path, typer.Option(help="The artifact's folder, the one that has `data`.")],
    plan: Annotated[Path, typer.Option(help="One of its plans: data/plans/SET/NAME.json.")],
    out: Annotated[Path, typer.Option("--out", "-o", help="Folder to write to.")],
    json: Annotated[bool, typer.Option("--json", help="Print what was found as JSON.")] = False,
) -> None:
    """Turn a plan of PPipe's public artifact (ATC 2025), and what is behind it, into our documents.

    Writes profiles, problem.yaml, the plan in its own accounting (reference.json) and, where its
    slots fit whole devices and every budget holds, plan.json; a plan that fails verification is
    written as plan.unverified.json.

    [dim]headrace import ppipe --artifact PPipe --plan PPipe/data/plans/maf19/NAME.json -o g1[/dim]
    """
    from datetime import UTC, datetime

    from headrace.catalog.documents import read_problem, write_document
    from headrace.catalog.ppipe.artifact import read_reference_plan
    from headrace.catalog.ppipe.problem import write_problem
    from headrace.catalog.ppipe.profiles import read_artifact_profile
    from headrace.catalog.ppipe.rule import evaluate

    reference = read_reference_plan(plan)
    date = datetime.now(UTC).isoformat(timespec="seconds")
    profiles = {
        deployment.model: read_artifact_profile(artifact, deployment.model, date=date)
        for deployment in reference.deployments
    }
    for model, profile in profiles.items():
        write_document(profile, out / "profiles" / f"{model}.json")
    write_document(reference, out / "reference.json")
    write_problem(reference, out / "problem.yaml")
    figures = evaluate(reference, profiles)
    found: dict[str, Any] = {
        "stated_objective": reference.stated_objective,
        "objective_by_artifact_rule": figures.objective,
        "faults_by_artifact_rule": figures.faults,
        **_place(reference, read_problem(out / "problem.yaml"), out),
    }
    if json:
        print_json(found)
    else:
        _print(found)
    next_step(
        f"headrace verify {quoted(Path(found['plan']))}"
        if found["plan"] and not found["refused"]
        else f"headrace plan {quoted(out / 'problem.yaml')} -o {quoted(out / 'plan.json')}"
    )


def _place(reference: "ReferencePlan", problem: "Problem", out: Path) -> dict[str, Any]:
    """The plan on whole devices, written; or why it is none of ours."""
    from headrace.catalog.documents import write_document
    from headrace.domain.errors import InfeasibleError
    from headrace.planning.common.imported import place_reference

    for name in ("plan.json", "plan.unverified.json"):  # of an earlier import
        (out / name).unlink(missing_ok=True)
    try:
        placed = place_reference(reference, problem)
    except InfeasibleError as error:
        return {"plan": None, "objective": None, "refused": [str(error)]}
    refused = _violations(placed, problem)
    path = out / ("plan.unverified.json" if refused else "plan.json")
    write_document(placed, path)
    return {"plan": str(path), "objective": placed.objective, "refused": refused}


def _violations(plan: "Plan", problem: "Problem") -> list[str]:
    from headrace.verify import verify

    return [
        f"{v.where}: {v.what}: needs {v.needed}, has {v.available}"
        for v in verify(plan, problem.profiles)
    ]


def _print(found: dict[str, Any]) -> None:
    from rich.text import Text

    console.print(f"objective, as stated          {found['stated_objective']:.6f} rps / weight")
    console.print(f"recomputed, artifact's rule   {found['objective_by_artifact_rule']:.6f}")
    if found["objective"] is not None:
        console.print(f"recomputed, our rule          {found['objective']:.6f}")
    for fault in found["faults_by_artifact_rule"]:
        console.print(Text.assemble(("breaks its own rule:", "red"), f" {fault}"))
    if found["refused"]:
        written = found["plan"] or "no plan.json was written"
        console.print(Text.assemble(("no plan by our rules", "yellow"), f" ({written}):"))
        for reason in found["refused"]:
            console.print(f"  {reason}", soft_wrap=True)
    else:
        console.print(f"verified, written to {found['plan']}")
