"""A copy of the package with one new file and one changed line, used by a process of its own.

What CONTRIBUTING.md promises of a new planner, policy or executor is shown with these: nothing but
the file and the line differs from what is installed.
"""

import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import headrace


@dataclass(frozen=True, slots=True, kw_only=True)
class Addition:
    """`line` goes behind `behind`, which stands once in `table`; both paths are in the package."""

    table: str
    behind: str
    line: str
    file: str
    source: str


COMPILED = (".pyc", ".nbi", ".nbc")


def _unfinished(folder: str, names: list[str]) -> list[str]:
    """Of what is compiled and kept, files that another process is about to rename. The rest goes
    with the copy, as valid as it is here: it knows its source by content or time."""
    if not folder.endswith("__pycache__"):
        return []
    return [name for name in names if not name.endswith(COMPILED)]


class CopiedPackage:
    def __init__(self, folder: Path, added: Addition, **environment: str) -> None:
        package = folder / "headrace"
        source = Path(headrace.__file__).parent
        shutil.copytree(source, package, ignore=_unfinished)
        table = (package / added.table).read_text()
        assert table.count(added.behind) == 1, f"{added.behind!r} stands once in {added.table}"
        (package / added.table).write_text(table.replace(added.behind, added.behind + added.line))
        assert not (package / added.file).exists()
        (package / added.file).write_text(added.source)
        self._environment = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join([str(folder), *filter(None, sys.path)]),
            "HEADRACE_CACHE": str(folder / "cache"),
            **environment,
        }

    def python(self, code: str, *arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-c", code, *arguments],
            env=self._environment,
            capture_output=True,
            text=True,
        )

    def headrace(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """The command line."""
        return self.python("from headrace.cli import main; main()", *arguments)
