"""The program: its help is quick, and every failure is one message and an exit code."""

import os
import re
import runpy
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

import msgspec
import pytest
import typer.main

from headrace import __version__, cli
from headrace.commands.schema import Kind, json_schema
from headrace.domain.errors import (
    DocumentError,
    HeadraceError,
    InfeasibleError,
    ModelError,
    PlanError,
)
from headrace.planning import PLANNERS
from helpers.commands import Run, runner

COMMANDS = (
    "profile",
    "estimate",
    "plan",
    "verify",
    "rehearse",
    "simulate",
    "serve",
    "load",
    "trace",
    "schema",
    "import",
)


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    return runner(monkeypatch, capsys)


def failing(error: BaseException) -> Callable[[], NoReturn]:
    def command() -> NoReturn:
        raise error

    return command


@pytest.fixture
def broken_command(monkeypatch: pytest.MonkeyPatch) -> Callable[[BaseException], None]:
    """Adds a command `break` that raises this error, for one test."""

    def add(error: BaseException) -> None:
        monkeypatch.setattr(cli.app, "registered_commands", list(cli.app.registered_commands))
        cli.app.command("break")(failing(error))

    return add


def test_python_m_headrace_is_the_program(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["headrace", "--version"])

    with pytest.raises(SystemExit) as ended:
        runpy.run_module("headrace", run_name="__main__")

    assert not ended.value.code
    assert capsys.readouterr().out == f"headrace {__version__}\n"


def test_the_version_is_printed(run: Run) -> None:
    assert run("--version") == (0, f"headrace {__version__}\n", "")


def test_help_names_every_command_in_the_order_of_a_newcomers_day(run: Run) -> None:
    code, out, _ = run("--help")

    commands = out[out.index("Commands") :]
    places = [commands.index(f"│ {name} ") for name in COMMANDS]
    assert code == 0
    assert places == sorted(places)


@pytest.mark.parametrize("name", [*COMMANDS[:-1], "import triton", "import ppipe"])
def test_every_command_teaches_itself(run: Run, name: str) -> None:
    code, out, _ = run(*name.split(), "--help")

    assert code == 0
    assert f"Usage: headrace {name}" in out
    assert "--json" in out or name == "serve"


def test_starting_the_program_imports_nothing_heavy() -> None:
    heavy = {
        "numba",
        "numpy",
        "onnx",
        "onnxruntime",
        "highspy",
        "uvloop",
        "yaml",
        "prometheus_client",
    }
    script = f"import sys, headrace.cli; print(sorted({heavy!r} & set(sys.modules)))"

    done = subprocess.run(
        [sys.executable, "-c", script], check=True, capture_output=True, text=True
    )

    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (HeadraceError("what, where"), 2),
        (DocumentError("what, where"), 2),
        (ModelError("what, where"), 2),
        (InfeasibleError("what, where"), 3),
        (PlanError("what, where"), 4),
    ],
)
def test_an_error_of_ours_is_one_message_and_its_exit_code(
    run: Run, broken_command: Callable[[BaseException], None], error: HeadraceError, code: int
) -> None:
    broken_command(error)

    assert run("break") == (code, "", "error: what, where\n")


