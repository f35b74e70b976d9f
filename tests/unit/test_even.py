"""`headrace plan --margin auto` with several models: margins and weights per model."""

from collections.abc import Mapping
from pathlib import Path

import pytest
from msgspec.structs import replace
from typer.testing import CliRunner

from headrace.catalog.documents import read_plan, write_document
from headrace.cli import app
from headrace.domain.errors import DocumentError, InfeasibleError
from headrace.domain.plan import Plan
from headrace.domain.problem import PlanOptions, Problem
from headrace.planning import solve
from headrace.simulation.even import choose_margins, has_margins_per_model
from headrace.simulation.trials import TOLERANCE, Workload
from headrace.verify import verify
from helpers.problems import make_problem, make_profile

MARGINS = (0.0, 0.2, 0.4)
SLO_US = 60_000
PROBLEM = """\
schema: headrace.problem/1
cluster:
  devices: {a: {}, b: {}}
  nodes:
    - {name: local, devices: {a: 1, b: 1}}
models:
  - {profile: m.profile.json, slo_ms: 120}
  - {profile: n.profile.json, slo_ms: 120}
options: {time_limit_s: 600}
"""


@pytest.fixture(scope="module")
def problem() -> Problem:
    profiles = [make_profile("m", max_batch=8), make_profile("n", seed=1, max_batch=8)]
    return make_problem(
        profiles,
        nodes={"one": {"a": 12, "b": 12}},
        weights={"m": 2.0, "n": 1.0},
        slo_us=SLO_US,
        gbps=10.0,
    )


def planned(plan: Plan) -> dict[str, float]:
    return {each.model: each.throughput_rps for each in plan.deployments}


def half_of_m(plan: Plan, _seed: int) -> Mapping[str, float]:
    """Whatever the plan."""
    return {model: rps * (0.5 if model == "m" else 1.0) for model, rps in planned(plan).items()}


def m_needs_margin(plan: Plan, _seed: int) -> Mapping[str, float]:
    """m keeps its promise from 20 % on, n always."""
    part = 0.4 if plan.options.margin_of("m") < 0.2 else 1.0
    return {model: rps * (part if model == "m" else 1.0) for model, rps in planned(plan).items()}


def test_what_is_carried_is_evened_out_by_weights(problem: Problem) -> None:
    uneven = solve(replace(problem, options=replace(problem.options, margin=0.0))).plan
    assert uneven is not None
    carried = half_of_m(uneven, 0)
    before = min(carried["m"] / 2, carried["n"])

    choice = choose_margins(problem, margins=(0.0,), explored_max=0, carry=half_of_m)

    assert choice.plan.options.carried_parts == {"m": 0.5, "n": 1.0}
    assert choice.best.worth == pytest.approx(choice.plan.objective)
    assert choice.best.worth > 1.2 * before


def test_a_model_gets_a_margin_of_its_own_where_that_carries_more(problem: Problem) -> None:
    choice = choose_margins(problem, margins=MARGINS, explored_max=0, carry=m_needs_margin)
    assert {m: each.margin for m, each in choice.best.settings.items()} == {"m": 0.2, "n": 0.0}
    assert choice.plan.options.model_margins == {"m": 0.2, "n": 0.0}
    assert choice.best.worth > choice.at_one_margin.worth
    assert choice.in_time


def test_every_model_is_planned_within_the_margin_of_its_own(problem: Problem) -> None:
    def latest_us(margin: float, **of_model: float) -> dict[str, int]:
        options = replace(problem.options, margin=margin, model_margins=of_model)
        plan = solve(replace(problem, options=options)).plan
        assert plan is not None
        assert verify(plan, problem.profiles) == []
        return {
            each.model: max(pipeline.latency_us for pipeline in each.pipelines)
            for each in plan.deployments
        }

    tight, loose = latest_us(0.6), latest_us(0.0)
    assert all(tight[model] <= 0.4 * SLO_US < loose[model] for model in ("m", "n"))
    m_tight, m_loose = latest_us(0.0, m=0.6), latest_us(0.6, m=0.0)
    assert m_tight["m"] <= 0.4 * SLO_US < m_tight["n"]
    assert m_loose["n"] <= 0.4 * SLO_US < m_loose["m"]


def test_the_plan_verifies_and_states_what_was_asked_for(problem: Problem, tmp_path: Path) -> None:
    choice = choose_margins(problem, margins=MARGINS, explored_max=0, carry=m_needs_margin)
    plan = choice.plan
    assert verify(plan, problem.profiles) == []
    assert plan.demands == problem.demands
    for deployment in plan.deployments:
        margin = plan.options.model_margins[deployment.model]
        assert deployment.budget_us == pytest.approx(SLO_US * (1 - margin))
    assert f"{choice.best.worth:.6g}" in plan.options.margin_reason
    write_document(plan, tmp_path / "plan.json")
    assert read_plan(tmp_path / "plan.json").options == plan.options


