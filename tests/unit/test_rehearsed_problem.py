"""What a rehearsal measured, as a problem to plan anew."""

from collections.abc import Mapping
from fractions import Fraction
from pathlib import Path

import pytest
from msgspec.structs import replace
from typer.testing import CliRunner

from headrace.catalog.documents import (
    plan_profiles,
    read_plan,
    read_problem,
    sha256_file,
    write_document,
)
from headrace.cli import app as cli
from headrace.commands.rehearse import write_rehearsed_problem
from headrace.domain.plan import Plan
from headrace.domain.problem import HeadroomFor
from headrace.domain.profile import Profile
from headrace.planning import solve
from headrace.profiling.levels import Level, at_levels
from headrace.reporting.rehearsal import (
    Rehearsal,
    RehearsedCode,
    RehearsedStage,
    code_contradictions,
    code_table,
)
from headrace.reporting.rehearsed_problem import rehearsed_profiles
from headrace.verify import verify
from helpers.apps import write_app_plan
from helpers.live_server import write_plan
from helpers.problems import make_plan, make_problem, make_profile
from helpers.served import served_chain

WHOLE = Fraction(1)


def stage(model: str, pipeline: str, level: float | None) -> RehearsedStage:
    return RehearsedStage(
        model=model,
        pipeline=pipeline,
        stage=0,
        batch_size=1,
        batches=50,
        predicted_p50_us=1_000,
        predicted_p99_us=1_000,
        level_p50=level,
        level_p99=None if level is None else 2 * level,
    )


def code(module: str | None, p99_us: int) -> RehearsedCode:
    return RehearsedCode(
        app="traffic", module=module, requests=50, calls=1.0, p50_us=p99_us // 2, p99_us=p99_us
    )


def rehearsal(stages: tuple[RehearsedStage, ...], own: tuple[RehearsedCode, ...] = ()) -> Rehearsal:
    return Rehearsal(
        plan_sha256="", offered_rps={}, attainment={}, stages=stages, code=own, contradictions=()
    )


def test_a_profile_at_a_level_has_longer_times_where_it_was_measured_and_never_shorter() -> None:
    profile = make_profile("m", blocks=2, devices={"a": 1.0, "b": 2.0}, max_batch=2)
    slower = at_levels(profile, lambda device, share: Level(1.5, 4.0) if device == "a" else None)
    quicker = at_levels(profile, lambda device, share: Level(0.5, 0.5))

    before, after = profile.times("a", WHOLE), slower.times("a", WHOLE)
    assert before is not None
    assert after is not None
    assert after.p50_us[0][0] == round(1.5 * before.p50_us[0][0])
    assert after.p99_us[0][0] == 4 * before.p50_us[0][0]
    assert slower.times("b", WHOLE) == profile.times("b", WHOLE)
    assert quicker == profile


def planned() -> tuple[Plan, Mapping[str, Profile]]:
    profiles = [make_profile(name, devices={"a": 1.0, "b": 2.0}) for name in ("m", "n")]
    problem = make_problem(profiles, nodes={"n0": {"a": 2}}, slo_us=300_000)
    return make_plan(problem), problem.profiles


def medians_us(profile: Profile, device: str) -> int:
    times = profile.times(device, WHOLE)
    assert times is not None
    return times.p50_us[0][0]


def test_what_was_not_rehearsed_is_no_quicker_than_its_neighbours() -> None:
    plan, profiles = planned()
    (pipeline,) = plan.deployments[0].pipelines
    found = rehearsed_profiles(plan, profiles, rehearsal((stage("m", pipeline.name, 2.0),)))

    for model in ("m", "n"):
        assert medians_us(found[model], "a") == 2 * medians_us(profiles[model], "a")
        # No device of that type ran anything.
        assert medians_us(found[model], "b") == medians_us(profiles[model], "b")


def test_too_few_batches_leave_the_profile_as_it_is() -> None:
    plan, profiles = planned()
    (pipeline,) = plan.deployments[0].pipelines

    assert rehearsed_profiles(plan, profiles, rehearsal((stage("m", pipeline.name, None),))) == (
        dict(profiles)
    )


def test_the_problem_that_a_rehearsal_writes_is_planned_with_what_it_measured(
    tmp_path: Path,
) -> None:
    path = write_app_plan(tmp_path, "plan.json", slo_ms=400.0)
    plan = read_plan(path)
    first = plan.deployments[0]
    found = rehearsal(
        (stage(first.name, first.pipelines[0].name, 1.2),),
        (code("vehicle", 30_000), code(None, 5_000)),
    )
    out = tmp_path / "elsewhere" / "again.json"
    out.parent.mkdir()
    write_rehearsed_problem(path, found, out)
    problem = read_problem(out)

    (app,) = problem.apps
    assert {m.name: m.code_us for m in app.modules} == {"detect": 0, "vehicle": 30_000, "face": 0}
    assert app.code_us == 5_000
    assert app.rate_rps == plan.apps[0].app.rate_rps
    result = solve(problem).plan
    assert result is not None
    assert verify(result, problem.profiles) == []
    assert result.apps[0].budget_us == plan.apps[0].budget_us - 35_000
    before = plan_profiles(plan, path)
    device = first.pipelines[0].stages[0].device
    assert medians_us(problem.profiles["ssd"], device) == round(
        1.2 * medians_us(before["ssd"], device)
    )


