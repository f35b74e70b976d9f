"""Starts of models that are not in memory: in profiles, plans, and on the command line."""

import json
from fractions import Fraction
from pathlib import Path

import msgspec
import numpy as np
import pytest
from benchmarks.deepplan.every_choice import random_chain
from benchmarks.deepplan.profiles import profile_of
from msgspec.structs import replace
from typer.testing import CliRunner

from headrace.catalog.documents import read_plan, read_profile, write_document
from headrace.cli import app
from headrace.dispatch.topology import Topology
from headrace.domain.errors import DocumentError, PlanError, ProfileError
from headrace.domain.layers import Transfer
from headrace.planning.provisioning import planners
from headrace.planning.provisioning.exact import StartFound
from headrace.planning.provisioning.of_plan import with_starts
from headrace.planning.provisioning.pipeline import initial
from headrace.planning.provisioning.planners import NEED_HELPER, PLANNERS
from headrace.planning.provisioning.residency import plan_residency
from headrace.start_times import predicted_start
from headrace.starts import timeline
from headrace.verify import verify
from helpers.layers import with_layers
from helpers.problems import make_plan, make_problem, make_profile
from helpers.verified_plans import SHAPES

PROBLEM = """
schema: headrace.problem/1
models:
  - profile: gpt2.profile.json
    slo_ms: 200
cluster:
  devices:
    v100: {memory_bytes: 16000000000}
  nodes:
    - {name: n0, devices: {v100: 1}}
"""


@pytest.mark.parametrize("planner", PLANNERS)
def test_a_start_by_any_planner_is_what_verification_counts_out(planner: str) -> None:
    problem = make_problem([with_layers(make_profile())])
    problem = replace(problem, options=replace(problem.options, provision=planner))

    plan = with_starts(make_plan(problem), problem)

    assert verify(plan, problem.profiles) == []
    (deployment,) = plan.deployments
    assert deployment.start is not None
    assert deployment.start.planner == planner
    assert any(group.helper for group in deployment.start.transfers) <= (planner in NEED_HELPER)


def test_the_large_table_stays_on_the_host_and_a_start_is_many_times_sooner() -> None:
    problem = make_problem([with_layers(make_profile())])

    def start_us(planner: str) -> int:
        asked = replace(problem, options=replace(problem.options, provision=planner))
        start = with_starts(make_plan(problem), asked).deployments[0].start
        assert start is not None
        assert (0 in start.host) == (planner != "on-demand")
        return start.start_us

    assert 2 * start_us("exact") < start_us("on-demand")


def test_a_plan_that_starts_layer_by_layer_is_not_run_as_if_it_did_not() -> None:
    planned = SHAPES["started"]()

    with pytest.raises(PlanError, match=r"models come and go\n  try"):
        Topology.from_plan(planned.plan, planned.profiles)


@pytest.mark.parametrize("planner", ["on-demand", "pipeswitch", "exact", "exact+pt"])
def test_a_start_is_later_by_what_opening_its_model_takes(planner: str) -> None:
    opened = with_layers(make_profile())
    at_once = replace(
        opened,
        layer_times=tuple(replace(t, open_p50_us=0, open_p99_us=0) for t in opened.layer_times),
    )
    later, now = (plan_residency(each, each.layer_times[0], planner) for each in (opened, at_once))
    told, before = predicted_start(later, opened), predicted_start(now, at_once)

    assert later.start_us - now.start_us == 1_100
    assert (later.host, later.transfers) == (now.host, now.transfers)
    assert (later.bound_us or 1_100) - (now.bound_us or 0) == 1_100
    assert told.alone_us - before.alone_us == told.load_us - before.load_us == 700
    assert told.exec_us == before.exec_us
    # Nothing runs before it is open, whenever its copies are there.
    assert told.last_us >= told.exec_us + 700


