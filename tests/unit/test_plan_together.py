"""Apps and models in one problem, from its file to a simulated run; and what is refused."""

import json
import re
from pathlib import Path

import pytest
from msgspec.structs import replace

from headrace.catalog.documents import read_plan, read_problem
from headrace.catalog.problem_of_plan import problem_of
from headrace.commands.offer import offers_of
from headrace.dispatch.policies import policy_for
from headrace.domain.app import App, FanOut, Module
from headrace.domain.errors import DocumentError
from headrace.domain.problem import Problem
from headrace.planning import solve
from headrace.planning.together.cheapest import times_as_much
from headrace.planning.together.refusal import refuse_chains
from headrace.planning.together.steps import Costs
from headrace.simulation.apps.session import simulate_apps
from headrace.simulation.offered.arrivals import arrivals_for
from headrace.verify import verify
from helpers.apps import make_app_problem
from helpers.commands import Run, runner
from helpers.lengthy import with_lengthy
from helpers.problems import make_profile, unhurried
from helpers.together import SHARES, cluster_of, together_problem, write_together


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """Run the program in a folder with the problem; returns exit code and both outputs."""
    write_together(tmp_path)
    monkeypatch.setenv("COLUMNS", "120")
    monkeypatch.chdir(tmp_path)
    return runner(monkeypatch, capsys)


@pytest.fixture
def problem(tmp_path: Path) -> Problem:
    read = read_problem(write_together(tmp_path))
    return replace(read, options=unhurried(read.options))


def test_apps_and_models_are_planned_verified_and_simulated_as_one(run: Run) -> None:
    code, out, _ = run("plan", "problem.yaml", "-o", "plan.json", "--explain")
    assert code == 0
    assert "proven optimal among plans in which everything takes turns" in out
    assert "traffic.read" in out
    assert "large 0–" in out

    assert run("verify", "plan.json")[0] == 0
    plan = read_plan(Path("plan.json"))
    assert plan.planner == "shares"
    assert plan.objective == plan.bound == 4.5
    stages = {d.name: max(len(p.stages) for p in d.pipelines) for d in plan.deployments}
    assert stages.pop("large") > 1
    assert set(stages.values()) == {1}
    turns = [{tenant.pipeline.partition(".")[0] for tenant in slot.tenants} for slot in plan.slots]
    assert any({"traffic", "p0"} <= names for names in turns)
    assert policy_for(plan) == "reservation"

    code, out, err = run("simulate", "plan.json", "--arrivals", "uniform", "--json")
    assert code == 0
    assert "50 requests/s of rank (as the problem asks), 20 requests/s of large" in err
    found = json.loads(out)
    assert list(found["models"])[:3] == ["rank", "large", "traffic"]
    assert {
        name: each["slo_attainment"] for name, each in found["models"].items()
    } == dict.fromkeys(("rank", "large", "traffic", "traffic.detect", "traffic.read"), 1.0)
    assert found["total"]["arrived"] == sum(
        found["models"][name]["arrived"] for name in ("rank", "large", "traffic")
    )


def test_the_problem_of_a_plan_has_its_apps_and_its_models(problem: Problem) -> None:
    plan = solve(problem).plan
    assert plan is not None

    offers = offers_of(plan)
    assert {name: offer.asked_rps for name, offer in offers.items()} == {
        "rank": 50.0,
        "large": 20.0,
        "traffic": 25.0,
    }
    again = problem_of(
        plan, {name: offer.asked_rps or 0.0 for name, offer in offers.items()}, Path()
    )
    assert [model.name for model in again.models] == ["rank", "large"]
    assert [app.name for app in again.apps] == ["traffic"]


def test_a_model_beside_apps_keeps_its_own_deadline_and_priority(problem: Problem) -> None:
    plan = solve(problem).plan
    assert plan is not None
    arrivals = arrivals_for("poisson", {"rank": 20.0, "traffic": 10.0}, 5.0, 1)
    session = simulate_apps(plan, problem.profiles, arrivals, jitter=False)

    for outcome in session.outcomes["rank"]:
        assert outcome.deadline_at_us - outcome.arrived_at_us == 120_000
    for outcome in session.outcomes["traffic"]:
        assert outcome.deadline_at_us - outcome.arrived_at_us == 200_000
    assert len(session.outcomes["rank"]) + len(session.outcomes["traffic"]) == len(arrivals)


