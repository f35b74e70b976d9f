"""Stages of one model whose weights are one file: once by content, the same answers, made once."""

import os
import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

from headrace.catalog.shared_stages import shared_stages, sound_stages
from headrace.catalog.shared_weights import WEIGHTS, SharedWeightsMaker, is_shared
from headrace.catalog.stage_files import stage_path
from headrace.domain.errors import ModelError
from headrace.domain.profile import Profile
from headrace.executors.onnx_session import open_session
from headrace.executors.onnx_shared import MAKER
from helpers.onnx_models import chain_model, saved, saved_beside
from helpers.served import profile_by_hand
from helpers.served_items import convolutions, network_profile

RANGES = {(0, 4), (0, 2), (2, 4), (1, 3)}


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEADRACE_CACHE", str(tmp_path / "cache"))


@pytest.fixture
def network(tmp_path: Path) -> Profile:
    return network_profile(saved(convolutions(), tmp_path / "net.onnx"))


def test_weights_of_all_ranges_are_there_once_and_answers_are_the_same(
    tmp_path: Path, network: Profile
) -> None:
    found = shared_stages(network, tmp_path, RANGES, MAKER)
    assert found is not None
    assert found.keys() == RANGES
    assert len({stage.weights for stage in found.values()}) == 1
    # The product's matrix, by far the largest, as it was and as its kernel reads it; not per stage.
    matrix_bytes = 8 * 16 * 16 * 10 * 4
    assert found[0, 4].weights.size_bytes < 4 * matrix_bytes
    rng = np.random.default_rng(0)
    for blocks, stage in found.items():
        assert is_shared(stage.weights)
        assert Path(stage.path).stat().st_size < matrix_bytes
        shared = open_session(stage.path, stage.weights, mapped=True)
        alone = open_session(stage_path(network, tmp_path, *blocks))
        (given,) = alone.get_inputs()
        rows = rng.standard_normal((3, *given.shape[1:])).astype(np.float32)
        answers = [session.run(None, {given.name: rows})[0] for session in (alone, shared)]
        np.testing.assert_allclose(answers[0], answers[1], rtol=1e-5, atol=1e-6)
    # They are made once, and told apart from what takes their place.
    again = shared_stages(network, tmp_path, RANGES, MAKER)
    assert again == found
    weights = Path(found[0, 4].weights.folder) / WEIGHTS
    weights.write_bytes(weights.read_bytes()[:-1])
    with pytest.raises(ModelError, match="has changed since the model was read"):
        open_session(found[0, 4].path, found[0, 4].weights, mapped=True)
    os.unlink(weights)
    with pytest.raises(ModelError, match=WEIGHTS):
        shared_stages(network, tmp_path, RANGES, MAKER)


def test_an_entry_that_is_damaged_is_made_anew(tmp_path: Path, network: Profile) -> None:
    made = sound_stages(network, tmp_path, RANGES, MAKER)
    assert made is not None
    weights = Path(made[0, 4].weights.folder) / WEIGHTS
    content = weights.read_bytes()
    weights.write_bytes(bytes(len(content)))

    again = sound_stages(network, tmp_path, RANGES, MAKER)

    assert again is not None
    assert weights.read_bytes() == content
    assert again[0, 4].weights != made[0, 4].weights


def test_models_that_cannot_be_saved_so_are_served_from_a_file_per_stage(
    tmp_path: Path, network: Profile, caplog: pytest.LogCaptureFixture
) -> None:
    broken = SharedWeightsMaker(module="headrace.no_such_module", distributions=("onnxruntime",))
    assert shared_stages(network, tmp_path, RANGES, broken) is None
    assert "every worker holds its own copies" in caplog.text
    assert not list((tmp_path / "cache" / "shared").glob("*/*"))


def test_weights_in_files_of_their_own_stay_there(tmp_path: Path) -> None:
    path = saved_beside(chain_model(layers=2, width=16), tmp_path / "m.onnx")
    profile = profile_by_hand(["h0", "y"], 1, 1_000, "cpu", path)
    assert profile.weights_files
    assert shared_stages(profile, tmp_path, {(0, 2)}, MAKER) is None


@contextmanager
def files_of_at_most(size_bytes: int) -> Iterator[None]:
    """What a full disk is to a process and its children: nothing longer is written."""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size_bytes, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)


@pytest.mark.parametrize("part", [1.1, 0.5], ids=["the file for all", "a stage as optimised"])
def test_a_model_that_finds_no_room_is_refused_instead_of_served_unprepared(
    tmp_path: Path, network: Profile, part: float
) -> None:
    stage_bytes = stage_path(network, tmp_path, 0, 4).stat().st_size
    with (
        files_of_at_most(round(part * stage_bytes)),
        pytest.raises(ModelError, match=r"cannot be written: File too large; make room there"),
    ):
        shared_stages(network, tmp_path, {(0, 4)}, MAKER)
    assert not list((tmp_path / "cache" / "shared").glob("*/*"))
    assert shared_stages(network, tmp_path, {(0, 4)}, MAKER) is not None
