"""One suite over all planners of apps, and plans that are broken on purpose."""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from headrace import cli
from headrace.catalog.documents import read_plan, read_problem, write_document
from headrace.domain.app import App, FanOut, Module
from headrace.domain.errors import DocumentError
from headrace.domain.plan import Plan, Stage
from headrace.domain.problem import Problem
from headrace.planning import solve
from headrace.planning.apps.explain import explain
from headrace.planning.apps.heuristics.schemes import SCHEMES
from headrace.planning.apps.names import APP_PLANNERS
from headrace.verify import verify
from helpers.apps import make_app_problem, on_gateways_cores


@pytest.fixture(params=APP_PLANNERS)
def planner(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def planned(planner: str) -> Plan:
    result = solve(make_app_problem(planner))
    assert result.plan is not None, result.refusal
    return result.plan


def test_every_planner_makes_a_plan_that_verifies(planner: str) -> None:
    problem = make_app_problem(planner)
    plan = solve(problem).plan
    if planner == "harp-q0.1":
        assert plan is None or verify(plan, problem.profiles) == []
        return

    assert plan is not None
    assert verify(plan, problem.profiles) == []


def test_a_refusal_says_that_the_longest_path_s_code_is_off_every_path() -> None:
    problem = make_app_problem(slo_ms=5.0)
    by_load = replace(problem.options, bill="fraction")

    refusal = solve(replace(problem, options=by_load)).refusal or ""

    assert "no plan meets the SLO" in refusal
    assert "on every path, what the longest takes of gateway and app's code" in refusal


def test_a_module_that_is_hardly_ever_called_has_a_plan_that_verifies() -> None:
    """A billionth of a machine is one that one slot holds."""
    problem = make_app_problem(rate_rps=1e-6, slo_ms=86_400_000.0)
    faster = {
        name: replace(
            profile,
            block_times=tuple(
                replace(
                    times,
                    p50_us=tuple(tuple(us // 100 for us in row) for row in times.p50_us),
                    p99_us=tuple(tuple(us // 100 for us in row) for row in times.p99_us),
                )
                for times in profile.block_times
            ),
        )
        for name, profile in problem.profiles.items()
    }

    plan = solve(replace(problem, profiles=faster)).plan

    assert plan is not None
    loads = [pipe.load for each in plan.deployments for pipe in each.pipelines]
    assert any(load is not None and load.machines < 1e-9 for load in loads)
    assert verify(plan, faster) == []


def test_only_dummy_load_of_any_amount_is_cheaper_than_least_cost(planner: str) -> None:
    plan = solve(make_app_problem(planner)).plan
    least = planned("least-cost")

    assert least.stopped == "optimal"
    if planner == "least-cost-dummy":
        assert plan is not None
        assert plan.objective <= least.objective * (1 + 1e-9)
    else:
        assert plan is None or plan.objective >= least.objective * (1 - 1e-9)


def test_the_baselines_differ_as_table_three_says() -> None:
    columns = {
        name: (s.reading, s.configurations, s.devices == "all", s.split)
        for name, s in SCHEMES.items()
        if not name.startswith("harp")
    }

    assert columns == {
        "nexus": ("twice", 2, False, "quantised"),
        "scrooge": ("pair", 2, True, "throughput"),
        "inferline": ("twice", 1, True, "throughput"),
        "clipper": ("twice", 1, False, "even"),
    }


def test_a_plan_of_apps_survives_the_disk(tmp_path: Path) -> None:
    plan = planned("least-cost")

    write_document(plan, tmp_path / "plan.json")

    assert read_plan(tmp_path / "plan.json") == plan


def test_an_slo_that_nothing_meets_is_refused_with_one_that_would_do() -> None:
    result = solve(make_app_problem(slo_ms=10.0))

    assert result.plan is None
    assert result.stopped == "infeasible"
    assert result.refusal is not None
    needed_ms = float(result.refusal.split("an SLO of ")[1].split(" ms")[0])
    assert solve(make_app_problem(slo_ms=needed_ms)).plan is not None


LONG_ENOUGH = "prices and rates, not the SLO"


@pytest.mark.parametrize("planner", ["least-cost", "least-cost-dummy", "harpagon", "nexus"])
def test_only_an_slo_of_which_more_may_save_is_called_binding(planner: str) -> None:
    tight, ample = (make_app_problem(planner, slo_ms=slo_ms) for slo_ms in (300.0, 400.0))
    short, long = solve(tight).plan, solve(ample).plan
    assert short is not None
    assert long is not None

    besides = f", or how {planner} plans" if short.stopped == "heuristic" else ""
    assert short.binding.startswith(f"traffic: the SLO{besides};")
    assert long.binding.startswith(f"traffic: {LONG_ENOUGH};")
    assert long.objective < short.objective
    assert verify(long, ample.profiles) == []


def test_an_slo_that_binds_cannot_be_said_not_to() -> None:
    problem = make_app_problem(slo_ms=300.0)
    plan = solve(problem).plan
    assert plan is not None
    wrong = replace(plan, binding=plan.binding.replace("the SLO", LONG_ENOUGH))

    (found,) = verify(wrong, problem.profiles)

    assert (found.check, found.needed) == (
        "claims",
        "with time enough 0.380205 per hour would do, of 0.391005",
    )


MUTANTS: list[tuple[str, Callable[[Plan], Plan]]] = [
    ("apps", lambda p: replace(p, deployments=p.deployments[1:])),
    ("apps", lambda p: _deployment(p, rate_rps=1.0)),
    ("load", lambda p: _load(p, remaining_rps=1.0)),
    ("load", lambda p: _load(p, machines=0.5)),
    ("load", lambda p: _deployment(p, dummy_rps=7.0)),
    ("worst-case", lambda p: _load(p, collect_us=1)),
    ("worst-case", lambda p: _deployment(p, worst_case_us=1)),
    ("worst-case", lambda p: _deployment(p, budget_us=1)),
    ("worst-case", lambda p: _deployment(p, budget_us=10**9)),
    ("cost", lambda p: _load(p, cost_per_hour=0.0)),
    ("cost", lambda p: _deployment(p, cost_per_hour=0.0)),
    ("objective", lambda p: replace(p, objective=p.objective / 2)),
    ("bound", lambda p: replace(p, bound=p.objective * 2)),
    ("budget", lambda p: replace(p, apps=(replace(p.apps[0], budget_us=1),))),
    ("load", lambda p: _load(p, rate_rps=5e-324, machines=5e-324)),
    ("depth", lambda p: _pipeline(p, stages=())),
    ("pool", lambda p: _pipeline(p, stages=_without_slots(p))),
    ("claims", lambda p: replace(p, binding=p.binding.replace("400 ms", "500 ms"))),
    ("claims", lambda p: replace(p, binding=p.binding.replace("338.6", "38.6"))),
    ("claims", lambda p: replace(p, binding=p.binding.replace("detect", "face"))),
    (
        "claims",
        lambda p: replace(p, binding=f"the stock: 4 T4 where the cheapest take 9; {p.binding}"),
    ),
    ("names", lambda p: _pipeline(p, name=p.deployments[1].pipelines[0].name)),
]


def _deployment(plan: Plan, **changes: Any) -> Plan:
    return replace(
        plan, deployments=(replace(plan.deployments[0], **changes), *plan.deployments[1:])
    )


def _pipeline(plan: Plan, **changes: Any) -> Plan:
    first, *rest = plan.deployments[0].pipelines
    return _deployment(plan, pipelines=(replace(first, **changes), *rest))


def _without_slots(plan: Plan) -> tuple[Stage, ...]:
    return tuple(replace(s, pool=()) for s in plan.deployments[0].pipelines[0].stages)


def _load(plan: Plan, **changes: Any) -> Plan:
    load = plan.deployments[0].pipelines[0].load
    assert load is not None
    return _pipeline(plan, load=replace(load, **changes))


@pytest.mark.parametrize(("check", "break_it"), MUTANTS)
def test_a_broken_plan_of_apps_is_rejected_for_the_right_reason(
    check: str, break_it: Callable[[Plan], Plan]
) -> None:
    broken = break_it(planned("least-cost"))

    found = {violation.check for violation in verify(broken, make_app_problem().profiles)}

    assert check in found


@pytest.mark.parametrize(
    "room", [{"rate_headroom": 1.0}, {"module_headroom": {"traffic.face": 1.0}}]
)
def test_head_room_that_a_plan_states_and_does_not_carry_is_found(room: dict[str, Any]) -> None:
    problem = make_app_problem()
    plan = solve(problem).plan
    assert plan is not None
    claimed = replace(plan, options=replace(plan.options, **room))

    assert {found.check for found in verify(claimed, problem.profiles)} == {"rates"}


@pytest.mark.parametrize("reading", ["twice", "pair", "turns"])
def test_apps_that_are_read_in_different_ways_are_found(reading: Any) -> None:
    """All are run by the policy of the first, under which others' worst cases do not hold."""
    base = make_app_problem("harpagon")
    (app,) = base.apps
    problem = replace(base, apps=(app, replace(app, name="other")))
    plan = solve(problem).plan
    assert plan is not None
    assert verify(plan, problem.profiles) == []
    first, other = plan.apps
    mixed = replace(plan, apps=(first, replace(other, reading=reading)))

    (found,) = [one for one in verify(mixed, problem.profiles) if one.check == "apps"]
    assert (found.needed, found.available) == ("one", ", ".join(sorted(("remaining", reading))))


def test_a_helper_of_a_slot_on_which_nothing_is_started_is_found() -> None:
    problem = make_app_problem()
    plan = solve(problem).plan
    assert plan is not None
    first, *others = plan.slots
    helped = replace(plan, slots=(replace(first, helper="nobody"), *others))

    assert [found.check for found in verify(helped, problem.profiles)] == ["start"]


@pytest.fixture
def problem_file(tmp_path: Path) -> Path:
    """What `make_app_problem` has, as files."""
    for model, profile in make_app_problem().profiles.items():
        write_document(profile, tmp_path / f"{model}.json")
    path = tmp_path / "problem.yaml"
    path.write_text("""schema: headrace.problem/1
cluster:
  devices: {T4: {price_per_hour: 0.35}}
  nodes: [{name: n, devices: {T4: 8}}]
apps:
  - name: traffic
    slo_ms: 400
    rate_rps: 60
    modules:
      detect: {profile: ssd.json}
      vehicle: {profile: cars.json, after: [detect], fan_out: 2.5}
      face: {profile: faces.json, after: [detect], fan_out: {mean: 1.2, distribution: poisson}}
options: {bill: fraction, max_batch: 8, time_limit_s: 600}
""")
    return path


def test_a_problem_file_names_modules_edges_and_fan_outs(problem_file: Path) -> None:
    problem = read_problem(problem_file)

    assert problem.apps == make_app_problem().apps
    assert problem.options == make_app_problem().options


def test_with_json_an_explanation_goes_beside_the_plan(
    problem_file: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    out = problem_file.with_name("plan.json")
    command = ["headrace", "plan", str(problem_file), "-o", str(out), "--explain", "--json"]
    monkeypatch.setattr(sys, "argv", command)

    with pytest.raises(SystemExit) as ended:
        cli.main()

    printed, beside = capsys.readouterr()
    assert ended.value.code == 0
    assert msgspec.json.decode(printed)["schema"] == "headrace.plan/1"
    assert "eats most of the budget" in beside


def test_modules_that_wait_for_each_other_are_refused() -> None:
    with pytest.raises(DocumentError, match="circle"):
        App(
            name="a",
            modules=(Module(name="x", model="m"), Module(name="y", model="m")),
            edges=(("x", "y"), ("y", "x")),
            slo_us=1,
            rate_rps=1.0,
        )


def test_weights_of_a_fan_out_must_have_its_mean() -> None:
    with pytest.raises(DocumentError, match="mean"):
        FanOut(mean=2.0, distribution="empirical", weights=(1.0, 1.0))


def test_an_explanation_names_what_eats_the_budget_and_the_next_saving() -> None:
    problem = make_app_problem(slo_ms=150.0)
    plan = solve(problem).plan
    assert plan is not None

    (reason,) = explain(plan, problem)

    assert reason.cost == pytest.approx(reason.least_cost)
    assert reason.eater == "detect"
    assert sum(module.cost_fraction for module in reason.modules) == pytest.approx(1.0)
    assert reason.next_saving_us is not None
    later = make_app_problem(slo_ms=(150_000 + reason.next_saving_us) / 1000)
    cheaper = solve(later).plan
    assert cheaper is not None
    assert plan.objective - cheaper.objective == pytest.approx(reason.next_saving)


def tight(planner: str) -> Problem:
    """Where dummy load of any amount is cheaper by an eighth."""
    problem = make_app_problem(planner, slo_ms=120.0)
    return replace(problem, apps=(replace(problem.apps[0], rate_rps=45.0),))


def test_an_explanation_says_what_any_amount_of_dummy_load_would_save() -> None:
    problem = tight("least-cost")
    plan, cheaper = solve(problem).plan, solve(tight("least-cost-dummy")).plan
    assert plan is not None
    assert cheaper is not None
    reason = explain(plan, problem)[0]

    assert reason.cost == reason.least_cost
    assert reason.least_cost_with_dummy == cheaper.objective < 0.9 * plan.objective


def test_of_a_plan_with_any_amount_of_dummy_load_a_millisecond_is_worth_a_new_plan() -> None:
    problem = tight("least-cost-dummy")
    longer = replace(problem, apps=(replace(problem.apps[0], slo_us=121_000),))
    plan, later = solve(problem).plan, solve(longer).plan
    assert plan is not None
    assert later is not None
    reason = explain(plan, problem)[0]

    assert reason.saved_by_1_ms == pytest.approx(plan.objective - later.objective)
    assert 0 < reason.saved_by_1_ms == reason.next_saving
    assert reason.next_saving_us == 1000


@pytest.mark.parametrize(("memory_bytes", "fits"), [(1_000, True), (999, False)])
def test_a_module_runs_where_its_weights_just_fit(memory_bytes: int, fits: bool) -> None:
    problem = make_app_problem()
    profiles = {
        model: replace(p, blocks=(replace(p.blocks[0], weights_bytes=1_000),))
        for model, p in problem.profiles.items()
    }
    kinds = tuple(replace(k, memory_bytes=memory_bytes) for k in problem.cluster.device_types)
    cluster = replace(problem.cluster, device_types=kinds)
    plan = solve(replace(problem, profiles=profiles, cluster=cluster)).plan
    assert (plan is not None) == fits


def test_a_machine_on_the_gateways_cores_carries_less_by_what_every_request_takes_of_them() -> None:
    problem = on_gateways_cores(make_app_problem(rate_rps=40), cores=40)
    plan = solve(problem).plan
    assert plan is not None
    assert max(p.batch_size for d in plan.deployments for p in d.pipelines) > 1
    assert verify(plan, problem.profiles) == []
