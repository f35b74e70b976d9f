"""`headrace migrate`: give a running server another plan."""

from pathlib import Path
from typing import Annotated, Any

import typer

from headrace.commands.output import console, next_step, notices, quoted

PATIENCE_S = 900.0
"""Loading a large model onto every slot takes minutes."""


def migrate(
    plan: Annotated[
        Path, typer.Argument(metavar="PLAN", help="The plan to move to, on the server's machine.")
    ],
    url: Annotated[
        str, typer.Option(help="The server, on this machine: its port names the admin socket.")
    ] = "http://127.0.0.1:8000",
    admin_socket: Annotated[
        Path | None,
        typer.Option(
            help="The admin socket, where `headrace serve` was given one or runs as another user"
            " (default: ~/.config/headrace/admin-PORT.sock)."
        ),
    ] = None,
    how: Annotated[
        str,
        typer.Option(
            metavar="drain|flush",
            help="drain: devices change hands step by step, and both plans serve meanwhile."
            " flush: requests wait until all that was accepted is answered, then all devices"
            " change at once (the paper's way). Plans with depths, and of models that come and go,"
            " are flushed in any case.",
        ),
    ] = "drain",
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
        asked = {"plan": str(plan.absolute()), "how": how}
        status, answer = _ask(admin_socket or _default_socket(url), asked)
    if status != 200:
        sentence = str(answer.get("error", f"the server answered {status}"))
        raise PlanError(f"migrate: {sentence}")
    if json:
        print_json(answer)
    else:
        _print(answer)
    if admin_socket is None:  # else nobody has said where the server listens
        next_step("curl " + quoted(f"{url}/metrics"))


def _default_socket(url: str) -> Path:
    from headrace.load.client import parse_url
    from headrace.serving.front.access import default_folder
    from headrace.serving.front.admin import socket_path

    return socket_path(default_folder(), parse_url(url).port)


def _ask(path: Path, body: dict[str, Any]) -> tuple[int, dict[str, Any]]:
    """POST to the server's admin socket; returns status and decoded body.

    Raises:
        DocumentError: nobody answers there, or not as Headrace does.
    """
    import http.client
    import socket

    import msgspec

    from headrace.domain.base import JSON_ERRORS
    from headrace.domain.errors import DocumentError

    connection = http.client.HTTPConnection("localhost", timeout=PATIENCE_S)
    try:
        connection.sock = socket.socket(socket.AF_UNIX)
        connection.sock.settimeout(PATIENCE_S)
        connection.sock.connect(str(path))
        connection.request("POST", "/admin/migrate", msgspec.json.encode(body))
        response = connection.getresponse()
        content = response.read(1 << 20)
        return response.status, msgspec.json.decode(content, type=dict[str, Any])
    except (OSError, http.client.HTTPException) as error:
        raise DocumentError(
            f"migrate: no answer from {path}: {error}\n"
            "  try    `headrace serve PLAN` first; --url or --admin-socket where it is another's"
        ) from error
    except JSON_ERRORS as error:
        raise DocumentError(f"migrate: {path} does not answer as Headrace does") from error
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
        )