def test_a_bug_asks_to_be_reported_and_shows_its_trace_only_on_request(
    run: Run,
    broken_command: Callable[[BaseException], None],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    broken_command(KeyError("lost"))

    monkeypatch.delenv("HEADRACE_DEBUG", raising=False)
    code, _, quiet = run("break")
    monkeypatch.setenv("HEADRACE_DEBUG", "1")
    _, _, loud = run("break")

    assert code == cli.UNEXPECTED
    assert "KeyError: 'lost'" in quiet
    assert "HEADRACE_DEBUG=1" in quiet
    assert "Traceback" not in quiet
    assert "Traceback" in loud


def test_a_limit_of_threads_is_no_bug_of_ours(
    run: Run, broken_command: Callable[[BaseException], None]
) -> None:
    broken_command(RuntimeError("can't start new thread"))

    code, _, err = run("break")

    assert code == cli.REFUSED
    assert "a bug" not in err
    assert "ulimit -u" in err


def test_ctrl_c_ends_with_130(run: Run, broken_command: Callable[[BaseException], None]) -> None:
    broken_command(KeyboardInterrupt())

    code, _, err = run("break")

    assert (code, err.strip()) == (130, "")


def test_a_reader_that_goes_away_is_no_error(tmp_path: Path) -> None:
    read_end, write_end = os.pipe()
    os.close(read_end)
    program = Path(sys.executable).parent / "headrace"

    done = subprocess.run(
        [program, "schema", "plan"], stdout=write_end, stderr=subprocess.PIPE, text=True
    )
    os.close(write_end)

    assert done.stderr == ""


STREAMS = """
import os, subprocess
from headrace import cli
try:
    cli.main()
finally:
    streams = [f"/proc/self/fd/{number}" for number in range(3)]
    inherited = subprocess.run(["readlink", *streams], stdout=subprocess.PIPE, text=True).stdout
    with open("found", "w") as found:
        print(*map(os.readlink, streams), inherited, file=found)
"""


@pytest.mark.skipif(not Path("/proc/self/fd").is_dir(), reason="asks the kernel of Linux")
@pytest.mark.parametrize("closed", [(), (0,), (1,), (2,), (0, 2), (0, 1, 2)])
def test_no_file_ever_gets_the_number_of_a_standard_stream(
    closed: tuple[int, ...], tmp_path: Path
) -> None:
    streams = [tmp_path / name for name in ("in", "out", "error")]
    for stream in streams:
        stream.touch()
    shell = 'exec "$@" <in >out 2>error ' + " ".join(f"{number}>&-" for number in closed)

    subprocess.run(
        ["sh", "-c", shell, "sh", sys.executable, "-c", STREAMS, "--version"],
        cwd=tmp_path,
        check=True,
    )

    found = (tmp_path / "found").read_text().split()
    wanted = ["/dev/null" if n in closed else str(path) for n, path in enumerate(streams)]
    assert found[:3] == wanted
    assert (found[3], found[5]) == (wanted[0], wanted[2]), "what is started inherits them"


@pytest.mark.skipif(not Path("/dev/full").is_char_device(), reason="needs /dev/full")
@pytest.mark.parametrize("arguments", [("schema",), ("schema", "--json"), ("schema", "plan")])
@pytest.mark.parametrize("unbuffered", ["", "1"], ids=["buffered", "unbuffered"])
def test_a_full_disk_under_standard_output_is_no_bug_of_ours(
    arguments: tuple[str, ...], unbuffered: str
) -> None:
    program = Path(sys.executable).parent / "headrace"

    with Path("/dev/full").open("wb") as full:
        done = subprocess.run(
            [program, *arguments],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONUNBUFFERED": unbuffered},
        )

    assert done.returncode == cli.REFUSED
    said = "error: standard output cannot be written: [Errno 28] No space left on device"
    assert said in done.stderr
    assert "Exception ignored" not in done.stderr


def test_another_refusal_of_the_system_is_none_of_standard_output(
    run: Run, broken_command: Callable[[BaseException], None]
) -> None:
    broken_command(OSError(24, "Too many open files"))

    code, _, err = run("break")

    assert code == cli.REFUSED
    assert err == "error: the operating system refuses: [Errno 24] Too many open files\n"


@pytest.mark.parametrize(
    ("error", "said"), [(MemoryError(), "memory\n"), (MemoryError("7 GiB"), "memory: 7 GiB\n")]
)
def test_memory_that_is_out_is_no_bug_of_ours(
    run: Run, broken_command: Callable[[BaseException], None], error: MemoryError, said: str
) -> None:
    broken_command(error)

    code, _, err = run("break")

    assert code == cli.REFUSED
    assert f"error: there is not enough {said}" in err
    assert "a bug" not in err
    assert "ulimit -v" in err


def test_an_unknown_command_suggests_the_nearest(run: Run) -> None:
    code, _, err = run("simulat")

    assert code == 2
    assert "simulate" in err


@pytest.mark.parametrize("kind", list(Kind))
def test_every_kind_of_file_has_a_schema_that_names_it(run: Run, kind: Kind) -> None:
    code, out, _ = run("schema", kind.value)

    assert code == 0
    assert msgspec.json.decode(out)["title"] == f"headrace.{kind.value}/1"


def test_a_schema_explains_fields_with_their_docstrings() -> None:
    fields = json_schema(Kind.PROBLEM)["$defs"]["ModelEntry"]["properties"]

    assert fields["slo_ms"]["description"] == "From arrival to answer."


def test_kinds_are_listed_for_people_and_for_programs(run: Run) -> None:
    _, people, _ = run("schema")
    _, programs, _ = run("schema", "--json")

    assert all(kind.value in people for kind in Kind)
    assert list(msgspec.json.decode(programs)) == [kind.value for kind in Kind]


@pytest.mark.parametrize(
    ("command", "options", "said"),
    [
        (
            "serve",
            ["--no-auth", "--require-token"],
            "--require-token asks for a token and --no-auth for",
        ),
        (
            "serve",
            ["--no-auth", "--token-file", "t"],
            "--token-file asks for a token and --no-auth for",
        ),
        ("serve", ["--replan-after-s", "60"], "--replan-after-s does nothing without --replan"),
        ("serve", ["--app-threads", "3"], "--app-threads does nothing without --app"),
        ("serve", ["--cluster-ca", "ca.pem"], "--cluster-ca does nothing without --agents or"),
        ("simulate", ["--at", "5"], "simulate: --at does nothing without --migrate"),
        ("simulate", ["--how", "flush"], "--how does nothing without --migrate"),
        ("simulate", ["--slower-from-s", "5"], "does nothing without --slower or --delay-ms"),
        ("load", ["--attainment", "0.9"], "load: --attainment does nothing without --find-max"),
        ("load", ["--find-max", "--load-factor", "1"], "--rps says where it starts"),
        ("load", ["--find-max", "--plan", "plan.json"], "tries rates of its own"),
    ],
)
def test_options_that_contradict_or_do_nothing_are_refused(
    run: Run, command: str, options: list[str], said: str
) -> None:
    code, _, err = run(command, "no-such-plan.json", *options)

    assert (code, said in err) == (2, True), err


def test_replan_is_refused_where_the_problem_of_a_new_plan_could_not_be_written(run: Run) -> None:
    code, _, err = run("serve", os.fsdecode(b"caf\xe9/plan.json"), "--replan")

    assert code == 2
    assert "is no UTF-8, and the problem of a new plan names the profiles in it" in err


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--attainment", "0.99"], "--attainment does nothing here"),
        (["--attainment", "0.9", "--margin", "0.3"], "--attainment does nothing here"),
        (["--margin", "auto", "--attainment", "1"], "--attainment 1: is the part of requests"),
        (["--arrivals", "poisson", "--attainment", "99"], "above 0 and below 1, such as 0.99"),
        (["--jobs", "2"], "--jobs: is for the simulations of --margin auto"),
    ],
)
def test_plan_refuses_options_of_simulations_that_are_not_to_be_run(
    run: Run, options: list[str], said: str
) -> None:
    code, _, err = run("plan", "no-such-problem.yaml", *options)

    assert (code, said in err) == (2, True), err


