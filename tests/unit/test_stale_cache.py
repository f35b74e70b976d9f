"""Machine code that an older version left on disk is no error after an upgrade."""

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
