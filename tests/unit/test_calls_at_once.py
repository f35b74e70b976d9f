"""Apps whose requests call a module several times at once: no plan is written that is late."""

import json
import re
from fractions import Fraction
from pathlib import Path

import pytest
from msgspec.structs import replace
from typer.testing import CliRunner

from headrace.catalog.documents import write_document
from headrace.cli import app
from headrace.domain.app import App, FanOut, Module
from headrace.domain.errors import InfeasibleError
from headrace.domain.plan import PlanResult
from headrace.domain.problem import Problem
from headrace.domain.profile import BlockTimes
from headrace.planning import solve
from headrace.planning.common import deadline
from headrace.simulation.apps import for_arrivals, headroom, in_time
from headrace.simulation.apps.for_arrivals import plan_for_arrivals
from headrace.simulation.apps.headroom import attained
from headrace.simulation.apps.in_time import ATTAINMENT, even_attainment, plan_in_time
from headrace.simulation.apps.worst_cases import bounded_by, plan_keeping_worst_cases
from headrace.verify import verify
from helpers.apps import make_app_problem
from helpers.problems import make_cluster


@pytest.fixture(autouse=True)
def brief_sessions(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of what shares slots; requests that come at even gaps end as in ten times as many."""
    monkeypatch.setattr(headroom, "REQUESTS_TOGETHER", 400)


def asked_at_once(planner: str, *, slo_ms: float, calls: float = 4.0) -> Problem:
    """One request every five seconds, which calls a model of 8 ms on an A100 several times."""
    problem = make_app_problem(planner)
    pages = App(
        name="pages",
        modules=(Module(name="lines", model="ssd", fan_out=FanOut(mean=calls)),),
        slo_us=round(slo_ms * 1000),
        rate_rps=0.2,
    )
    return replace(
        problem,
        apps=(pages,),
        profiles={"ssd": problem.profiles["ssd"]},
        profile_refs=problem.profile_refs[:1],
    )


@pytest.mark.parametrize("planner", ["least-cost", "harpagon", "shares"])
def test_a_plan_for_single_calls_that_come_at_once_is_not_verified(planner: str) -> None:
    """It keeps every worst case of Theorem 1, and is late with every request."""
    problem = asked_at_once(planner, slo_ms=17)
    plan = solve(problem).plan
    assert plan is not None
    violations = verify(plan, problem.profiles)

    assert even_attainment(plan, problem.profiles) == 0.0
    assert [violation.check for violation in violations] == ["worst-case"]
    assert (violations[0].needed, violations[0].available) == ("32000", "17000")


def test_an_slo_of_a_day_is_simulated_with_as_many_requests_as_are_enough() -> None:
    """Thirty such SLOs of 60 requests/s are more than any session may have."""
    problem = make_app_problem("least-cost", slo_ms=86_400_000)
    plan = solve(problem).plan
    assert plan is not None
    assert attained(plan, problem.profiles, "uniform", 1, shorter=100) == 1.0


@pytest.mark.parametrize("calls", [2.0, 3.0, 3.5])
def test_two_calls_are_in_time_where_one_may_wait_for_the_other(calls: float) -> None:
    """Of 3.5 calls some requests make four."""
    problem = asked_at_once("harpagon", slo_ms=8 * calls, calls=calls)
    plan = solve(problem).plan
    assert plan is not None
    late = verify(plan, problem.profiles)

    assert bool(late) == (calls == 3.5)
    assert (even_attainment(plan, problem.profiles) == 1.0) == (not late)


@pytest.mark.parametrize("planner", ["least-cost", "harpagon"])
def test_time_is_kept_free_for_calls_that_wait_for_each_other(planner: str) -> None:
    problem = asked_at_once(planner, slo_ms=60)
    plan = plan_in_time(problem, solve)

    assert even_attainment(plan, problem.profiles) >= ATTAINMENT
    assert verify(plan, problem.profiles) == []
    assert plan.options.margin > 0
    assert plan.options.headroom_for is not None
    assert plan.options.headroom_for.arrivals == "uniform"
    assert plan.options.headroom_for.margin == 0.0


@pytest.mark.parametrize("planner", ["least-cost", "harpagon", "shares"])
def test_where_no_room_helps_an_slo_is_named_that_does(planner: str) -> None:
    problem = asked_at_once(planner, slo_ms=17)
    with pytest.raises(InfeasibleError) as refused:
        plan_in_time(problem, solve)
    said = str(refused.value)
    named_ms = float(said.split("an SLO of pages: ")[1].split(" ms")[0])
    longer = replace(problem.apps[0], slo_us=round(named_ms * 1000))
    plan = plan_in_time(replace(problem, apps=(longer,)), solve)

    assert "0.00% in time" in said
    assert "lines 4 times" in said
    # `shares` tries no more rate.
    more = "" if planner == "shares" else "100% more rate or "
    assert f"too few with up to {more}80% of the SLO kept free" in said
    assert even_attainment(plan, problem.profiles) >= ATTAINMENT
    assert verify(plan, problem.profiles) == []


def test_what_was_kept_free_in_vain_counts_the_margin_that_was_asked_for() -> None:
    problem = asked_at_once("shares", slo_ms=34, calls=8)
    options = replace(problem.options, margin=0.5)
    with pytest.raises(InfeasibleError, match="up to 90% of the SLO kept free"):
        plan_in_time(replace(problem, options=options), solve)


@pytest.fixture
def slow_planning(monkeypatch: pytest.MonkeyPatch) -> None:
    """A plan with room takes a second, and nothing else takes time."""
    now_s = 0.0

    def slowly(problem: Problem, *, advise: bool = True) -> PlanResult:
        nonlocal now_s
        now_s += 1
        return solve(problem, advise=advise)

    monkeypatch.setattr(deadline, "perf_counter", lambda: now_s)
    monkeypatch.setattr(in_time, "solve", slowly)
    monkeypatch.setattr(for_arrivals, "solve", slowly)


@pytest.mark.usefixtures("slow_planning")
@pytest.mark.parametrize("limit_s", [8.5, 12.5, 1000.0])
def test_what_is_planned_in_half_of_the_time_is_simulated_in_the_other(limit_s: float) -> None:
    """The seventh of 45 is in time."""
    problem = asked_at_once("least-cost", slo_ms=60)
    options = replace(problem.options, time_limit_s=limit_s)
    plan = plan_in_time(replace(problem, options=options), solve)

    assert even_attainment(plan, problem.profiles) >= ATTAINMENT
    assert plan.options.time_limit_s == limit_s
    assert verify(plan, problem.profiles) == []


@pytest.mark.usefixtures("slow_planning")
def test_a_refusal_says_that_time_ran_out() -> None:
    """With more of it there is a plan."""
    problem = asked_at_once("least-cost", slo_ms=60)
    options = replace(problem.options, time_limit_s=2.5)
    with pytest.raises(InfeasibleError, match=r"a --time-limit-s of more than 2\.5"):
        plan_in_time(replace(problem, options=options), solve)
    with pytest.raises(InfeasibleError, match=r"a --time-limit-s of more than 2\.5"):
        plan_for_arrivals(replace(problem, options=options), "poisson")


@pytest.mark.usefixtures("slow_planning")
@pytest.mark.parametrize(("limit_s", "made_s"), [(30.5, 16), (1000.0, 55)])
def test_plans_for_poisson_arrivals_are_made_within_the_time_limit_too(
    limit_s: float, made_s: int
) -> None:
    """Half of it, as some that were made by then attain; else all plans with room are made."""
    problem = make_app_problem(slo_ms=150.0)
    options = replace(problem.options, time_limit_s=limit_s)
    found = plan_for_arrivals(replace(problem, options=options), "poisson")

    assert found.attainment >= ATTAINMENT
    assert found.plan.options.time_limit_s == limit_s
    assert found.plan.runtime_s == made_s
    assert verify(found.plan, problem.profiles) == []


def test_room_is_looked_for_behind_margins_whose_machines_are_too_many() -> None:
    """Up to a margin of 0.3 this planner takes one slow machine, which is late; with 0.4 two kinds
    of which there are too few; with 0.5 one fast machine, which is in time."""
    problem = asked_at_once("least-cost-dummy", slo_ms=18)
    times = tuple(
        BlockTimes(device=device, share=Fraction(1), p50_us=(row,), p99_us=(row,))
        for device, us in (("T4", 3_000), ("A100", 1_000))
        for row in [tuple(us * (size + 1) for size in range(1, 9))]
    )
    problem = replace(
        problem,
        cluster=make_cluster({"n": {"T4": 1, "A100": 1}}, prices={"T4": 0.35, "A100": 2.93}),
        profiles={"ssd": replace(problem.profiles["ssd"], block_times=times)},
        apps=(replace(problem.apps[0], rate_rps=20.0),),
    )
    plan = plan_in_time(problem, solve)

    assert [_with_margin(problem, part).plan is None for part in (0.3, 0.4, 0.5)] == [0, 1, 0]
    assert even_attainment(plan, problem.profiles) >= ATTAINMENT
    assert plan.options.margin >= 0.5


def _with_margin(problem: Problem, margin: float) -> PlanResult:
    options = replace(problem.options, margin=margin)
    return solve(replace(problem, options=options))


@pytest.mark.parametrize("calls", [3.0, 3.5, 4.0])
def test_a_plan_is_given_up_early_only_if_its_whole_session_does_not_attain(calls: float) -> None:
    problem = asked_at_once("shares", slo_ms=28, calls=calls)
    plan = solve(problem).plan
    assert plan is not None
    reached = attained(plan, problem.profiles, "uniform", 1)

    assert reached == {3.0: 1.0, 3.5: 0.5, 4.0: 0.0}[calls]
    for wanted in (reached, reached + 0.01, 0.25, 0.99):
        early = headroom.attains(plan, problem.profiles, "uniform", 1, wanted)
        assert early == (reached >= wanted), wanted


def test_a_planner_that_refuses_is_not_taken_at_its_word() -> None:
    """Its SLO is for calls one by one."""
    problem = asked_at_once("harpagon", slo_ms=10)
    with pytest.raises(InfeasibleError) as refused:
        plan_in_time(problem, solve)
    said = str(refused.value)
    named_ms = float(said.split("pages: ")[1].split(" ms")[0])
    longer = replace(problem.apps[0], slo_us=round(named_ms * 1000))
    plan = plan_in_time(replace(problem, apps=(longer,)), solve)

    assert "needs     16.0 ms" in said
    assert "an SLO of 16" not in said
    assert named_ms >= 32
    assert even_attainment(plan, problem.profiles) >= ATTAINMENT


def test_a_plan_that_is_in_time_stays_as_it_is() -> None:
    problem = make_app_problem("least-cost")
    kept = plan_keeping_worst_cases(problem).plan
    assert kept is not None
    plan = plan_in_time(problem, plan_keeping_worst_cases)

    assert replace(plan, runtime_s=0.0) == replace(kept, runtime_s=0.0)


def test_simulating_counts_into_the_time_that_a_plan_took() -> None:
    problem = make_app_problem("least-cost")
    result = plan_keeping_worst_cases(problem)
    assert result.plan is not None
    at_once = replace(result, plan=replace(result.plan, runtime_s=0.0))

    assert plan_in_time(problem, lambda asked: at_once).runtime_s > 0.0


def _problem_file(folder: Path, slo_ms: float) -> Path:
    write_document(asked_at_once("harpagon", slo_ms=slo_ms).profiles["ssd"], folder / "ssd.json")
    problem = folder / "problem.yaml"
    problem.write_text(
        "schema: headrace.problem/1\n"
        "cluster:\n"
        "  devices: {A100: {price_per_hour: 2.9}, T4: {price_per_hour: 0.3}}\n"
        "  nodes: [{name: n, devices: {A100: 4, T4: 4}}]\n"
        "apps:\n"
        "  - name: pages\n"
        f"    slo_ms: {slo_ms}\n"
        "    rate_rps: 0.2\n"
        "    modules: {lines: {profile: ssd.json, fan_out: 4}}\n"
        "options: {planner: harpagon}\n"
    )
    return problem


def test_the_bound_is_that_of_what_was_asked_for() -> None:
    """No plan without room is cheaper; nothing says that one with less room is not in time."""
    problem = asked_at_once("least-cost", slo_ms=60)
    without = solve(problem).plan
    plan = plan_in_time(problem, solve)

    assert without is not None
    assert without.stopped == "optimal"
    assert plan.bound == without.objective < plan.objective
    assert plan.gap == (plan.objective - without.objective) / plan.objective
    assert plan.stopped == "heuristic"
    assert verify(plan, problem.profiles) == []


def test_room_that_costs_nothing_leaves_a_plan_proven() -> None:
    problem = asked_at_once("least-cost", slo_ms=60)
    plan = solve(problem).plan
    assert plan is not None
    rounded = replace(plan, objective=plan.objective * (1 - 1e-12), stopped="time-limit")

    assert bounded_by(rounded, plan).stopped == "optimal"
    assert bounded_by(rounded, plan).bound == rounded.objective
    cheaper = bounded_by(replace(plan, objective=plan.objective / 2), plan)
    assert (cheaper.bound, cheaper.gap, cheaper.stopped) == (None, None, "heuristic")
    assert bounded_by(plan, None).bound is None


def test_the_command_refuses_what_would_be_late(tmp_path: Path) -> None:
    problem = _problem_file(tmp_path, 17)
    done = CliRunner().invoke(app, ["plan", str(problem), "-o", str(tmp_path / "plan.json")])

    assert isinstance(done.exception, InfeasibleError)
    assert "requests would be late" in str(done.exception)
    assert not (tmp_path / "plan.json").exists()


def test_the_command_says_what_room_it_keeps(tmp_path: Path) -> None:
    plan = str(tmp_path / "plan.json")
    done = CliRunner().invoke(app, ["plan", str(_problem_file(tmp_path, 60)), "-o", plan])
    table = " ".join(done.stdout.split())
    verified = CliRunner().invoke(app, ["verify", plan])
    simulated = CliRunner().invoke(
        app, ["simulate", plan, "--arrivals", "uniform", "--duration-s", "500", "--json"]
    )

    assert done.exit_code == verified.exit_code == 0
    assert "calls of one request come at once: planned with" in done.stderr
    assert re.search(r"head-room \d+% more rate and a margin of .* \d+ plans simulated", table)
    assert json.loads(simulated.stdout)["models"]["pages"]["slo_attainment"] == 1.0