def test_the_rates_and_weights_of_models_are_kept(tmp_path: Path) -> None:
    profiles = [make_profile(name) for name in ("m", "n")]
    problem = make_problem(
        profiles,
        nodes={"n0": {"a": 2}},
        slo_us=300_000,
        weights={"m": 3.0, "n": 1.0},
        rates={"n": 2.0},
    )
    refs = []
    for ref in problem.profile_refs:
        write_document(problem.profiles[ref.model], tmp_path / f"{ref.model}.json")
        refs.append(
            replace(
                ref, path=f"{ref.model}.json", sha256=sha256_file(tmp_path / f"{ref.model}.json")
            )
        )
    plan = replace(make_plan(problem), profiles=tuple(refs))
    write_document(plan, tmp_path / "plan.json")

    write_rehearsed_problem(tmp_path / "plan.json", rehearsal(()), tmp_path / "again.json")

    assert read_problem(tmp_path / "again.json").demands == problem.demands


def test_a_model_that_is_a_link_is_named_by_the_link(tmp_path: Path) -> None:
    """Its weights lie beside the link, not beside the file that the link leads to."""
    path = write_plan(served_chain(tmp_path), tmp_path)
    model, kept = tmp_path / "m.onnx", tmp_path / "kept" / "4f1a"
    kept.parent.mkdir()
    model.rename(kept)
    model.symlink_to(kept)

    write_rehearsed_problem(path, rehearsal(()), tmp_path / "again.json")

    assert read_problem(tmp_path / "again.json").profiles["m"].model_path == str(model)


def test_a_plan_may_be_rehearsed_and_made_anew_again_and_again(tmp_path: Path) -> None:
    """To one problem file, as the documents say; all plans of before stay what they are."""
    paths = [write_app_plan(tmp_path, "plan.json", slo_ms=400.0)]
    out = tmp_path / "rehearsed.json"
    for number in range(3):
        before = read_plan(paths[-1])
        first = before.deployments[0]
        found = rehearsal((stage(first.name, first.pipelines[0].name, 1.05),))
        write_rehearsed_problem(paths[-1], found, out)
        problem = read_problem(out)
        plan = solve(problem).plan
        assert plan is not None
        paths.append(tmp_path / f"plan{number}.json")
        write_document(replace(plan, profiles=problem.profile_refs), paths[-1])

    device = first.pipelines[0].stages[0].device
    medians = [
        medians_us(plan_profiles(read_plan(path), path)[first.model], device) for path in paths
    ]
    assert medians == sorted(set(medians))


def test_the_command_that_comes_next_asks_for_the_room_that_was_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The problem that is written has not what was chosen for the times before."""
    path, out = write_app_plan(tmp_path, "plan.json", slo_ms=400.0), tmp_path / "again.json"
    plan = read_plan(path)
    room = HeadroomFor(arrivals="poisson", attainment=0.95, margin=0.0)
    write_document(replace(plan, options=replace(plan.options, headroom_for=room)), path)
    monkeypatch.setattr("headrace.commands.rehearse.run_rehearsal", lambda *given: rehearsal(()))
    done = CliRunner().invoke(cli, ["rehearse", str(path), "--out", str(out)])
    assert done.exit_code == 0, done.output
    asked = "--arrivals poisson --attainment 0.95"
    assert f"headrace plan {out} -o {path} {asked}" in done.output


def test_an_app_whose_code_does_not_fit_beside_its_modules_is_contradicted(tmp_path: Path) -> None:
    plan = read_plan(write_app_plan(tmp_path, "plan.json", slo_ms=400.0))
    (claim,) = plan.apps
    left_us = claim.app.slo_us - claim.worst_case_us

    assert code_contradictions(plan, [code("vehicle", left_us)]) == ()
    (found,) = code_contradictions(plan, [code("vehicle", left_us), code(None, 10_000)])
    assert "traffic: its own code does not fit beside its modules" in found
    assert "has    400 ms" in found


@pytest.mark.parametrize("module", ["vehicle", None])
def test_the_table_names_what_waited(module: str | None) -> None:
    assert len(code_table([code(module, 1_000)]).rows) == 1
