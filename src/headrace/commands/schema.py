"""`headrace schema`: what may stand in each file."""

from enum import StrEnum
from typing import Annotated, Any

import typer
from rich.text import Text

from headrace.commands.output import console, next_step, print_json


class Kind(StrEnum):
    """The documents that Headrace reads and writes."""

    PROFILE = "profile"
    PLAN = "plan"
    PROBLEM = "problem"
    REPORT = "report"
    EVENTS = "events"
    INTERFERENCE = "interference"


_ABOUT = {
    Kind.PROFILE: "what a model costs on a device; written by `headrace profile`",
    Kind.PLAN: "stages on slots; written by `headrace plan`",
    Kind.PROBLEM: "models, objectives and cluster; written by you, YAML or JSON",
    Kind.REPORT: "what was measured; written by `simulate` and `load`",
    Kind.EVENTS: "what happened, one JSON value per line; written by `simulate` and `serve`",
    Kind.INTERFERENCE: "what models on one device cost each other; written by `headrace interfere`",
}


def schema(
    kind: Annotated[
        Kind | None, typer.Argument(help="Which file's JSON Schema to print; none: list them.")
    ] = None,
    json: Annotated[
        bool, typer.Option("--json", help="List as JSON too (a schema always is).")
    ] = False,
) -> None:
    """Print the JSON Schema of a file, for editors and for programs that read or write it.

    [dim]headrace schema problem > problem.schema.json[/dim]
    """
    if kind is not None:
        print_json(json_schema(kind))
        return
    if json:
        print_json({name.value: about for name, about in _ABOUT.items()})
        return
    for name, about in _ABOUT.items():
        console.print(Text.assemble((f"{name.value:12}", "bold"), f"  {about}"), soft_wrap=True)
    next_step("headrace schema problem > problem.schema.json")


def json_schema(kind: Kind) -> dict[str, Any]:
    """Return the JSON Schema of one kind of file.

    An event log is many values: its schema is that of one line, the header or an event.
    """
    from headrace.catalog.schemas import document_schema

    return document_schema(_types_of(kind), f"headrace.{kind}/1", _ABOUT[kind])


def _types_of(kind: Kind) -> list[type]:
    match kind:
        case Kind.PROFILE:
            from headrace.domain.profile import Profile

            return [Profile]
        case Kind.PLAN:
            from headrace.domain.plan import Plan

            return [Plan]
        case Kind.PROBLEM:
            from headrace.catalog.problem_file import ProblemFile

            return [ProblemFile]
        case Kind.INTERFERENCE:
            from headrace.domain.interference import Interference

            return [Interference]
        case Kind.REPORT:
            from headrace.metrics import Report

            return [Report]
        case Kind.EVENTS:
            from typing import get_args

            from headrace.domain.events import AnyEvent, EventLogHeader

            return [EventLogHeader, *get_args(AnyEvent)]