@pytest.mark.parametrize("command", [["agent", "--name", "n0"], ["serve", "plan.json"]])
def test_memory_in_which_no_worker_starts_is_refused(run: Run, command: list[str]) -> None:
    code, _, err = run(*command, "--worker-memory-mb", "127")

    assert (code, "--worker-memory-mb" in err and "128" in err) == (2, True), err


@pytest.mark.parametrize("nothing", ["", "."])
def test_trace_of_an_empty_name_says_what_it_is(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, nothing: str
) -> None:
    monkeypatch.chdir(tmp_path)

    code, _, err = run("trace", nothing)

    assert (code, ".: cannot read an event log: Is a directory" in err) == (2, True), err


@pytest.mark.parametrize("encoding", ["ascii", "latin-1"])
def test_a_terminal_that_has_no_letter_for_a_dash_gets_another(encoding: str) -> None:
    program = Path(sys.executable).parent / "headrace"
    environment = {**os.environ, "PYTHONIOENCODING": encoding}

    done = subprocess.run([program, "--help"], env=environment, capture_output=True, check=False)

    assert done.returncode == 0, done.stderr
    assert b"profile a model ? plan it onto devices" in b" ".join(done.stdout.split())


def test_help_of_plan_names_every_planner_but_single_ablations() -> None:
    command: Any = typer.main.get_command(cli.app)
    [planner] = (p for p in command.commands["plan"].params if p.name == "planner")
    named = set(re.findall(r"[\w+-]+", planner.help))

    assert [name for name in PLANNERS if name not in named and not name.startswith("harp-")] == []


def test_help_is_broken_where_the_terminal_ends_and_not_where_the_source_does(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")

    _, out, _ = run("topology", "--help")

    assert "joined to it by\n NVLink. Read from the driver," in "\n".join(
        line.rstrip() for line in out.splitlines()
    )
