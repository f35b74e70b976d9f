"""`headrace verify`: recompute a plan, number by number."""

from pathlib import Path
from typing import Annotated

import typer

from headrace.commands.output import console, next_step, print_json


def verify(
    plan: Annotated[Path, typer.Argument(help="Plan, as `headrace plan` writes it.")],
    json: Annotated[bool, typer.Option("--json", help="Print checks and violations.")] = False,
) -> None:
    """Recompute every number of a plan from its profiles, in code that no planner shares.

    The profiles are found beside the plan and must be those it was made from. The exit code is
    4 if anything does not hold.

    [dim]headrace verify plan.json[/dim]
    """
    from headrace.catalog.documents import plan_profiles, read_plan
    from headrace.domain.errors import PlanError
    from headrace.reporting.plan_table import checks_table, violations_table
    from headrace.verify import CHECKS
    from headrace.verify import verify as find_violations

    document = read_plan(plan)
    violations = find_violations(document, plan_profiles(document, plan))
    if json:
        print_json({"ok": not violations, "checks": CHECKS, "violations": violations})
    else:
        console.print(checks_table(CHECKS, violations))
        if violations:
            console.print()
            console.print(violations_table(violations))
    if violations:
        raise PlanError(
            f"{plan}: {len(violations)} violations, the first in {violations[0].where}:"
            f" {violations[0].what}\n  try    planning again with `headrace plan`"
        )
    next_step(f"headrace simulate {plan} --load-factor 0.8")
