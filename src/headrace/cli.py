"""The `headrace` program: one command per module in `commands`."""

import atexit
import gc
import io
import os
import sys
from collections.abc import Mapping
from typing import Annotated, ClassVar

import typer

from headrace import __version__
from headrace.commands.ending import dropped_ends_raised_again
from headrace.commands.on_demand import OnDemand
from headrace.domain.errors import HeadraceError, ProcessLimitError

UNEXPECTED = 70
"""EX_SOFTWARE of sysexits.h: a bug of ours, not bad input."""

REFUSED = 74
"""EX_IOERR: the operating system refuses: a file that cannot be written, say, or memory is out."""


class _Program(OnDemand):
    """In the order of a newcomer's day."""

    TABLE: ClassVar[Mapping[str, str]] = {
        **{
            name: name
            for name in (
                "profile",
                "interfere",
                "estimate",
                "nodes",
                "topology",
                "plan",
                "verify",
                "rehearse",
                "simulate",
                "serve",
                "agent",
                "migrate",
                "load",
                "trace",
                "schema",
            )
        },
        "import": "imports",
    }


app = typer.Typer(
    name="headrace",
    cls=_Program,
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

    Exit codes: 0 done, 2 bad input, 3 no feasible plan, 4 a plan fails verification, 5 another
    gateway has taken over.
    """


def program() -> None:
    """As `main`; a command that runs models of others does so in a process of its own."""
    if sys.argv[1:2] == ["profile"]:
        from headrace.commands.guarded import guarded

        guarded(main)
    else:
        main()


def main() -> None:
    """Run the program in this process; every failure becomes one message and an exit code.

    Typer itself maps Ctrl-C to 130 and is quiet when the reader of a pipe goes away.
    """
    _open_standard_descriptors()
    # A terminal of another encoding shows ? for what it has no letter for: a dash, an arrow.
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")
    # At its end the interpreter looks for garbage, 30 ms, and all of it goes with the process.
    atexit.register(gc.freeze)
    try:
        with dropped_ends_raised_again():
            app(prog_name="headrace", standalone_mode=True)
    except HeadraceError as error:
        _print_error(str(error))
        sys.exit(error.exit_code)
    except OSError as error:
        _show_where(error)
        _print_error(f"the operating system refuses: {error}")
        sys.exit(REFUSED)
    except MemoryError as error:
        _show_where(error)
        _print_error(
            f"there is not enough memory{f': {error}' if str(error) else ''}\n"
            "  try       a higher limit of this process (ulimit -v), container or service, or a"
            " machine with more"
        )
        sys.exit(REFUSED)
    except Exception as error:
        if ProcessLimitError.is_meant_by(error):
            _show_where(error)
            _print_error(str(ProcessLimitError("a thread")))
            sys.exit(REFUSED)
        _report_bug(error)
        sys.exit(UNEXPECTED)


def _open_standard_descriptors() -> None:
    """Those of standard input, output and error that are closed lead to the null device from now
    on, also in processes that are started: whatever is opened next would get their numbers, and
    libuv aborts a program that closes one of these."""
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)


def _print_error(message: str) -> None:
    from headrace.commands.output import print_error

    print_error(message)


def _show_where(error: Exception) -> None:
    if os.environ.get("HEADRACE_DEBUG") == "1":
        import traceback

        traceback.print_exception(error)


def _report_bug(error: Exception) -> None:
    _show_where(error)
    _print_error(
        f"a bug in Headrace: {type(error).__name__}: {error}\n"
        "  try       HEADRACE_DEBUG=1 to see where, and report it with the command you ran"
    )


if __name__ == "__main__":
    program()
