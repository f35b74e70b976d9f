"""What the documentation shows is true: files parse, commands exist, links lead somewhere."""

import ast
import importlib
import re
import shlex
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import typer.main

from headrace.catalog.documents import read_problem, write_document
from headrace.cli import app
from helpers.doc_pages import BLOCKS, FENCED, PAGES, ROOT, Block, inline_code
from helpers.problems import make_profile

_LINK = re.compile(r"\]\((?!https?://)(?P<path>[^)#]*)(?:#(?P<anchor>[^)]+))?\)")
_HEADING = re.compile(r"^#+ (.*)$", re.MULTILINE)
_MODULE = re.compile(r"python -m ((?:benchmarks|examples)[\w.]*)(.*)")
_PLACES = ("src", "tests", "docs", "benchmarks", "examples", "changelog.d", "deploy")

PROGRAMS = [block for block in BLOCKS if block.kind == "python"]
PROBLEMS = [block for block in BLOCKS if block.test.startswith("problem")]
FILE = "file "
FILES_SHOWN = [block for block in BLOCKS if block.test.startswith(FILE)]
"""What the sessions of their page read."""
SESSIONS = [block for block in BLOCKS if block.test == "console"]
SHOWN = [(str(block), line) for block in BLOCKS for line in block.commands()] + [
    (str(page.relative_to(ROOT)), code) for page in PAGES for code in inline_code(page)
]
"""Where, and what stands there: commands in blocks, and all code in the prose."""
COMMANDS = [(where, line) for where, line in SHOWN if line.startswith("headrace ")]
MODULES = [(where, found[1], found[2]) for where, line in SHOWN if (found := _MODULE.search(line))]
FILES = sorted(
    {(where, code) for where, code in SHOWN if re.fullmatch(r"[a-z_\d./-]+\.py", code)}
    | {
        (where, code)
        for where, code in SHOWN
        if re.fullmatch(rf"({'|'.join(map(re.escape, _PLACES))})/[\w./-]*", code)
    }
)


@pytest.mark.parametrize("block", PROBLEMS, ids=str)
def test_a_problem_that_is_shown_is_read(block: Block, tmp_path: Path) -> None:
    given = dict(word.split("=") for word in block.test.split()[1:])
    names = [*re.findall(r"(\w+)\.profile\.json", block.body), "recogniser"]
    for name in names:
        profile = make_profile(name, devices={"cpu": 1.0})
        write_document(profile, tmp_path / f"{name}.profile.json")
    write_document(profile, tmp_path / given.get("profile", "recogniser.profile.json"))
    (tmp_path / "problem.yaml").write_text(block.body)

    assert read_problem(tmp_path / "problem.yaml").demands[0].model == "recogniser"


@pytest.mark.parametrize("block", PROGRAMS, ids=str)
def test_a_program_that_is_shown_imports_what_there_is(block: Block) -> None:
    for node in ast.walk(ast.parse(block.body)):
        if isinstance(node, ast.ImportFrom) and str(node.module).startswith("headrace"):
            module = importlib.import_module(str(node.module))
            assert all(hasattr(module, alias.name) for alias in node.names)


@pytest.mark.parametrize("block", SESSIONS, ids=str)
def test_a_session_that_is_shown_prints_what_it_shows(block: Block, tmp_path: Path) -> None:
    """Lines after a command are its output; `…` stands for anything."""
    for file in FILES_SHOWN:
        if file.page == block.page:
            (tmp_path / file.test.removeprefix(FILE)).write_text(file.body)
    program = Path(sys.executable).parent / "headrace"
    for session in re.split(r"^\$ ", block.body, flags=re.MULTILINE)[1:]:
        command, _, shown = session.partition("\n")
        arguments = shlex.split(command, comments=True)
        assert arguments[0] == "headrace"

        done = subprocess.run(
            [program, *arguments[1:]],
            cwd=tmp_path,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

        expected = ".*".join(map(re.escape, shown.strip().split("…")))
        assert re.fullmatch(expected, done.stdout.strip(), re.DOTALL), done.stdout


@pytest.mark.parametrize(
    ("where", "line"), COMMANDS, ids=[f"{where}-{line.split()[1]}" for where, line in COMMANDS]
)
def test_a_command_that_is_shown_exists_with_its_options(where: str, line: str) -> None:
    program: Any = typer.main.get_command(app)
    words = shlex.split(line.partition(" > ")[0].partition(" | ")[0], comments=True)[1:]
    if words[0].startswith("--"):
        return
    while hasattr(program, "commands"):
        assert words[0] in program.commands, f"{where}: no command {words[0]!r}"
        program, words = program.commands[words[0]], words[1:]
    known = {name for param in program.params for name in (*param.opts, *param.secondary_opts)}
    options = {word.partition("=")[0] for word in words if re.match(r"--?[A-Za-z]", word)}

    assert options <= known | {"--help"}


@pytest.mark.parametrize(("where", "module", "arguments"), MODULES)
def test_a_measurement_that_is_named_exists_with_its_options(
    where: str, module: str, arguments: str
) -> None:
    file = ROOT / Path(*module.split("."))
    assert file.with_suffix(".py").exists(), f"{where}: no module {module}"
    package = "".join(path.read_text() for path in file.parent.glob("*.py"))
    if "benchmarks.studies" in package:
        package += (ROOT / "benchmarks" / "studies.py").read_text()

    for option in re.findall(r"(?<!\S)--[a-z-]+", arguments):
        assert f'"{option}"' in package, f"{where}: {module} has no {option}"


@pytest.mark.parametrize(("where", "name"), FILES)
def test_a_file_that_is_named_exists(where: str, name: str) -> None:
    within = [path for place in _PLACES for path in (ROOT / place).rglob(Path(name).name)]

    assert (ROOT / name).exists() or any(
        path.as_posix().endswith(f"/{name.strip('/')}") for path in within
    )


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    text = FENCED.sub("", page.read_text())
    for link in _LINK.finditer(text):
        target = (page.parent / link["path"]).resolve() if link["path"] else page
        assert target.exists(), f"{page.name}: {link['path']} is not there"
        if link["anchor"]:
            anchors = {_anchor(heading) for heading in _HEADING.findall(target.read_text())}
            assert link["anchor"] in anchors, f"{page.name}: no heading #{link['anchor']}"


def test_the_list_of_decisions_has_each_under_its_title() -> None:
    folder = ROOT / "docs" / "decisions"
    pages = sorted(folder.glob("0*.md"))
    titles = [page.read_text().partition("\n")[0].removeprefix("# ") for page in pages]

    listed = re.findall(
        r"^\| \[(\d+)\]\((.+?)\) \| (.+) \|$", (folder / "README.md").read_text(), re.M
    )

    assert [(name, f"{number}: {title}") for number, name, title in listed] == [
        (page.name, title) for page, title in zip(pages, titles, strict=True)
    ]


def test_a_word_of_the_glossary_is_explained_once() -> None:
    text = (ROOT / "docs" / "reference" / "glossary.md").read_text()
    words = re.findall(r"^\| ([a-z][^|]*?) \|", text, re.M)
    counted = Counter(part for word in words if word != "our word" for part in word.split(", "))

    assert [word for word, times in counted.items() if times > 1] == []


def _anchor(heading: str) -> str:
    """How a heading is linked to."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")
