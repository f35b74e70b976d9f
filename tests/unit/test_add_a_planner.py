"""A new planner is one new file and one changed line.

Its file and line go into a copy of the package; the command line, the list of names in an error and
`headrace verify` then know it.
"""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import headrace
from headrace.catalog.documents import write_document
from helpers.problems import make_profile

TABLE = "planning/__init__.py"
BEFORE = '    "dart-r": '
LINE = '    "toy": _of("toy", "plan_single_requests"),\n'
FILE = """
from msgspec.structs import replace

from headrace.domain.plan import PlanResult
from headrace.domain.problem import Problem
from headrace.planning.pooled.planner import plan_pooled


def plan_single_requests(problem: Problem) -> PlanResult:
    return plan_pooled(replace(problem, options=replace(problem.options, max_batch=1)))
"""
PROBLEM = """\
schema: headrace.problem/1
cluster:
  devices: {a: {}, b: {}}
  nodes: [{name: n, devices: {a: 1, b: 1}}]
models: [{name: m, profile: m.json, slo_ms: 60}]
"""


def test_a_planner_is_one_new_file_and_one_changed_line(tmp_path: Path) -> None:
    packages = tmp_path / "packages"
    shutil.copytree(Path(headrace.__file__).parent, packages / "headrace")
    (packages / "headrace" / "planning" / "toy.py").write_text(FILE)
    table = packages / "headrace" / TABLE
    text = table.read_text()
    assert text.count(BEFORE) == 1
    table.write_text(text.replace(BEFORE, LINE + BEFORE))
    write_document(make_profile(), tmp_path / "m.json")
    (tmp_path / "problem.yaml").write_text(PROBLEM)

    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-c", "from headrace.cli import main; main()", *arguments],
            cwd=tmp_path,
            env={**os.environ, "PYTHONPATH": str(packages)},
            capture_output=True,
            text=True,
        )

    planned = run("plan", "problem.yaml", "--planner", "toy", "-o", "plan.json", "--json")
    verified = run("verify", "plan.json")
    unknown = run("plan", "problem.yaml", "--planner", "toys")

    assert planned.returncode == 0, planned.stderr
    assert '"planner": "toy"' in planned.stdout
    assert '"batch_size": 1' in planned.stdout
    assert verified.returncode == 0, verified.stderr
    assert unknown.returncode == 2
    assert "toy," in unknown.stderr
