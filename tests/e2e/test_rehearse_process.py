"""A rehearsal and the gateway's time, measured with real servers and workers."""

from pathlib import Path

import pytest

from headrace.catalog.event_log import read_event_log
from headrace.commands.rehearse import kept_rehearsal, rehearsal_paths, run_rehearsal
from headrace.load.gateway_cost import measure_gateway
from helpers.live_server import write_plan
from helpers.served import served_add_one

pytestmark = pytest.mark.e2e


def test_a_rehearsal_runs_every_stage_and_is_kept_beside_the_plan(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    plan = write_plan(served_add_one(tmp_path, slots=2), tmp_path)

    # A thousand requests: the plan promises half a million, more than any load is made of.
    found = run_rehearsal(plan, [], duration_s=1.0, load_factor=0.002)

    assert [stage.batches > 0 for stage in found.stages] == [True]
    assert found.offered_rps.keys() == found.attainment.keys() == {"m"}
    assert kept_rehearsal(plan) == found
    assert read_event_log(rehearsal_paths(plan)[1])[1]


def test_what_the_gateway_takes_is_measured_on_a_server_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    profile = served_add_one(tmp_path, slots=1).profiles["m"]

    found = measure_gateway(profile, "cpu", step_s=0.1)

    assert min(found) >= 1