def test_what_cannot_share_is_refused_with_what_would_do(run: Run) -> None:
    text = Path("problem.yaml").read_text()

    def planned(old: str, new: str, *options: str) -> tuple[int, str]:
        Path("other.yaml").write_text(text.replace(old, new))
        code, _, err = run("plan", "other.yaml", "-o", "other.json", *options)
        return code, " ".join(err.split())

    code, said = planned("rate_rps: 25", "rate_rps: 2500")
    assert code == 3
    assert "the devices cannot carry the rates asked" in said
    assert re.search(r"has [\d.]+ rps of model 'rank', .* at once, 0\.[\d]+ times as much", said)

    code, said = planned("slo_ms: 200\n", "slo_ms: 20\n")
    assert code == 3
    assert "app 'traffic' cannot meet its SLO" in said
    assert "try an SLO of at least" in said

    code, said = planned("slo_ms: 200, rate_rps: 20", "slo_ms: 20, rate_rps: 20")
    assert code == 3
    assert "model 'large'" in said
    assert "nor cut into up to 3 stages" in said

    code, said = planned("", "", "--max-stages", "1")
    assert code == 3
    assert "'large' cannot run on any part of a 'gpu'" in said

    code, said = planned("", "", "--objective", "max-min")
    assert code == 2
    assert "--objective least-devices" in said

    code, said = planned("", "", "--planner", "least-cost")
    assert code == 2
    assert "models besides (rank, large)" in said
    assert "--planner shares" in said

    code, said = planned("", "", "--arrivals", "poisson")
    assert code == 2


def with_rates(problem: Problem, times: float) -> Problem:
    """So many times the rate of every model and app."""
    return replace(
        problem,
        demands=tuple(replace(d, rate_rps=times * (d.rate_rps or 0.0)) for d in problem.demands),
        apps=tuple(replace(app, rate_rps=times * app.rate_rps) for app in problem.apps),
    )


def test_no_part_of_the_rates_is_tried_in_which_a_module_has_no_rate() -> None:
    problem = make_app_problem(rate_rps=20.0)
    [app] = problem.apps
    rare = replace(app.modules[1], fan_out=FanOut(mean=0.01))
    problem = replace(problem, apps=(replace(app, modules=(app.modules[0], rare, app.modules[2])),))

    assert times_as_much(problem, 6e-6) is not None
    assert times_as_much(problem, 4e-6) is None


@pytest.mark.parametrize("times", with_lengthy([20.0, 4_000.0], lengthy=[20.0]))
@pytest.mark.parametrize("beside", [True, False], ids=["app", "models"])
def test_of_rates_that_are_too_high_a_part_is_named_that_is_then_planned(
    problem: Problem, times: float, beside: bool
) -> None:
    """`large` is cut, and several pipelines of it are named as one model."""
    if not beside:
        used = ("rank", "large")
        refs = tuple(ref for ref in problem.profile_refs if ref.model in used)
        profiles = {model: problem.profiles[model] for model in used}
        problem = replace(problem, apps=(), profiles=profiles, profile_refs=refs)
    much = with_rates(problem, times)
    result = solve(much)
    refusal = result.refusal or ""
    assert (result.plan, result.stopped) == (None, "infeasible")
    assert refusal.count(f"{20 * times:g} rps of model 'large'") == 1

    found = re.search(r"try    rates of ([\d.]+) times these", refusal)
    assert found, refusal
    less = solve(with_rates(much, float(found[1])))

    assert less.plan is not None
    assert verify(less.plan, problem.profiles) == []


def test_of_calls_that_come_at_once_the_rates_named_are_said_to_be_for_equal_gaps(
    problem: Problem,
) -> None:
    """A plan for them may be late, and is then refused."""
    app = problem.apps[0]
    first = replace(app.modules[0], fan_out=FanOut(mean=0.7, distribution="geometric"))
    one_each = [replace(module, fan_out=FanOut()) for module in app.modules]

    def refusal(*modules: Module) -> str:
        asked = replace(problem, apps=(replace(app, modules=modules),))
        return refuse_chains(Costs(asked), asked, "0.5", None, proven=True)

    assert "gaps" not in refusal(*one_each)
    said = refusal(first, *one_each[1:])
    assert re.search(r"0.5 times as much, with .*, calls at equal gaps\n", said)
    assert "rates of 0.5 times these, or less, as calls of one request come at once" in said


def test_a_model_of_the_least_rate_there_is_may_be_cut(problem: Problem) -> None:
    """In several pipelines each would have less than a rate may be."""
    demands = (problem.demands[0], replace(problem.demands[1], rate_rps=1e-6))
    assert solve(replace(problem, demands=demands)).plan is not None


def test_where_no_part_of_the_rates_is_carried_none_is_named(problem: Problem) -> None:
    refusal = refuse_chains(Costs(problem), problem, None, None, proven=True)
    assert "times" not in refusal
    assert "try    more devices, lower rates or longer SLOs" in refusal


@pytest.mark.parametrize(("beside", "devices"), [(True, 3), (False, 2)], ids=["app", "models"])
def test_weights_that_the_devices_cannot_hold_are_refused_with_what_they_need(
    problem: Problem, beside: bool, devices: int
) -> None:
    [node] = problem.cluster.nodes
    one = replace(problem.cluster, nodes=(replace(node, devices={"gpu": 1}),))
    heavy = replace(problem, cluster=one)
    used = {ref.model for ref in problem.profile_refs}
    if not beside:
        used -= {module.model for app in problem.apps for module in app.modules}
        refs = tuple(ref for ref in problem.profile_refs if ref.model in used)
        profiles = {model: problem.profiles[model] for model in used}
        heavy = replace(heavy, apps=(), profiles=profiles, profile_refs=refs)
    result = solve(heavy)
    assert (result.plan, result.stopped) == (None, "infeasible")
    refusal = result.refusal or ""
    total = sum(b.weights_bytes for model in used for b in problem.profiles[model].blocks)
    assert f"needs  {total:,} bytes, on {devices} devices at least: " in refusal
    assert "has    1 'gpu' of 3,000,000 bytes" in refusal
    assert "try    more devices, devices with more memory, or fewer models" in refusal


