"""A rehearsal and the gateway's time, measured with real servers and workers."""

import tempfile
from pathlib import Path

import pytest

from headrace.catalog.event_log import read_event_log
from headrace.commands.kept_rehearsal import kept_rehearsal, rehearsal_paths
from headrace.commands.rehearsing import run_rehearsal
from headrace.domain.events import Ran
from headrace.load.child_server import child_server
from headrace.load.gateway_cost import measure_gateway
from helpers.live_server import family, write_plan
from helpers.onnx_models import chain_model, saved
from helpers.served import profile_by_hand, served_add_one

pytestmark = pytest.mark.e2e


def test_a_rehearsal_runs_every_stage_and_is_kept_beside_the_plan(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    plan = write_plan(served_add_one(tmp_path, slots=2), tmp_path)

    # A thousand requests: the plan promises half a million, more than any load is made of.
    found = run_rehearsal(plan, [], duration_s=1.0, load_factor=0.002)

    assert len(found.stages) == 1
    assert found.offered_rps.keys() == found.attainment.keys() == {"m"}
    assert kept_rehearsal(plan) == found
    _, events = read_event_log(rehearsal_paths(plan)[1])
    everything = sum(isinstance(event, Ran) for event in events)
    assert 0 < found.stages[0].batches < everything, "those of the full rate"


def test_a_server_of_ones_own_needs_no_folder_of_the_user(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither a service account's home nor a long way to temporary files hinders it."""
    long = tmp_path / ("t" * 90)
    long.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(long))
    plan = write_plan(served_add_one(tmp_path, slots=1), tmp_path)
    nowhere = dict.fromkeys(("HOME", "XDG_CONFIG_HOME", "XDG_RUNTIME_DIR"), "/dev/null")

    arguments = ("--executor", "emulated", "--no-auth")
    with child_server(plan, *arguments, environment=nowhere) as server:
        assert len(family(server.pid)) == 2, "itself and its worker"


@pytest.mark.lengthy
def test_what_the_gateway_takes_is_measured_on_a_server_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    profile = served_add_one(tmp_path, slots=1).profiles["m"]

    found = measure_gateway(profile, "cpu", step_s=0.1)

    assert min(found) >= 1


@pytest.mark.lengthy
def test_beside_a_slot_counts_what_the_worker_takes_beyond_its_profile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A thousand layers take a millisecond or more, where 4 us are profiled."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    chain = saved(chain_model(1_000), tmp_path / "m.onnx")
    profile = profile_by_hand(["y"], 1, 4, "cpu", chain)

    waits = measure_gateway(profile, "cpu", step_s=0.1)
    runs = measure_gateway(profile, "cpu", tmp_path, step_s=0.1)

    assert runs.shared_us > 2 * waits.shared_us
    assert runs.alone_us < 2 * waits.alone_us
