"""What is planned anew is the plan's own problem with other loads."""

import os
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from msgspec.structs import replace
from typer.testing import CliRunner

from headrace.catalog.documents import read_plan, read_problem, write_document
from headrace.catalog.problem_of_plan import write_problem
from headrace.cli import app
from headrace.commands.replanning import plan_command
from headrace.domain.app import App, FanOut, Module
from headrace.domain.errors import DocumentError
from headrace.domain.plan import Plan
from headrace.domain.problem import HeadroomFor, Items, PlanOptions, Problem
from headrace.planning import solve
from headrace.serving.changes.plan_watch import planned_loads
from headrace.simulation.even import choose_margins
from headrace.simulation.margin import choose_margin
from helpers.apps import make_app_problem, write_app_plan
from helpers.live_server import write_plan
from helpers.problems import make_problem, make_profile
from helpers.served import served_chain


def again(plan: Plan, folder: Path, rates: dict[str, float] | None = None) -> Problem:
    """The problem as the planner's process reads it; written beside another plan's files."""
    path = folder / "elsewhere" / "again.json"
    path.parent.mkdir(exist_ok=True)
    write_problem(plan, rates or planned_loads(plan), folder, path)
    return read_problem(path)


def test_the_problem_of_a_plan_of_models_has_its_cluster_options_and_demands(
    tmp_path: Path,
) -> None:
    plan = read_plan(write_plan(served_chain(tmp_path, pools=(1, 1)), tmp_path))
    plan = replace(
        plan,
        demands=tuple(
            replace(demand, version=4, priority=2, items=Items(mean=4)) for demand in plan.demands
        ),
    )
    problem = again(plan, tmp_path)
    assert problem.cluster == plan.cluster
    assert problem.options == plan.options
    assert problem.demands == plan.demands
    assert [Path(ref.path).is_absolute() for ref in problem.profile_refs] == [True]


def test_a_profile_that_is_a_link_is_named_by_the_link(tmp_path: Path) -> None:
    """Its model lies beside the link, and tomorrow the link may lead to another."""
    plan = read_plan(write_plan(served_chain(tmp_path, pools=(1, 1)), tmp_path))
    profile = tmp_path / plan.profiles[0].path
    (tmp_path / "kept").mkdir()
    profile.rename(tmp_path / "kept" / "today.json")
    profile.symlink_to("kept/today.json")
    assert [ref.path for ref in again(plan, tmp_path).profile_refs] == [str(profile)]


def test_a_folder_that_no_document_can_name_is_named_by_the_refusal(tmp_path: Path) -> None:
    plan = read_plan(write_plan(served_chain(tmp_path, pools=(1, 1)), tmp_path))
    folder = Path(os.fsdecode(b"/caf\xe9"))
    with pytest.raises(DocumentError, match="which cannot be written as UTF-8") as raised:
        write_problem(plan, planned_loads(plan), folder, tmp_path / "again.json")
    assert repr(f"{folder}/{plan.profiles[0].path}") in str(raised.value)
    assert not (tmp_path / "again.json").exists()


@pytest.mark.parametrize(
    ("asked_for", "named"), [("m.json", "../asked/m.json"), ("link/../m.json", "../kept/m.json")]
)
def test_a_profile_that_is_a_link_keeps_its_name_in_a_plan_in_another_folder(
    tmp_path: Path, asked_for: str, named: str
) -> None:
    """Of a folder that is a link, `..` is not the folder that the link lies in."""
    kept, asked, made = (tmp_path / name for name in ("kept/today", "asked", "made"))
    for folder in (kept, asked, made):
        folder.mkdir(parents=True)
    for seed, folder in enumerate((kept, kept.parent)):
        profile = make_profile("m", devices={"cpu": 1.0}, seed=seed)
        write_document(profile, folder / "m.json")
    (asked / "m.json").symlink_to(kept / "m.json")
    (asked / "link").symlink_to(kept)
    (asked / "problem.yaml").write_text(
        "schema: headrace.problem/1\n"
        "cluster: {devices: {cpu: {}}, nodes: [{name: local, devices: {cpu: 1}}]}\n"
        f"models: [{{profile: {asked_for}, slo_ms: 2000}}]\n"
    )
    planned("plan", str(asked / "problem.yaml"), "-o", str(made / "plan.json"))
    [ref] = read_plan(made / "plan.json").profiles
    assert ref.path == named
    assert (made / ref.path).samefile(asked / asked_for)


def with_files(problem: Problem, folder: Path) -> Problem:
    for ref in problem.profile_refs:
        write_document(problem.profiles[ref.model], folder / ref.path)
    return problem


