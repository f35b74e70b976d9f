"""`headrace import ppipe` on an artifact of one model, written by hand."""

import json
from fractions import Fraction
from pathlib import Path

import pytest
from benchmarks.ppipe.reference import plan_files
from typer.testing import CliRunner

from headrace.catalog.documents import plan_profiles, read_plan, read_problem, read_profile
from headrace.catalog.ppipe.artifact import read_reference_plan
from headrace.catalog.ppipe.problem import write_problem
from headrace.catalog.ppipe.profiles import read_artifact_profile
from headrace.catalog.ppipe.rule import devices_used, evaluate
from headrace.cli import app
from headrace.domain.errors import DocumentError
from headrace.verify import verify
from helpers.artifact_plans import make_reference, write_artifact

DATE = "2026-01-01T00:00:00Z"
HALF = Fraction(1, 2)


def run_import(artifact: Path, plan: Path, out: Path) -> dict[str, object]:
    arguments = ["import", "ppipe", "--artifact", str(artifact), "--plan", str(plan)]
    done = CliRunner().invoke(app, [*arguments, "-o", str(out), "--json"])
    assert done.exit_code == 0, done.output
    found: dict[str, object] = json.loads(done.stdout)
    return found


def test_numbers_survive_the_import(tmp_path: Path) -> None:
    plan = write_artifact(tmp_path / "a")

    found = run_import(tmp_path / "a", plan, tmp_path / "out")

    # 3 slots of half an L1 at 4 ms: 750 rps; 1 H1 at 1 ms and its link at 1 ms: 1,000 rps. Both
    # L1 of a server share its link, 1,000 rps / 2 GPUs / 2 slots: 250 rps a slot.
    assert found["stated_objective"] == found["objective_by_artifact_rule"] == 750.0
    assert found["objective"] == 750.0
    assert found["refused"] == []


def test_what_is_imported_is_verified_and_reads_back(tmp_path: Path) -> None:
    out = tmp_path / "out"
    run_import(tmp_path / "a", write_artifact(tmp_path / "a"), out)

    plan, problem = read_plan(out / "plan.json"), read_problem(out / "problem.yaml")

    assert verify(plan, plan_profiles(plan, out / "plan.json")) == []
    assert problem.demands == plan.demands
    assert problem.options.margin == 0.4
    assert [demand.slo_us for demand in problem.demands] == [20_000]
    assert read_profile(out / "profiles" / "m.json").provenance.kind == "imported"


def test_servers_have_the_stated_gpus_and_the_last_one_what_is_left(tmp_path: Path) -> None:
    out = tmp_path / "out"
    run_import(tmp_path / "a", write_artifact(tmp_path / "a"), out)

    nodes = read_problem(out / "problem.yaml").cluster.nodes

    assert [node.devices for node in nodes] == [{"H1": 1}, {"H1": 1}, {"L1": 2}, {"L1": 1}]
    assert {node.bandwidth_gbps for node in nodes} == {8.0}


def test_a_problem_file_that_is_written_again_is_another_file_that_readers_of_the_old_keep(
    tmp_path: Path,
) -> None:
    path, read = tmp_path / "problem.yaml", tmp_path / "read.yaml"
    path.write_text("old")
    read.hardlink_to(path)
    write_problem(make_reference([("L", HALF, 2)], per_server={"L": 2}), path)
    assert read.read_text() == "old"
    assert path.read_text().startswith("# From PPipe's public artifact")


def test_a_plan_that_does_not_fit_the_devices_is_refused_and_not_written(tmp_path: Path) -> None:
    plan = write_artifact(tmp_path / "a", low_gpus=3.5)

    found = run_import(tmp_path / "a", plan, tmp_path / "out")

    assert found["refused"] == ["its slots need 4 whole L1, and there are 3"]
    assert found["faults_by_artifact_rule"] == ["4 L1, but 3 there"]
    assert not (tmp_path / "out" / "plan.json").exists()


def test_a_plan_that_breaks_our_rules_is_marked_as_unverified(tmp_path: Path) -> None:
    plan = write_artifact(tmp_path / "a")
    entries = json.loads(plan.read_text())
    entries[0]["sla"], entries[0]["config"]["hist_adjustment"] = 8_000.0, 3_200
    plan.write_text(json.dumps(entries))

    found = run_import(tmp_path / "a", plan, tmp_path / "out")

    assert any("exceeds the latency budget" in str(v) for v in found["refused"])  # type: ignore[attr-defined]
    assert (tmp_path / "out" / "plan.unverified.json").exists()
    assert not (tmp_path / "out" / "plan.json").exists()


def test_a_plan_that_is_not_utf_8_is_refused(tmp_path: Path) -> None:
    plan = write_artifact(tmp_path)
    plan.write_bytes(b'[{"config": {"gpu_name_arr": ["\xe9"]}}]')

    with pytest.raises(DocumentError, match="is not a plan of PPipe's artifact"):
        read_reference_plan(plan)


def test_fractions_are_added_per_position_and_rounded_up() -> None:
    partitions = [("L", HALF, 3), ("L", HALF, 1)]

    assert devices_used(make_reference(partitions, per_server={"L": 2})) == {"L": 2 + 1}


def test_building_a_batch_is_charged(tmp_path: Path) -> None:
    plan = write_artifact(tmp_path)
    entries = json.loads(plan.read_text())
    for partition in entries[0]["pipelines"][0]["partitions"]:
        partition["bs"] = 2
    entries[0]["config"]["est_xput"] = 1e6
    plan.write_text(json.dumps(entries))
    profiles = {"m": read_artifact_profile(tmp_path, "m", date=DATE)}

    # 2 + 8 ms of inference and 2 of transfer are exactly the budget of 12.0005 ms.
    assert evaluate(read_reference_plan(plan), profiles).faults == (
        "m: 12001.30 us exceed 12000.50 us",
    )


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"mps": 0, "num_gpu": 1.4}, "not a whole number of slots"),
        ({"bs": 3}, "batch sizes"),
        ({"lat_infer": "fast"}, "not a plan"),
    ],
)
def test_a_broken_plan_is_refused(tmp_path: Path, change: dict[str, object], message: str) -> None:
    plan = write_artifact(tmp_path)
    entries = json.loads(plan.read_text())
    entries[0]["pipelines"][0]["partitions"][0].update(change)
    plan.write_text(json.dumps(entries))

    with pytest.raises(DocumentError, match=message):
        read_reference_plan(plan)


def test_a_file_with_another_name_is_refused(tmp_path: Path) -> None:
    plan = write_artifact(tmp_path)

    with pytest.raises(DocumentError, match="not named like a plan"):
        read_reference_plan(plan.rename(plan.with_name("plan.json")))


def test_plans_are_found_by_algorithm(tmp_path: Path) -> None:
    plan = write_artifact(tmp_path)

    assert plan_files(tmp_path, "maf19", ["v4"]) == [plan]
    with pytest.raises(DocumentError, match="no plan by bl"):
        plan_files(tmp_path, "maf19", ["bl"])


def test_cuts_and_timings_must_agree(tmp_path: Path) -> None:
    write_artifact(tmp_path)
    cuts = next((tmp_path / "data" / "prepartition_mappings" / "m").iterdir())
    cuts.write_text("1\n2\n")

    with pytest.raises(DocumentError, match="2 timed blocks on H1, but 2 cuts"):
        read_artifact_profile(tmp_path, "m", date=DATE)
