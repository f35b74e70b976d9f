"""The commands that the documentation shows run, page by page, in the order in which they stand.

Those that need no server, no Ray cluster and time nothing: plan, verify, simulate, trace, schema.
Profiles are made up; files that other commands would have left (a plan, the event logs that the
page has written) are there.
"""

import json
import re
import shlex
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from headrace import cli
from headrace.catalog.documents import write_document
from headrace.simulation.apps import headroom
from helpers.doc_pages import BLOCKS, PAGES, ROOT, Block
from helpers.problems import HANG_S, make_profile
from helpers.shared import make_interference

RUN = ("plan", "verify", "simulate", "trace", "schema")

Run = Callable[[str], None]


def commands_of(page: Path, *, app: bool) -> list[str]:
    return [
        line
        for block in BLOCKS
        if block.page == page and (block.test == "app") == app and block.test != "console"
        for line in block.commands()
        if line.startswith(tuple(f"headrace {name} " for name in RUN))
        and "--cluster ray" not in line
    ]


def problem_of(page: Path, *, app: bool) -> str:
    """The page's own problem; where it shows none, the README's, or that of the how-to on apps."""

    def shown(on: Path) -> Block | None:
        wanted = "app" if app else "problem"
        found = (b for b in BLOCKS if b.page == on and b.kind == "yaml")
        return next((b for b in found if b.test.startswith(wanted)), None)

    default = ROOT / ("docs/how-to/plan-an-app.md" if app else "README.md")
    block = shown(page) or shown(default)
    assert block is not None
    return block.body


def events_of(page: Path) -> set[str]:
    """The event logs that the page has somebody write; of the reference, those that it reads."""
    option = "trace" if page.parent.name == "reference" else "--events"
    return set(re.findall(rf"{option} (\w+\.events)\b", page.read_text()))


def write_problem(text: str, path: Path) -> None:
    """The problem, and a profile for each that it names."""
    path.parent.mkdir(exist_ok=True)
    path.write_text(text)
    devices = dict.fromkeys(yaml.safe_load(text)["cluster"]["devices"], 1.0)
    for model in re.findall(r"(\w+)\.profile\.json", text):
        profile = make_profile(model, devices=devices, cut_bytes=4_000)
        write_document(profile, path.parent / f"{model}.profile.json")


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """Run a command line in the folder; it must end with exit code 0. Sessions are brief."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(headroom, "SESSIONS", 1)
    monkeypatch.setattr(headroom, "REQUESTS_TOGETHER", 400)

    def runner(line: str) -> None:
        words = shlex.split(line.partition(" > ")[0], comments=True)
        if words[1] == "plan" and "--time-limit-s" not in words:
            # The usual minute may be over on a busy machine that has to compile first.
            words += ["--time-limit-s", f"{HANG_S:g}"]
        if words[1] == "simulate" and "--at" not in words:
            # That it runs is asked, not what a minute brings; the last value counts.
            words += ["--duration-s", "2"]
        monkeypatch.setattr(sys, "argv", words)
        with pytest.raises(SystemExit) as ended:
            cli.main()
        assert not ended.value.code, f"$ {line}\n{capsys.readouterr().err}"

    return runner


PARTS = [(page, app) for page in PAGES for app in (False, True) if commands_of(page, app=app)]


@pytest.mark.parametrize(
    ("page", "app"),
    PARTS,
    ids=[f"{page.relative_to(ROOT)}{'-app' if app else ''}" for page, app in PARTS],
)
def test_the_commands_of_a_page_run(page: Path, app: bool, run: Run) -> None:
    write_problem(problem_of(page, app=app), Path("problem.yaml"))
    # As `headrace import` would leave it, and what the reference calls its example of apps.
    write_problem(problem_of(page, app=app), Path("g1/problem.yaml"))
    write_problem(problem_of(page, app=True), Path("apps.yaml"))
    # As `headrace rehearse --out` would leave it.
    again = json.dumps(yaml.safe_load(problem_of(page, app=app)))
    write_problem(again, Path("rehearsed.json"))
    # As `headrace interfere` would leave it.
    device = next(iter(json.loads(again)["cluster"]["devices"]))
    write_document(make_interference(device=device), Path("measured.interference.json"))
    run("headrace plan problem.yaml -o plan.json")
    for events in events_of(page):
        run(f"headrace simulate plan.json --load-factor 0.5 --duration-s 2 --events {events}")

    for line in commands_of(page, app=app):
        run(line)