def test_the_named_slo_counts_with_the_margin_of_the_model(problem: Problem) -> None:
    margins = replace(problem.options, model_margins={"large": 0.1})

    def refused(slo_us: int) -> str:
        demands = (problem.demands[0], replace(problem.demands[1], slo_us=slo_us))
        return solve(replace(problem, options=margins, demands=demands)).refusal or ""

    found = re.search(r"an SLO of at least ([\d.]+) ms", refused(10_000))
    assert found
    named_us = round(float(found[1]) * 1000)

    assert "cannot meet its SLO" not in refused(named_us)
    assert "cannot meet its SLO" in refused(named_us - 110)


def test_an_app_and_a_model_of_one_name_are_refused(problem: Problem) -> None:
    [app] = problem.apps
    with pytest.raises(DocumentError, match="clients could not tell them apart"):
        replace(problem, apps=(replace(app, name="rank"),))


@pytest.mark.parametrize(
    ("one", "other", "both"),
    [
        ("ocr: fast", "ocr.fast: read", "module 'fast' of app 'ocr' and app 'ocr.fast'"),
        ("a.b: c", "a: b.c", "module 'c' of app 'a.b' and module 'b.c' of app 'a'"),
        ("ocr: fast", "ocr: read", "app 'ocr' and app 'ocr'"),
    ],
)
def test_two_apps_or_modules_of_one_name_are_refused(
    problem: Problem, one: str, other: str, both: str
) -> None:
    [app] = problem.apps

    def named(text: str) -> App:
        name, module = text.split(": ")
        return replace(app, name=name, modules=(replace(app.modules[0], name=module),), edges=())

    with pytest.raises(DocumentError, match=f"{both} are both named"):
        replace(problem, apps=(named(one), named(other)))


def test_a_search_that_ends_early_says_how_far_it_may_be_from_the_least(problem: Problem) -> None:
    hurried = replace(problem.options, time_limit_s=1e-3)
    result = solve(replace(problem, options=hurried))
    if result.plan is not None:
        assert result.plan.stopped == "time-limit"
        assert (result.plan.bound or 0.0) <= result.plan.objective
    else:
        assert result.stopped == "time-limit"
        assert "none is excluded" in (result.refusal or "")


def test_a_stage_that_was_given_two_turns_takes_one() -> None:
    """At batches of one, the larger half of `big` lies twice on devices that are there anyhow."""
    profiles = [
        make_profile(
            name,
            blocks=blocks,
            devices={"a": 1.0, "b": 0.6},
            shares=SHARES,
            block_us=block_us,
            cut_bytes=200_000,
            seed=seed,
        )
        for seed, (name, blocks, block_us) in enumerate((("big", 4, 2_000), ("small", 1, 3_000)))
    ]
    asked = together_problem(
        profiles,
        cluster_of({"b": 1}, {"b": 1.2}, 3_400_000, nodes=2, gbps=1.0),
        models={"big": (180_000, 25.0), "small": (60_000, 40.0)},
    )
    asked = replace(asked, options=replace(asked.options, max_batch=1, max_tenants=3))
    plan = solve(asked).plan

    assert plan is not None
    assert all(len(stage.pool) == 1 for stage in plan.deployments[0].pipelines[0].stages)
    assert verify(plan, asked.profiles) == []


def test_pipelines_of_a_model_alone_and_in_an_app_have_names_apart() -> None:
    """Of two with one name the slots' tenants say the same; a check then took one for the other."""
    problem = together_problem(
        [make_profile("rank"), make_profile("detect")],
        cluster_of({"a": 2}, {"a": 1.0}),
        models={"rank": (200_000, 10.0)},
        app=(200_000, 10.0),
    )
    (app,) = problem.apps
    app = replace(app, modules=(replace(app.modules[0], model="rank"),))
    refs = problem.profile_refs[:1]
    problem = replace(problem, apps=(app,), profiles={"rank": make_profile("rank")})
    problem = replace(problem, profile_refs=refs, options=unhurried(problem.options))
    plan = solve(problem).plan
    assert plan is not None
    assert verify(plan, problem.profiles) == []
    alone, module = plan.deployments
    (own,) = module.pipelines
    shared = alone.pipelines[0].name
    renamed = replace(module, pipelines=(replace(own, name=shared),))

    broken = replace(plan, deployments=(alone, renamed))

    (found,) = [one for one in verify(broken, problem.profiles) if one.check == "names"]
    assert (found.where, found.what) == ("model rank", f"name {shared!r}")
