"""`headrace plan` and `headrace verify` as a user runs them."""

import json
from pathlib import Path

import msgspec
import pytest
from typer.testing import CliRunner

from headrace.catalog.documents import read_plan, write_document
from headrace.cli import app
from headrace.domain.errors import DocumentError, InfeasibleError, PlanError
from helpers.problems import make_profile

PROBLEM = """\
schema: headrace.problem/1
cluster:
  devices:
    a: {price_per_hour: 2.0}
    b: {price_per_hour: 1.0}
  nodes:
    - {name: local, devices: {a: 1, b: 2}}
models:
  - {profile: m.profile.json, slo_ms: SLO}
options: {time_limit_s: 600}  # on a busy machine, compiling alone may take the usual minute
"""


@pytest.fixture
def problem(tmp_path: Path) -> Path:
    write_document(make_profile(), tmp_path / "m.profile.json")
    path = tmp_path / "problem.yaml"
    path.write_text(PROBLEM.replace("SLO", "120"))
    return path


def run(*arguments: str | Path) -> str:
    result = CliRunner().invoke(app, [str(argument) for argument in arguments])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    assert result.exit_code == 0, result.output
    return result.stdout


def test_a_problem_becomes_a_plan_that_verifies(problem: Path, tmp_path: Path) -> None:
    out = tmp_path / "plans" / "plan.json"
    out.parent.mkdir()
    table = run("plan", problem, "-o", out)
    assert "proven optimal" in table
    assert "binding" in table
    assert read_plan(out).profiles[0].path == "../m.profile.json"
    assert "broken" not in run("verify", out)


def test_the_plan_is_printed_as_json_too(problem: Path, tmp_path: Path) -> None:
    out = tmp_path / "plan.json"
    printed = json.loads(run("plan", problem, "-o", out, "--json"))
    assert printed == json.loads(out.read_text())


def test_options_on_the_command_line_win(problem: Path, tmp_path: Path) -> None:
    out = tmp_path / "plan.json"
    run("plan", problem, "-o", out, "--margin", "0.2", "--max-stages", "1", "--max-batch", "1")
    plan = read_plan(out)
    assert plan.options.margin == 0.2
    assert {len(p.stages) for d in plan.deployments for p in d.pipelines} == {1}
    assert {p.batch_size for d in plan.deployments for p in d.pipelines} == {1}


def test_the_baseline_is_never_better(problem: Path, tmp_path: Path) -> None:
    objectives = {}
    for planner in ("pooled", "no-partitioning"):
        out = tmp_path / f"{planner}.json"
        run("plan", problem, "-o", out, "--planner", planner)
        objectives[planner] = read_plan(out).objective
    assert objectives["pooled"] >= objectives["no-partitioning"]


def test_an_impossible_problem_says_what_would_do(problem: Path, tmp_path: Path) -> None:
    problem.write_text(PROBLEM.replace("SLO", "5"))
    with pytest.raises(InfeasibleError, match="SLO") as refusal:
        run("plan", problem, "-o", tmp_path / "plan.json")
    assert refusal.value.exit_code == 3
    assert not (tmp_path / "plan.json").exists()


def test_an_unknown_objective_is_named(problem: Path, tmp_path: Path) -> None:
    with pytest.raises(DocumentError, match="'best' is none of"):
        run("plan", problem, "-o", tmp_path / "plan.json", "--objective", "best")


def test_a_plan_that_claims_too_much_fails_with_exit_code_4(problem: Path, tmp_path: Path) -> None:
    out = tmp_path / "plan.json"
    run("plan", problem, "-o", out)
    write_document(msgspec.structs.replace(read_plan(out), objective=1e9), out)
    with pytest.raises(PlanError, match="objective") as failure:
        run("verify", out)
    assert failure.value.exit_code == 4
