"""`headrace plan --margin auto` with several models: margins and weights per model."""

from collections.abc import Iterator, Mapping
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
from headrace.simulation import trials
from headrace.simulation.even import choose_margins, has_margins_per_model
from headrace.simulation.trials import TOLERANCE, Workload
from headrace.studies.jobs import Here, Jobs
from headrace.verify import verify
from helpers.jobs_ahead import Ahead
from helpers.problems import make_problem, make_profile
from helpers.sized import sized_profile

MARGINS = (0.0, 0.2, 0.4)
SLO_US = 60_000
PROBLEM = """\
schema: headrace.problem/1
cluster:
  devices: {a: {}, b: {}}
  nodes:
    - {name: local, devices: {a: 2, b: 2}}
models:
  - {profile: m.profile.json, slo_ms: 120}
  - {profile: n.profile.json, slo_ms: 120}
options: {time_limit_s: 600}
"""


@pytest.fixture(autouse=True, scope="module")
def brief_sessions() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(trials, "REQUESTS_PER_MODEL", 1_000)
        yield


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

    choice = choose_margins(problem, margins=(0.0,), carry=half_of_m)

    assert choice.plan.options.carried_parts == {"m": 0.5, "n": 1.0}
    assert choice.best.worth == pytest.approx(choice.plan.objective)
    assert choice.best.worth > 1.2 * before


def test_a_model_gets_a_margin_of_its_own_where_that_carries_more(problem: Problem) -> None:
    choice = choose_margins(problem, margins=MARGINS, carry=m_needs_margin)
    assert {m: each.margin for m, each in choice.best.settings.items()} == {"m": 0.2, "n": 0.0}
    assert choice.plan.options.model_margins == {"m": 0.2, "n": 0.0}
    assert choice.best.worth > choice.at_one_margin.worth
    assert choice.in_time


def test_the_plan_verifies_and_states_what_was_asked_for(problem: Problem, tmp_path: Path) -> None:
    choice = choose_margins(problem, margins=MARGINS, carry=m_needs_margin)
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


def test_the_search_is_bounded_by_plans_and_by_time(problem: Problem) -> None:
    said: list[str] = []
    few = choose_margins(
        problem, margins=MARGINS, trials_max=1, carry=m_needs_margin, on_progress=said.append
    )
    assert len(few.trials) <= 2 * len(MARGINS) + 1
    assert any("plan 1 of at most 1" in text for text in said)

    hurried = replace(problem, options=replace(problem.options, time_limit_s=1e-9))
    with pytest.raises(InfeasibleError):
        choose_margins(hurried, margins=MARGINS, carry=m_needs_margin)


def test_what_is_said_to_be_carried_is(problem: Problem, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trials, "REQUESTS_PER_MODEL", 4_000)
    small = replace(problem, cluster=make_problem([make_profile()], nodes=SMALL).cluster)
    choice = choose_margins(small, margins=(0.2,), trials_max=0, seed=3)
    workload = Workload.of(choice.trials[0].plan, small.profiles)
    for model, rps in choice.trials[0].carried_rps.items():
        factors = dict.fromkeys(workload.rates_rps, 0.2)
        factors[model] = rps / workload.rates_rps[model]
        # Execution times are drawn in the order of starts, which other loads change.
        assert workload.attainments(factors, seed=3)[model] >= 0.985
        factors[model] += 10 * TOLERANCE
        assert workload.attainments(factors, seed=3)[model] < 0.985


SMALL = {"one": {"a": 3, "b": 3}}


@pytest.mark.lengthy
def test_jobs_make_the_same_choice_by_the_same_trials(problem: Problem) -> None:
    small = replace(problem, cluster=make_problem([make_profile()], nodes=SMALL).cluster)

    def told(jobs: Jobs) -> object:
        """All but how long planning took."""
        choice = choose_margins(small, margins=MARGINS[1:], trials_max=1, jobs=jobs)
        tried = [(t.settings, t.plan.deployments, t.carried_rps) for t in choice.trials]
        return choice.plan.options, choice.best.carried_rps, choice.at_one_margin.worth, tried

    assert told(Ahead(3)) == told(Here())


@pytest.mark.parametrize("jobs", [Here(), Ahead(2)])
def test_a_model_of_several_sizes_carries_them_together(jobs: Jobs) -> None:
    profiles = [sized_profile(), make_profile("plain", devices={"a": 1.0}, seed=1)]
    sized = make_problem(profiles, nodes={"one": {"a": 4}}, slo_us=120_000)

    choice = choose_margins(sized, margins=(0.2, 0.4), trials_max=1, jobs=jobs)

    assert set(choice.plan.options.model_margins) == {"text", "plain"}
    trial = choice.trials[-1]
    workload = Workload.of(trial.plan, sized.profiles)
    part = trial.carried_rps["text"] / workload.rates_rps["text"]
    attained = workload.attainments({"text": part, "plain": 1.0}, trials.SEED)
    assert attained["text"] >= 0.98


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