def two_models(folder: Path) -> Problem:
    profiles = [make_profile("m", max_batch=2), make_profile("n", seed=1, max_batch=2)]
    return with_files(make_problem(profiles, slo_us=60_000), folder)


@pytest.mark.parametrize(
    ("stated", "expected"),
    [
        ({"m": 20.0, "n": None}, {"m": 20.0, "n": None}),
        ({"m": 20.0, "n": 40.0}, {"m": 15.0, "n": 45.0}),
        ({"m": None, "n": None}, {"m": None, "n": None}),
    ],
)
def test_a_rate_that_only_some_models_state_stays_and_rates_of_all_follow_the_shares(
    tmp_path: Path, stated: dict[str, float | None], expected: dict[str, float | None]
) -> None:
    plan = solve(two_models(tmp_path)).plan
    assert plan is not None
    demands = tuple(replace(each, rate_rps=stated[each.model]) for each in plan.demands)
    read = again(replace(plan, demands=demands), tmp_path, {"m": 0.25, "n": 0.75})
    assert {each.model: each.rate_rps for each in read.demands} == expected
    assert {each.model: each.weight for each in read.demands} == {"m": 0.25, "n": 0.75}


def test_the_problem_of_an_unchanged_plan_of_apps_gives_an_equal_plan(tmp_path: Path) -> None:
    plan = read_plan(write_app_plan(tmp_path, "plan.json", 250.0, rate_rps=73.25))
    problem = again(plan, tmp_path)
    found = solve(problem).plan
    assert found is not None
    # Paths are resolved, and no two runs take the same time.
    assert replace(found, profiles=plan.profiles, runtime_s=plan.runtime_s) == plan
    assert [ref.sha256 for ref in problem.profile_refs] == [ref.sha256 for ref in plan.profiles]


def diamond(problem: Problem, names: Sequence[str]) -> App:
    """Every kind of fan-out, a join, and modules that are not in the order of their names."""
    fan_outs = (
        FanOut(),
        FanOut(mean=2.5, distribution="poisson"),
        FanOut(mean=1.5, distribution="geometric"),
        FanOut(mean=0.75, distribution="empirical", weights=(1.0, 3.0)),
    )
    models = [*problem.profiles, "ssd"]
    first, left, right, last = names
    return App(
        name="diamond",
        modules=tuple(
            Module(name=name, model=model, fan_out=fan_out)
            for name, model, fan_out in zip(names, models, fan_outs, strict=True)
        ),
        edges=((first, left), (first, right), (left, last), (right, last)),
        slo_us=812_345,
        rate_rps=7.125,
        priority=3,
        version=6,
    )


def test_apps_keep_modules_fan_outs_edges_objectives_and_priorities(tmp_path: Path) -> None:
    write_app_plan(tmp_path, "plan.json", 400.0)
    problem = make_app_problem()
    apps = (diamond(problem, ("d", "c", "b", "a")), *problem.apps)
    plan = solve(replace(problem, apps=apps)).plan
    assert plan is not None
    read = again(plan, tmp_path, {"diamond": 14.25, "traffic": 60.0})
    assert read.apps == (replace(apps[0], rate_rps=14.25), apps[1])
    assert read.cluster == plan.cluster
    assert [kind.name for kind in read.cluster.device_types] == ["T4", "A100"]


@pytest.mark.parametrize("asked", [{"max_batch": 4}, {"margin": 0.2}, {"planner": "harpagon"}])
def test_options_that_were_asked_for_are_kept(tmp_path: Path, asked: dict[str, object]) -> None:
    plan = read_plan(write_app_plan(tmp_path, "plan.json", 400.0))
    plan = replace(plan, options=replace(plan.options, **asked))
    assert again(plan, tmp_path).options == plan.options


def planned(*arguments: str) -> None:
    done = CliRunner().invoke(app, arguments)
    assert done.exit_code == 0, done.output


def test_head_room_is_chosen_anew_for_what_it_was_chosen_for(tmp_path: Path) -> None:
    """`headrace plan`, and again from what its plan says of the problem: the plans are equal."""
    write_app_plan(tmp_path, "uniform.json", 150.0)
    first, second = tmp_path / "first.json", tmp_path / "second.json"
    problem, anew = tmp_path / "problem.json", tmp_path / "again.json"
    write_problem(read_plan(tmp_path / "uniform.json"), {"traffic": 60.0}, tmp_path, problem)
    room = ("--arrivals", "gamma:2", "--attainment", "0.95", "--margin", "0.05")
    planned("plan", str(problem), "-o", str(first), *room)
    plan = read_plan(first)
    assert plan.options.rate_headroom > 0
    assert plan.options.headroom_for == HeadroomFor(
        arrivals="gamma:2", attainment=0.95, margin=0.05
    )
    write_problem(plan, {"traffic": 60.0}, tmp_path, anew)
    assert read_problem(anew).options.margin == 0.05
    assert read_problem(anew).options.rate_headroom == 0.0
    planned(*plan_command(plan.options, anew, second))
    assert replace(read_plan(second), runtime_s=plan.runtime_s) == plan


