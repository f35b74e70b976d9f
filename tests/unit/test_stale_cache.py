"""Machine code on disk: what an older version left is no error, what is ours is loaded quickly, and
where nothing can be kept it works still."""

import os
import resource
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from helpers.lengthy import with_lengthy

TYPES = """
from typing import NamedTuple

class {name}(NamedTuple):
    length: int
"""

FUNCTIONS = """
from headrace.compilation.loops import compiled

@compiled
def doubled(tables):
    return 2 * tables.length
"""


def doubled_by(folder: Path, name: str) -> str:
    """As a process of its own says it, with the class under this name."""
    (folder / "kinds.py").write_text(TYPES.format(name=name))
    call = f"import functions, kinds; print(functions.doubled(kinds.{name}(21)))"
    arguments = [sys.executable, "-B", "-c", call]
    return subprocess.run(
        arguments, cwd=folder, capture_output=True, text=True, check=True
    ).stdout.strip()


@pytest.mark.lengthy
def test_a_class_that_got_another_name_leaves_its_callers_as_they_were(tmp_path: Path) -> None:
    (tmp_path / "functions.py").write_text(FUNCTIONS)
    assert doubled_by(tmp_path, "Tables") == "42"
    assert list(tmp_path.glob("__pycache__/*.nbi")), "nothing was kept that could be stale"
    assert doubled_by(tmp_path, "WalkTables") == "42"


SUMS = """
import sys
from headrace.compilation.loops import compiled

@compiled
def total(numbers):
    found = 0
    for i in range(len(numbers)):
        found += numbers[i]
    return found

@compiled
def doubled(numbers):
    return 2 * numbers

def knows_python():
    return "numba.cpython.unicode" in sys.modules
"""
USES = """
import numpy as np, sums
numbers = np.array([1, 2, 3])
print(sums.total(numbers), sums.knows_python())
"""
COMPILES = USES + "print(sums.doubled(numbers).tolist(), sums.knows_python())"


@pytest.mark.lengthy
def test_what_is_kept_is_loaded_without_the_compiler_and_anything_else_is_compiled_still(
    tmp_path: Path,
) -> None:
    (tmp_path / "sums.py").write_text(SUMS)

    def said(code: str) -> str:
        arguments = [sys.executable, "-B", "-c", code]
        return subprocess.run(
            arguments, cwd=tmp_path, capture_output=True, text=True, check=True
        ).stdout

    assert said(USES) == "6 True\n"
    assert said(USES) == "6 False\n"
    assert said(COMPILES) == "6 False\n[2, 4, 6] True\n"


# -- where it is kept ----------------------------------------------------------------------------

NOWHERE = "file/below"
"""No folder, whoever asks for one: root may write to those that are read-only."""


def said_with(
    folder: Path, before: Callable[[], None] | None = None, **variables: str
) -> tuple[str, str]:
    """What it says of two functions, and complains of, where numba finds no folder but these."""
    (folder / "sums.py").write_text(SUMS)
    for name in ("__pycache__", "file"):
        (folder / name).touch()
    nowhere = dict.fromkeys(("NUMBA_CACHE_DIR", "XDG_CACHE_HOME", "HEADRACE_CACHE"), NOWHERE)
    done = subprocess.run(
        [sys.executable, "-B", "-c", COMPILES],
        cwd=folder,
        env={**os.environ, **nowhere, **variables},
        preexec_fn=before,
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout, done.stderr


COMPILED = "6 True\n[2, 4, 6] True\n"
LOADED = "6 False\n[2, 4, 6] True\n"
"""Both; but the one that returns an array has numba import its compiler all the same."""


@pytest.mark.lengthy
def test_where_numba_finds_no_folder_it_is_kept_below_our_own(tmp_path: Path) -> None:
    assert said_with(tmp_path, HEADRACE_CACHE="ours/cache") == (COMPILED, "")
    assert said_with(tmp_path, HEADRACE_CACHE="ours/cache") == (LOADED, "")
    [kept] = (tmp_path / "ours" / "cache" / "compiled").iterdir()
    assert kept.stat().st_mode & 0o077 == 0, "what others write there would be run"


def test_where_nothing_can_be_written_it_works_and_says_once_what_to_set(tmp_path: Path) -> None:
    said, complained = said_with(tmp_path)

    assert said == COMPILED
    [notice] = complained.splitlines()
    assert f"cannot be kept in {NOWHERE}/compiled/" in notice
    assert notice.endswith("set HEADRACE_CACHE to a folder that you may write to")


@pytest.mark.parametrize(
    "variable", with_lengthy(["HEADRACE_CACHE", "NUMBA_CACHE_DIR"], lengthy=["NUMBA_CACHE_DIR"])
)
def test_where_there_is_no_room_it_works_and_says_whose_folder_is_full(
    tmp_path: Path, variable: str
) -> None:
    def fill() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (100, 100))

    said, complained = said_with(tmp_path, fill, **{variable: "full"})

    assert said == COMPILED
    [notice] = complained.splitlines()
    assert "cannot be kept in full/" in notice
    assert notice.endswith(f"make room there, or set {variable} to a folder that has room")
    assert not list(tmp_path.rglob("*.tmp.*"))


# -- what else is compiled in --------------------------------------------------------------------

LIMITS = """
from headrace.compilation.loops import compiled

EPSILON = {epsilon}
ROWS = ({epsilon}, 2)

@compiled
def doubled(number):
    return {twice} * number
"""

USES_LIMITS = """
import limits
from headrace.compilation.loops import compiled
from limits import EPSILON, doubled

HALF = EPSILON / 2

@compiled
def inner():
    return HALF

@compiled
def named(number):
    return EPSILON + number

@compiled
def through_another_function(number):
    return inner() + number

@compiled
def of_a_module(number):
    return limits.EPSILON + limits.ROWS[0] + number

@compiled
def by_another_file(number):
    return doubled(number)
"""


@pytest.mark.lengthy
def test_a_constant_or_a_function_of_another_file_is_the_new_one_when_that_file_changes(
    tmp_path: Path,
) -> None:
    (tmp_path / "uses.py").write_text(USES_LIMITS)
    call = (
        "import sys, uses; print(uses.named(0.0), uses.through_another_function(0.0),"
        " uses.of_a_module(0.0), uses.by_another_file(1), 'numba.cpython.unicode' in sys.modules)"
    )

    def said(epsilon: float, twice: int) -> str:
        (tmp_path / "limits.py").write_text(LIMITS.format(epsilon=epsilon, twice=twice))
        arguments = [sys.executable, "-B", "-c", call]
        return subprocess.run(
            arguments, cwd=tmp_path, capture_output=True, text=True, check=True
        ).stdout.strip()

    assert said(1.0, 2) == "1.0 0.5 2.0 2 True"
    assert said(5.0, 3) == "5.0 2.5 10.0 3 True"
    assert said(5.0, 3) == "5.0 2.5 10.0 3 False", "what has not changed is loaded"
