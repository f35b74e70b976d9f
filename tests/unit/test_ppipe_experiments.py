"""The published experiments: what they are made of, on models that we build and estimate."""

import json
import sys
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
from benchmarks.ppipe import experiment, fig6, fig7
from benchmarks.ppipe.cases import Case, cases_of, task_of
from benchmarks.ppipe.dispatch import outcomes
from benchmarks.ppipe.estimated import estimated_profiles
from benchmarks.ppipe.experiment import show
from benchmarks.ppipe.fluid import capacity_rps, run_fluid
from benchmarks.ppipe.ours import alone
from benchmarks.ppipe.planners import PLANNERS, plan_free
from benchmarks.ppipe.systems import (
    Load,
    checked,
    largest_load,
    our_plan,
    runner,
    steps_of,
)

from headrace.catalog.ppipe.rule import evaluate
from helpers.artifact_plans import make_hardware, make_reference
from helpers.lengthy import with_lengthy

WHOLE, HALF = Fraction(1), Fraction(1, 2)
FCN = "fcn-d6_r101-d16_4xb2-40k_cityscapes-512x1024"


@pytest.fixture(scope="module")
def case() -> Case:
    """FCN, estimated, on 4 V100 and 12 P4, planned by every planner."""
    profiles = {FCN: estimated_profiles()[FCN]}
    task = task_of("HC3", profiles, (4, 12))
    plans = {name: plan(task, profiles) for name, plan in PLANNERS.items()}
    return cases_of({n: p for n, p in plans.items() if p is not None}, profiles, "E")[0]


def test_every_planner_of_the_paper_keeps_the_artifact_s_rule(case: Case) -> None:
    objectives = {}
    for name, plan in case.plans.items():
        figures = evaluate(plan, case.profiles)
        assert figures.faults == ()
        assert figures.objective == pytest.approx(plan.stated_objective)
        objectives[name] = figures.objective

    assert objectives["np"] <= objectives["dart-r"] <= objectives["ppipe"]


def test_dart_r_makes_pairs_of_whole_devices(case: Case) -> None:
    for pipeline in case.plans["dart-r"].deployments[0].pipelines:
        assert {partition.share for partition in pipeline.partitions} == {WHOLE}
        assert len({partition.slots for partition in pipeline.partitions}) == 1


def test_our_plan_in_the_artifact_s_form_carries_at_least_what_the_paper_s_does(case: Case) -> None:
    ours = plan_free(case.plans["ppipe"], case.profiles)

    assert ours is not None
    recomputed = evaluate(ours, case.profiles).objective
    assert recomputed == pytest.approx(ours.stated_objective, rel=1e-3)
    assert recomputed >= evaluate(case.plans["ppipe"], case.profiles).objective * (1 - 1e-6)


def test_a_smaller_margin_gives_our_plan_more_throughput(case: Case) -> None:
    kept, spent = (plan_free(case.plans["ppipe"], case.profiles, m) for m in (0.4, 0.1))

    assert kept is not None
    assert spent is not None
    assert spent.stated_objective >= kept.stated_objective


def test_a_model_alone_gets_as_many_devices_as_its_slots_fill() -> None:
    plan = make_reference([("hi", HALF, 5), ("lo", WHOLE, 3)], per_server={"hi": 2, "lo": 1})

    assert {d.name: d.count for d in alone(plan, 0).devices} == {"hi": 3, "lo": 3}


def test_our_dispatcher_answers_a_lone_request_after_latencies_and_transfer(case: Case) -> None:
    plan = case.plans["ppipe"]
    mine = plan.deployments[0].pipelines[0]
    wanted_us = sum(p.stated_latency_us + p.stated_transfer_us for p in mine.partitions)

    done_us = outcomes(plan, case.profiles, 0, np.array([5], np.int64)).ended_at_us

    assert done_us[0] - 5 <= plan.deployments[0].slo_us
    assert (
        done_us[0] - 5 == pytest.approx(wanted_us, abs=2) or len(plan.deployments[0].pipelines) > 1
    )


def test_every_system_gets_the_same_arrivals() -> None:
    load = Load(arrivals="gamma:2", seconds=2.0)

    assert load.draw(100.0, 1, "a").tolist() == load.draw(100.0, 1, "a").tolist()
    for rate, seed, model in ((100.0, 2, "a"), (100.0, 1, "b"), (101.0, 1, "a")):
        assert load.draw(rate, seed, model).tolist() != load.draw(100.0, 1, "a").tolist()


def test_exact_poisson_arrivals_come_at_the_rate_and_the_artifact_s_at_more() -> None:
    # 40,000 gaps of 25 us: cutting them takes half a microsecond, 2 %, from each.
    exact, cut = (
        len(Load(arrivals=name, seconds=1.0).draw(40_000.0, 0, "a"))
        for name in ("poisson-exact", "poisson")
    )
    assert exact == pytest.approx(40_000, rel=0.01)
    assert cut == pytest.approx(40_800, rel=0.01)


