"""`headrace verify`: recompute a plan from its profiles."""

from pathlib import Path
from typing import Annotated

import typer

from headrace.commands.output import console, next_step, print_json, quoted


def verify(
    plan: Annotated[Path, typer.Argument(help="Plan, as `headrace plan` writes it.")],
    json: Annotated[
        bool, typer.Option("--json", help="Print checks and violations as JSON.")
    ] = False,
) -> None:
    """Recompute every number of a plan from its profiles, and check that it all fits.

    The verifier shares no code with any planner. Exits with 4 if the plan breaks a promise.

    [dim]headrace verify plan.json[/dim]
    """
    from collections import Counter

    from headrace.catalog.documents import plan_profiles, read_plan
    from headrace.domain.errors import PlanError
    from headrace.reporting.verdict import verdict_table, violations_table
    from headrace.verify import CHECKS
    from headrace.verify import verify as examine

    document = read_plan(plan)
    violations = examine(document, plan_profiles(document, plan))
    found = Counter(violation.check for violation in violations)
    if json:
        print_json(
            {
                "ok": not violations,
                "checks": {check: found[check] for check in CHECKS},
                "violations": violations,
            }
        )
    else:
        console.print(verdict_table(found))
        if violations:
            console.print(violations_table(violations))
    if violations:
        first = violations[0]
        raise PlanError(
            f"{plan}: {len(violations)} violations\n"
            f"  first     {first.where}: {first.what}\n"
            f"  needed    {first.needed}\n"
            f"  stated    {first.available}\n"
            "  try       `headrace plan` again, rather than mending the plan by hand"
        )
    next_step(f"headrace simulate {quoted(plan)} --load-factor 0.8")
