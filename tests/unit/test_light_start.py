"""The program imports what a command needs, when it needs it, and reads plain values itself."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Annotated, Any

import pytest
import typer
import typer.main
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.catalog.documents import write_document
from headrace.commands.on_demand import BLAS_THREADS
from headrace.commands.values import NOT_PLAIN, plain_value, read_plainly
from helpers.problems import make_profile

PROBLEM = """\
schema: headrace.problem/1
cluster:
  devices: {a: {shares: ["1", 1/2]}, b: {}}
  nodes:
    - {name: local, devices: {a: 1, b: 2}}
models:
  - {profile: m.profile.json, slo_ms: 200}
"""

PROGRAM = f"""
import json, os, sys
from headrace.cli import main
try:
    main()
finally:
    said = sorted(sys.modules), os.environ.get("{BLAS_THREADS}")
    print(json.dumps(said), file=sys.stderr)
"""

OF_OTHER_COMMANDS = {
    *("pydantic", "numba", "onnx", "onnxruntime", "uvloop", "prometheus_client"),
    *("asyncio", "multiprocessing", "numpy.ma", "rich.progress", "rich.status", "rich.markdown"),
    *("headrace.commands.serve", "headrace.commands.simulate", "headrace.simulation.run"),
    *("headrace.profiling", "headrace.serving", "headrace.dispatch"),
}


def modules_after(*arguments: str, cwd: Path) -> set[str]:
    """What a process has imported that ran the program; it leaves the environment as it was."""
    ended = subprocess.run(
        [sys.executable, "-c", PROGRAM, *arguments],
        capture_output=True,
        text=True,
        check=True,
        cwd=cwd,
        env={name: value for name, value in os.environ.items() if name != BLAS_THREADS},
    )
    modules, threads = json.loads(ended.stderr.splitlines()[-1])
    assert threads is None
    return set(modules)


def test_a_small_plan_needs_neither_what_other_commands_need_nor_pydantic(tmp_path: Path) -> None:
    write_document(make_profile(), tmp_path / "m.profile.json")
    (tmp_path / "problem.yaml").write_text(PROBLEM)

    modules = modules_after("plan", "problem.yaml", "--max-batch", "4", cwd=tmp_path)

    assert (tmp_path / "plan.json").exists()
    assert {"numpy", "headrace.commands.plan"} <= modules
    assert modules & OF_OTHER_COMMANDS == set()


def test_the_version_needs_no_command(tmp_path: Path) -> None:
    modules = modules_after("--version", cwd=tmp_path)

    assert modules & {"numpy", "msgspec", "pydantic", "rich"} == set()
    assert {name for name in modules if name.startswith("headrace.commands.")} == {
        "headrace.commands.ending",
        "headrace.commands.on_demand",
        "headrace.commands.values",
    }


# -- values --------------------------------------------------------------------------------------

Words = st.one_of(
    st.text(max_size=8),
    st.from_regex(r"[-+]?[0-9_]{0,18}(\.[0-9]*)?([eE][-+]?[0-9]{1,3})?\s?", fullmatch=True),
    st.sampled_from(
        ["nan", "inf", "-0", "1_0", " 7", "7 ", "٣", ".5", "5.", "/", ".", "1e5", "007"]
    ),
)


def takes_plain_kinds(
    word: str,
    whole: int,
    ranged: Annotated[int, typer.Argument(min=2, max=300)],
    number: Annotated[float, typer.Argument(min=-1.5)],
    path: Path,
    folder: Annotated[Path, typer.Argument(exists=True, file_okay=False)],
    words: list[str],
    numbers: list[int],
) -> None: ...


def parameters() -> dict[str, Any]:
    program = typer.Typer(add_completion=False)
    program.command()(takes_plain_kinds)
    command: Any = typer.main.get_command(program)
    return {param.name: param for param in command.params if param.name != "help"}


PARAMETERS = parameters()


def as_typer_reads(name: str, value: object) -> object:
    """NOT_PLAIN where it refuses."""
    param = PARAMETERS[name]
    try:
        return param.get_runtime_param().coerce(value, param=param, ctx=None)
    except typer.BadParameter:
        return NOT_PLAIN


def as_we_read(name: str, value: object) -> object:
    of_typer = PARAMETERS[name].type_descriptor
    return plain_value(value, of_typer.annotation, of_typer.parameter_info)


@settings(max_examples=60)
@given(
    name=st.sampled_from(sorted(PARAMETERS)), value=st.one_of(Words, st.lists(Words, max_size=2))
)
def test_a_plain_value_is_what_typer_makes_of_it(name: str, value: str | list[str]) -> None:
    ours = as_we_read(name, value)

    if ours is not NOT_PLAIN:
        assert repr(ours) == repr(as_typer_reads(name, value))


@pytest.mark.parametrize(
    ("name", "value", "plain"),
    [
        ("word", "a", "a"),
        ("whole", "-12", -12),
        ("whole", 3, 3),
        ("ranged", "300", 300),
        ("number", "0.25", 0.25),
        ("number", "1e3", 1000.0),
        ("path", "a/b", Path("a/b")),
        ("path", Path("a"), Path("a")),
        ("words", ["a", "b"], ["a", "b"]),
        ("numbers", ("1", "2"), [1, 2]),
        ("whole", "1_0", NOT_PLAIN),
        ("whole", "x", NOT_PLAIN),
        ("whole", True, NOT_PLAIN),
        ("ranged", "301", NOT_PLAIN),
        ("ranged", "1", NOT_PLAIN),
        ("number", "nan", NOT_PLAIN),
        ("number", "-2", NOT_PLAIN),
        ("path", "a\0", NOT_PLAIN),
        ("folder", "/", NOT_PLAIN),
        ("numbers", ["1", "x"], NOT_PLAIN),
    ],
)
def test_what_is_plain_is_read_here_and_all_else_by_typer(
    name: str, value: object, plain: object
) -> None:
    assert as_we_read(name, value) == plain


def test_the_installed_typer_reads_values_where_we_look_for_it() -> None:
    params = parameters()
    before = [param._runtime_param for param in params.values()]

    read_plainly(list(params.values()))

    assert before == [None] * len(params)
    for name, param in params.items():
        assert type(param.get_runtime_param()).__name__ == "Plain", name
    with pytest.raises(typer.BadParameter, match="integer"):
        params["whole"].get_runtime_param().coerce("x", param=params["whole"], ctx=None)
