"""A new planner is one new file and one line of `PLANNERS`.

The command line, verification and simulation take it from there.
"""

from pathlib import Path

from headrace.catalog.documents import write_document
from helpers.additions import Addition, CopiedPackage
from helpers.served import profile_by_hand

TOY = Addition(
    table="planning/__init__.py",
    behind="PLANNERS: dict[str, Planner] = {\n",
    line='    "toy": _planner("toy", "plan_toy"),\n',
    file="planning/toy.py",
    source='''
"""What `no-partitioning` finds, without its proof."""

from msgspec.structs import replace

from headrace.planning.baselines.no_partitioning import plan_without_partitioning


def plan_toy(problem):
    found = plan_without_partitioning(problem)
    plan = replace(
        found.plan,
        planner="toy",
        options=replace(problem.options, planner="toy"),
        bound=None,
        gap=None,
        stopped="heuristic",
    )
    return replace(found, plan=plan, bound=None, stopped="heuristic")
''',
)
PROBLEM = """
schema: headrace.problem/1
cluster:
  devices:
    cpu: {price_per_hour: 0.04}
  nodes:
    - {name: local, devices: {cpu: 2}}
models:
  - {name: m, profile: m.profile.json, slo_ms: 300}
options: {planner: toy}
"""


def test_a_new_planner_is_one_new_file_and_one_line_of_the_table(tmp_path: Path) -> None:
    package = CopiedPackage(tmp_path, TOY, NUMBA_DISABLE_JIT="1")
    write_document(profile_by_hand(["h0", "y"], 4, 10_000, "cpu"), tmp_path / "m.profile.json")
    problem, plan = tmp_path / "problem.yaml", tmp_path / "plan.json"
    problem.write_text(PROBLEM)

    for arguments in (
        ("plan", str(problem), "-o", str(plan)),
        ("verify", str(plan)),
        ("simulate", str(plan), "--rps", "20", "--duration-s", "1"),
    ):
        ran = package.headrace(*arguments)
        assert ran.returncode == 0, ran.stderr
    assert '"planner": "toy"' in plan.read_text()

    refused = package.headrace("plan", str(problem), "--planner", "nothing")
    assert refused.returncode == 2
    assert "toy, pooled" in " ".join(refused.stderr.split()), refused.stderr
