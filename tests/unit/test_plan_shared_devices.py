"""`headrace plan` for devices that models share, from the problem file to the verified plan."""

import json
import re
from pathlib import Path

import pytest
from msgspec.structs import replace

from headrace.catalog.documents import read_plan, write_document
from headrace.catalog.problem_of_plan import problem_of
from headrace.domain.plan import Plan
from headrace.planning import solve
from headrace.verify import verify
from helpers.commands import Run, runner
from helpers.problems import make_profile
from helpers.shared import SPLIT_SHARES, make_interference, shared_problem, with_utilisation

PROBLEM = """
schema: headrace.problem/1
cluster:
  devices:
    gpu:
      shares: ["1", "4/5", "3/5", "1/2", "2/5", "1/5"]
      splits: [["1"], ["1/2", "1/2"], ["3/5", "2/5"], ["4/5", "1/5"]]
      price_per_hour: 0.5
  nodes: [{name: server, devices: {gpu: 2}}]
interference: [gpu.interference.json]
models:
  - {profile: detect.profile.json, slo_ms: 200, rate_rps: 30}
  - {profile: read.profile.json, slo_ms: 300, rate_rps: 25}
  - {profile: rank.profile.json, slo_ms: 250, rate_rps: 20}
options: {planner: gpulet+int, objective: least-devices, margin: 0}
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for seed, model in enumerate(("detect", "read", "rank")):
        profile = make_profile(
            model, blocks=2, devices={"gpu": 1.0}, shares=SPLIT_SHARES, max_batch=8, seed=seed
        )
        write_document(with_utilisation(profile, 0.6, 0.5), tmp_path / f"{model}.profile.json")
    write_document(make_interference(), tmp_path / "gpu.interference.json")
    (tmp_path / "problem.yaml").write_text(PROBLEM)
    return tmp_path


@pytest.fixture
def run(folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """Run the program in the folder; returns exit code, standard output, standard error."""
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.chdir(folder)
    return runner(monkeypatch, capsys)


def edited(folder: Path, old: str, new: str) -> None:
    text = (folder / "problem.yaml").read_text()
    assert old in text
    (folder / "problem.yaml").write_text(text.replace(old, new, 1))


def planned(folder: Path) -> Plan:
    return read_plan(folder / "plan.json")


def test_a_plan_of_shared_devices_is_written_verified_and_explained(run: Run, folder: Path) -> None:
    code, out, err = run("plan", "problem.yaml", "--explain")

    assert code == 0, err
    assert "one batch of each tenant every so many ms" in out
    assert "devices, part by part" in out
    assert "devices used: " in out
    plan = planned(folder)
    assert plan.interference[0].device == "gpu"
    assert all(slot.duty_us for slot in plan.slots)
    assert run("verify", "plan.json")[0] == 0


def test_a_shared_plan_whose_duty_cycle_was_edited_is_refused(run: Run, folder: Path) -> None:
    run("plan", "problem.yaml")
    document = json.loads((folder / "plan.json").read_text())
    document["slots"][0]["duty_us"] //= 3
    (folder / "plan.json").write_text(json.dumps(document))

    code, out, _ = run("verify", "plan.json", "--json")

    assert code == 4
    broken = [each["what"] for each in json.loads(out)["violations"]]
    assert any("exceed its duty cycle" in what for what in broken), broken


def test_a_split_beyond_the_device_is_refused_with_its_sum(run: Run, folder: Path) -> None:
    edited(folder, '["3/5", "2/5"]', '["3/5", "1/2"]')
    code, _, err = run("plan", "problem.yaml")
    assert code == 2
    assert "split [3/5, 1/2]: needs 11/10 of a device, and there is 1" in err


def test_a_part_that_is_no_share_is_refused_with_the_shares(run: Run, folder: Path) -> None:
    edited(folder, '["3/5", "2/5"]', '["3/5", "1/3"]')
    code, _, err = run("plan", "problem.yaml")
    assert code == 2
    assert "part 1/3 is none of the device's shares, which are 1, 4/5" in err


def test_interference_of_another_device_type_is_refused(run: Run, folder: Path) -> None:
    write_document(make_interference("a100"), folder / "gpu.interference.json")
    code, _, err = run("plan", "problem.yaml")
    assert code == 2
    assert "of device type 'a100', which is not there" in err
    assert "expected  one of gpu" in err


def test_rates_that_nothing_carries_are_refused_with_rates_that_would_be(run: Run) -> None:
    code, _, err = run("plan", "problem.yaml", "--planner", "sbp", "--max-tenants", "1")
    assert code == 3
    assert "sbp finds no part for" in err
    assert "--planner shares, which" in err


def test_shares_is_advised_with_an_objective_that_it_knows(run: Run) -> None:
    asked = ("--max-tenants", "1", "--objective", "throughput")
    code, _, err = run("plan", "problem.yaml", "--planner", "sbp", *asked)
    assert code == 3
    assert "--planner shares --objective max-min" in " ".join(err.split())
    code, _, err = run("plan", "problem.yaml", "--planner", "shares", "--objective", "max-min")
    assert code in (0, 3)  # no usage error


def test_a_plan_of_shared_devices_can_be_planned_anew_from_itself(run: Run, folder: Path) -> None:
    run("plan", "problem.yaml", "--max-tenants", "3")
    plan = planned(folder)

    again = problem_of(plan, {"detect": 0.4, "read": 0.3, "rank": 0.3}, folder)

    assert again.interference == plan.interference
    assert again.cluster.devices["gpu"].splits == plan.cluster.device_types[0].splits
    assert again.options.max_tenants == 3


def test_explaining_pipelines_is_refused_before_they_are_planned(
    run: Run, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    edited(folder, "interference: [gpu.interference.json]\n", "")
    splits = '      splits: [["1"], ["1/2", "1/2"], ["3/5", "2/5"], ["4/5", "1/5"]]\n'
    edited(folder, splits, "")
    edited(folder, "planner: gpulet+int, objective: least-devices", "planner: pooled")
    monkeypatch.setattr("headrace.planning.solve", lambda _problem: pytest.fail("it plans"))

    code, _, err = run("plan", "problem.yaml", "--explain")

    assert code == 2
    assert "planner 'pooled' makes none of them" in " ".join(err.split())
    assert not (folder / "plan.json").exists()


def test_a_bill_is_refused_where_there_are_no_apps(run: Run, folder: Path) -> None:
    code, _, err = run("plan", "problem.yaml", "--bill", "devices")

    assert code == 2
    assert "--planner shares --objective least-cost" in " ".join(err.split())


MANY = """
schema: headrace.problem/1
cluster: {devices: {cpu: {}}, nodes: [{name: local, devices: {cpu: 1}}]}
options: {planner: shares, margin: 0}
models:
"""


def many(folder: Path, models: int, rate: str = "") -> None:
    """A problem of equal small models on one core."""
    lines = []
    for name in (f"m{i}" for i in range(models)):
        write_document(make_profile(name, devices={"cpu": 1.0}), folder / f"{name}.profile.json")
        lines.append(f"  - {{profile: {name}.profile.json, slo_ms: 2000{rate}}}\n")
    (folder / "problem.yaml").write_text(MANY + "".join(lines))


@pytest.mark.parametrize("rate", [", rate_rps: 3", ""])
def test_more_models_than_take_turns_by_habit_share_one_core(
    run: Run, folder: Path, rate: str
) -> None:
    many(folder, 8, rate)

    code, _, err = run("plan", "problem.yaml")

    assert code == 0, err
    plan = planned(folder)
    assert plan.stopped == "optimal"
    assert [len(slot.tenants) for slot in plan.slots] == [8]
    assert run("verify", "plan.json")[0] == 0


@pytest.mark.parametrize("seed", [0, 2, 4, 10])
def test_a_new_bound_below_what_was_to_be_asked_next_ends_no_search(seed: int) -> None:
    problem = shared_problem("shares", seed=seed, models=3, devices=1)
    weighed = tuple(
        replace(demand, rate_rps=None, weight=weight)
        for demand, weight in zip(problem.demands, (1.0, 4.0, 4.0), strict=True)
    )
    options = replace(problem.options, objective="max-min")
    problem = replace(problem, demands=weighed, options=options)

    result = solve(problem)

    assert result.stopped == "optimal"
    assert result.plan is not None
    assert verify(result.plan, problem.profiles) == []


def test_models_that_may_not_take_turns_so_often_are_refused_at_once(
    run: Run, folder: Path
) -> None:
    many(folder, 4)

    code, _, err = run("plan", "problem.yaml", "--max-tenants", "3")

    assert code == 3
    assert "the devices are too few to serve every model" in err
    assert "needs  parts for 4 models" in err
    assert "at most 3 models on a part" in err
    assert "a larger max_tenants" in err


def test_rates_beyond_the_devices_are_refused_with_rates_that_hold(run: Run, folder: Path) -> None:
    edited(folder, "interference: [gpu.interference.json]\n", "")
    edited(folder, "rate_rps: 30", "rate_rps: 3000")
    code, _, err = run("plan", "problem.yaml", "--planner", "shares")
    assert code == 3
    found = re.search(r"try    rates of ([\d.]+) times these", err)
    assert found, err

    text = (folder / "problem.yaml").read_text()
    less = re.sub(r"rate_rps: (\d+)", lambda m: f"rate_rps: {int(m[1]) * float(found[1]):g}", text)
    (folder / "problem.yaml").write_text(less)

    assert run("plan", "problem.yaml", "--planner", "shares")[0] == 0


def test_a_model_larger_than_a_device_is_refused_with_both_sizes(run: Run, folder: Path) -> None:
    edited(folder, "price_per_hour: 0.5", "memory_bytes: 1000")
    code, _, err = run("plan", "problem.yaml", "--planner", "shares")
    assert code == 3
    assert "model 'detect' cannot run on any part of a 'gpu'" in err
    assert re.search(r"needs  .*[\d,]+ bytes for its weights", err)
    assert "has    1,000 bytes per gpu" in err


def test_an_slo_that_no_part_keeps_is_refused_with_one_that_would_do(
    run: Run, folder: Path
) -> None:
    edited(folder, "slo_ms: 200", "slo_ms: 2")
    code, _, err = run("plan", "problem.yaml", "--planner", "shares")
    assert code == 3
    found = re.search(r"try    an SLO of at least ([\d.]+) ms", err)
    assert found, err

    edited(folder, "slo_ms: 2,", f"slo_ms: {found[1]},")
    edited(folder, "rate_rps: 30", "rate_rps: 0.1")

    assert "cannot meet its SLO" not in run("plan", "problem.yaml", "--planner", "shares")[2]
