"""The `headrace` program: one command per module in `commands`."""

import os
import sys
import traceback
from typing import Annotated

import typer

from headrace import __version__
from headrace.commands.agent import agent
from headrace.commands.estimate import estimate
from headrace.commands.import_ppipe import import_ppipe
from headrace.commands.import_triton import import_triton
from headrace.commands.interfere import interfere
from headrace.commands.load import load
from headrace.commands.migrate import migrate
from headrace.commands.nodes import nodes
from headrace.commands.output import print_error
from headrace.commands.plan import plan
from headrace.commands.profile import profile
from headrace.commands.rehearse import rehearse
from headrace.commands.schema import schema
from headrace.commands.serve import serve
from headrace.commands.simulate import simulate
from headrace.commands.topology import topology
from headrace.commands.trace import trace
from headrace.commands.verify import verify
from headrace.domain.errors import HeadraceError

UNEXPECTED = 70
"""EX_SOFTWARE of sysexits.h: a bug of ours, not bad input."""

REFUSED = 74
"""EX_IOERR: the operating system refuses, because standard output goes to a full disk, say."""

app = typer.Typer(
    name="headrace",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"headrace {__version__}")
        raise typer.Exit


@app.callback()
def headrace(
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_print_version, is_eager=True, help="Print the version."
        ),
    ] = False,
) -> None:
    """Serve DNNs under latency objectives on the hardware you already have.

    The way from a model to answers in time:

    [bold]profile[/bold] a model → [bold]plan[/bold] it onto devices → [bold]verify[/bold] the
    plan → [bold]simulate[/bold] it → [bold]serve[/bold] it → [bold]load[/bold] the server →
    [bold]trace[/bold] what happened.

    Exit codes: 0 done, 2 bad input, 3 no feasible plan, 4 a plan fails verification.
    """


# In the order of a newcomer's day. Their modules are light: what is heavy, a command imports
# when it runs.
for command in (
    *(
        profile,
        interfere,
        estimate,
        nodes,
        topology,
        plan,
        verify,
        rehearse,
        simulate,
        serve,
        agent,
        migrate,
        load,
        trace,
        schema,
    ),
):
    app.command()(command)
imports = typer.Typer(no_args_is_help=True)
imports.command("triton")(import_triton)
imports.command("ppipe")(import_ppipe)
app.add_typer(imports, name="import", help="Read other systems' models, problems and plans.")


def main() -> None:
    """Run the program; every failure becomes one message and an exit code.

    Typer itself maps Ctrl-C to 130 and is quiet when the reader of a pipe goes away.
    """
    try:
        app(standalone_mode=True)
    except HeadraceError as error:
        print_error(str(error))
        sys.exit(error.exit_code)
    except OSError as error:
        _show_where(error)
        print_error(f"the operating system refuses: {error}")
        sys.exit(REFUSED)
    except Exception as error:
        _report_bug(error)
        sys.exit(UNEXPECTED)


def _show_where(error: Exception) -> None:
    if os.environ.get("HEADRACE_DEBUG") == "1":
        traceback.print_exception(error)


def _report_bug(error: Exception) -> None:
    _show_where(error)
    print_error(
        f"a bug in Headrace: {type(error).__name__}: {error}\n"
        "  try       HEADRACE_DEBUG=1 to see where, and report it with the command you ran"
    )
