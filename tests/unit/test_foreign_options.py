"""Options that a planner does not know are refused by name, before anything is planned."""

import re
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from headrace.catalog.problem_file import ProblemFile, options_of, parse_problem
from headrace.catalog.yaml_lines import parse_yaml
from headrace.domain.errors import DocumentError
from headrace.domain.problem import PlanOptions
from headrace.planning import PLANNERS, solve
from headrace.planning.apps.names import APP_PLANNERS
from headrace.verify import verify
from helpers.apps import make_app_problem
from helpers.problems import make_problem, make_profile

STAGED: dict[str, Any] = {"min_stages": 2, "max_stages": 3}
CUTS = ("pooled", "no-partitioning", "dart-r")
"""Planners that know stages; of these, baselines state in their plan how many they have."""


@pytest.mark.parametrize("planner", sorted(PLANNERS.keys() - set(CUTS)))
def test_stages_are_refused_where_models_run_whole(planner: str) -> None:
    problem = make_app_problem(planner) if planner in APP_PLANNERS else make_problem()
    asked = replace(problem, options=replace(problem.options, planner=planner, **STAGED))

    with pytest.raises(DocumentError, match=re.escape(f"planner '{planner}': min_stages is of")):
        solve(asked)


@pytest.mark.parametrize(
    ("planner", "option", "value"),
    [
        ("provisioned", "max_tenants", 2),
        ("malleable", "max_tenants", 2),
        ("malleable", "link_parts", {"m": 0.5}),
        ("shares", "move_ms", 3.0),
        ("harpagon", "item_batch", 2),
    ],
)
def test_what_a_planner_does_not_know_is_named_with_what_to_do(
    planner: str, option: str, value: Any
) -> None:
    problem = make_app_problem(planner) if planner in APP_PLANNERS else make_problem()
    stated = {"planner": planner, option: value}
    asked = replace(problem, options=replace(problem.options, **stated))

    with pytest.raises(DocumentError, match=rf"planner '{planner}': {option} is of .*\n  try    "):
        solve(asked)


def file_of(models: str) -> ProblemFile:
    text = (
        "schema: headrace.problem/1\n"
        "cluster: {devices: {a: {}}, nodes: [{name: n0, devices: {a: 2}}]}\n"
        f"{models}\n"
        "options: {min_stages: 4}\n"
    )
    return parse_problem(parse_yaml(Path("problem.yaml"), text))


@pytest.mark.parametrize(
    "models",
    [
        "models: [{profile: m.json, slo_ms: 30}]",
        "apps: [{name: a, slo_ms: 30, rate_rps: 5, modules: {s: {profile: m.json}}}]",
    ],
    ids=["models", "apps"],
)
def test_more_stages_than_the_most_that_nobody_stated_are_explained(models: str) -> None:
    with pytest.raises(DocumentError, match="max_stages is 3 where it is not stated; of apps"):
        options_of(file_of(models))


def test_a_baseline_of_whole_models_says_in_its_plan_that_it_has_one_stage() -> None:
    problem = make_problem([make_profile(blocks=3)], options=PlanOptions(**STAGED))
    asked = replace(problem, options=replace(problem.options, planner="no-partitioning"))
    plan = solve(asked).plan
    assert plan is not None

    assert (plan.options.min_stages, plan.options.max_stages) == (1, 1)
    assert verify(plan, problem.profiles) == []