def test_exact_takes_a_published_start_where_the_search_found_no_better(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    chain = random_chain(np.random.default_rng(3), 12)
    worst = initial(chain)
    found = StartFound(choice=worst, total_us=timeline(chain, worst).total_us, bound_us=0)
    monkeypatch.setattr(planners, "soonest_start", lambda *_, **__: found)
    for name, published in (("exact", "deepplan"), ("exact+pt", "deepplan+pt")):
        start = PLANNERS[name](chain)
        assert start.total_us <= PLANNERS[published](chain).total_us < found.total_us
        assert start.total_us == timeline(chain, start.choice).total_us
        assert start.bound_us == 0


def test_a_model_without_layer_times_is_refused_by_name() -> None:
    problem = make_problem()
    problem = replace(problem, options=replace(problem.options, provision="exact"))

    with pytest.raises(DocumentError, match=r"model 'm' runs on 1 of a 'a', and its profile has"):
        with_starts(make_plan(problem), problem)


def test_a_planner_of_starts_that_there_is_not_names_those_that_there_are() -> None:
    problem = make_problem([with_layers(make_profile())])
    problem = replace(problem, options=replace(problem.options, provision="magic"))

    with pytest.raises(DocumentError, match=r"no planner of starts is named 'magic'; there are on"):
        with_starts(make_plan(problem), problem)


def test_a_second_device_needs_figures_of_one() -> None:
    profile = with_layers(make_profile())
    alone = tuple(replace(times, forward_us=()) for times in profile.layer_times)
    problem = make_problem([replace(profile, layer_times=alone)])
    problem = replace(problem, options=replace(problem.options, provision="exact+pt"))

    with pytest.raises(ProfileError, match="has no forward_us"):
        with_starts(make_plan(problem), problem)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"load_p99_us": (0,) * 8}, "layer 0 needs 0 <= saved <= load p50 <= p99"),
        ({"host_p50_us": (9_999,) * 8}, "layer 0 needs 0 <= p50 <= p99"),
        ({"saved_us": (9_001,) * 8}, "layer 0 needs 0 <= saved"),
        ({"inside_p50_us": (1,)}, "not one figure of each kind per layer"),
        ({"forward_us": (1,)}, "not one forward_us per layer"),
        ({"batch_size": 0}, "batch size below 1"),
        ({"open_p50_us": 1_101}, "opening it needs 0 <= p50 <= p99"),
    ],
)
def test_layer_times_that_cannot_be_are_refused(change: dict[str, object], says: str) -> None:
    (times, _) = with_layers(make_profile()).layer_times

    with pytest.raises(ProfileError, match=says):
        replace(times, **change)


def test_layers_and_their_times_fit_each_other() -> None:
    profile = with_layers(make_profile())

    with pytest.raises(ProfileError, match="layers without times"):
        replace(profile, layer_times=())
    with pytest.raises(ProfileError, match="8 timed layers on a 1 at batch size 1, but 7 layers"):
        replace(profile, layers=profile.layers[1:])
    with pytest.raises(ProfileError, match="timed twice on a 1"):
        replace(profile, layer_times=profile.layer_times[:1] * 2)
    with pytest.raises(ProfileError, match="a transfer needs a layer"):
        Transfer(layers=())


def test_a_start_is_planned_verified_explained_and_not_simulated(tmp_path: Path) -> None:
    write_document(profile_of("gpt2"), tmp_path / "gpt2.profile.json")
    (tmp_path / "problem.yaml").write_text(PROBLEM)
    plan_path = tmp_path / "plan.json"
    run = CliRunner().invoke

    planned = run(
        app,
        [
            "plan",
            f"{tmp_path}/problem.yaml",
            "-o",
            str(plan_path),
            *"--provision exact --explain".split(),
        ],
    )
    verified = run(app, ["verify", str(plan_path)])
    simulated = run(app, ["simulate", str(plan_path), "--duration-s", "1"])

    assert planned.exit_code == 0, planned.output
    assert "33.3" in planned.output
    assert "tokens" in planned.output
    assert verified.exit_code == 0, verified.output
    assert isinstance(simulated.exception, PlanError)
    assert "come and go" in str(simulated.exception)
    start = read_plan(plan_path).deployments[0].start
    assert start is not None
    assert start.bound_us == start.start_us
    assert start.share == Fraction(1)


def test_profiles_with_layers_survive_the_file(tmp_path: Path) -> None:
    profile = profile_of("resnet50")
    write_document(profile, tmp_path / "r.json")

    assert read_profile(tmp_path / "r.json") == profile
    assert "layers" in json.loads((tmp_path / "r.json").read_text())
    assert msgspec.structs.replace(profile, layers=(), layer_times=()) != profile
