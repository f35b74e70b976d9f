"""What the documentation shows is true: files parse, commands exist, links lead somewhere."""

import re
import shlex
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import typer.main

from headrace.catalog.documents import read_problem, write_document
from headrace.cli import app
from helpers.problems import make_profile

ROOT = Path(__file__).parents[2]
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("benchmarks/**/*.md")])

_BLOCK = re.compile(
    r"^(?:<!-- test: (?P<test>[^>]*?) -->\n+)?```(?P<kind>\w+)\n(?P<body>.*?)^```$",
    re.MULTILINE | re.DOTALL,
)
_LINK = re.compile(r"\]\((?!https?://)(?P<path>[^)#]*)(?:#(?P<anchor>[^)]+))?\)")
_HEADING = re.compile(r"^#+ (.*)$", re.MULTILINE)


@dataclass(frozen=True)
class Block:
    """One fenced block."""

    page: Path
    line: int
    kind: str
    test: str
    body: str

    def __str__(self) -> str:
        return f"{self.page.relative_to(ROOT)}:{self.line}"


def blocks_of(page: Path) -> list[Block]:
    text = page.read_text()
    return [
        Block(
            page=page,
            line=text.count("\n", 0, found.start("body")) + 1,
            kind=found["kind"],
            test=found["test"] or "",
            body=found["body"],
        )
        for found in _BLOCK.finditer(text)
    ]


BLOCKS = [block for page in PAGES for block in blocks_of(page)]
PROBLEMS = [block for block in BLOCKS if block.test.startswith("problem")]
SESSIONS = [block for block in BLOCKS if block.test == "console"]
COMMANDS = [
    (block, line.removeprefix("$ "))
    for block in BLOCKS
    if block.kind == "console"
    for line in block.body.splitlines()
    if line.startswith("$ headrace ")
]


@pytest.mark.parametrize("block", PROBLEMS, ids=str)
def test_a_problem_that_is_shown_is_read(block: Block, tmp_path: Path) -> None:
    profile = dict(word.split("=") for word in block.test.split()[1:]).get(
        "profile", "recogniser.profile.json"
    )
    write_document(make_profile("recogniser", devices={"cpu": 1.0}), tmp_path / profile)
    (tmp_path / "problem.yaml").write_text(block.body)

    assert read_problem(tmp_path / "problem.yaml").demands[0].model == "recogniser"


@pytest.mark.parametrize("block", SESSIONS, ids=str)
def test_a_session_that_is_shown_prints_what_it_shows(block: Block, tmp_path: Path) -> None:
    """Lines after a command are its output; `…` stands for anything."""
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
    ("block", "line"), COMMANDS, ids=[f"{b}-{c.split()[1]}" for b, c in COMMANDS]
)
def test_a_command_that_is_shown_exists_with_its_options(block: Block, line: str) -> None:
    program: Any = typer.main.get_command(app)
    words = shlex.split(line.partition(" > ")[0].partition(" | ")[0], comments=True)[1:]
    if words[0].startswith("--"):
        return
    assert words[0] in program.commands, f"{block}: no command {words[0]!r}"
    known = {
        name
        for param in program.commands[words[0]].params
        for name in (*param.opts, *param.secondary_opts)
    }
    options = {word.partition("=")[0] for word in words[1:] if re.match(r"--?[A-Za-z]", word)}

    assert options <= known | {"--help"}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    text = _BLOCK.sub("", page.read_text())
    for link in _LINK.finditer(text):
        target = (page.parent / link["path"]).resolve() if link["path"] else page
        assert target.exists(), f"{page.name}: {link['path']} is not there"
        if link["anchor"]:
            anchors = {_anchor(heading) for heading in _HEADING.findall(target.read_text())}
            assert link["anchor"] in anchors, f"{page.name}: no heading #{link['anchor']}"


def _anchor(heading: str) -> str:
    """How a heading is linked to."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")
