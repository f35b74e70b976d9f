"""Profiles of a device of several cores, measured with as many threads."""

import os
from fractions import Fraction
from pathlib import Path

import pytest
from msgspec.structs import replace
from typer.testing import CliRunner

from headrace.cli import app
from headrace.domain.cluster import Cluster, DeviceType, Node
from headrace.domain.errors import DocumentError, ModelError, ProfileError
from headrace.domain.problem import Problem
from headrace.executors import mps
from headrace.profiling.core_counts import on_cores, parse_cores, with_cores
from headrace.profiling.options import ProfileOptions
from headrace.profiling.profiler import profile_model
from headrace.verify import verify
from helpers.fake_mps import without_mps
from helpers.onnx_models import chain_model, saved
from helpers.problems import make_plan, make_problem, make_profile

HALF, WHOLE = Fraction(1, 2), Fraction(1)

several = pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="needs two cores")


@several
def test_one_core_becomes_a_part_and_more_are_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HEADRACE_CACHE", str(tmp_path / "cache"))
    path = saved(chain_model(layers=4, width=64), tmp_path / "m.onnx")
    options = ProfileOptions(
        device="cpu", blocks=2, max_batch=3, budget_s=0.5, profile_folder=tmp_path
    )
    one = profile_model(path, options)
    both = with_cores(one, tmp_path, "cpu", (1, 2), 0.5)
    first = both.times("cpu", HALF)
    assert first is not None
    assert first.p50_us == one.block_times[0].p50_us
    whole = both.measured_stage("cpu", WHOLE, 0, 2)
    blocks = both.times("cpu", WHOLE)
    assert whole is not None
    assert blocks is not None
    assert len(whole.p50_us) == blocks.max_batch == 3
    assert "a cpu of 2 cores" in both.provenance.notes[-1]
    assert both.cores == {"cpu": 2}
    assert with_cores(one, tmp_path, "cpu", (), 0.5) == one


def of_cores(cores: int) -> Problem:
    """Of a device of so many cores, with a profile of `--cores 1,2`."""
    made = make_profile("m", devices={"cpu": 1.0}, shares=[HALF, WHOLE])
    kind = DeviceType(name="cpu", cores=cores, shares=(HALF, WHOLE))
    cluster = Cluster(device_types=(kind,), nodes=(Node(name="n", devices={"cpu": 1}),))
    return make_problem([replace(made, cores={"cpu": 2})], cluster=cluster)


@pytest.mark.parametrize("cores", [1, 4])
def test_shares_of_other_cores_than_were_measured_are_refused(cores: int) -> None:
    right = of_cores(2)
    plan = make_plan(right)
    assert verify(plan, right.profiles) == []

    said = f"(?s)needs     `cores: 2`.*has       `cores: {cores}`"
    with pytest.raises(DocumentError, match=said):
        of_cores(cores)
    kind = replace(plan.cluster.device_types[0], cores=cores)
    other = replace(plan, cluster=replace(plan.cluster, device_types=(kind,)))
    [found] = [each for each in verify(other, right.profiles) if each.check == "profiles"]
    assert (found.needed, found.available) == (str(cores), "2")


def test_a_profile_states_cores_of_devices_that_it_has_times_of() -> None:
    with pytest.raises(ProfileError, match="cores of 'gpu', which it has no times of"):
        replace(make_profile("m", devices={"cpu": 1.0}), cores={"gpu": 2})


@several
def test_cores_are_given_back() -> None:
    before = os.sched_getaffinity(0)
    with on_cores(1):
        assert len(os.sched_getaffinity(0)) == 1
    assert os.sched_getaffinity(0) == before


@pytest.mark.parametrize("text", ["0", "2", "one", "1,65", "1,", "-1"])
def test_what_is_no_number_of_cores_is_refused(text: str) -> None:
    with pytest.raises(ModelError, match="needs numbers of cores from 1 on"):
        parse_cores(text)


def test_more_cores_than_there_are_are_refused() -> None:
    here = len(os.sched_getaffinity(0))
    with pytest.raises(ModelError, match=f"and {here} are here"):
        parse_cores(f"1,{here + 1}")


def test_a_gpu_is_not_said_to_take_so_much_longer_on_a_part_as_a_core_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    without_mps(tmp_path, monkeypatch)
    monkeypatch.setattr(mps, "ELSEWHERE", tmp_path)
    path = saved(chain_model(layers=2, width=8), tmp_path / "m.onnx")
    asked = ["profile", str(path), "--device", "cuda", "--shares", "1/2"]
    with pytest.raises(ModelError, match="needs     NVIDIA's multi-process service"):
        CliRunner().invoke(app, asked, catch_exceptions=False)
