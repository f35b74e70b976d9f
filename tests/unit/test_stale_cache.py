"""Machine code on disk: what an older version left is no error, what is ours is loaded quickly."""

import subprocess
import sys
from pathlib import Path

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
