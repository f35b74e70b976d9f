"""Planners that do not count what neighbours on a device cost do not pass over a problem's word."""

from fractions import Fraction

import pytest
from msgspec.structs import replace

from headrace.commands.plan_checks import note_left_out
from headrace.domain.errors import DocumentError
from headrace.domain.problem import PlanOptions, Problem
from headrace.planning import (
    COUNT_NEIGHBOURS,
    IGNORE_NEIGHBOURS,
    PLANNERS,
    solve,
    uncounted_neighbours,
)
from headrace.planning.apps.names import APP_PLANNERS
from helpers.apps import make_app_problem
from helpers.problems import make_cluster, make_problem, make_profile
from helpers.shared import make_interference, with_utilisation

WHOLE, HALF = Fraction(1), Fraction(1, 2)
LARGEST_SHARE = ("no-partitioning", "dart-r", "provisioned")


def with_neighbours(planner: str, *shares: Fraction) -> Problem:
    """Two devices of one type that may be cut so, and what neighbours on one of them cost."""
    if planner in APP_PLANNERS:
        problem = make_app_problem(planner)
        kinds = tuple(replace(kind, shares=shares) for kind in problem.cluster.device_types)
        problem = replace(problem, cluster=replace(problem.cluster, device_types=kinds))
        device = kinds[0].name
    else:
        device = "a"
        profile = make_profile(blocks=2, devices={device: 1.0}, shares=(WHOLE, HALF))
        problem = make_problem(
            [with_utilisation(profile, 0.5, 0.5)],
            cluster=make_cluster({"n0": {device: 2}}, shares=shares, prices={device: 1.0}),
            rates={"m": 10.0},
            options=PlanOptions(planner=planner),
        )
    return replace(problem, interference=(make_interference(device),))


@pytest.mark.parametrize(
    "planner",
    sorted(PLANNERS.keys() - COUNT_NEIGHBOURS - IGNORE_NEIGHBOURS - set(LARGEST_SHARE)),
)
def test_parts_side_by_side_are_refused_where_their_cost_is_not_counted(planner: str) -> None:
    with pytest.raises(DocumentError, match="does not count what models on parts") as refusal:
        solve(with_neighbours(planner, WHOLE, HALF))

    assert "whole devices alone (`shares: [1]`)" in str(refusal.value)
    assert ("--planner shares" in str(refusal.value)) == (planner != "malleable")


@pytest.mark.parametrize("planner", LARGEST_SHARE)
def test_planners_of_the_largest_share_are_refused_where_two_of_it_fit_a_device(
    planner: str,
) -> None:
    with pytest.raises(DocumentError, match="does not count what models on parts"):
        solve(with_neighbours(planner, HALF))


@pytest.mark.parametrize("planner", ["no-partitioning", "shares", *sorted(IGNORE_NEIGHBOURS)])
def test_planners_that_count_neighbours_or_have_none_or_ignore_them_by_design_plan(
    planner: str,
) -> None:
    assert solve(with_neighbours(planner, WHOLE, HALF)).plan is not None


@pytest.mark.parametrize("planner", ["pooled", "malleable", "least-cost", "harpagon"])
@pytest.mark.parametrize("shares", [(WHOLE,), (WHOLE, Fraction(2, 3)), (Fraction(2, 3),)])
def test_a_document_of_devices_without_neighbours_is_in_nobodys_way(
    planner: str, shares: tuple[Fraction, ...]
) -> None:
    assert uncounted_neighbours(with_neighbours(planner, *shares)) is None


def test_a_device_type_that_the_cluster_has_none_of_is_in_nobodys_way() -> None:
    problem = with_neighbours("pooled", WHOLE)
    spare = replace(problem.cluster.device_types[0], name="b", shares=(WHOLE, HALF))
    kinds = (*problem.cluster.device_types, spare)
    problem = replace(
        problem,
        cluster=replace(problem.cluster, device_types=kinds),
        interference=(make_interference("b"),),
    )

    assert solve(problem).plan is not None


def test_the_command_says_what_a_baseline_leaves_out(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    for planner, shares in (("gpulet", (WHOLE, HALF)), ("gpulet", (WHOLE,)), ("shares", (HALF,))):
        note_left_out(with_neighbours(planner, *shares))

    said = " ".join(capsys.readouterr().err.split())
    assert said.count("planner 'gpulet' does not count") == 1
    assert "`headrace simulate --interference` shows what comes of it" in said
