"""The `headrace` program: one command per module in `commands`."""

import sys

import typer

from headrace.commands.output import print_error
from headrace.domain.errors import HeadraceError

app = typer.Typer(
    name="headrace",
    help="Serve DNNs under latency objectives: profile, plan, verify, simulate, serve.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)


def main() -> None:
    """Run the program; errors of ours become one message and an exit code."""
    try:
        app(standalone_mode=True)
    except HeadraceError as error:
        print_error(str(error))
        sys.exit(error.exit_code)
