"""`headrace migrate`: give a running server another plan."""

from pathlib import Path
from typing import Annotated, Any

import typer

from headrace.commands.output import console, next_step, notices

PATIENCE_S = 900.0
"""Loading a large model onto every slot takes minutes."""


def migrate(
    plan: Annotated[
        Path, typer.Argument(metavar="PLAN", help="The plan to move to, on the server's machine.")
    ],
    url: Annotated[str, typer.Option(help="The server, on this machine.")] = (
        "http://127.0.0.1:8000"
    ),
    how: Annotated[
        str,
        typer.Option(
            metavar="drain|flush",
            help="drain: devices change hands step by step, and both plans serve meanwhile."
            " flush: requests wait until all that was accepted is answered, then all devices"
            " change at once (the paper's way).",
        ),
    ] = "drain",
    token_file: Annotated[
        Path | None,
        typer.Option(
            help="File with the server's token; its own user needs none.", show_default=False
        ),
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print the report as JSON.")] = False,
) -> None:
    """Move a running server to another plan without losing a request.

    The server verifies the plan, loads its workers beside those that serve, and then switches.
    A plan that it cannot serve is refused with the reason, and the old one stays. SIGHUP makes a
    server read its own plan file again, with the same effect.

    [dim]headrace migrate better.json --url http://127.0.0.1:8000[/dim]
    """
    from headrace.catalog.documents import read_plan
    from headrace.commands.output import print_json
    from headrace.domain.errors import DocumentError, PlanError

    if how not in ("drain", "flush"):
        raise DocumentError(f"migrate: --how {how!r} is unknown; known: drain, flush")
    read_plan(plan)  # The server reads it too; what is no plan need not go there.
    with notices.status("the server verifies, loads and switches"):
        status, answer = _ask(url, {"plan": str(plan.resolve()), "how": how}, token_file)
    if status != 200:
        sentence = str(answer.get("error", f"the server answered {status}"))
        raise PlanError(f"migrate: {sentence}")
    if json:
        print_json(answer)
    else:
        _print(answer)
    next_step(f"curl {url}/metrics")


def _ask(url: str, body: dict[str, Any], token_file: Path | None) -> tuple[int, dict[str, Any]]:
    """POST to the server; returns status and decoded body.

    Raises:
        DocumentError: nobody answers there, or not as Headrace does.
    """
    import http.client

    import msgspec

    from headrace.domain.errors import DocumentError
    from headrace.load.client import parse_url
    from headrace.load.token import token_for

    endpoint = parse_url(url)
    headers = {"Content-Type": "application/json"}
    token = token_for(url, token_file)
    if token is not None:
        headers["Authorization"] = f"Bearer {token}"
    connection = http.client.HTTPConnection(endpoint.host, endpoint.port, timeout=PATIENCE_S)
    try:
        connection.request("POST", "/admin/migrate", msgspec.json.encode(body), headers)
        response = connection.getresponse()
        content = response.read(1 << 20)
        return response.status, msgspec.json.decode(content, type=dict[str, Any])
    except (OSError, http.client.HTTPException) as error:
        raise DocumentError(
            f"migrate: no answer from {url}: {error}\n  try    `headrace serve PLAN` first"
        ) from error
    except msgspec.DecodeError as error:
        raise DocumentError(f"migrate: {url} does not answer as Headrace does") from error
    finally:
        connection.close()


def _print(report: dict[str, Any]) -> None:
    loaded = (
        f"workers loaded in {report['load_us'] / 1e6:.2f} s"
        if report["preloaded"]
        else "workers exchanged one step after the other: memory did not hold both plans"
    )
    console.print(
        f"migrated by {report['how']}: {report['devices']} devices in {report['steps']} steps;"
        f" {loaded}; switched in {report['switch_us'] / 1e3:.1f} ms",
        soft_wrap=True,
    )
    if report["slots_out"]:
        notices.print(
            f"warning: out of service: {', '.join(report['slots_out'])}: their workers could not"
            " load, and are tried again until they can; the server's log says why",
            soft_wrap=True,
            style="yellow",
            markup=False,
        )
