"""Every benchmark's `--help` prints and ends, and commands that are shown run as they stand.

By reading the modules: to start each takes minutes, and some need packages that are not there.
"""

import ast
import re
from functools import cache
from pathlib import Path

import pytest

from helpers.doc_pages import BLOCKS, PAGES, ROOT, inline_code

_COMMAND = re.compile(r"python -m (benchmarks[\w.]*)")
_READS = ("parse_args", "parse_known_args", "options")
"""What reads a command line and prints help; the last is `benchmarks.ppipe.experiment.options`."""


@cache
def module_of(name: str) -> ast.Module:
    """Empty: none of ours."""
    path = ROOT / Path(*name.split(".")).with_suffix(".py")
    return ast.parse(path.read_text() if path.exists() else "")


@cache
def nodes_of(module: str) -> tuple[ast.AST, ...]:
    return tuple(ast.walk(module_of(module)))


def calls_in(module: str) -> list[ast.Call]:
    return [node for node in nodes_of(module) if isinstance(node, ast.Call)]


def called(call: ast.Call) -> str:
    """The function's name alone."""
    return str(getattr(call.func, "attr", None) or getattr(call.func, "id", ""))


def imports_of(module: str) -> set[str]:
    found: set[str] = set()
    for node in nodes_of(module):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
    return found


@cache
def needs_tests(module: str) -> bool:
    """Whether it imports what lies in `tests`, directly or not."""
    seen, left = set[str](), {module}
    while left:
        one = left.pop()
        seen.add(one)
        found = imports_of(one)
        if any(name.split(".")[0] == "helpers" for name in found):
            return True
        left |= {name for name in found if name.startswith("benchmarks.")} - seen
    return False


def has_command(module: str) -> bool:
    guards = [node for node in module_of(module).body if isinstance(node, ast.If)]
    return any("__name__" in ast.unparse(guard.test) for guard in guards)


MODULES = [
    ".".join(path.relative_to(ROOT).with_suffix("").parts)
    for path in sorted((ROOT / "benchmarks").rglob("*.py"))
]
COMMANDS = [module for module in MODULES if has_command(module)]


@pytest.mark.parametrize("module", COMMANDS)
def test_a_benchmark_reads_its_command_line_once_and_by_a_parser(module: str) -> None:
    """What is read twice prints a help that lacks what is added in between."""
    read = [name for call in calls_in(module) if (name := called(call)) in _READS]
    by_hand = any(getattr(node, "attr", "") == "argv" for node in nodes_of(module))

    assert len(read) == 1
    assert not by_hand or read == ["parse_known_args"]


def test_help_of_benchmarks_has_no_percent_sign_that_formats() -> None:
    for module in MODULES:
        for call in calls_in(module):
            for keyword in call.keywords:
                if called(call) == "add_argument" and keyword.arg == "help":
                    text = _plain(keyword.value)
                    assert text % {"default": ""}, f"{module}: {text}"


def _plain(node: ast.expr) -> str:
    """A text; what is formatted into it has no percent signs."""
    if isinstance(node, ast.Constant):
        return str(node.value)
    parts = node.values if isinstance(node, ast.JoinedStr) else []
    return "".join(_plain(part) for part in parts) or "?"


SHOWN = [(module, ast.get_docstring(module_of(module)) or "") for module in COMMANDS]
SHOWN += [(str(page.relative_to(ROOT)), "\n".join(inline_code(page))) for page in PAGES]
SHOWN += [(str(block), "\n".join(block.commands())) for block in BLOCKS]


@pytest.mark.parametrize(("where", "text"), SHOWN, ids=[where for where, _ in SHOWN])
def test_commands_of_benchmarks_name_the_folder_that_they_need(where: str, text: str) -> None:
    for line in text.splitlines():
        found = _COMMAND.search(line)
        if found and needs_tests(found[1]):
            assert f"PYTHONPATH=tests {found[0]}" in line, f"{where}: {line}"
