"""What a model moves, counted from its graph, as parts of what a core can move."""

from fractions import Fraction
from pathlib import Path

import msgspec
import pytest

from headrace.domain.errors import ModelError
from headrace.domain.profile import Profile
from headrace.profiling.options import ProfileOptions
from headrace.profiling.profiler import profile_model
from headrace.profiling.utilisation import (
    CACHE_BYTES_PER_US,
    MEMORY_BYTES_PER_US,
    batch_traffic,
    with_utilisation,
)
from helpers.onnx_models import chain_model, saved

WIDTH, LAYERS = 256, 3
MATRIX_BYTES = 4 * WIDTH * WIDTH


@pytest.fixture
def profile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Profile:
    monkeypatch.setenv("HEADRACE_CACHE", str(tmp_path / "cache"))
    model = saved(chain_model(layers=LAYERS, width=WIDTH), tmp_path / "chain.onnx")
    options = ProfileOptions(
        blocks=1, max_batch=2, stages="none", budget_s=0.02, profile_folder=tmp_path
    )
    return profile_model(model, options)


def test_every_kernel_reads_its_weights_and_input_and_writes_its_output(
    profile: Profile, tmp_path: Path
) -> None:
    one, two = batch_traffic(profile, tmp_path, 2)

    # A matrix product and its activation are two kernels here, so a layer's result is written,
    # read, and written again; each layer but the first reads it once more.
    row = 4 * WIDTH
    per_layer = 4 * row
    assert one.moved_bytes == LAYERS * (MATRIX_BYTES + per_layer)
    assert two.moved_bytes == one.moved_bytes + LAYERS * per_layer
    # Three matrices of 256 kB stay in the cache, and rows do.
    assert one.beyond_bytes == two.beyond_bytes == 0


def test_weights_beyond_the_cache_are_read_from_memory_by_every_batch(
    profile: Profile, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("headrace.profiling.utilisation.CACHE_BYTES", 2 * MATRIX_BYTES)

    one, two = batch_traffic(profile, tmp_path, 2)

    assert one.beyond_bytes == two.beyond_bytes == LAYERS * MATRIX_BYTES


def test_it_is_bytes_over_time_over_what_a_core_moves(
    profile: Profile, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("headrace.profiling.utilisation.CACHE_BYTES", 0)
    slow = msgspec.structs.replace(
        profile,
        block_times=(
            msgspec.structs.replace(
                profile.block_times[0], p50_us=((1_000, 2_000),), p99_us=((1_000, 2_000),)
            ),
        ),
    )
    one, two = batch_traffic(slow, tmp_path, 2)

    [used] = with_utilisation(slow, tmp_path, "cpu").utilisation

    assert (used.device, used.share, used.batch_sizes) == ("cpu", Fraction(1), (1, 2))
    assert used.l2 == pytest.approx(
        [
            one.moved_bytes / 1_000 / CACHE_BYTES_PER_US,
            two.moved_bytes / 2_000 / CACHE_BYTES_PER_US,
        ],
        abs=1e-6,
    )
    assert used.dram == pytest.approx(
        [each.moved_bytes / us / MEMORY_BYTES_PER_US for each, us in ((one, 1_000), (two, 2_000))],
        abs=1e-6,
    )
    assert with_utilisation(
        msgspec.structs.replace(slow, utilisation=(used,)), tmp_path, "cpu"
    ).utilisation == (used,)


def test_another_model_than_the_profiled_one_is_refused(profile: Profile, tmp_path: Path) -> None:
    saved(chain_model(layers=LAYERS, width=WIDTH, seed=9), tmp_path / "chain.onnx")

    with pytest.raises(ModelError, match="is not the model that was profiled"):
        with_utilisation(profile, tmp_path, "cpu")


def test_a_profile_without_a_model_cannot_be_counted(profile: Profile, tmp_path: Path) -> None:
    unknown = msgspec.structs.replace(profile, model_path=None, model_sha256=None)

    with pytest.raises(ModelError, match="names no model file"):
        with_utilisation(unknown, tmp_path, "cpu")
