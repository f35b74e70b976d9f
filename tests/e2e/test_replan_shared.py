"""A server of shared devices: planned anew for a higher rate by itself, and moved by `migrate`."""

import json
import signal
from fractions import Fraction
from functools import partial
from pathlib import Path

import msgspec
import pytest

from headrace.catalog.documents import plan_profiles, read_plan, read_problem, write_document
from headrace.catalog.event_log import read_event_log
from headrace.domain.epochs import EpochLog, joined
from headrace.domain.plan import Plan
from headrace.metrics import outcomes
from headrace.planning import solve
from headrace.verify import verify
from helpers.gateway import post
from helpers.live_server import serving
from helpers.migrating import another_serves, ask_once, calling, ended_with_copy, migrate
from helpers.served import UNHURRIED_US, WIDTH, profile_by_hand
from helpers.waiting import wait_until

pytestmark = [pytest.mark.e2e, pytest.mark.lengthy]

PLANNED_RPS = 1.0
"""Two clients ask many times as often, on a slow machine too."""
BATCH_US = 2_000
PROBLEM = """\
schema: headrace.problem/1
cluster:
  devices: {{gpu: {{shares: [1, 1/2], splits: [[1], [1/2, 1/2]]}}}}
  nodes: [{{name: local, devices: {{gpu: 2}}}}]
models:
  - {{profile: a.profile.json, slo_ms: {slo_ms}, rate_rps: {rate_rps}}}
  - {{profile: b.profile.json, slo_ms: {slo_ms}, rate_rps: {rate_rps}}}
options: {{planner: shares, objective: least-devices}}
"""
EMULATED = ("--executor", "emulated", "--processes", "1")


def write_shared_plan(folder: Path, name: str, rate_rps: float) -> Path:
    for model in ("a", "b"):
        profile = msgspec.structs.replace(profile_by_hand(["y"], 4, BATCH_US, "gpu"), model=model)
        [whole] = profile.block_times
        half = msgspec.structs.replace(whole, share=Fraction(1, 2))
        profile = msgspec.structs.replace(profile, block_times=(whole, half))
        write_document(profile, folder / f"{model}.profile.json")
    text = PROBLEM.format(slo_ms=UNHURRIED_US / 1000, rate_rps=rate_rps)
    (folder / "problem.yaml").write_text(text)
    plan = solve(read_problem(folder / "problem.yaml")).plan
    assert plan is not None
    write_document(plan, folder / name)
    return folder / name


def request_for(model: str) -> bytes:
    rows = {"name": "x", "shape": [1, WIDTH], "datatype": "FP32", "data": list(range(WIDTH))}
    return post(f"/v2/models/{model}/infer", json.dumps({"inputs": [rows]}).encode())


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    return {"XDG_CONFIG_HOME": str(tmp_path), "HEADRACE_CACHE": str(tmp_path / "cache")}


def logged(folder: Path, plans: int) -> dict[str, int]:
    """Model -> requests that ended, in the logs of so many plans."""
    names = ["run.events", *(f"run.{number}.events" for number in range(2, plans + 1))]
    found = outcomes(*joined([EpochLog(*read_event_log(folder / name)) for name in names]))
    assert all(each.ended_at_us is not None for rows in found.values() for each in rows)
    return {model: len(rows) for model, rows in found.items()}


def devices_of(plan: Plan) -> int:
    return len({slot.device_index for slot in plan.slots})


def test_a_higher_rate_gets_a_plan_of_shared_devices_for_it_and_no_request_is_lost(
    tmp_path: Path, environment: dict[str, str]
) -> None:
    path = write_shared_plan(tmp_path, "plan.json", PLANNED_RPS)
    assert max(len(slot.tenants) for slot in read_plan(path).slots) == 2
    replan = ("--replan", "--replan-period-s", "2", "--replan-headroom", "0.5")
    events = ("--events", str(tmp_path / "run.events"))
    with serving(path, *EMULATED, *replan, *events, environment=environment) as server:
        with calling(server, request_for("a")) as statuses:
            wait_until(partial(another_serves, server), "no other plan came into service")
        errors = ended_with_copy(server, tmp_path / "plan.replanned.json")
    assert "the request rates have changed" in errors

    made = read_plan(tmp_path / "plan.replanned.json")
    assert verify(made, plan_profiles(made, tmp_path / "plan.replanned.json")) == []
    rates = {demand.model: demand.rate_rps for demand in made.demands}
    assert rates["a"] is not None
    assert rates["a"] > 2 * PLANNED_RPS
    assert rates["b"] == PLANNED_RPS  # nobody has asked for it
    assert (made.planner, made.options.objective) == ("shares", "least-devices")

    assert set(statuses) == {200}
    plans = 1 + len(list(tmp_path.glob("run.*.events")))
    assert logged(tmp_path, plans)["a"] == len(statuses)


def test_migrate_moves_between_plans_of_shared_devices_and_no_request_is_lost(
    tmp_path: Path, environment: dict[str, str]
) -> None:
    few = write_shared_plan(tmp_path, "few.json", PLANNED_RPS)
    many = write_shared_plan(tmp_path, "many.json", 2_500.0)
    assert devices_of(read_plan(few)) == 1
    assert devices_of(read_plan(many)) == 2
    events = ("--events", str(tmp_path / "run.events"))
    with serving(few, *EMULATED, *events, environment=environment) as server:
        with (
            calling(server, request_for("a"), clients=1) as of_a,
            calling(server, request_for("b"), clients=1) as of_b,
        ):
            there, back = migrate(many, server), migrate(few, server)
            both = [ask_once(server, request_for(model)).status for model in ("a", "b")]
        server.signal(signal.SIGTERM)
        code, errors = server.wait()
    assert code == 0, errors
    assert (there.returncode, back.returncode) == (0, 0), there.stderr + back.stderr
    assert json.loads(there.stdout)["how"] == "drain"
    assert "Traceback" not in errors
    assert {*of_a, *of_b, *both} == {200}
    assert logged(tmp_path, 3) == {"a": len(of_a) + 1, "b": len(of_b) + 1}