def test_verification_notices_other_margins_and_other_parts(problem: Problem) -> None:
    plan = choose_margins(problem, margins=(0.2,), carry=half_of_m).plan
    for options in (
        replace(plan.options, model_margins={"m": 0.2}, margin=0.4),
        replace(plan.options, carried_parts={"m": 0.7, "n": 1.0}),
    ):
        assert verify(replace(plan, options=options), problem.profiles)


def test_a_part_of_the_links_is_planned_and_verified() -> None:
    whole = make_problem(
        [make_profile(cut_bytes=400_000)],
        nodes={"n0": {"a": 3}, "n1": {"b": 3}},
        gbps=0.3,
        options=PlanOptions(min_stages=2),
    )
    half = replace(whole, options=replace(whole.options, link_parts={"m": 0.5}))
    plans = [solve(problem).plan for problem in (whole, half)]
    assert plans[0] is not None
    assert plans[1] is not None
    assert plans[1].objective < plans[0].objective
    assert verify(plans[1], half.profiles) == []
    assert verify(replace(plans[1], options=whole.options), half.profiles)


def test_plans_around_the_best_are_looked_at_too(problem: Problem) -> None:
    def fewest_pipelines(plan: Plan, _seed: int) -> Mapping[str, float]:
        """Nothing that a margin foretells."""
        return {each.model: each.throughput_rps / len(each.pipelines) for each in plan.deployments}

    small = replace(problem, cluster=make_problem([make_profile()], nodes=SMALL).cluster)
    alone, around, again = (
        choose_margins(small, margins=(0.0, 0.2), explored_max=most, carry=fewest_pipelines)
        for most in (0, 10, 10)
    )
    assert len(alone.trials) < len(around.trials) <= len(alone.trials) + 10
    assert around.best.worth > alone.best.worth
    assert [each.settings for each in around.trials] == [each.settings for each in again.trials]
    assert verify(around.plan, small.profiles) == []


def test_the_search_is_bounded_by_plans_and_by_time(problem: Problem) -> None:
    said: list[str] = []
    few = choose_margins(
        problem,
        margins=MARGINS,
        trials_max=1,
        explored_max=2,
        carry=m_needs_margin,
        on_progress=said.append,
    )
    assert len(few.trials) <= 2 * len(MARGINS) + 1 + 2
    assert any("1 of at most 2" in text for text in said)
    assert any("plan 1 of at most 1" in text for text in said)

    hurried = replace(problem, options=replace(problem.options, time_limit_s=1e-9))
    with pytest.raises(InfeasibleError):
        choose_margins(hurried, margins=MARGINS, carry=m_needs_margin)


def test_what_is_said_to_be_carried_is(problem: Problem) -> None:
    small = replace(problem, cluster=make_problem([make_profile()], nodes=SMALL).cluster)
    choice = choose_margins(small, margins=(0.2,), trials_max=0, explored_max=0, seed=3)
    workload = Workload.of(choice.trials[0].plan, small.profiles)
    for model, rps in choice.trials[0].carried_rps.items():
        factors = dict.fromkeys(workload.rates_rps, 0.2)
        factors[model] = rps / workload.rates_rps[model]
        index = [each.name for each in workload.topology.models].index(model)
        # Execution times are drawn in the order of starts, which other loads change.
        assert workload.attainments(factors, seed=3)[index] >= 0.985
        factors[model] += 10 * TOLERANCE
        assert workload.attainments(factors, seed=3)[index] < 0.985


SMALL = {"one": {"a": 3, "b": 3}}


def test_other_questions_keep_one_margin(problem: Problem) -> None:
    assert has_margins_per_model(problem)
    one = replace(problem, demands=problem.demands[:1])
    total = replace(problem, options=PlanOptions(objective="throughput"))
    assert not has_margins_per_model(one)
    assert not has_margins_per_model(total)


def test_options_of_models_that_are_not_there_are_refused(problem: Problem) -> None:
    with pytest.raises(DocumentError, match="'x'"):
        replace(problem, options=PlanOptions(model_margins={"x": 0.1})).__post_init__()
    with pytest.raises(DocumentError, match="carried part"):
        PlanOptions(carried_parts={"m": 0.0})
    with pytest.raises(DocumentError, match="between 0 and 1"):
        choose_margins(problem, attainment=1.0)


def test_one_command_chooses_and_says_what_for(tmp_path: Path) -> None:
    for name, seed in (("m", 0), ("n", 1)):
        write_document(make_profile(name, seed=seed), tmp_path / f"{name}.profile.json")
    (tmp_path / "problem.yaml").write_text(PROBLEM)
    out = tmp_path / "plan.json"
    result = CliRunner().invoke(
        app, ["plan", str(tmp_path / "problem.yaml"), "--margin", "auto", "-o", str(out)]
    )
    assert result.exit_code == 0, result.output
    assert "margins and weights per model" in result.output
    assert set(read_plan(out).options.model_margins) == {"m", "n"}