def test_a_fluid_takes_what_its_slots_work_off_before_a_deadline() -> None:
    # Two slots of 10 ms each: 200 requests/s, and for 15 - 10 ms one request may wait.
    hardware = make_hardware([[(2, 10_000)]], slo_us=15_000)
    at_us = np.array([0, 0, 4_000, 5_000, 5_000], np.int64)

    outcome = run_fluid(hardware, at_us)

    assert outcome.done_us.tolist() == [15_000, -1, -1, 20_000, -1]


def test_a_trace_is_drawn_from_at_the_rate(tmp_path: Path) -> None:
    path = tmp_path / "counts.txt"
    path.write_text("10 20 30")

    assert len(Load(arrivals=str(path), seconds=50.0).draw(100.0, 1, "a")) == pytest.approx(
        5_000, abs=300
    )


@pytest.mark.parametrize(
    "system",
    with_lengthy(
        ["np", "ppipe", "reactive-fair", "ours-reactive", "ours"], lengthy=["np", "ours-reactive"]
    ),
)
def test_a_tenth_of_the_planned_load_is_served(case: Case, system: str) -> None:
    load = Load(seconds=1.0)
    run = runner(case, system, load)
    assert run is not None

    outcome = run(load.draw(0.1 * case.load_at_1_rps, 0, case.model))

    assert outcome.attainment(lateness_counted=True) == 1.0


def test_no_system_is_stopped_at_the_load_that_the_paper_stops_at(case: Case) -> None:
    for system in ("np", "ppipe", "ours", "fluid"):
        plan = case.plans[system if system == "np" else "ppipe"]
        stated = 100 * plan.deployments[0].stated_rps / case.load_at_1_rps
        assert steps_of(case, system, Load())[0] >= stated + 5
        assert steps_of(case, system, Load(capped=True))[0] == 100


def test_a_search_starts_at_what_our_own_plan_carries(case: Case) -> None:
    spent = Load(seconds=0.2, our_margin=0.1)
    plan = our_plan(case, 0.1)

    assert plan is not None
    carried = 100 * plan.deployments[0].stated_rps / case.load_at_1_rps
    assert carried > 100
    assert carried + 5 <= steps_of(case, "ours-plan", spent)[0] < carried + 10
    found = largest_load(case, "ours-plan", spent, 0)
    assert found is not None
    assert found.lateness_counted.load_factor <= steps_of(case, "ours-plan", spent)[0] / 100


def test_capacity_is_what_the_slowest_of_slots_and_uplinks_carries() -> None:
    free = make_hardware([[(4, 1_000), (2, 250)]], slo_us=9_000)
    tight = make_hardware(
        [[(4, 1_000), (2, 250)]], slo_us=9_000, transfer_us=800, links=[0, 0, 0, 1, 2, 3]
    )

    assert capacity_rps(free) == 4_000
    # Three slots on one link give 1,250 a second, the fourth on its own 1,000.
    assert capacity_rps(tight) == 2_250


def test_a_curve_reaches_its_largest_good_load() -> None:
    good = [100.0] * 10 + [98.0] + [99.5] + [50.0] * 8

    assert fig7.reaches(list(good)) == 0.6
    assert fig7.reaches([None] * 20) is None


def test_figure_6_runs_without_reference_data(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path, case: Case
) -> None:
    monkeypatch.setattr(experiment, "all_cases", lambda estimated: (case,))
    arguments = [
        "--models",
        "estimated",
        "--systems",
        "np,ppipe",
        "--seconds",
        "1",
        "--capped",
        "--json",
    ]
    monkeypatch.setattr(sys, "argv", ["fig6", *arguments, "--plot", str(tmp_path / "fig6.svg")])

    fig6.main()

    document = json.loads(capsys.readouterr().out)
    whole = {r["system"]: r["ours"] for r in document["rows"] if r["cluster"] == "all"}
    assert 0 < whole["np"] <= whole["ppipe"] <= 100
    assert "ppipe / np" in document["mean of ratios"]


def test_an_unknown_system_is_refused() -> None:
    with pytest.raises(SystemExit, match="none of np"):
        checked(["np", "gurobi"])


def test_a_table_keeps_its_columns(capsys: pytest.CaptureFixture[str]) -> None:
    show([{"system": "np", "paper": None, "ours": 66.61}, {"system": "ppipe", "paper": 96.5}])

    assert capsys.readouterr().out.splitlines() == [
        "system  paper  ours",
        "np             66.6",
        "ppipe    96.5",
    ]