def choose_one(problem: Problem) -> Plan:
    one = replace(problem, demands=problem.demands[:1])
    return choose_margin(one, attainment=0.95, margins=(0.1, 0.3)).plan


def choose_each(problem: Problem) -> Plan:
    """Model m carries half of what is planned of it."""

    def carry(plan: Plan, seed: int) -> dict[str, float]:
        planned = {each.model: each.throughput_rps for each in plan.deployments}
        return {**planned, "m": planned["m"] / 2}

    return choose_margins(problem, attainment=0.95, margins=(0.1, 0.3), carry=carry).plan


def choose_room(problem: Problem) -> Plan:
    options = replace(problem.options, planner="shares", objective="least-devices")
    demands = tuple(replace(demand, rate_rps=5.0) for demand in problem.demands)
    return choose_margin(replace(problem, demands=demands, options=options), attainment=0.95).plan


@pytest.mark.parametrize("choose", [choose_one, choose_each, choose_room])
def test_margins_are_chosen_anew_for_what_they_were_chosen_for(
    tmp_path: Path, choose: Callable[[Problem], Plan]
) -> None:
    problem = two_models(tmp_path)
    asked = {"margin": 0.25, "model_margins": {"m": 0.15}, "carried_parts": {"m": 0.8}}
    problem = replace(problem, options=replace(problem.options, **asked))
    plan = choose(problem)
    assert plan.options.margin != 0.25
    read = again(plan, tmp_path).options
    assert {name: getattr(read, name) for name in asked} == asked
    assert (read.link_parts, read.rate_headroom, read.margin_for) == ({}, 0.0, None)
    command = plan_command(plan.options, Path("problem.json"), Path("plan.json"))
    assert command[-4:] == ["--margin", "auto", "--attainment", "0.95"]


def test_a_plan_with_a_chosen_margin_is_planned_again_as_it_was(tmp_path: Path) -> None:
    first, second = tmp_path / "first.json", tmp_path / "second.json"
    problem, anew = tmp_path / "problem.json", tmp_path / "again.json"
    one = solve(make_problem([make_profile(max_batch=2)], nodes={"n0": {"a": 1}})).plan
    assert one is not None
    with_files(make_problem([make_profile(max_batch=2)]), tmp_path)
    write_problem(one, {"m": 1.0}, tmp_path, problem)
    planned("plan", str(problem), "-o", str(first), "--margin", "auto", "--attainment", "0.9")
    plan = read_plan(first)
    write_problem(plan, {"m": 1.0}, tmp_path, anew)
    planned(*plan_command(plan.options, anew, second))
    assert replace(read_plan(second), runtime_s=plan.runtime_s) == plan


def test_worst_cases_are_kept_anew(tmp_path: Path) -> None:
    path = write_app_plan(tmp_path, "plan.json", 400.0)
    plan = read_plan(path)
    options = replace(plan.options, module_headroom={"traffic.face": 0.5})
    assert again(replace(plan, options=options), tmp_path).options == plan.options


def test_plans_that_do_not_say_what_their_head_room_is_for_are_planned_as_they_are() -> None:
    problem, target = Path("problem.json"), Path("plan.json")
    old = PlanOptions(arrivals="poisson", margin=0.2)
    assert plan_command(old, problem, target)[-2:] == ["--arrivals", "poisson"]
    chosen = PlanOptions(margin=0.2, margin_reason="simulated")
    assert plan_command(chosen, problem, target)[-2:] == ["-o", "plan.json"]
    assert plan_command(PlanOptions(), problem, target)[-2:] == ["-o", "plan.json"]


def test_room_for_requests_at_equal_gaps_is_looked_for_unasked(tmp_path: Path) -> None:
    """`headrace plan` takes no attainment without arrivals of another kind."""
    plan = read_plan(write_app_plan(tmp_path, "plan.json", 400.0))
    room = HeadroomFor(arrivals="uniform", attainment=0.99, margin=0.1)
    options = replace(plan.options, margin=0.3, headroom_for=room)
    problem, target = tmp_path / "again.json", tmp_path / "new.json"
    write_problem(replace(plan, options=options), planned_loads(plan), tmp_path, problem)
    planned(*plan_command(options, problem, target))
    assert read_plan(target).options.margin == 0.1
